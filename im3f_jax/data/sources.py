"""Where a data set is: a path, a folder of data sets, or the publisher's server."""

import gzip
import hashlib
import logging
import lzma
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path, PurePosixPath
from tokenize import TokenError
from typing import BinaryIO

import numpy as np

from im3f_jax.data.download import fetch
from im3f_jax.errors import InputError

__all__ = [
    "DAMAGED",
    "DATA_SETS",
    "ZIP_STARTS",
    "find",
    "members",
    "opened",
    "plain_arrays",
    "refuse_zero_characters",
]

_log = logging.getLogger(__name__)

# How a .zip or .npz begins: one that holds files, and one that is empty.
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
# What a damaged .gz or .zip, or one of a kind that Python does not know, raises.
DAMAGED = (
    EOFError,
    OSError,
    RuntimeError,  # encrypted, or packed in a way that is not implemented
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
)
# And what numpy does beside it, of an .npz or what should be one.
_NO_ARRAYS = (
    *DAMAGED,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    SyntaxError,
    TokenError,
    TypeError,
    ValueError,
    struct.error,
)

_SERVER = "https://files.grouplens.org/datasets/movielens/"
_PAGE = "https://grouplens.org/datasets/movielens/"


@dataclass(frozen=True)
class _DataSet:
    md5: str | None  # of the archive, as published; None for one that changes
    counts: tuple[int | None, ...]  # ratings, users and rated items; None: not known
    folder: str = ""  # into which the archive unpacks, where that is not the name


DATA_SETS = {
    "ml-100k": _DataSet("0e33842e24a9c977be4e0107933c0723", (100_000, 943, 1682)),
    "ml-1m": _DataSet("c4d9eecfca2ab87c1945afe126590906", (1_000_209, 6040, 3706)),
    "ml-10m": _DataSet(
        "ce571fd55effeba0271552578f2648bd", (10_000_054, 69_878, 10_677), "ml-10M100K"
    ),
    "ml-20m": _DataSet(
        "cd245b17a1ae2cc31bb14903e1204af3", (20_000_263, 138_493, 26_744)
    ),
    "ml-25m": _DataSet(
        "6b51fb2759a8657d3bfcbfc42b592ada", (25_000_095, 162_541, 59_047)
    ),
    "ml-32m": _DataSet("d472be332d4daa821edc399621853b57", (32_000_204, 200_948, None)),
    "ml-latest-small": _DataSet(None, (None, None, None)),
}


def find(
    path: str | PathLike,
    *,
    data_dir: str | PathLike | None = None,
    download: bool = True,
    progress: bool = True,
) -> Path:
    """Find the file or folder that a path or the name of a data set stands for.

    Parameters
    ----------
    path : str or path
        A path, or a name: of `DATA_SETS`, or of a file, folder or .zip in a folder of
        data sets.
    data_dir : str or path, optional
        A folder of data sets to look into before anything else. Then come the path
        itself, the folder that IM3F_DATA_DIR names, and the platform's cache folder.
    download : bool
        Whether one of `DATA_SETS` that is nowhere is downloaded, into the first folder
        of data sets: `data_dir`, else that of IM3F_DATA_DIR, else the cache.
    progress : bool
        Whether a download shows a bar and the notice about the licence; else the
        notice goes to the log at level INFO.

    Raises
    ------
    InputError
        Where there is none, and where the download fails; it says what to do by hand.
    """
    name, path = str(path), Path(path).expanduser()
    folders = _folders(data_dir)
    places = [*_places(folders[0], path, name), path] if data_dir else [path]
    for folder in folders:
        places += _places(folder, path, name)
    found = next((place for place in places if place.exists()), None)
    if found is not None:
        return found
    looked = ", ".join(map(str, folders))
    if name not in DATA_SETS:
        is_set = "" if os.environ.get("IM3F_DATA_DIR") else " (which is not set)"
        raise InputError(
            f"{name!r} is no file or folder here, nor in a folder of data sets "
            f"({looked}: data_dir, IM3F_DATA_DIR{is_set} and the cache), nor a data "
            f"set to download ({', '.join(DATA_SETS)})"
        )
    by_hand = f"get {_SERVER}{name}.zip and put it, as it is, into {folders[0]}"
    if not download:
        raise InputError(
            f"{name} is in no folder of data sets ({looked}): download=True fetches "
            f"it, or {by_hand}"
        )
    try:
        return _download(name, folders[0], progress)
    except InputError as error:
        raise InputError(
            f"{name} is in no folder of data sets ({looked}) and cannot be downloaded: "
            f"{error}; to do it by hand, {by_hand}"
        ) from None
    except OSError as error:
        raise InputError(
            f"{name} cannot be stored in {folders[0]} ({error.strerror or error}): "
            f"name another folder by data_dir or IM3F_DATA_DIR"
        ) from None


