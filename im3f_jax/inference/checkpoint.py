"""Checkpoints: what a run has got so far, in a folder, so that it can go on.

A checkpoint is a small file of JSON, `checkpoint-NUMBER.json`, that names the files of
arrays it consists of, each by its checksum: of every group of chains that run at once a
state, from which the next sweep follows (keys need not be kept: that of sweep t of
chain c is fold_in(fold_in(key(seed), c), t)), and parts, each with the trace and the
kept draws of some sweeps. A part is written once and never again. Every file is there
as a whole or not at all; the JSON comes last, so that the newest checkpoint is whole,
whatever moment a process dies at. The last two are kept: should a file of the newest be
damaged later, the one before serves.
"""

import hashlib
import json
import logging
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from im3f_jax.data.archive import PARTIAL, read_archive, write_archive, write_whole
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.shards import Shards
from im3f_jax.errors import Im3fWarning, InputError
from im3f_jax.inference.sharding import agree, cut_state, fetch, join_state
from im3f_jax.model.plain import spec_from_json, spec_to_json
from im3f_jax.model.spec import ModelSpec, has_franchise, with_room_of

__all__ = ["Checkpoints", "Folder", "Group", "Places", "fingerprint"]

logger = logging.getLogger(__name__)

FORMAT = "im3f_jax checkpoint"
FORMAT_VERSION = 1
# Libraries of which other versions may round otherwise.
ROUNDING = ("im3f-jax", "jax", "jaxlib", "numpy")
# Only what is named so is read, and removed: the folder may hold files of others.
CHECKPOINT = re.compile(r"checkpoint-\d+\.json")
OURS = re.compile(rf"{CHECKPOINT.pattern}|(state|part)-[\d-]+\.npz")


class Folder:
    """The files: checkpoints of anything, made of JSON and of files of arrays.

    Use it as a context: one process at a time writes to a folder.

    Parameters
    ----------
    path
        Made where it is not there.
    writes
        False for processes that only read.

    Raises
    ------
    InputError
        If another process writes to the folder now.
    OSError
        If it cannot be made or read.
    """

    def __init__(self, path: str | os.PathLike, writes: bool = True) -> None:
        self.path, self.writes = Path(path), writes
        self.number = 0  # of the newest checkpoint that is whole
        self._lock: Any = None
        self._kept: list[tuple[int, set[str]]] = []  # checkpoints, and their files

    def __enter__(self) -> "Folder":
        if self.writes:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.path)
            for path in self.path.glob(f"*{PARTIAL}"):  # of a process that died
                if OURS.fullmatch(path.name.removesuffix(PARTIAL)):
                    path.unlink(missing_ok=True)
        return self

    def __exit__(self, *error) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read(self) -> dict | None:
        """Read the newest checkpoint that is whole; None where there is none.

        Raises
        ------
        InputError
            If there are checkpoints, but each is damaged; or of another format version.
        """
        every = sorted(self.path.glob("checkpoint-*.json"), reverse=True)
        found = [path for path in every if CHECKPOINT.fullmatch(path.name)]
        faults = []
        for path in found:
            try:
                body = _read_json(path)
                for name, checksum in _files(body):
                    self.arrays(name, checksum)
            except (InputError, FileNotFoundError) as error:
                if isinstance(error, _OtherVersion):
                    raise
                faults.append(_sentence(error))
                continue
            self.number = body["number"]
            self._kept = [(self.number, {name for name, _ in _files(body)})]
            if faults:
                warnings.warn(
                    f"The newest checkpoint is damaged, and the one before, "
                    f"{path.name}, is used: {faults[0]}",
                    Im3fWarning,
                    stacklevel=2,
                )
            return body
        if not found:
            return None
        raise InputError(
            f"No checkpoint in {self.path} is whole: {faults[0]} Name another folder, "
            "or empty this one to start anew."
        )

    def arrays(self, name: str, checksum: str) -> tuple[dict, dict[str, np.ndarray]]:
        """Read a file of arrays: its header, and the arrays by name.

        Raises
        ------
        InputError
            If it is damaged, or another than the checkpoint names.
        """
        path = self.path / name
        what = "a file of a checkpoint"
        header, arrays, found = read_archive(path, FORMAT, (FORMAT_VERSION,), what)
        if found != checksum:
            raise InputError(f"{path} is not the file that its checkpoint names.")
        return header, arrays

    def write(self, name: str, header: dict, arrays: Mapping) -> list[str]:
        """Write a file of arrays; its name and checksum, to be put into a checkpoint.

        Raises
        ------
        OSError
            If it cannot be written, on a full disk too.
        """
        head = {"format": FORMAT, "format_version": FORMAT_VERSION}
        return [name, write_archive(self.path / name, head | header, arrays)]

    def commit(self, body: dict) -> None:
        """Write a checkpoint; its files must be there.

        Files that neither this one nor the one before names are removed.

        Raises
        ------
        OSError
            If it cannot be written, on a full disk too.
        """
        number = self.number + 1
        head = {"format": FORMAT, "format_version": FORMAT_VERSION, "number": number}
        text = json.dumps(head | body, indent=1)
        whole = {"checksum": _digest(text), "text": text}
        path = self.path / _name(number)
        write_whole(path, lambda file: file.write(json.dumps(whole).encode()))
        self.number = number
        self._kept = [*self._kept[-1:], (number, {name for name, _ in _files(body)})]
        numbers = {_name(kept) for kept, _ in self._kept}
        named = set().union(*(names for _, names in self._kept))
        for path in self.path.iterdir():
            if OURS.fullmatch(path.name) and path.name not in numbers | named:
                path.unlink(missing_ok=True)


