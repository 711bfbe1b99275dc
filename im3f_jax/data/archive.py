"""Files of arrays and JSON, without pickle: written whole or not at all, and checked.

A file is an .npz: its arrays, a `header` of JSON text, and a `checksum` over both.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from im3f_jax.errors import InputError

__all__ = ["PARTIAL", "read_archive", "write_archive", "write_whole"]

PARTIAL = ".partial"  # ends the name of a file that is being written


def write_whole(path: str | os.PathLike, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file that is there as a whole, and on the disk, or not at all.

    Parameters
    ----------
    path
        A file of that name is replaced at the end.
    write
        Called with the open binary file.

    Raises
    ------
    OSError
        Where it cannot be written, on a full disk too; names the file. The old one
        stays.
    """
    path = Path(path)
    temporary = path.with_name(path.name + PARTIAL)
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(number)
    except OSError:
        pass
    finally:
        os.close(number)


def write_archive(
    path: str | os.PathLike, header: dict, arrays: Mapping[str, np.ndarray]
) -> str:
    """Write arrays and a header of plain JSON; a file of that name is replaced.

    Returns
    -------
    str
        The checksum, by which the very same content is known again.

    Raises
    ------
    OSError
        As `write_whole`.
    """
    text = json.dumps(header)
    checksum = _checksum(text, arrays)
    more = {"header": np.array(text), "checksum": np.array(checksum)}
    write_whole(path, lambda file: np.savez(file, **arrays, **more))
    return checksum


def read_archive(
    path: str | os.PathLike, format: str, readable: Sequence[int], what: str
) -> tuple[dict, dict[str, np.ndarray], str | None]:
    """Read what `write_archive` wrote.

    Parameters
    ----------
    path
        The file.
    format
        What its header must name as "format".
    readable
        The format versions that can be read, the newest first.
    what
        What a file of that format is, for messages: "a saved posterior".

    Returns
    -------
    tuple
        The header, the arrays by name, and the checksum; None where the file has none,
        as those from before there were any.

    Raises
    ------
    InputError
        If the file is not of that format, has another version, or is damaged; in one
        sentence.
    OSError
        If it is not there or cannot be read.
    """
    try:
        # Opened here: np.load leaves a file open that turns out to be no zip.
        with open(path, "rb") as raw:
            try:
                if not zipfile.is_zipfile(raw):  # numpy would speak of pickles
                    raise ValueError("it is no .npz file, or not a whole one")
                raw.seek(0)
                with np.load(raw, allow_pickle=False) as file:
                    arrays = dict(file)
                text, checksum = str(arrays.pop("header")), arrays.pop("checksum", None)
                header = json.loads(text)
                found, version = header["format"], header["format_version"]
            # What a damaged zip raises has no end: errors of zipfile, zlib, numpy and
            # json, MemoryError for the shape of an array that is none.
            except Exception as error:
                raise InputError(f"{path} is not {what} ({_told(error)}).") from None
    except IsADirectoryError:
        raise InputError(f"{path} is not {what}, but a folder.") from None
    if found != format:
        raise InputError(f"{path} is not {what} (its format is {found!r}).")
    if version not in readable:
        raise InputError(
            f"{path} has format version {version}, but this version of im3f_jax reads "
            f"{' and '.join(f'version {number}' for number in readable)}."
        )
    if checksum is not None and str(checksum) != _checksum(text, arrays):
        raise InputError(
            f"{path} is not {what} (it is damaged: its checksum is another)."
        )
    return header, arrays, None if checksum is None else str(checksum)


def _told(error: Exception) -> str:
    """Say an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the header and of names, types, shapes and bytes of arrays."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        values = np.asarray(arrays[name])
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        if values.size and values.dtype.itemsize:
            flat = np.ascontiguousarray(values).reshape(-1)
            digest.update(flat.view(np.uint8))
    return digest.hexdigest()
