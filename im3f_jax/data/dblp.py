"""Count joint papers of pairs of authors in the DBLP bibliography."""

import gzip
import logging
import operator
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from html.entities import name2codepoint
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

import numpy as np

from im3f_jax.data.ids import IdIndex
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.sources import plain_arrays
from im3f_jax.errors import InputError

__all__ = ["DblpReport", "load_dblp"]

_log = logging.getLogger(__name__)

_ROOT = "dblp"
_PUBLICATIONS = frozenset(
    ("article", "inproceedings", "incollection", "book", "phdthesis", "mastersthesis")
)
_NAMES, _VENUES = "authors.txt.gz", "venues.txt"  # beside papers.npz
_ARRAYS = ("author_flat", "n_authors", "year", "venue")

# The character entities of HTML 4 up to U+00FF, which are those of every dblp.dtd; the
# five of XML itself are known to any parser.
_LATIN_1 = "".join(
    f'<!ENTITY {name} "&#{code};">\n'
    for name, code in name2codepoint.items()
    if 0xA0 <= code <= 0xFF
)

# Bounds on what a hostile or broken file may make us hold; DBLP keeps far below them.
_MAX_ENTITY = 64  # characters; an entity of dblp.dtd stands for one
_MAX_PARAMETER = 4096  # characters of a parameter entity; in dblp.dtd some 200
_MAX_DTD = 1 << 18  # bytes; dblp.dtd has some 13,000
_MAX_TOKEN = 1 << 24  # bytes of one tag or one comment
_MAX_PIECES = 64  # of one field's text, of up to 8 KiB each
_MAX_DEPTH = 100  # elements within elements; in DBLP 5 or so

_BLOCK = 1 << 18  # bytes read at once
_CHUNK = 1 << 20  # pairs counted at once

_CUT_SHORT = {
    expat.errors.codes[what]
    for what in (
        expat.errors.XML_ERROR_NO_ELEMENTS,
        expat.errors.XML_ERROR_UNCLOSED_TOKEN,
        expat.errors.XML_ERROR_PARTIAL_CHAR,
        expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
    )
}
_SPACES = re.compile("[ \t\r\n]+")
_NOBODY = -1  # the code of an empty name
_LOW = (1 << 32) - 1  # the half of a pair's key that holds its second author


@dataclass(frozen=True)
class DblpReport:
    """What `load_dblp` counted, and what it left out.

    Each record is counted once: the sum of `records` is `papers` plus the sum of
    `skipped`.

    Parameters
    ----------
    records : dict of str to int
        Records under the root by their tag ("article", "www", ...); from papers.npz
        {"papers.npz": number of papers}.
    papers : int
        Publications that gave pairs.
    skipped : dict of str to int
        The others by the first of these reasons that holds: "no publication" (persons,
        proceedings, ...), "informal", "outside years", "outside venues", "no author",
        "one author", "over max_authors".
    authors, pairs : int
        Authors and pairs in the result.
    rare_pairs : int
        Pairs left out since they have fewer than `min_count` joint papers.
    """

    records: dict[str, int]
    papers: int
    skipped: dict[str, int]
    authors: int
    pairs: int
    rare_pairs: int

    def __str__(self) -> str:
        kinds = ", ".join(f"{n:,} {tag}" for tag, n in sorted(self.records.items()))
        skipped = ", ".join(f"{n:,} {why}" for why, n in sorted(self.skipped.items()))
        return (
            f"{self.pairs:,} pairs of {self.authors:,} authors from {self.papers:,} "
            f"papers; of {sum(self.records.values()):,} records ({kinds}) skipped: "
            f"{skipped or 'none'}; pairs below min_count: {self.rare_pairs:,}"
        )


@dataclass(frozen=True)
class _Rules:
    """Which papers count; the arguments of `load_dblp`, checked."""

    min_count: int
    max_authors: int | None
    years: tuple[int, int] | None
    venues: frozenset[str] | None
    informal: bool

    def too_many(self, num_authors: int) -> bool:
        return self.max_authors is not None and num_authors > self.max_authors