class _OtherVersion(InputError):
    """Not damaged: written by another version of the library."""


def _locked(folder: Path):
    """Hold a folder for this process; the system lets go of it when it dies."""
    file = open(folder / "lock", "ab")  # noqa: SIM115
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(
            f"Another fit writes its checkpoints to {folder}: wait for it, or name "
            "another folder."
        ) from None
    except (ImportError, OSError):  # a system, or a file system, without locks
        pass
    return file


def _name(number: int) -> str:
    return f"checkpoint-{number:08d}.json"


def _read_json(path: Path) -> dict:
    try:
        whole = json.loads(path.read_bytes())
        text = whole["text"]
        if whole["checksum"] != _digest(text):
            raise ValueError("its checksum is another")
        body = json.loads(text)
        version, number = body["format_version"], body["number"]
        if path.name != _name(number):
            raise ValueError(f"it is number {number}")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({_sentence(error)}).") from None
    if version != FORMAT_VERSION:
        raise _OtherVersion(
            f"{path} has format version {version}, but this version of im3f_jax reads "
            f"version {FORMAT_VERSION}."
        )
    return body


def _files(body: dict) -> list[list[str]]:
    """List the files that a checkpoint names, with their checksums."""
    return [f for group in body["groups"] for f in [*group["parts"], group["state"]]]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())


def fingerprint(ratings: Ratings | None, timed: bool) -> dict | None:
    """Tell ratings from others: their number, and a digest of ids and columns.

    With the times, where `timed`.
    """
    if ratings is None:
        return None
    digest = hashlib.sha256()
    for index in (ratings.users, ratings.items):
        try:
            ids = index.to_array()
        except InputError:  # of a type that no file holds
            ids = np.array(repr(index.ids.tolist()))
        digest.update(f"{ids.dtype} {ids.shape}".encode() + ids.tobytes())
    columns = [ratings.user, ratings.item, ratings.rating]
    if timed and ratings.timestamp is not None:
        columns.append(ratings.timestamp)
    for values in columns:
        digest.update(np.ascontiguousarray(values))
    return {"number": len(ratings), "digest": digest.hexdigest()}


