"""Trajectory segments: one gzip file of JSON lines per training step or evaluation.

A segment is written whole, atomically, because a step is the unit that a resumed run repeats. It consists of blocks
with an index of their lines, so one trajectory or a page of a list is read without the rest. Fields at their default
are left out. Measured on 128 trajectories of 3
turns (one CPU core): encoding 7 ms, gzip level 1 3 ms more, for 136 KB in place of 616 KB; level 6 would take 12 ms for
118 KB.

A block is a gzip member of about 1 MB of text that can be read alone, so `zcat` shows the whole file. Its header has a
field (RFC 1952, "extra field") that `zcat` skips: the block's size, which leads to the next block as in bgzip's files,
and compressed JSON about its lines, with the checksum of zlib. A list of 100,000 trajectories is read from 2 MB of
headers.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain, starmap
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError
from pydantic_core import from_json

from midstream.core.data import problems_of
from midstream.core.errors import RunError
from midstream.core.trajectory import Trajectory
from midstream.runs.files import atomic_file, damaged, encode_record, fsync_directory, open_file, storage_errors

_TEXT = 1 << 20  # bytes of text after which a block ends
_LINES = 1_000  # lines after which it ends: their index has to fit into the header
_START = struct.Struct("<BBBBIBBHccH")  # magic, method, flags, time, level, system; field: length, name, length
_SIZES = struct.Struct("<QI")  # bytes of the block, number of lines
_EXTRA, _FASTEST, _UNKNOWN = 4, 4, 255  # flag, level and system of gzip's header
_MAGIC = bytes((0x1F, 0x8B, 8, _EXTRA))
_LONGEST_FIELD = 0xFFFF - 4


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a file: where its bytes are, how many lines it has, and the compressed index of these."""

    offset: int
    size: int
    lines: int
    index: bytes

    def about(self) -> list[Any]:
        """What the writer gave for each line; raises `zlib.error`, `EOFError` or `ValueError` if it is damaged."""
        if not self.index:
            return [None] * self.lines
        return self._checked(from_json(zlib.decompress(self.index))["lines"])

    def read(self, file: BinaryIO) -> list[bytes]:
        """The lines; raises `zlib.error` or `EOFError` if they are damaged."""
        file.seek(self.offset)
        # 16: a gzip member with its header and checksum
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        text = unpacker.decompress(file.read(self.size))
        if not unpacker.eof:
            raise EOFError("a block ends early")
        return self._checked(text.splitlines(keepends=True))

    def _checked(self, found: list[Any]) -> list[Any]:
        if len(found) != self.lines:
            raise EOFError(f"a block has {len(found):,} lines, not {self.lines:,}")
        return found


class BlockWriter:
    """Writes lines to an empty file; equal lines give equal bytes. Memory holds one block."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lines: list[bytes] = []
        self._about: list[Any] = []
        self._size = 0

    def add(self, line: bytes, about: Any) -> None:
        """Add a line, with a value for the index that JSON can hold."""
        self._lines.append(line)
        self._about.append(about)
        self._size += len(line)
        if self._size >= _TEXT or len(self._lines) == _LINES:
            self._write()

    def finish(self) -> None:
        """Write the last block; a file without lines has one empty block."""
        if self._lines or not self._file.tell():
            self._write()

    def _write(self) -> None:
        self._file.write(_packed(b"".join(self._lines), self._about))
        self._lines, self._about, self._size = [], [], 0


def read_blocks(file: BinaryIO) -> Iterator[Block]:
    """Read the headers of all blocks.

    Raises `EOFError` if the file is empty, ends within a block, or has something else after one.
    """
    end, offset = file.seek(0, os.SEEK_END), 0
    if not end:
        raise EOFError("the file is empty")
    while offset < end:
        file.seek(offset)
        start = file.read(_START.size + _SIZES.size)
        if len(start) < _START.size + _SIZES.size or start[:4] != _MAGIC or start[12:14] != b"MS":
            raise EOFError(f"no block begins at byte {offset}")
        size, lines = _SIZES.unpack_from(start, _START.size)
        length = _START.unpack_from(start)[-1]
        if not len(start) < size <= end - offset:
            raise EOFError(f"the block at byte {offset} has another size")
        yield Block(offset, size, lines, file.read(length - _SIZES.size))
        offset += size


def _packed(text: bytes, about: list[Any]) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = packer.compress(text) + packer.flush() + struct.pack("<II", zlib.crc32(text), len(text) & 0xFFFFFFFF)
    index = zlib.compress(encode_record({"lines": about}), 1)
    if _SIZES.size + len(index) > _LONGEST_FIELD:  # ids of unusual length: readers unpack this block instead
        index = b""
    field = _SIZES.size + len(index)
    start = _START.pack(0x1F, 0x8B, 8, _EXTRA, 0, _FASTEST, _UNKNOWN, field + 4, b"M", b"S", field)
    return start + _SIZES.pack(len(start) + field + len(body), len(about)) + index + body


SUFFIX = ".jsonl.gz"
_STEP = re.compile(r"step-(\d{6,})" + re.escape(SUFFIX))
_LONGEST_NAME = 100  # with prefix and suffix well below the 255 bytes that file systems allow
_SHOWN = 8

Candidate = tuple[str, str, Callable[[], Trajectory]]  # a segment, a trajectory's id, and how to read it


def result_name(set_name: str, sampling: str, step: int | None = None) -> str:
    """The name of an evaluation's file of trajectories; `step` if a run evaluates a set at several."""
    return f"{set_name}-{sampling.replace('=', '')}" + ("" if step is None else f"-{step}")


