"""Proposers in whole lesson runs, in the simulated workshop: what is kept, and a run that was killed."""

from __future__ import annotations

import pytest

from midstream.lessons.commit import History, read_updates
from midstream.runs import RunDirectory
from midstream_optimizers.simulated import WorkshopWriter
from support.lesson_sessions import SMALL, die, differences, killed_after, learn

TEXTS = {
    **SMALL,
    "engines.reflector": "{type='workshop_writer'}",
    "lessons.modules": "['planner.prompt']",
    "lessons.tasks": 3,
    "lessons.search_rollouts": 24,
    "tasks.train": 10,
    "tasks.validation": 10,
    "tasks.test": 10,
}
PROPOSERS = ("evolution", "feedback", "gepa", "examples")


def settings(name):
    places = "['planner.examples']" if name == "examples" else "['planner.prompt']"
    return {**TEXTS, "lessons.proposers": f"['{name}']", "lessons.modules": places}


@pytest.fixture
def asked(monkeypatch):
    """Counts what the model that writes is asked."""
    seen, inner = [], WorkshopWriter._reply

    def reply(self, request):
        seen.append(request.seed)
        return inner(self, request)

    monkeypatch.setattr(WorkshopWriter, "_reply", reply)
    return seen


@pytest.mark.parametrize("name", PROPOSERS)
def test_a_killed_run_ends_as_if_it_had_not_been_and_asks_nothing_twice(name, tmp_path, monkeypatch, asked):
    if name == "gepa":
        pytest.importorskip("gepa")
    with killed_after(monkeypatch, tmp_path / "whole", 10**9) as written:
        learn(tmp_path / "whole", small=settings(name))
    whole = len(asked)
    replies = [number for number, path in enumerate(written, 1) if path == "ledger/replies.jsonl"]
    update = written.index("ledger/update.json")
    # After the first reply, and among the last rollouts of the search or the gate.
    for count in (replies[0] if replies else 3, update - 2):
        asked.clear()
        root = tmp_path / str(count)
        with killed_after(monkeypatch, root, count):
            assert die(root, small=settings(name))
        learn(root, small=settings(name))
        assert differences(tmp_path / "whole", root) == []
        assert len(asked) == whole


def test_instructions_are_learned_and_keep_their_places(tmp_path):
    learn(tmp_path / "run", {"lessons.gate.enabled": False}, small=settings("evolution"))
    run = RunDirectory.open(tmp_path / "run")
    [update] = read_updates(run)
    [change] = update.changes
    assert change.operation.origin.why.startswith("evolution: the best of")
    [text] = History(run.lessons_dir).current().lesson_set.lessons
    assert text.text.startswith("# Lessons from earlier tasks\n\n- ")
    assert "{{lessons}}# Tools\n\n{{tools}}" in text.text
