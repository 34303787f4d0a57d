"""Find damage in the files of a run: compare them with their checksums, and with the extents in `status.json`."""

from __future__ import annotations

from pathlib import Path

from midstream.core.errors import RunError
from midstream.runs import checksums
from midstream.runs.files import damaged
from midstream.runs.info import Extent
from midstream.runs.journal import read_records


def extent_of(path: Path) -> Extent:
    """The extent of a file as it is now."""
    return Extent(size=path.stat().st_size, crc32=checksums.crc_of(path))


def tail_of(path: Path) -> bytes:
    """The last bytes of a file, where a checksum stands."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - checksums.LENGTH))
        return file.read()


def has_checksums(path: Path) -> bool:
    """Whether a file ends in a checksum, or is empty."""
    tail = tail_of(path)
    return not tail or checksums.crc_after(tail) is not None


def journal_damage(path: Path, extent: Extent | None) -> RunError | None:
    """The first damage in a journal that once had the `extent`, or None."""
    found: list[RunError] = []
    left = sum(1 for _ in read_records(path, found.append))
    size = path.stat().st_size if path.exists() else 0
    if extent is not None and size < extent.size:
        return damaged(path, f"its last records are missing: {left} are left, {size:,} of {extent.size:,} bytes")
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return RunError(found[0].what + more, code=found[0].code, cause=found[0].cause, fix=found[0].fix)
    if extent is not None and checksums.crc_of(path, extent.size) != extent.crc32:  # or it would look torn
        return damaged(path, "its last record is not as it was written")
    return None


def file_damage(path: Path, extent: Extent, *, read: bool = True) -> RunError | None:
    """How a whole file differs from its `extent`, None if it does not; without `read` only its size is compared."""
    if not path.is_file():
        return damaged(path, "the file is missing")
    size = path.stat().st_size
    if size != extent.size:
        return damaged(path, f"it has {size:,} bytes, and had {extent.size:,}")
    if read and checksums.crc_of(path) != extent.crc32:
        return damaged(path, "it is not as it was written")
    return None