def load_dblp(
    path: str | PathLike,
    *,
    min_count: int = 1,
    max_authors: int | None = 50,
    years: tuple[int | None, int | None] | None = None,
    venues: str | Iterable[str] | None = None,
    informal: bool = False,
    progress: bool = True,
    return_report: bool = False,
) -> Ratings | tuple[Ratings, DblpReport]:
    """Count the joint papers of every pair of authors in DBLP.

    The file of DBLP is read as a stream, offline: get dblp.xml.gz from dblp.org and
    give its path. Pairs come from the `author` elements of publications (article,
    inproceedings, incollection, book, phdthesis, mastersthesis). Persons (www),
    proceedings and editors give none. A name is the whole text of its element, the
    number of namesakes included ("Wei Wang 0001"), with runs of white space made one
    space; who stands twice on a paper counts once.

    Parameters
    ----------
    path : str or path
        dblp.xml.gz, the same unpacked, or a papers.npz with authors.txt.gz and
        venues.txt beside it. Character entities are those of the DTD that the file
        names, where it lies beside the file, and of HTML Latin-1. Nothing else is
        read, and nothing is fetched.
    min_count : int
        Fewest joint papers of a pair that is kept.
    max_authors : int or None
        Papers of more (distinct) authors are left out: such lists say little about who
        works with whom, and n authors make n (n - 1) / 2 pairs. None: no limit.
    years : (first, last), optional
        Only papers of these years, both included; None for an open end. A paper
        without a year lies outside.
    venues : str or iterable of str, optional
        Only papers of these venues, as the keys of the records name them: "conf/kdd",
        "journals/jmlr" (the first two parts of conf/kdd/Smith99).
    informal : bool
        Whether to count papers marked publtype="informal" (preprints, most of them in
        CoRR), which for the most part appear a second time where they were published.
        papers.npz does not say which they are: there all count.
    progress : bool
        Show a bar of the bytes read.
    return_report : bool
        Whether to give a `DblpReport` too. It is logged at level INFO in any case.

    Returns
    -------
    ratings : Ratings
        One row a pair, N rows. The pair is unordered; its `user` is the author whose
        name comes first by Unicode code points and its `item` the other, which in
        Python is ``user, item = sorted(pair)``: ask for a pair in that order. `rating`
        is the number of joint papers. Rows are sorted by user, then item. As in any
        table, `users` are the authors found in that column, and `items` likewise.
    report : DblpReport
        Only if `return_report`.

    Raises
    ------
    InputError
        With the file, and the line (from 1) where there is one: where the file is
        empty, cut short, corrupt or no XML of DBLP; for an unknown entity in text;
        for an entity that is external, long or made of other entities (none is
        expanded or opened); for a venue of which there is no paper; where no pair is
        left; and for options that make no sense.

    Notes
    -----
    Memory does not grow with the file but with the names and the pairs: about 150
    bytes a distinct author and, at the peak, 100 bytes a distinct pair. All of DBLP as
    of January 2016 (2.9 million papers, 1.5 million authors, 6.7 million pairs) took
    0.9 GB from papers.npz, and as much written out as 1.2 GB of XML, in a minute.

    DBLP is under ODC-BY 1.0: what you publish from it names DBLP.
    """
    rules = _rules(min_count, max_authors, years, venues, informal)
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(
            f"{str(path)!r} is no file; please get dblp.xml.gz from dblp.org and give "
            f"its path: nothing is downloaded"
        )
    try:
        with open(path, "rb") as file:
            magic = file.read(2)
        read = _read_papers if magic == b"PK" else _read_xml
        names, pairs, records, skipped = read(path, rules, progress)
        common = pairs[1] >= rules.min_count
        ratings, num_authors = _ratings(names, *(column[common] for column in pairs))
        report = DblpReport(
            records=dict(records),
            papers=sum(records.values()) - sum(skipped.values()),
            skipped=dict(skipped),
            authors=num_authors,
            pairs=len(ratings),
            rare_pairs=int((~common).sum()),
        )
        if not len(ratings):
            raise InputError(f"no pair of authors is left: {report}")
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    _log.info("%s: %s", path.name, report)
    return (ratings, report) if return_report else ratings


def _rules(min_count, max_authors, years, venues, informal) -> _Rules:
    """Check the options."""
    if _integer(min_count, "min_count") < 1:
        raise InputError(f"min_count must be at least 1, not {min_count}")
    if max_authors is not None and _integer(max_authors, "max_authors") < 2:
        raise InputError(f"max_authors must be at least 2, or None, not {max_authors}")
    if not isinstance(informal, bool | np.bool_):
        raise InputError(f"informal must be True or False, not {informal!r}")
    if venues is not None:
        venues = [venues] if isinstance(venues, str) else [*venues]
        if not venues:
            raise InputError("venues names none; leave it out to count them all")
        for venue in venues:
            if not isinstance(venue, str):
                raise InputError(f"venues must be text, not {venue!r}")
        venues = frozenset(venues)
    return _Rules(min_count, max_authors, _year_range(years), venues, bool(informal))


