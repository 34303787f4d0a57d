"""Checksums in JSON: the last field of each record of a journal, and of a file that is one JSON object.

    {"step":3,"loss":0.25,"checksum":"9d2c5680efc60000"}

The first eight hexadecimal digits are the CRC-32 of the line up to `"checksum"`, the last eight that of the file up to
there. So a line that was changed is distinguished from one before which others are missing, and the last checksum of
many lines covers all of them. A checksum finds damage; it does not keep a person from computing another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal
from zlib import crc32

from pydantic_core import from_json

FIELD = "checksum"
_BLOCK = 1 << 20
_MARK = b'"checksum":"'
LENGTH = len(_MARK) + len('0123456789abcdef"}\n')


def add(line: bytes, before: int = 0) -> bytes:
    """Add the last field to a line that holds a JSON object; `before` is the CRC-32 of the file before the line."""
    body = line[:-2] + (b"," if len(line) > len(b"{}\n") else b"")
    return b'%b%b%08x%08x"}\n' % (body, _MARK, crc32(body), crc32(body, before))


def remove(line: bytes) -> bytes:
    """The line as `add` got it."""
    return line[:-LENGTH].removesuffix(b",") + b"}\n"


def covers(lines: bytes, before: int) -> bool:
    """Whether `lines` end in a checksum that is theirs; `before` as in `add`."""
    last = lines[lines.rfind(b"\n", 0, -1) + 1 : -LENGTH]
    return lines[-LENGTH:] == b'%b%08x%08x"}\n' % (_MARK, crc32(last), crc32(lines[:-LENGTH], before))


def crc_after(tail: bytes) -> int | None:
    """The CRC-32 of a file of which `tail` are the last bytes, by its last checksum; None without one."""
    tail = tail[-LENGTH:]
    if not tail.startswith(_MARK):
        return None
    try:
        return crc32(tail, int(tail[-11:-3], 16))
    except ValueError:
        return None


def problem_of(line: bytes, before: int | None) -> Literal["changed", "misplaced", ""]:
    """The problem with a line that must have a checksum; it may stand anywhere if `before` is None."""
    if line[-19:-11] != b"%08x" % crc32(line[:-LENGTH]) or crc_after(line) is None:
        return "changed"
    return "" if before is None or covers(line, before) else "misplaced"


def read_object(data: bytes) -> Any:
    """The object of a file that is one JSON object, without its checksum; `ValueError` if that is of other content."""
    found = from_json(data)
    if isinstance(found, dict) and found.pop(FIELD, None) is not None and add(remove(data)) != data:
        raise ValueError("it is not as it was written")
    return found


def crc_of(path: Path, size: int | None = None) -> int:
    """The CRC-32 of a file, or of its first `size` bytes."""
    crc, left = 0, path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while block := file.read(min(_BLOCK, left)):
            crc, left = crc32(block, crc), left - len(block)
    return crc
