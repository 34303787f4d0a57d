"""The agent runs inside the trajectories of an unfinished evaluation, so that a resumed one does not repeat them."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from midstream.core.trajectory import Trajectory
from midstream.runs.files import damaged, open_file, storage_errors
from midstream.runs.journal import Journal, read_records


class AgentRuns:
    """Agent runs by what determines them: a journal at `path`, which is opened when it is first needed.

    Memory holds the keys and where their lines begin. Without a path nothing is kept. Methods raise
    `StorageError`, and `RunError` where the journal is damaged.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._journal: Journal | None = None
        self._starts: dict[str, int] = {}
        self._end = 0

    def find(self, *key: str | int) -> Trajectory | None:
        """The agent run under a key, if it is kept."""
        journal = self._opened()
        start = self._starts.get(json.dumps(key))
        if journal is None or start is None:
            return None
        with storage_errors(journal.path), open_file(journal.path) as file:
            file.seek(start)
            line = file.readline()
        try:
            return Trajectory.model_validate(from_json(line)["trajectory"])
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise damaged(journal.path, f"byte {start} begins no agent run") from error

    def keep(self, ended: Trajectory, *key: str | int) -> None:
        """Keep an agent run: on return it survives the death of this process."""
        if (journal := self._opened()) is not None:
            journal.append({"key": key, "trajectory": ended.model_dump(exclude_defaults=True)})
            self._starts[json.dumps(key)] = self._end
            self._end = journal.path.stat().st_size

    def close(self) -> None:
        """Close the journal; it opens again when it is needed."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _opened(self) -> Journal | None:
        if self._journal is None and self._path is not None:
            with storage_errors(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
            Journal(self._path).close()  # cuts off what a kill has left of a record
            self._starts, self._end = {}, 0
            for _, line, record in read_records(self._path):
                self._starts[json.dumps(record["key"])] = self._end
                self._end += len(line)
            self._journal = Journal(self._path)
        return self._journal