@dataclass(frozen=True)
class Places:
    """Where a carry has each rating, in canonical order, and each test pair.

    Attributes
    ----------
    rating
        Places of the training ratings, shape (N,).
    test
        Places of the test pairs, shape (T,).
    sizes
        Numbers of users and items.
    shards
        Of several devices; None of one.
    mesh
        Their mesh.
    """

    rating: np.ndarray
    test: np.ndarray
    sizes: tuple[int, int]
    shards: Shards | None = None
    mesh: Any = None

    def join(self, carry) -> dict[str, np.ndarray]:
        """Arrays of a carry, by name, in an order that no device knows of.

        What follows from these, or is overwritten by the next chunk, is left out.
        """
        wanted = carry.state, carry.kept, carry.test_sum, carry.train_sum
        state, kept, test_sum, train_sum = fetch(wanted)
        if self.shards is not None:
            users, items = self.sizes
            exact = SimpleNamespace(
                rating=self.rating, user_rows=users, item_rows=items
            )
            state = jax.device_get(join_state(state, self.shards, exact))
        arrays = {f"state.{name}": leaf for name, leaf in _named(state)}
        tracked = train_sum.shape[-1] > 0
        return arrays | {
            "kept": kept,
            "test_sum": test_sum[..., self.test],
            "train_sum": train_sum[..., self.rating] if tracked else train_sum,
        }

    def cut(self, template, arrays: Mapping[str, np.ndarray], spec: ModelSpec):
        """Make a carry of the arrays of one chain, on the host, as its start is.

        Parameters
        ----------
        template
            A carry of shapes and types.
        arrays
            As `join` gave them.
        spec
            In whose room the arrays are.

        Raises
        ------
        InputError
            If the arrays are not those of such a carry.
        """
        state = {}
        for name, like in _named(template.state):
            values = arrays.get(f"state.{name}")
            if values is None or values.dtype != like.dtype:
                raise InputError(f"The checkpoint has no such array as {name}.")
            state[name] = values
        structure = jax.tree.structure(template.state)
        joined = jax.tree.unflatten(structure, list(state.values()))
        if self.shards is not None:
            joined = jax.device_get(cut_state(joined, self.shards))
        fitted = [
            _with_rows(values, like, name, has_franchise(spec))
            for (name, like), values in zip(
                _named(template.state), jax.tree.leaves(joined), strict=True
            )
        ]
        zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), template)
        carry = zeros._replace(
            state=jax.tree.unflatten(structure, fitted),
            kept=np.asarray(arrays["kept"], zeros.kept.dtype),
        )
        for name, place in (("test_sum", self.test), ("train_sum", self.rating)):
            values, into = arrays[name], getattr(carry, name)
            if into.size:
                if values.shape != place.shape:
                    raise InputError(f"The checkpoint has no such array as {name}.")
                into[place] = values
        return carry


