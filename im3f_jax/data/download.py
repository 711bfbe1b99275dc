"""Fetch one file over https: resumable, checked before it gets its name."""

import http.client
import logging
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from im3f_jax.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["fetch"]

_log = logging.getLogger(__name__)

_BLOCK = 1 << 16  # bytes read at a time, at most
_TIMEOUT = 30.0  # seconds without a byte
# None for http, ftp or file: such an address, or a redirect to one, is refused.
_HANDLERS = (
    urllib.request.ProxyHandler,
    urllib.request.HTTPRedirectHandler,
    urllib.request.HTTPDefaultErrorHandler,
    urllib.request.HTTPErrorProcessor,
    urllib.request.UnknownHandler,
)


def fetch(
    url: str, target: Path, check: Callable[[Path], None], *, progress: bool = True
) -> None:
    """Fetch a file, unless it is there.

    What has come is kept in a file beside the target, named ``.part``, until it is
    whole. A later call asks for the rest only, and starts over where the server does
    not know how or has another file by now. Processes that want the same file wait for
    one another.

    Parameters
    ----------
    url : str
        Address that begins with https. The server's certificate is verified.
    target : path
        The file to write; missing folders are made.
    check : callable
        Called with the path of what has come, before it becomes `target`: raises
        `InputError` where it is not the right file, which is then deleted.
    progress : bool
        Whether to show a bar, of bytes, on standard error.

    Raises
    ------
    InputError
        For anything that the network or `check` has against it.
    OSError
        Where the file cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target) as is_alone:
        if target.exists():  # another process was faster
            return
        # Not alone for sure: under a name of our own, which nobody resumes.
        part = _beside(target, ".part" if is_alone else f".{os.getpid()}.part")
        _receive(url, part, progress)
        try:
            check(part)
        except InputError:
            part.unlink()
            raise
        finally:
            _beside(part, ".etag").unlink(missing_ok=True)
        os.replace(part, target)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


@contextmanager
def _alone(target: Path) -> Iterator[bool]:
    """Wait until no other process fetches the target; yield whether that is sure."""
    if fcntl is None:
        yield False
        return
    lock = _beside(target, ".lock")
    while True:
        with open(lock, "wb") as file:
            is_alone = _locked(file, target)
            if is_alone and not _is_at(file, lock):
                continue  # waited for one that its holder removed: take the new one
            try:
                yield is_alone
            finally:
                lock.unlink(missing_ok=True)
            return


def _locked(file: BinaryIO, target: Path) -> bool:
    """Lock the file, which ends with the process; False where that is not possible."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _log.warning("Another process downloads %s: waiting for it", target.name)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # a file system without locks
        return False
    return True


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _receive(url: str, part: Path, progress: bool) -> None:
    """Bring the part to its full length."""
    start, headers = _resume(part)
    try:
        response = _answer(url, headers)
    except urllib.error.HTTPError as error:
        error.close()
        if start and error.code == 416:  # no such range
            if error.headers.get("Content-Range") == f"bytes */{start}":
                return  # for the part is whole already
            part.unlink()
            return _receive(url, part, progress)
        raise InputError(f"the server says {error.code} {error.reason}") from None
    with response:
        length = response.headers.get("Content-Length")
        if response.status != 206:
            start = 0
        elif not _begins_at(response, start):
            raise InputError("the server sent another range than it was asked for")
        total = None if length is None else start + int(length)
        with open(part, "ab" if start else "wb") as file:
            if not start:
                _keep_etag(part, response)
            with _bar(progress, start, total, url) as bar:
                while block := _read(response):
                    file.write(block)
                    bar.update(len(block))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
    if total is not None and size < total:
        raise InputError(
            f"the connection broke off after {size:,} of {total:,} bytes, which are "
            f"kept: call again to go on"
        )


def _resume(part: Path) -> tuple[int, dict[str, str]]:
    """Tell how many bytes are there, and the headers that ask for the rest."""
    etag = _beside(part, ".etag")
    size = part.stat().st_size if part.exists() else 0
    if not size or not etag.exists():
        return 0, {}
    return size, {"Range": f"bytes={size}-", "If-Range": etag.read_text()}


def _keep_etag(part: Path, response: http.client.HTTPResponse) -> None:
    """Keep what tells whether a later answer is of the same file."""
    etag = response.headers.get("ETag", "")
    if not etag.startswith('"'):  # a weak one, W/"...", may not ask for ranges
        etag = response.headers.get("Last-Modified", "")
    if etag:
        _beside(part, ".etag").write_text(etag)
    else:
        _beside(part, ".etag").unlink(missing_ok=True)


def _begins_at(response: http.client.HTTPResponse, start: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _answer(url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    """Open the address, or say in a few words why that cannot be done."""
    opener = urllib.request.OpenerDirector()
    context = ssl.create_default_context()  # verifies certificate and host
    opener.add_handler(urllib.request.HTTPSHandler(context=context))
    for handler in _HANDLERS:
        opener.add_handler(handler())
    headers = {"User-Agent": "im3f_jax", **headers}
    request = urllib.request.Request(url, headers=headers)
    try:
        return opener.open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        raise InputError(f"there is no connection ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"there is no answer ({_words(error)})") from None


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_BLOCK)  # what is there, before it can get lost
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"the connection broke off ({_words(error)}); what has come is kept: call "
            f"again to go on"
        ) from None


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _bar(progress: bool, start: int, total: int | None, url: str):
    from tqdm.auto import tqdm

    return tqdm(
        desc=url.rpartition("/")[2],
        initial=start,
        total=total,
        unit="B",
        unit_scale=True,
        disable=not progress,
    )
