"""Rollouts and the reflector's replies, kept on disk for other runs of the very same settings.

A key is a digest of all that decides what comes of a rollout: the agent with its prompts, tools, models and reward, the
task, what it is run for (learning, the gate, an evaluation: so nothing is shared between splits), the lessons in the
prompts, seed and place. Another setting is another key. What ended in an error is never kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from midstream.core.keyed_file import KeyedFile
from midstream.core.lessons import Lessons
from midstream.core.task import Task
from midstream.core.trajectory import Call, Trajectory

FILE = "practice.sqlite"
APPLICATION = 0x6D737072  # "mspr"
FORMAT = 1
_CALLS = TypeAdapter(tuple[Call, ...])


class Cache:
    """The file in `directory`; raises as `core.keyed_file.KeyedFile`.

    `settings` is all of the recipe that decides what is said.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        self._settings = json.dumps(settings, sort_keys=True, default=str)
        self._file = KeyedFile(
            directory / FILE,
            application=APPLICATION,
            version=FORMAT,
            table="kept",
            what="cache",
            setting="practice.cache",
        )

    def trajectory(self, purpose: str, task: Task, lessons: Lessons, seed: int, index: int) -> Trajectory | None:
        """What came of this very rollout before."""
        found = self._file.find(self._key(purpose, task.model_dump_json(), dict(lessons), seed, index))
        try:
            return None if found is None else Trajectory.model_validate_json(found)
        except ValidationError as error:
            raise self._file.unusable(error) from error

    def keep(self, purpose: str, task: Task, lessons: Lessons, seed: int, trajectory: Trajectory) -> None:
        """Keep a rollout that ended without an error."""
        if trajectory.status == "ok":
            key = self._key(purpose, task.model_dump_json(), dict(lessons), seed, trajectory.rollout_index)
            self._file.keep(key, trajectory.model_dump_json(exclude_defaults=True))

    def reply(self, key: str) -> tuple[Call, ...] | None:
        """What the reflector was asked and said under a ledger's `key`, which holds a digest of the request."""
        found = self._file.find(self._key("reflector", key))
        try:
            return None if found is None else _CALLS.validate_json(found)
        except ValidationError as error:
            raise self._file.unusable(error) from error

    def keep_reply(self, key: str, calls: Sequence[Call]) -> None:
        """Keep what the reflector said."""
        self._file.keep(self._key("reflector", key), _CALLS.dump_json(tuple(calls)).decode())

    def close(self) -> None:
        """Close the file; once more does nothing."""
        self._file.close()

    def _key(self, *parts: object) -> str:
        text = json.dumps([self._settings, *parts], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