def evaluation_name(name: str) -> str:
    """The name of an evaluation's segment; with a digest where `name` is too long or not fit for a file name."""
    safe = re.sub(r"[^A-Za-z0-9._=+-]+", "-", name)[:_LONGEST_NAME]
    digest = "" if safe == name else f"-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
    return f"eval-{safe}{digest}"


@dataclass(frozen=True)
class Segments:
    """The trajectories of one run, in the directory `root`.

    Reading raises `RunError` where a segment is missing or damaged, writing raises `StorageError`.
    """

    root: Path

    def path(self, segment: int | str) -> Path:
        """The file of a segment: that of a training step, or of the evaluation with this name."""
        name = f"step-{segment:06d}" if isinstance(segment, int) else evaluation_name(segment)
        return self.root / f"{name}{SUFFIX}"

    def steps(self) -> list[int]:
        """The training steps that have a segment, ascending."""
        names = [entry.name for entry in self.root.iterdir()] if self.root.is_dir() else []
        return sorted(int(match[1]) for match in map(_STEP.fullmatch, names) if match)

    def parts(self) -> dict[str, Segment]:
        """Every segment, by name."""
        paths = sorted(self.root.glob(f"[!.]*{SUFFIX}"))  # others are being written
        return {path.name.removesuffix(SUFFIX): Segment(path) for path in paths}

    @contextmanager
    def writing(self, segment: int | str) -> Iterator[Callable[[Trajectory], None]]:
        """Write a segment (see `path`) one trajectory at a time: the context yields the function that adds one.

        The segment replaces an earlier one when the context ends without an error. Equal trajectories give equal bytes.
        """
        path = self.path(segment)
        with storage_errors(path):
            self.root.mkdir(exist_ok=True)
        with atomic_file(path) as file:
            writer = BlockWriter(file)

            def add(trajectory: Trajectory) -> None:
                score = None if trajectory.reward is None else trajectory.reward.value
                about = trajectory.id, trajectory.task_id, score, trajectory.status
                writer.add(encode_record(trajectory, exclude_defaults=True), about)

            yield add
            writer.finish()

    def write(self, segment: int | str, trajectories: Iterable[Trajectory]) -> None:
        """Write a segment, as `writing` does."""
        with self.writing(segment) as add:
            for trajectory in trajectories:
                add(trajectory)

    def open(self, segment: int | str) -> Segment:
        """A segment, whose trajectories are read when they are used."""
        return Segment(self.path(segment))

    def read(self, segment: int | str, ids: Collection[str] | None = None) -> list[Trajectory]:
        """The trajectories of a segment in order; with `ids` those that have one, and only these are validated."""
        opened = self.open(segment)
        if ids is None:
            return list(opened)
        return list(opened.at([place for place, entry in enumerate(opened.entries()) if entry.id in ids]))

    def find(self, id_or_prefix: str, unfinished: Iterable[Candidate] = ()) -> Trajectory:
        """Find the only trajectory with this id, or else the only one whose id starts with it.

        `<segment>/<id>`, as the error about several matches lists them, searches one segment only. `unfinished` are
        candidates of segments that are not written yet or will be rewritten; they replace the written ones. Raises
        `RunError` if no trajectory matches, or several do.
        """
        parts = self.parts()
        segment, _, rest = id_or_prefix.partition("/")
        searched = {segment: parts[segment]} if segment in parts else parts
        exact: dict[str, Callable[[], Trajectory]] = {}
        begins: dict[str, Callable[[], Trajectory]] = {}
        for name, found, load in chain(_candidates(searched), unfinished):
            wanted = rest if name == segment else id_or_prefix
            if not found.startswith(wanted):
                continue
            matches, full = exact if found == wanted else begins, f"{name}/{found}"
            if len(matches) <= _SHOWN or full in matches:
                matches[full] = load
        names = list(exact or begins)
        if not names:
            raise RunError(
                f"no trajectory {id_or_prefix!r} in {len(parts)} segments",
                code="trajectory-not-found",
                cause="the id is of another run, or was removed when the run resumed",
                fix="take an id, or the start of one, from a run's report or from `midstream compare ... --tasks`",
            )
        if len(names) > 1:
            more = " and more" if len(names) > _SHOWN else ""
            raise RunError(
                f"trajectory {id_or_prefix!r} could be {', '.join(names[:_SHOWN])}{more}",
                code="trajectory-ambiguous",
                fix="give one of these names in full",
            )
        return (exact or begins)[names[0]]()

    def remove_after(self, step: int) -> None:
        """Remove the segments of later steps, and temporary files left by a crash."""
        if not self.root.is_dir():
            return
        with storage_errors(self.root):
            for later in self.steps():
                if later > step:
                    self.path(later).unlink()
            for leftover in self.root.glob(".*.tmp"):
                leftover.unlink()
            fsync_directory(self.root)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a segment's index says about a trajectory; of a damaged line of a block without an index an empty id."""

    id: str
    task_id: str
    score: float | None  # None without a reward
    status: str