def _integer(value, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} must be an integer, not {value!r}") from None


def _year_range(years) -> tuple[int, int] | None:
    if years is None:
        return None
    try:
        first, last = years
    except (TypeError, ValueError):
        raise InputError(f"years must be (first, last), not {years!r}") from None
    first = 0 if first is None else _integer(first, "the first of years")
    last = 9999 if last is None else _integer(last, "the last of years")
    if first > last:
        raise InputError(f"years must run from the first to the last, not {years!r}")
    return first, last


def _check_venues(venues: frozenset[str], seen: set[str]) -> None:
    missing = sorted(venues - seen)
    if missing:
        raise InputError(
            f"no paper has the venue {', '.join(map(repr, missing))}; a venue is the "
            f"first two parts of a record's key, such as 'conf/kdd' or 'journals/jmlr'"
        )


# --- the counts -------------------------------------------------------------------


class _PairCounter:
    """Counts unordered pairs of codes in memory that grows with the distinct pairs."""

    def __init__(self) -> None:
        self.keys = np.empty(0, np.int64)  # distinct pairs a << 32 | b, a < b, sorted
        self.counts = np.empty(0, np.int32)
        self._authors, self._sizes = array("i"), array("i")
        self._num_waiting = 0  # pairs of the papers in these two
        self._new: list[np.ndarray] = []  # keys of pairs, repeated ones too
        self._num_new = 0

    def add(self, authors: Sequence[int]) -> None:
        """Count the pairs of one paper's authors, who are distinct."""
        self._authors.extend(authors)
        self._sizes.append(len(authors))
        self._num_waiting += len(authors) * (len(authors) - 1) // 2
        if self._num_waiting >= _CHUNK:
            self._count_waiting()

    def add_many(self, authors: np.ndarray, sizes: np.ndarray) -> None:
        """Count the pairs of many papers, given one after another.

        Parameters
        ----------
        authors : ndarray of int32, shape (rows,)
            Distinct within a paper.
        sizes : ndarray of int, shape (papers,)
            Number of authors of each paper.
        """
        starts = np.cumsum(sizes) - sizes
        for size in np.unique(sizes[sizes > 1]).tolist():
            rows = authors[starts[sizes == size][:, None] + np.arange(size)]
            rows.sort(axis=1)  # so that each pair has its lower code first
            first, second = np.triu_indices(size, k=1)
            keys = rows[:, first].astype(np.int64) << 32 | rows[:, second]
            self._new.append(keys.ravel())
            self._num_new += keys.size
        # Merging costs as much as there are pairs: wait until that many are new.
        if self._num_new >= max(_CHUNK, len(self.keys) // 2):
            self._merge()

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Give the distinct pairs' keys, ascending, and their counts."""
        self._count_waiting()
        self._merge()
        return self.keys, self.counts

    def _count_waiting(self) -> None:
        authors = np.array(self._authors, np.int32)
        sizes = np.array(self._sizes, np.int32)
        self._authors, self._sizes = array("i"), array("i")
        self._num_waiting = 0
        self.add_many(authors, sizes)

    def _merge(self) -> None:
        if not self._new:
            return
        new = np.concatenate(self._new)
        self._new, self._num_new = [], 0
        new, new_counts = np.unique(new, return_counts=True)
        keys = np.concatenate([self.keys, new])
        counts = np.concatenate([self.counts, new_counts.astype(np.int32)])
        order = np.argsort(keys, kind="stable")  # merges two sorted runs
        keys = keys[order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        self.keys = keys[starts]
        self.counts = np.add.reduceat(counts[order], starts, dtype=np.int32)


def _ratings(
    names: Sequence[str], keys: np.ndarray, counts: np.ndarray
) -> tuple[Ratings, int]:
    """Make ratings of pairs, in the order of their names, and count the authors."""
    codes = (keys >> 32).astype(np.int32), (keys & _LOW).astype(np.int32)
    is_there = np.zeros(len(names), bool)
    for side in codes:
        is_there[side] = True
    by_name = sorted(np.flatnonzero(is_there).tolist(), key=names.__getitem__)
    place = np.zeros(len(names), np.int32)
    place[by_name] = np.arange(len(by_name), dtype=np.int32)
    first, second = place[codes[0]], place[codes[1]]
    user, item = np.minimum(first, second), np.maximum(first, second)
    order = np.argsort(user.astype(np.int64) << 32 | item)
    ids = np.fromiter((names[code] for code in by_name), object, len(by_name))
    user, users = _column(user[order], ids, "user")
    item, items = _column(item[order], ids, "item")
    rating = counts[order].astype(np.float64)
    return Ratings(user, item, rating, users, items), len(ids)


def _column(places: np.ndarray, ids: np.ndarray, what: str):
    """Codes and index of one side, which names those that are found there only."""
    present, codes = np.unique(places, return_inverse=True)
    return codes.astype(np.int32), IdIndex(ids[present], what)


# --- papers.npz -------------------------------------------------------------------


def _read_papers(path: Path, rules: _Rules, progress: bool):
    """Count pairs in papers.npz, and the names and venues beside it."""
    with open(path, "rb") as file:
        found = plain_arrays(file, _ARRAYS)
    missing = [name for name in _ARRAYS if name not in found]
    if missing:
        raise InputError(f"has no array {', '.join(missing)}")
    authors, sizes = found["author_flat"], found["n_authors"].astype(np.int64)
    names = _lines(path.with_name(_NAMES))
    # Repeated names would be two authors of one id.
    if len(set(names)) < len(names):
        raise InputError(f"{_NAMES} beside it names an author twice")
    if sizes.sum() != len(authors) or not (
        len(sizes) == len(found["year"]) == len(found["venue"])
    ):
        raise InputError("its arrays do not agree in length")
    _check_lines(authors, names, _NAMES)

    records, skipped = Counter({path.name: len(sizes)}), Counter()
    authors, sizes = _distinct(authors.astype(np.int32), sizes)
    kept = np.ones(len(sizes), bool)

    def skip(reason: str, is_bad: np.ndarray) -> None:
        is_bad &= kept
        if is_bad.any():
            skipped[reason] += int(is_bad.sum())
            kept[is_bad] = False

    if not rules.informal:
        _log.info("%s does not say which papers are informal: all count", path.name)
    if rules.years is not None:
        first, last = rules.years
        skip("outside years", (found["year"] < first) | (found["year"] > last))
    if rules.venues is not None:
        venues = np.array(_lines(path.with_name(_VENUES)), dtype=object)
        _check_lines(found["venue"], venues, _VENUES)
        _check_venues(rules.venues, set(venues[np.unique(found["venue"])]))
        asked = np.isin(venues, list(rules.venues))
        skip("outside venues", ~asked[found["venue"]])
    skip("no author", sizes == 0)
    skip("one author", sizes == 1)
    if rules.max_authors is not None:
        skip("over max_authors", sizes > rules.max_authors)

    counter = _PairCounter()
    authors, sizes = authors[np.repeat(kept, sizes)], sizes[kept]
    rows = np.concatenate([[0], np.cumsum(sizes)])
    num_pairs = np.cumsum(sizes * (sizes - 1) // 2)
    cuts = np.unique(num_pairs // _CHUNK, return_index=True)[1].tolist()
    for start, stop in pairwise([*cuts, len(sizes)]):
        counter.add_many(authors[rows[start] : rows[stop]], sizes[start:stop])
    return names, counter.finish(), records, skipped


def _distinct(authors: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leave out who stands on a paper again."""
    paper = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    keys = paper << 32 | authors
    keys.sort()
    keys = keys[np.diff(keys, prepend=-1) != 0]
    sizes = np.bincount(keys >> 32, minlength=len(sizes))
    return (keys & _LOW).astype(np.int32), sizes


def _check_lines(codes: np.ndarray, lines: Sequence[str], name: str) -> None:
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(lines):
        raise InputError(f"points beyond the {len(lines):,} lines of {name}")


def _lines(path: Path) -> list[str]:
    """Read the lines of a text that belongs to papers.npz."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            text = file.read().decode("utf-8")
    except FileNotFoundError:
        raise InputError(f"there must be a file {path.name} beside it") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} beside it cannot be read ({error})") from None
    return text.removesuffix("\n").split("\n")


# --- dblp.xml ---------------------------------------------------------------------


def _read_xml(path: Path, rules: _Rules, progress: bool):
    """Count pairs in the XML of DBLP, plain or packed by gzip."""
    reader = _RecordReader(rules, path.parent)
    blocks = _blocks(path, progress, lambda: reader.line)
    # An error closes both, and the bar with them, before it is shown.
    with closing(reader), closing(blocks):
        for block in blocks:
            reader.feed(block)
        reader.finish()
    if rules.venues is not None:
        _check_venues(rules.venues, reader.seen_venues)
    return reader.names, reader.counter.finish(), reader.records, reader.skipped


def _blocks(path: Path, progress: bool, line: Callable[[], int]) -> Iterator[bytes]:
    """Yield the file's bytes, unpacked, and move a bar by those that were read."""
    from tqdm.auto import tqdm  # late: in a notebook it looks for widgets

    size = path.stat().st_size
    with (
        open(path, "rb") as packed,
        tqdm(
            total=size,
            unit="B",
            unit_scale=True,
            desc=path.name,
            disable=not progress,
        ) as bar,
    ):
        is_gzip = packed.read(2) == b"\x1f\x8b"
        packed.seek(0)
        with gzip.open(packed) if is_gzip else packed as file:
            while True:
                try:
                    block = file.read(_BLOCK)
                except EOFError:
                    raise InputError(
                        f"line {line()}: the gzip file is cut short here"
                    ) from None
                except (gzip.BadGzipFile, zlib.error) as error:
                    raise InputError(
                        f"line {line()}: the gzip file is corrupt here ({error})"
                    ) from None
                bar.update(packed.tell() - bar.n)
                if not block:
                    return
                yield block


class _RecordReader:
    """Reads records as the parser meets them; none is kept.

    expat is the parser of the standard library. It never opens a file by itself: what
    stands for the DTD is handed to it by `_external`.
    """

    def __init__(self, rules: _Rules, folder: Path) -> None:
        self.rules, self.folder = rules, folder
        self.names: list[str] = []
        self.counter = _PairCounter()
        self.records, self.skipped = Counter(), Counter()
        self.seen_venues: set[str] = set()
        self._codes = {"": _NOBODY}  # of names as they are written
        self._fed = 0  # bytes

        self._fields = {"author"} if rules.years is None else {"author", "year"}
        self._depth = 0
        self._is_wanted = self._is_outside = False  # this record: to read, not to count
        self._is_field = False  # we are in a field to read
        self._text: list[str] = []
        self._authors: dict[str, None] = {}
        self._years: list[str] = []

        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.specified_attributes = True  # none from a DTD
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        # The DTD is asked for whether the file names one or not, and read by us.
        parser.UseForeignDTD(True)
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_ALWAYS)
        parser.ExternalEntityRefHandler = self._external
        parser.EntityDeclHandler = self._declare
        # An unknown entity in an attribute is dropped by expat without a call: it would
        # matter only in a key or publtype.
        parser.SkippedEntityHandler = self._unknown

    @property
    def line(self) -> int:
        """Where the parser is, from 1."""
        return self._parser.CurrentLineNumber

    def feed(self, block: bytes) -> None:
        """Read on."""
        self._parse(block, False)
        self._fed += len(block)
        if self._fed - max(self._parser.CurrentByteIndex, 0) > _MAX_TOKEN:
            self._refuse(f"a tag or comment of more than {_MAX_TOKEN:,} bytes")
        if len(self._text) > _MAX_PIECES:
            self._refuse("a name or year of endless length")

    def finish(self) -> None:
        """Say that nothing follows."""
        if not self._fed:
            raise InputError("is empty")
        self._parse(b"", True)

    def close(self) -> None:
        """Part the parser from us: the two hold one another."""
        parser = self._parser
        parser.StartElementHandler = parser.EndElementHandler = None
        parser.CharacterDataHandler = parser.ExternalEntityRefHandler = None
        parser.EntityDeclHandler = parser.SkippedEntityHandler = None

    def _parse(self, block: bytes, is_last: bool) -> None:
        try:
            self._parser.Parse(block, is_last)
        except expat.ExpatError as error:
            what = expat.ErrorString(error.code)
            if is_last and error.code in _CUT_SHORT:
                what = f"the file is cut short here ({what})"
            elif not self.records and not self._depth:
                what = f"this is no XML ({what})"
            raise InputError(f"line {error.lineno}: {what}") from None
        except (LookupError, UnicodeError) as error:  # the encoding that it declares
            raise InputError(f"line {self.line}: {error}") from None

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"line {self.line}: {what}")

    # Called some twenty times a record: what is not needed at each call is elsewhere.

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 3:
            if self._is_wanted and tag in self._fields:
                self._is_field = True
                self._parser.CharacterDataHandler = self._text.append
        elif self._depth == 2:
            self._start_record(tag, attributes)
        elif self._depth == 1:
            if tag != _ROOT:
                self._refuse(f"the root is <{tag}>, where DBLP has <{_ROOT}>")
        elif self._depth > _MAX_DEPTH:
            self._refuse(f"more than {_MAX_DEPTH} elements within one another")

    def _end(self, tag: str) -> None:
        if self._depth == 3:
            if self._is_field:
                self._is_field = False
                self._parser.CharacterDataHandler = None
                text = "".join(self._text)
                self._text.clear()
                if tag == "author":
                    self._authors[text] = None
                else:
                    self._years.append(text)
        elif self._depth == 2 and self._is_wanted:
            self._end_record()
        self._depth -= 1

    def _start_record(self, tag: str, attributes: dict[str, str]) -> None:
        rules = self.rules
        self.records[tag] += 1
        self._is_wanted = False
        if tag not in _PUBLICATIONS:
            self.skipped["no publication"] += 1
            return
        is_outside = False
        if rules.venues is not None:
            venue = "/".join(attributes.get("key", "").split("/")[:-1][:2])
            is_outside = venue not in rules.venues
            if not is_outside:
                self.seen_venues.add(venue)
        if not rules.informal and "informal" in attributes.get("publtype", "").split():
            self.skipped["informal"] += 1
            return
        self._is_wanted, self._is_outside = True, is_outside
        self._authors.clear()
        self._years.clear()

    def _end_record(self) -> None:
        rules, skipped = self.rules, self.skipped
        if rules.years is not None and not _is_within(self._years, rules.years):
            skipped["outside years"] += 1
            return
        if self._is_outside:
            skipped["outside venues"] += 1
            return
        names = self._authors
        if rules.too_many(len(names)):  # unless some differ in their spaces only
            names = {_clean(name) for name in names} - {""}
            if rules.too_many(len(names)):
                skipped["over max_authors"] += 1
                return
        codes = {self._code(name) for name in names}
        codes.discard(_NOBODY)
        if len(codes) > 1:
            self.counter.add(codes)
        else:
            skipped["one author" if codes else "no author"] += 1

    def _code(self, name: str) -> int:
        """Give a name its code, the same however it is spaced."""
        code = self._codes.get(name)
        if code is None:
            clean = _clean(name)
            code = self._codes.setdefault(clean, len(self.names))
            if code == len(self.names):
                self.names.append(clean)
            self._codes[name] = code
        return code

    # The DTD and entities.

    def _external(self, context, base, system_id, public_id) -> int:
        """Give the parser the DTD beside the file and the entities of Latin-1.

        Of two declarations of an entity the first holds.
        """
        name, text = "the DTD", ""
        if system_id is not None:
            # No path and no address: a file of that name in the folder, or none.
            name = re.split(r"[/\\]", system_id)[-1]
            path = self.folder / name
            if name and path.is_file():
                text = _dtd_text(path)
        reader = self._parser.ExternalEntityParserCreate(context, "utf-8")
        try:
            reader.Parse(f"{text}\n{_LATIN_1}".encode(), True)
        except expat.ExpatError as error:
            what = expat.ErrorString(error.code)
            raise InputError(f"{name}, line {error.lineno}: {what}") from None
        return 1

    def _declare(
        self, name, is_parameter, value, base, system_id, public_id, notation
    ) -> None:
        """Refuse entities that could open files or grow: DBLP's are single letters."""
        if value is None:
            self._refuse(f"the entity {name!r} is external ({system_id}): not followed")
        if len(value) > (_MAX_PARAMETER if is_parameter else _MAX_ENTITY):
            self._refuse(f"the entity {name!r} is longer than any of DBLP")
        if not is_parameter and set(value) & {"&", "<"}:
            self._refuse(f"the entity {name!r} is made of entities or elements")

    def _unknown(self, name: str, is_parameter: bool) -> None:
        self._refuse(f"the entity {'%' if is_parameter else '&'}{name}; is unknown")


def _is_within(years: list[str], wanted: tuple[int, int]) -> bool:
    try:
        return wanted[0] <= int(years[0]) <= wanted[1]
    except (IndexError, ValueError):  # none, or no number
        return False


def _clean(name: str) -> str:
    return _SPACES.sub(" ", name).strip(" ")


def _dtd_text(path: Path) -> str:
    """Read a DTD, whose comments may be in Latin-1 though it does not say so."""
    with open(path, "rb") as file:
        content = file.read(_MAX_DTD + 1)
    if len(content) > _MAX_DTD:
        raise InputError(f"{path.name} beside it is no DTD of DBLP: it is too long")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")