def _folders(data_dir: str | PathLike | None) -> list[Path]:
    """List the folders of data sets, the one to download into first."""
    named = [data_dir, os.environ.get("IM3F_DATA_DIR")]
    return [*(Path(name).expanduser() for name in named if name), _cache_folder()]


def _cache_folder() -> Path:
    """Return the folder that the platform keeps for what can be had again."""
    if sys.platform == "darwin":
        return Path("~/Library/Caches/im3f_jax").expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
        return Path(local).expanduser() / "im3f_jax" / "Cache"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # to be ignored, says the XDG specification
        cache = "~/.cache"
    return Path(cache).expanduser() / "im3f_jax"


def _places(folder: Path, path: Path, name: str) -> list[Path]:
    places = [folder / path, folder / f"{path}.zip"]
    if name in DATA_SETS and DATA_SETS[name].folder:
        places.append(folder / DATA_SETS[name].folder)
    return places


def _download(name: str, folder: Path, progress: bool) -> Path:
    """Fetch the archive of a data set, and keep its README beside it."""
    url, target = f"{_SERVER}{name}.zip", folder / f"{name}.zip"
    # In our own words; the licence itself is in the archive.
    _log.log(
        logging.WARNING if progress else logging.INFO,
        "Downloading %s to %s. The data belong to GroupLens (University of Minnesota), "
        "not to this library. Their usage licence is the README in the archive, which "
        "is kept beside it, and %s links to it: please read it before you use the "
        "data, publish with them or pass them on.",
        *(url, target, _PAGE),
    )
    check = partial(_check_archive, md5=DATA_SETS[name].md5, readme=folder / name)
    fetch(url, target, check, progress=progress)
    return target


def _check_archive(path: Path, md5: str | None, readme: Path) -> None:
    """Refuse what is not the archive that was published; keep its README."""
    if md5 is not None:
        with open(path, "rb") as file:
            # Against accidents; against forgery there is TLS.
            new = partial(hashlib.md5, usedforsecurity=False)
            found = hashlib.file_digest(file, new).hexdigest()
        if found != md5:
            raise InputError(
                f"what came has the MD5 checksum {found} instead of the published "
                f"{md5} and was deleted"
            )
    try:
        with zipfile.ZipFile(path) as archive:
            # One that changes has no known checksum, only those within.
            broken = archive.testzip() if md5 is None else None
            if broken is not None:
                raise zipfile.BadZipFile(broken)
            names = [name for name in archive.namelist() if _stem(name) == "README"]
            if names:
                ending = PurePosixPath(names[0]).suffix or ".txt"
                beside = readme.with_name(f"{readme.name}-README{ending}")
                beside.write_bytes(archive.read(names[0]))
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(
            f"what came is no whole zip archive ({error}) and was deleted"
        ) from None


def _stem(member: str) -> str:
    return PurePosixPath(member).stem.upper()


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO | zipfile.ZipFile]:
    """Open a file: its bytes, unpacked where it is a .gz, or an archive of files.

    An .npz, which is an archive of nothing but arrays, is given as bytes.
    """
    with open(path, "rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic.startswith(b"\x1f\x8b"):
            with gzip.open(file) as inner:
                yield inner
            return
        if magic in ZIP_STARTS:
            with zipfile.ZipFile(file) as archive:
                if not all(name.endswith(".npy") for name in archive.namelist()):
                    yield archive
                    return
            file.seek(0)
        yield file


def members(archive: zipfile.ZipFile) -> list[PurePosixPath]:
    """List the files in an archive, without those that macOS adds."""
    paths = [PurePosixPath(i.filename) for i in archive.infolist() if not i.is_dir()]
    return [path for path in paths if not path.name.startswith("._")]


def plain_arrays(file: BinaryIO, names: Sequence[str] | None = None) -> dict:
    """Read the arrays of an .npz.

    Parameters
    ----------
    file : binary file
        Open for reading.
    names : sequence of str, optional
        Only these, where they are there; by default all.

    Raises
    ------
    InputError
        Where it is none, is damaged, or holds objects, which would need pickle.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            found = [name for name in arrays.files if names is None or name in names]
            return {name: arrays[name] for name in found}
    except _NO_ARRAYS as error:
        raise InputError(f"not a file of plain arrays ({error})") from None


def refuse_zero_characters(file: BinaryIO) -> None:
    """Refuse a file of text with a zero character; reads it from its start, and back.

    Raises
    ------
    InputError
        With the line, from 1.
    """
    file.seek(0)
    for number, line in enumerate(file, 1):
        if b"\0" in line:
            raise InputError(f"line {number} holds a zero character")
    file.seek(0)