class Segment:
    """The trajectories of one segment, in order; each use reads the file again, and memory holds one block.

    Raises `RunError` as `Segments` does. `len` and `entries` read the index alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        with self._opened() as pieces:
            return sum(count for count, _, _ in pieces)

    def __iter__(self) -> Iterator[Trajectory]:
        with self._opened() as pieces:
            for _, _, lines in pieces:
                yield from (_parse(self.path, line) for line in lines())

    def at(self, places: Iterable[int]) -> Iterator[Trajectory]:
        """The trajectories at `places`, which count from 0 and ascend."""
        return (_parse(self.path, line) for line in self.lines(places))

    def lines(self, places: Iterable[int]) -> Iterator[bytes]:
        """The lines at `places`, as `at` reads them; they are not validated."""
        wanted, start = iter(places), 0
        place = next(wanted, None)
        with self._opened() as pieces:
            for count, _, lines in pieces:
                held = lines() if place is not None and place < start + count else []
                while place is not None and place < start + count:
                    yield held[place - start]
                    place = next(wanted, None)
                start += count
                if place is None:
                    return

    def entries(self) -> Iterator[Entry]:
        """What the index says about each trajectory."""
        with self._opened() as pieces:
            for _, about, lines in pieces:
                known = about()
                yield from starmap(Entry, map(_about, lines()) if None in known else known)

    @contextmanager
    def _opened(self) -> Iterator[Iterator[_Piece]]:
        """The pieces of the file, whose functions work within the context, where damage becomes a `RunError`."""
        path = self.path
        try:
            with open_file(path) as file:
                yield _pieces(file)
        except FileNotFoundError as error:
            raise RunError(
                f"there is no segment {path.name} in {path.parent}",
                code="file-not-found",
                fix=f"see what there is: `ls {path.parent}`",
            ) from error
        except (EOFError, ValueError, zlib.error) as error:
            raise _damaged_segment(path, str(error)) from error


# Lines that are read together: their number, what the index says of each (None: nothing), and the lines.
_Piece = tuple[int, Callable[[], list[Any]], Callable[[], list[bytes]]]


def _pieces(file: BinaryIO) -> Iterator[_Piece]:
    """The blocks of a segment."""
    for block in read_blocks(file):
        yield block.lines, block.about, partial(block.read, file)


def _candidates(parts: Mapping[str, Segment]) -> Iterator[Candidate]:
    for name, segment in parts.items():
        for place, entry in enumerate(segment.entries()):
            yield name, entry.id, lambda segment=segment, place=place: next(segment.at([place]))


def _about(line: bytes) -> tuple[str, str, float | None, str]:
    """The fields of an `Entry`, of a line without one in the index."""
    try:
        record = from_json(line)
        reward = record.get("reward")
        return record["id"], record["task_id"], reward and reward["value"], record.get("status", "ok")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", "", None, "error"


def _parse(path: Path, line: bytes) -> Trajectory:
    try:
        return Trajectory.model_validate_json(line)
    except ValidationError as error:
        raise _damaged_segment(path, problems_of(error)[0]) from error


def _damaged_segment(path: Path, problem: str) -> RunError:
    fix = "restore it from a copy, or delete it: training does not need it, only reports do"
    return damaged(path, problem, fix=fix)