def _named(tree) -> list[tuple[str, Any]]:
    return [
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _with_rows(values: np.ndarray, like, name: str, franchise: bool) -> np.ndarray:
    """Fit rows of padding, which mean nothing, to another kind of device."""
    if values.shape == like.shape:
        return values
    known = values.ndim == len(like.shape) and values.shape[1:] == like.shape[1:]
    if not known or franchise:  # an empty table is no 0
        raise InputError(
            f"The checkpoint's {name} has shape {values.shape}, but must have "
            f"{like.shape} on this device."
        )
    fitted = np.zeros(like.shape, like.dtype)
    number = min(len(values), len(fitted))
    fitted[:number] = values[:number]
    return fitted


@dataclass
class Group:
    """What a checkpoint holds of chains that run at once."""

    sweep: int = 0  # sweeps done
    parts: list[list[str]] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    draws: int = 0  # kept draws of each chain


class Checkpoints:
    """The checkpoints of one fit. Use it as a context.

    Parameters
    ----------
    folder
        Where they are.
    every
        Sweeps from one to the next.
    settings
        What a fit must have in common with the checkpoint that it goes on from, as
        plain JSON; "num_samples" may grow.
    spec
        Resolved, its numbers Python's.
    places
        Where a carry has what.
    facts
        "versions" and "device": others are warned of.
    writes
        Whether this process writes; the others of a fit only read.

    Raises
    ------
    InputError
        On entering: if the folder holds the checkpoints of another fit, or damaged ones
        only, or another process writes to it.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        every: int,
        settings: dict,
        spec: ModelSpec,
        places: Places,
        facts: dict,
        writes: bool = True,
    ) -> None:
        self.folder, self.every = Folder(folder, writes), every
        self.settings = json.loads(json.dumps(settings))
        self.spec, self.places = spec, places
        self.facts = json.loads(json.dumps(facts))
        self.groups: list[Group] = []
        self.seconds: dict[str, float] = {}
        self.checksum = ""  # of what was read: the same in all processes

    def __enter__(self) -> "Checkpoints":
        self.folder.__enter__()
        try:
            body = self.folder.read()
            if body is not None:
                self._take(body)
        except BaseException:
            self.folder.__exit__()
            raise
        return self

    def __exit__(self, *error) -> None:
        self.folder.__exit__(*error)

    def _take(self, body: dict) -> None:
        path = self.folder.path
        differing = _differences(self.settings, body["settings"])
        if differing:
            more = f", and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise InputError(
                f"{path} holds checkpoints of another fit: "
                f"{'; '.join(differing[:3])}{more}. "
                "Name another folder, or empty this one to start anew."
            )
        others = [
            f"{name} {self.facts['versions'].get(name)} in the place of "
            f"{body['facts']['versions'].get(name)}"
            for name in ROUNDING
            if self.facts["versions"].get(name) != body["facts"]["versions"].get(name)
        ]
        if self.facts["device"] != body["facts"]["device"]:
            others += [f"{self.facts['device']} in the place of "]
            others[-1] += body["facts"]["device"]
        if others:
            warnings.warn(
                f"The fit goes on with {', '.join(others)}: its draws have the same "
                "distribution, but need not be those of an unbroken run.",
                Im3fWarning,
                stacklevel=2,
            )
        self.spec = with_room_of(self.spec, spec_from_json(body["spec"]))
        self.groups = [Group(**group) for group in body["groups"]]
        self.seconds = body["seconds"]
        self.checksum = _digest(json.dumps(body))
        logger.info(
            "resumed from %s: %s sweeps are done",
            path,
            " + ".join(str(group.sweep) for group in self.groups),
        )

    def parts(self, number: int):
        """Yield the parts of a group: the spec with their room, trace and draws."""
        for name, checksum in self.groups[number].parts:
            header, arrays = self.folder.arrays(name, checksum)
            room = with_room_of(self.spec, spec_from_json(header["spec"]))
            yield room, _under("trace.", arrays), _under("draws.", arrays)

    def state(self, number: int) -> tuple[ModelSpec, dict[str, np.ndarray]]:
        """Give the state of a group, and the spec with its room."""
        header, arrays = self.folder.arrays(*self.groups[number].state)
        return with_room_of(self.spec, spec_from_json(header["spec"])), arrays

    def save(
        self,
        number: int,
        sweep: int,
        carry,
        spec: ModelSpec,
        trace: Mapping[str, np.ndarray],
        draws: Mapping[str, np.ndarray],
        seconds: dict[str, float],
    ) -> None:
        """Write a checkpoint.

        Parameters
        ----------
        number
            Of the group.
        sweep
            Sweeps that it has done.
        carry
            From which the next one follows.
        spec
            With the room that there is.
        trace, draws
            Of the sweeps since the checkpoint before, each (chains, sweeps or draws,
            ...); those kept, where draws are.
        seconds
            So far.

        Raises
        ------
        OSError
            If it cannot be written, on a full disk too; the one before stands.
        """
        arrays = self.places.join(carry)  # all processes have a share in it
        failed = None
        if self.folder.writes:
            try:
                self._write(number, sweep, arrays, spec, trace, draws, seconds)
            except OSError as error:
                done = self.groups[number].sweep if number < len(self.groups) else 0
                failed = OSError(
                    error.errno,
                    f"{error.strerror}: the checkpoint of sweep {sweep} cannot be "
                    f"written (that of sweep {done} stands)",
                    error.filename,
                )
        if self.places.mesh is not None:
            _, told = agree(0, failed is not None, self.places.mesh)
            if told and failed is None:
                raise OSError("The first process cannot write its checkpoint.")
        if failed is not None:
            raise failed

    def _write(self, number, sweep, arrays, spec, trace, draws, seconds) -> None:
        groups = list(self.groups)
        before = groups[number] if number < len(groups) else Group()
        self.spec = with_room_of(self.spec, spec)
        header = {"spec": spec_to_json(self.spec)}
        name = f"{number:03d}-{sweep:08d}.npz"
        parts = before.parts
        kept = next((values.shape[1] for values in draws.values()), 0)
        if sweep > before.sweep:
            columns = {f"trace.{key}": values for key, values in trace.items()}
            columns |= {f"draws.{key}": values for key, values in draws.items()}
            parts = [*parts, self.folder.write(f"part-{name}", header, columns)]
        state = self.folder.write(f"state-{name}", header, arrays)
        groups[number : number + 1] = [Group(sweep, parts, state, before.draws + kept)]
        self.folder.commit(
            {
                "settings": self.settings,
                "facts": self.facts,
                "seconds": seconds,
                "spec": header["spec"],
                "groups": [vars(group) for group in groups],
            }
        )
        self.groups = groups


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }


def _differences(now: dict, then: dict) -> list[str]:
    """Name what differs, the data first: much else follows from these."""
    data = [
        f"the {name} ratings are others"
        for name in ("training", "test")
        if now[name] != then[name]
    ]
    if data:
        return data
    now, then = _flat(now), _flat(then)
    found = []
    for name in [*now, *(name for name in then if name not in now)]:
        a, b = now.get(name, "not there"), then.get(name, "not there")
        if a == b or (name == "num_samples" and a > b):
            continue
        least = " (it may only grow)" if name == "num_samples" else ""
        found.append(f"{name} is {a!r}, there {b!r}{least}")
    return found


def _flat(settings: dict, prefix: str = "") -> dict:
    flat = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
