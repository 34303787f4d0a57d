"""Lines of a file by ranges of bytes: of a segment, which is packed, or of a journal as it is.

A line may be larger than memory should hold, so text comes in parts. Of a packed file, copies of the decompressor
are kept at some places (about 40 KB each), and reading from any place continues at the nearest one before it.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from midstream.runs.files import open_file

WHOLE = 1 << 20  # bytes of a line that is held whole
_READ = 1 << 16  # packed bytes that are read at once
_PART = 1 << 18  # bytes of text that are handed out at once
_STRIDE = 1 << 22  # bytes of text between two kept places


class OpenFile:
    """A file that stays open as long as something refers to it, also when it is replaced meanwhile."""

    def __init__(self, path: Path) -> None:
        with open_file(path) as file:
            self._descriptor = os.dup(file.fileno())

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, size: int, start: int) -> bytes:
        """At most `size` bytes from `start` on."""
        return os.pread(self._descriptor, size, start)

    def stat(self) -> os.stat_result:
        """Its size and times as they are now."""
        return os.fstat(self._descriptor)


class Text(Protocol):
    """The text of a file, or of a part of it."""

    def parts(self, start: int = 0) -> Iterator[bytes]:
        """The text from byte `start` on. Raises `EOFError` or `zlib.error` where it is damaged."""
        ...


class PlainText:
    """The text of a file that is not packed."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file

    def parts(self, start: int = 0) -> Iterator[bytes]:
        """The text from byte `start` on, as far as the file has it now."""
        while part := self._file.read(_PART, start):
            yield part
            start += len(part)


class HeldText:
    """Text in memory."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def parts(self, start: int = 0) -> Iterator[bytes]:
        """The text from byte `start` on."""
        yield self._text[start:]


class PackedText:
    """The text of a gzip file."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        # (byte of the text, byte of the file, decompressor there)
        self._kept = [(0, 0, zlib.decompressobj(16 + zlib.MAX_WBITS))]
        self._keeping = threading.Lock()

    def parts(self, start: int = 0) -> Iterator[bytes]:
        """The text from byte `start` on. Raises `EOFError` or `zlib.error` where it is damaged."""
        at, place, kept = next(kept for kept in reversed(self._kept) if kept[0] <= start)
        unpacker = kept.copy()
        while True:
            data = self._file.read(_READ, place)
            if not data:
                raise EOFError("the file ends early")
            text = unpacker.decompress(data, _PART)
            place += len(data) - len(unpacker.unconsumed_tail)
            if at + len(text) > start:
                yield text[max(0, start - at) :]
            at += len(text)
            if unpacker.eof:
                return
            with self._keeping:
                if at > self._kept[-1][0] + _STRIDE:
                    self._kept.append((at, place, unpacker.copy()))


def lines(text: Text, start: int = 0, *, early: bool = False) -> Iterator[tuple[int, int, bytes | None]]:
    """Where each whole line begins and ends, and the line, None for one of more than `WHOLE` bytes.

    With `early` such a line is handed out before its end is read, which is then -1. Raises as `Text.parts`, after the
    last whole line.
    """
    held: list[bytes] = []
    size = 0
    for part in text.parts(start):
        begin = 0
        while end := part.find(b"\n", begin) + 1:
            out = size > WHOLE
            size += end - begin
            held.append(part[begin:end])
            if not (early and out):
                yield start, start + size, b"".join(held) if size <= WHOLE else None
            start, begin, held, size = start + size, end, [], 0
        if early and size <= WHOLE < size + len(part) - begin:
            yield start, -1, None
        size += len(part) - begin
        # Of a line that is too large, nothing is held.
        held = [*held, part[begin:]] if size <= WHOLE else []


class Reader:
    """Reads ranges of a text that ascend; what lies between them is not held."""

    def __init__(self, text: Text, start: int) -> None:
        self._parts, self._at, self._part = text.parts(start), start, b""  # the part at hand, and where it begins

    def read(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` to `end`; raises as `Text.parts`, and `EOFError` if there are fewer."""
        held: list[bytes] = []
        while True:
            held.append(self._part[max(0, begin - self._at) : max(0, end - self._at)])
            if end <= self._at + len(self._part):
                return b"".join(held)
            self._at += len(self._part)
            self._part = next(self._parts, b"")
            if not self._part:
                raise EOFError("the file ends early")
