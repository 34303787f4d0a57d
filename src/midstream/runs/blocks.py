"""Gzip files of lines in blocks that can be read alone, each with an index of its lines in its header.

A block is a gzip member of about 1 MB of text, so `zcat` shows the whole file. Its header has a field (RFC 1952, "extra
field") that `zcat` skips: the block's size, which leads to the next block as in bgzip's files, and compressed JSON
about its lines, with the checksum of zlib. A list of 100,000 trajectories is read from 2 MB of headers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from pydantic_core import from_json

from midstream.runs.files import encode_record

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
    """Read the headers of all blocks; none if the file was not written by `BlockWriter`.

    Raises `EOFError` if the file ends within a block, or has something else after one.
    """
    end, offset = file.seek(0, 2), 0
    while offset < end:
        file.seek(offset)
        start = file.read(_START.size + _SIZES.size)
        if len(start) < _START.size + _SIZES.size or start[:4] != _MAGIC or start[12:14] != b"MS":
            if offset == 0:
                return
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
