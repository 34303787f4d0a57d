"""What judges said, kept on disk, shared by processes, so that nothing is paid twice.

It holds prompts and replies as they were, and no key.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from midstream.core.data import Frozen
from midstream.core.keyed_file import KeyedFile
from midstream.core.trajectory import Call

FILE = "judge.sqlite"
APPLICATION = 0x6D736A64  # "msjd"
FORMAT = 1


class Verdict(Frozen):
    """One vote: whether the answer is correct, and the requests that led to it (two where one was nonsense)."""

    correct: bool
    calls: tuple[Call, ...]


class Verdicts:
    """The file in `directory`; raises as `core.keyed_file.KeyedFile`, and may be used from any thread."""

    def __init__(self, directory: Path) -> None:
        self._file = KeyedFile(
            directory / FILE,
            application=APPLICATION,
            version=FORMAT,
            table="verdicts",
            what="judge's cache",
            setting="`cache` of the judge",
        )

    def find(self, key: str) -> Verdict | None:
        """What was said to the request of that key."""
        found = self._file.find(key)
        try:
            return None if found is None else Verdict.model_validate_json(found)
        except ValidationError as error:
            raise self._file.unusable(error) from error

    def keep(self, key: str, verdict: Verdict) -> Verdict:
        """Keep a verdict and give it back, or the one that another process kept first."""
        self._file.keep(key, verdict.model_dump_json())
        return self.find(key) or verdict

    def close(self) -> None:
        """Close the file; once more does nothing."""
        self._file.close()
