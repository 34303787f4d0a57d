"""A lesson run that is interrupted after its first update and resumed, with a tracker: a program of its own.

`python tracked_run.py DIRECTORY TRACKER` prints the run's notes about the tracker. Libraries of trackers raise Python
warnings that do not matter to these tests, so it runs outside pytest.
"""

from __future__ import annotations

import sys
from pathlib import Path

from midstream import api
from midstream.core.events import Note, RunEvent, UpdateFinished
from midstream.recipe.overrides import changed_recipe
from support.lesson_sessions import TINY


def main(root: Path, tracker: str) -> None:
    notes: list[str] = []
    updates: list[UpdateFinished] = []

    def listen(event: RunEvent) -> None:
        if isinstance(event, Note):
            notes.append(event.text)
        if isinstance(event, UpdateFinished) and not updates:
            updates.append(event)
            raise KeyboardInterrupt

    overrides = [f"{key}={value}" for key, value in TINY.items()]
    try:
        api.train(changed_recipe("lessons-simulated", overrides=overrides), out=root, track=tracker, listener=listen)
    except KeyboardInterrupt:
        api.resume(root, track=tracker, listener=listen)
    sys.stdout.write(f"{[note for note in notes if 'tracker' in note]}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
