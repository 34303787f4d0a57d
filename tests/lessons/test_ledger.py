"""The ledger: what was paid for is there again after a kill, and what broke is not."""

from __future__ import annotations

import pytest

from midstream.core.task import Task
from midstream.core.trajectory import Call, ErrorInfo, Score, Trajectory
from midstream.lessons.ledger import ROLLOUTS, Ledger

TASK, OTHER = Task(id="t", question="How high ?", answer="7"), Task(id="u", question="How low ?", answer="8")
CALL = Call(role="critic", completion="{}")


@pytest.fixture
def ledger_at():
    """Makes ledgers on disk, and closes them."""
    made = []

    def make(*arguments, **named):
        made.append(Ledger(*arguments, **named))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ended(task=TASK, index=0, *, error=None, lessons=""):
    found = ErrorInfo(type=error, message=f"{error}: what\n  cause: why\n  fix: how") if error else None
    return Trajectory(
        id=f"{task.id}#{index}",
        task_id=task.id,
        rollout_index=index,
        status="error" if error else "ok",
        error=found,
        reward=None if error else Score(value=1.0),
        lessons=lessons,
    )


def test_a_new_process_finds_what_had_ended(tmp_path, ledger_at):
    ledger = ledger_at(tmp_path)
    ledger.keep("step-1", [ended(), ended(index=1)])
    ledger.keep("gate-1-whole", [ended(OTHER)])
    ledger.keep_reply("critic/1/t", (CALL, CALL))
    ledger.close()
    again = ledger_at(tmp_path)
    assert again.kept("step-1") == {("t", 0): ended(), ("t", 1): ended(index=1)}
    assert again.gathered("gate-1-") == [ended(OTHER)]
    assert again.reply("critic/1/t") == (CALL, CALL)
    assert again.reply("critic/2/t") is None
    again.clear()
    assert ledger_at(tmp_path).gathered("") == again.gathered("") == []
    assert ledger_at(tmp_path).reply("critic/1/t") is again.reply("critic/1/t") is None


def test_what_broke_counts_in_this_process_and_is_run_again_by_the_next(tmp_path, ledger_at):
    ledger = ledger_at(tmp_path)
    ledger.keep("step-1", [ended(error="EngineError"), ended(index=1)])
    assert len(ledger.kept("step-1")) == 2
    ledger.close()
    assert len(ledger_at(tmp_path, retry_errors=False).kept("step-1")) == 2
    assert list(ledger_at(tmp_path).kept("step-1")) == [("t", 1)]


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_a_spent_budget_ended_is_kept_nowhere(tmp_path, ledger_at, on_disk):
    ledger = ledger_at(tmp_path) if on_disk else Ledger()
    ledger.keep("step-1", [ended(error="BudgetError"), ended(index=1)])
    assert list(ledger.kept("step-1")) == [("t", 1)]


def test_a_torn_last_record_is_cut_off_and_said(tmp_path, ledger_at):
    ledger = ledger_at(tmp_path)
    ledger.keep("step-1", [ended()])
    ledger.close()
    with (tmp_path / ROLLOUTS).open("ab") as file:
        file.write(b'{"set": "step-1", "traj')
    said = []
    again = ledger_at(tmp_path, report=said.append)
    again.keep("step-1", [ended(index=1)])
    again.close()
    assert "torn last record" in said[0]
    assert len(ledger_at(tmp_path).kept("step-1")) == 2
