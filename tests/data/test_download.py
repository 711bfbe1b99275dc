"""Downloads by name, from a real server on this machine: whole, or one sentence."""

import functools
import hashlib
import io
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from im3f_jax.cli import main
from im3f_jax.data import download, sources
from im3f_jax.data.movielens import load_ratings
from im3f_jax.data.titles import load_titles
from im3f_jax.errors import InputError

RATINGS = b"".join(b"%d\t7\t3\t%d\n" % (user, 3 * user) for user in range(20_000))
LICENCE = b"the licence of the data\n"


def archive(ratings=RATINGS, **kwargs):
    """Pack a small ml-100k.zip, stored so that its length is that of its content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **kwargs) as file:
        file.writestr(zipfile.ZipInfo("ml-100k/u.data"), ratings)
        file.writestr(zipfile.ZipInfo("ml-100k/README"), LICENCE)
    return buffer.getvalue()


ARCHIVE = archive()


class Server(ThreadingHTTPServer):
    """A server of one file, with the ways to misbehave that the tests need."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.etag = ARCHIVE, '"one"'
        self.knows_ranges = True
        self.sends = None  # bytes of an answer before the connection breaks off
        self.resets = False  # breaks off with an error rather than an end
        self.seconds = 0.0  # to wait in the middle of an answer
        self.code = 200
        self.location = None  # redirects there
        self.shift = 0  # answers with a range that begins so much later
        self.requests, self.bodies = [], []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append((self.path, dict(self.headers)))
        if server.location or server.code != 200:
            self.send_response(302 if server.location else server.code)
            self.send_header("Location", server.location or "")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        body, start, size = server.content, 0, len(server.content)
        same = self.headers.get("If-Range") == server.etag
        if server.knows_ranges and "Range" in self.headers and same:
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            if start >= size:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{size}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            start += server.shift
            body = body[start:]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        else:
            self.send_response(200)
        if server.etag:
            self.send_header("ETag", server.etag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        body = body[: server.sends]
        server.bodies.append(len(body))
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        time.sleep(server.seconds)
        self.wfile.write(body[len(body) // 2 :])
        if server.resets:
            linger = b"\x01\0\0\0\0\0\0\0"  # on, zero seconds: the end is a reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()

    def handle(self):
        try:
            super().handle()
        except (OSError, ValueError):
            pass  # the other side has gone, or we have reset it

    def finish(self):
        try:
            super().finish()
        except (OSError, ValueError):
            pass

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Keep folder and network of the machine out of it; return the folder of data."""
    for name in os.environ:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IM3F_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(sources, "_SERVER", "https://127.0.0.1:9/")
    known = sources.DATA_SETS["ml-100k"]
    changed = type(known)(md5(ARCHIVE), (20_000, 20_000, 1))
    monkeypatch.setitem(sources.DATA_SETS, "ml-100k", changed)
    return tmp_path / "data"


@pytest.fixture
def plain_http(server, monkeypatch):
    """Let our own server, without a certificate, stand for the real one."""
    monkeypatch.setattr(sources, "_SERVER", server.address)
    handlers = (*download._HANDLERS, urllib.request.HTTPHandler)
    monkeypatch.setattr(download, "_HANDLERS", handlers)
    return server


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def refused(*words, **kwargs):
    """Return the one sentence of an error that says what to do by hand."""
    with pytest.raises(InputError) as caught:
        load_ratings("ml-100k", **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_a_name_is_downloaded_once(plain_http, folder, caplog, capsys):
    ratings = load_ratings("ml-100k")
    assert len(ratings) == 20_000 and ratings.timestamp[-1] == 59_997
    assert names(folder) == ["ml-100k-README.txt", "ml-100k.zip"]
    assert (folder / "ml-100k.zip").read_bytes() == ARCHIVE
    assert (folder / "ml-100k-README.txt").read_bytes() == LICENCE
    (request,) = plain_http.requests
    assert request[0] == "/ml-100k.zip" and "Range" not in request[1]
    (notice,) = caplog.messages  # and no word about counts, which are as known
    assert "GroupLens" in notice and "licence" in notice
    assert "https://grouplens.org/datasets/movielens/" in notice
    assert "ml-100k.zip: 100%" in capsys.readouterr().err
    load_ratings("ml-100k")
    assert len(plain_http.requests) == 1


def test_without_progress_nothing_is_shown(plain_http, caplog, capsys):
    with caplog.at_level("INFO", "im3f_jax"):
        load_ratings("ml-100k", progress=False)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""
    assert [record.levelname for record in caplog.records] == ["INFO"]


@pytest.mark.parametrize("resets", [False, True])
def test_what_broke_off_goes_on(plain_http, folder, resets):
    plain_http.sends, plain_http.resets = 100_000, resets
    refused("broke off", "call again", "ml-100k.zip")
    kept = (folder / "ml-100k.zip.part").stat().st_size
    assert 0 < kept <= 100_000
    assert resets or kept == 100_000  # a reset may lose what is on its way
    plain_http.sends, plain_http.resets = None, False
    assert len(load_ratings("ml-100k")) == 20_000
    headers = plain_http.requests[1][1]
    assert headers["Range"] == f"bytes={kept}-" and headers["If-Range"] == '"one"'
    assert plain_http.bodies[1] == len(ARCHIVE) - kept
    assert (folder / "ml-100k.zip").read_bytes() == ARCHIVE
    assert names(folder) == ["ml-100k-README.txt", "ml-100k.zip"]


@pytest.mark.parametrize("why", ["no ranges", "no tag", "another file", "weak tag"])
def test_what_cannot_go_on_starts_over(plain_http, folder, monkeypatch, why):
    plain_http.sends = 100_000
    plain_http.knows_ranges = why != "no ranges"
    if why in ("no tag", "weak tag"):
        plain_http.etag = "" if why == "no tag" else 'W/"one"'
    elif why == "another file":  # of which the beginning differs too
        plain_http.content = ARCHIVE[::-1]
    refused("broke off")
    plain_http.sends = None
    if why == "another file":
        plain_http.content, plain_http.etag = ARCHIVE, '"two"'
    assert len(load_ratings("ml-100k")) == 20_000
    assert plain_http.bodies[1] == len(ARCHIVE)
    assert ("Range" in plain_http.requests[1][1]) == ("tag" not in why)
    assert (folder / "ml-100k.zip").read_bytes() == ARCHIVE


def test_a_part_that_is_whole_already_is_used(plain_http, folder):
    folder.mkdir()
    (folder / "ml-100k.zip.part").write_bytes(ARCHIVE)
    (folder / "ml-100k.zip.part.etag").write_text('"one"')
    assert len(load_ratings("ml-100k")) == 20_000
    assert plain_http.bodies == []


def test_a_part_that_is_too_long_starts_over(plain_http, folder):
    folder.mkdir()
    (folder / "ml-100k.zip.part").write_bytes(ARCHIVE + b"more")
    (folder / "ml-100k.zip.part.etag").write_text('"one"')
    assert len(load_ratings("ml-100k")) == 20_000
    assert plain_http.bodies == [len(ARCHIVE)]


def test_a_wrong_range_is_not_put_together(plain_http, folder):
    plain_http.sends = 100_000
    refused("broke off")
    plain_http.sends, plain_http.shift = None, 10
    refused("another range")
    assert (folder / "ml-100k.zip.part").read_bytes() == ARCHIVE[:100_000]
    plain_http.shift = 0
    assert len(load_ratings("ml-100k")) == 20_000


def test_a_wrong_checksum_is_told_and_the_file_deleted(plain_http, folder):
    plain_http.content = archive(RATINGS.replace(b"\t3\t", b"\t4\t"))
    message = refused("checksum", md5(ARCHIVE), "deleted")
    assert md5(plain_http.content) in message
    assert names(folder) == []
    plain_http.content = ARCHIVE
    assert len(load_ratings("ml-100k")) == 20_000


@pytest.mark.parametrize("damage", ["cut", "content"])
def test_a_set_that_changes_is_compared_with_its_own_checksums(
    plain_http, folder, damage
):
    plain_http.content = archive(compression=zipfile.ZIP_STORED)
    assert len(load_ratings("ml-latest-small")) == 20_000
    (folder / "ml-latest-small.zip").unlink()
    content = bytearray(plain_http.content)
    content[5_000] ^= 1
    plain_http.content = bytes(content) if damage == "content" else content[:90_000]
    with pytest.raises(InputError, match="no whole zip archive.*deleted"):
        load_ratings("ml-latest-small")
    assert names(folder) == ["ml-latest-small-README.txt"]


def test_a_server_that_says_no(plain_http, folder):
    plain_http.code = 404
    message = refused("the server says 404 Not Found", str(folder))
    assert f"get {plain_http.address}ml-100k.zip and put it" in message
    assert names(folder) == []


def test_without_a_network_the_way_by_hand_is_told(folder, caplog):
    # Port 9 of this machine, where nobody listens.
    message = refused("there is no connection", "refused", str(folder))
    assert "get https://127.0.0.1:9/ml-100k.zip and put it" in message
    assert names(folder) == []


def test_a_server_that_does_not_answer(plain_http, monkeypatch, folder):
    plain_http.seconds = 3.0
    with monkeypatch.context() as patch:
        patch.setattr(download, "_TIMEOUT", 1.0)
        refused("broke off (timed out)", "call again")
    plain_http.seconds = 0.0
    assert len(load_ratings("ml-100k")) == 20_000
    assert plain_http.bodies[1] == len(ARCHIVE) - len(ARCHIVE) // 2


def test_only_https_is_asked(server, monkeypatch):
    monkeypatch.setattr(sources, "_SERVER", server.address)
    refused("unknown url type: http")
    assert server.requests == []


def test_the_real_server_is_asked_by_https():
    source = Path(sources.__file__).read_text()
    assert '_SERVER = "https://files.grouplens.org/datasets/movielens/"' in source


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """Make a certificate for 127.0.0.1 that no one else trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not here")
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    command = "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1"
    command += " -subj /CN=test -addext subjectAltName=IP:127.0.0.1 -days 2"
    key = path.with_name("key.pem")
    command = ["openssl", *command.split(), "-keyout", key, "-out", path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path, key


def test_a_certificate_is_verified_and_a_redirect_stays_on_https(
    server, certificate, monkeypatch
):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # the handshake that we refuse
    address = server.address.replace("http", "https")
    monkeypatch.setattr(sources, "_SERVER", address)
    refused("certificate verify failed")
    assert server.requests == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    assert len(load_ratings("ml-100k")) == 20_000

    with Server() as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        server.location = f"{other.address}ml-1m.zip"
        with pytest.raises(InputError, match="unknown url type: http"):
            load_ratings("ml-1m")
        assert other.requests == []
        other.shutdown()


# Runs the fetch of a file in a process of its own; the last argument is the number of
# blocks after which the process kills itself.
PROCESS = """
import os, signal, sys, urllib.request
from pathlib import Path
from im3f_jax.data import download
url, target, blocks = sys.argv[1:]
download._HANDLERS += (urllib.request.HTTPHandler,)
read, left = download._read, [int(blocks)]
def counted(response):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(response)
download._read = counted
download.fetch(url, Path(target), lambda part: None, progress=False)
print(Path(target).stat().st_size)
"""


def process(url, target, blocks=-1):
    command = [sys.executable, "-c", PROCESS, url, str(target), str(blocks)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def test_two_processes_fetch_one_file_once(plain_http, folder):
    plain_http.seconds = 1.0
    url, target = f"{plain_http.address}ml-100k.zip", folder / "ml-100k.zip"
    running = [process(url, target) for _ in range(2)]
    for one in running:
        out, err = one.communicate(timeout=120)
        assert (one.returncode, out.strip()) == (0, str(len(ARCHIVE))), err
    assert target.read_bytes() == ARCHIVE
    assert names(folder) == ["ml-100k.zip"]
    assert len(plain_http.requests) == 1


def test_a_process_that_is_killed_leaves_what_can_go_on(plain_http, folder):
    url, target = f"{plain_http.address}ml-100k.zip", folder / "ml-100k.zip"
    killed = process(url, target, blocks=4)
    killed.communicate(timeout=120)
    assert killed.returncode == -9 and not target.exists()
    assert len(load_ratings("ml-100k")) == 20_000
    assert 0 < plain_http.bodies[1] < len(ARCHIVE)
    assert names(folder) == ["ml-100k-README.txt", "ml-100k.zip"]


def test_without_locks_a_name_of_its_own_is_used(plain_http, folder, monkeypatch):
    monkeypatch.setattr(download, "fcntl", None)  # as on Windows
    received = []
    receive = download._receive
    monkeypatch.setattr(
        download, "_receive", lambda *a: (received.append(a[1].name), receive(*a))
    )
    assert len(load_ratings("ml-100k")) == 20_000
    assert received == [f"ml-100k.zip.{os.getpid()}.part"]
    assert names(folder) == ["ml-100k-README.txt", "ml-100k.zip"]


def test_titles_are_downloaded_too(plain_http):
    with pytest.raises(InputError, match="none of u.item, movies.dat, movies.csv"):
        load_titles("ml-100k")
    assert len(plain_http.requests) == 1


# --- the folders ------------------------------------------------------------------


def test_download_false_says_what_to_do(plain_http, folder):
    message = refused("download=True", "put it", str(folder), download=False)
    assert plain_http.requests == [] and "cannot" not in message


def test_folders_are_looked_into_in_order(tmp_path, folder, monkeypatch):
    places = {"given": tmp_path / "given", "here": tmp_path / "here", "named": folder}
    places["cache"] = tmp_path / "cache" / "im3f_jax"
    for stars, place in enumerate(places.values(), 1):
        (place / "some-set").mkdir(parents=True)
        (place / "some-set" / "u.data").write_text(f"1\t2\t{stars}\n")
    monkeypatch.chdir(places["here"])
    load = functools.partial(load_ratings, "some-set", data_dir=places["given"])
    for stars, place in enumerate(places.values(), 1):
        assert load().rating.tolist() == [stars]
        shutil.rmtree(place / "some-set")
    with pytest.raises(InputError, match="no file or folder here") as caught:
        load()
    for place in ("given", "data", "cache"):
        assert str(tmp_path / place) in str(caught.value)


@pytest.mark.parametrize("where", ["given", "data", "cache/im3f_jax"])
def test_a_download_goes_to_the_first_folder(plain_http, tmp_path, monkeypatch, where):
    data_dir = tmp_path / "given" if where == "given" else None
    if where.startswith("cache"):
        monkeypatch.delenv("IM3F_DATA_DIR")
    load_ratings("ml-100k", data_dir=data_dir)
    assert (tmp_path / where / "ml-100k.zip").exists()


@pytest.mark.parametrize(
    ("platform", "variables", "place"),
    [
        ("linux", {"XDG_CACHE_HOME": ""}, "HOME/.cache/im3f_jax"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "HOME/.cache/im3f_jax"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/im3f_jax"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "HOME/Library/Caches/im3f_jax"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/im3f_jax/Cache"),
    ],
)
def test_the_cache_is_where_the_platform_has_it(
    tmp_path, monkeypatch, platform, variables, place
):
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(sources._cache_folder()) == place.replace("HOME", str(tmp_path))


def test_a_folder_that_cannot_be_written_is_named(plain_http, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    refused("cannot be stored in", "data_dir", data_dir=tmp_path / "file")


def test_an_unknown_name_is_told_the_known_ones(monkeypatch):
    with pytest.raises(InputError, match="'ml100k' is no file.*ml-100k, ml-1m, "):
        load_ratings("ml100k")
    monkeypatch.delenv("IM3F_DATA_DIR")
    with pytest.raises(InputError, match="IM3F_DATA_DIR \\(which is not set\\)"):
        load_ratings("ml100k")


def test_the_command_line_downloads_too(plain_http, tmp_path, capsys):
    plain_http.content = plain_http.content[:-1]
    command = ["fit", "ml-100k", "--quiet", "--data-dir", str(tmp_path / "given")]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("im3f: ml-100k is in no folder of data sets")
    assert shown.err.count("\n") == 1 and "checksum" in shown.err
    assert str(tmp_path / "given") in shown.err


def test_the_help_of_the_command_line_names_every_data_set(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    text = re.sub(r"-\s+", "-", capsys.readouterr().out)  # lines end in a name too
    assert set(sources.DATA_SETS) <= set(re.findall(r"[\w-]+", text))
