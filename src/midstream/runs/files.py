"""Write files so that a crash or a full disk leaves either the old content or the new one; open them.

`atomic_write` replaces a whole file, `journal.Journal` appends lines. Both turn an `OSError` into a `StorageError`,
which stops a run in a state that it can resume from. `open_file` opens the files of a run, which others may have made.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from midstream.core.errors import RunError, StorageError

_REFUSED = (errno.ELOOP, errno.EMLINK, errno.EINVAL, errno.ENXIO, errno.EISDIR)
_RESUME = "then give the command again, or `midstream resume` the run"
# The system's names of errors: not every platform has every number.
_FULL = ("ENOSPC", "EDQUOT", "EFBIG")


def storage_error(error: OSError, path: Path) -> StorageError:
    """The `StorageError` that explains what `error` means for `path` and how to fix it."""
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    code, fix = "write-failed", "correct that, or write elsewhere"
    if name in _FULL:
        code, fix = "disk-full", "free space on that disk, or raise the quota or the limit (`ulimit -f`)"
    return StorageError(f"cannot write {path}: {error.strerror or error} ({name})", code=code, fix=f"{fix}, {_RESUME}")


def damaged(path: Path, problem: str, fix: str = "restore it from a copy") -> RunError:
    """The `RunError` of a run's file that no crash of midstream leaves like this."""
    return RunError(f"{path} is damaged: {problem}", code="file-damaged", fix=fix)


def open_file(path: Path, mode: str = "rb", buffering: int = -1) -> BinaryIO:
    """Open a file of a run. Raises `RunError` for a link, a pipe or a device: reading it could end nowhere."""

    def open_regular(path: str, flags: int) -> int:
        # Without blocking: a pipe would wait for its other end. Windows has neither flag.
        descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)

    try:
        return cast(BinaryIO, open(path, mode, buffering, opener=open_regular))
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise damaged(path, "it is a link, a pipe or a device, not a file") from error


def read_file(path: Path) -> bytes:
    """The content of a small file of a run; raises as `open_file`."""
    with open_file(path) as file:
        return file.read()


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn any `OSError` inside the context into a `StorageError` about `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def fsync_directory(directory: Path) -> None:
    """Make renames, creations and deletions inside `directory` survive a power cut.

    Does nothing where directories cannot be synced (Windows, some network file systems): a rename is still atomic
    there, it may only be undone by a power cut.
    """
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Replace `path` by what is written to the file: a reader, or a crash at any moment, sees the old or the new one.

    The new one is there when the context ends without an error; after an error `path` is as it was. Raises
    `StorageError`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage_errors(path):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_directory(path.parent)


def atomic_write(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Replace `path` by `data`, as `atomic_file` does. Parts are written one by one, so memory holds one at a time."""
    with atomic_file(path) as file:
        file.writelines([data] if isinstance(data, bytes) else data)


def encode_record(record: BaseModel | Mapping[str, object], *, exclude_defaults: bool = False) -> bytes:
    """One line of JSON with its newline. Infinite and NaN numbers become the strings "Infinity", "-Infinity", "NaN".

    Half a surrogate pair, which a model's broken JSON escape can put into a text, is no valid UTF-8: it is written
    as "?", because one bad character must not stop a run.
    """
    try:
        if isinstance(record, BaseModel):
            return record.model_dump_json(exclude_defaults=exclude_defaults).encode() + b"\n"
        return to_json(record, inf_nan_mode="strings") + b"\n"
    except PydanticSerializationError:
        plain = record.model_dump(exclude_defaults=exclude_defaults) if isinstance(record, BaseModel) else dict(record)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace") + b"\n"
