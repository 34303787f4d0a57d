"""Rows from the Hugging Face Hub, by its own library (the extra `data`), which also keeps what it has downloaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from midstream.core.errors import UnsupportedError, UsageError
from midstream.tasks.records import Record


def rows(
    repository: str,
    config: str,
    split: str,
    *,
    columns: Sequence[str],
    revision: str | None,
    gated: bool,
    known_as: str,
) -> Iterator[Record]:
    """The rows of one split of one config ("" is its only one), with `columns` alone.

    Raises:
        UnsupportedError: the extra is not installed.
        UsageError: it cannot be had: the machine is offline, its licence is not accepted, or it has changed.
    """
    data = _load(repository, config, split, revision, gated, known_as)
    chosen = [name for name in data.column_names if name in columns]
    for number, row in enumerate(data.select_columns(chosen) if chosen else data, 1):
        yield Record(f"row {number}", row)


def is_here(repository: str) -> bool:
    """Whether something of a repository was downloaded before."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return False
    return any(Path(constants.HF_HUB_CACHE).glob(f"datasets--{repository.replace('/', '--')}/snapshots/*/*"))


def _load(repository: str, config: str, split: str, revision: str | None, gated: bool, known_as: str) -> Any:
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise UnsupportedError(
            f"benchmark {known_as} is on the Hugging Face Hub, and what reads it is not installed",
            cause="it is an extra of midstream",
            fix=f"pip install 'midstream[data]'; or {_file(known_as)}",
        ) from error
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    page = f"https://huggingface.co/datasets/{repository}"
    try:
        return datasets.load_dataset(repository, config or None, split=split, revision=revision)
    except ConnectionError as error:
        raise UsageError(
            f"benchmark {known_as} could not be downloaded: {_line(error)}",
            cause="this machine does not reach the Hugging Face Hub, or is told not to (HF_HUB_OFFLINE)",
            fix=f"connect it; or download {page} elsewhere and {_file(known_as)}",
        ) from error
    except (DatasetsError, OSError) as error:
        raise UsageError(
            f"benchmark {known_as} could not be downloaded: {_line(error)}",
            cause="its owners ask you to accept its conditions first, and you are not logged in or have not"
            if gated
            else f"{repository} was moved, closed or changed",
            fix=f"accept them at {page}, then hf auth login (older: huggingface-cli login); or {_file(known_as)}"
            if gated
            else f"look at {page}; pin a `revision` that works, or {_file(known_as)}",
        ) from error
    except (ValueError, RuntimeError) as error:  # no such config or split; a repository that wants to run its own code
        raise UsageError(
            f"benchmark {known_as} is not what it was: {_line(error)}",
            cause=f"{repository} has changed its configs or splits",
            fix=f"look at {page}; pin a `revision` that works, or {_file(known_as)}",
        ) from error


def _file(known_as: str) -> str:
    return f'name a file of it: file = "{known_as}.jsonl", or --benchmark {known_as}={known_as}.jsonl'


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
