"""The ledger: what was paid for is there again after a kill, what broke is not, and the cache mixes nothing up."""

from __future__ import annotations

import pytest

from midstream.core.errors import StorageError, UsageError
from midstream.core.lessons import digest
from midstream.core.task import Task
from midstream.core.trajectory import Call, ErrorInfo, Score, Trajectory
from midstream.lessons.ledger import FILE, ROLLOUTS, Cache, Ledger
from midstream.lessons.runner import RolloutJob
from support.errors import coded

TASK, OTHER = Task(id="t", question="How high ?", answer="7"), Task(id="u", question="How low ?", answer="8")
CALL = Call(role="critic", completion="{}")


@pytest.fixture
def ledger_at():
    """Makes ledgers and caches on disk, and closes them."""
    made = []

    def make(*arguments, kind=Ledger, **named):
        made.append(kind(*arguments, **named))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def cache_at(ledger_at):
    return lambda path, settings: ledger_at(path, settings, kind=Cache)


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


def work(scope="step-1", purpose="learning", lessons=None, tasks=(TASK,), seed=3):
    by_task = dict.fromkeys((task.id for task in tasks), lessons or {})
    return RolloutJob(scope=scope, purpose=purpose, tasks=tasks, group_size=2, seed=seed, lessons=by_task)


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
    again.forget("step-1")
    again.keep("step-2", [ended()])
    again.close()
    assert ledger_at(tmp_path).kept("step-1") == {}
    assert len(ledger_at(tmp_path).kept("step-2")) == 1
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


def test_a_rollout_with_other_lessons_is_of_another_attempt():
    ledger, lessons = Ledger(), {"planner": "- look first"}
    ledger.keep("gate-1-kept", [ended(lessons=digest(lessons)), ended(index=1)])
    assert list(work("gate-1-kept", lessons=lessons).kept(ledger)) == [("t", 0)]
    assert list(work("gate-1-kept").kept(ledger)) == [("t", 1)]


# -- the cache ---------------------------------------------------------------------------------------------------------


def filled(cache, made):
    made.keep([ended(lessons=digest(made.lessons["t"]))], Ledger(cache=cache))
    return cache


def test_the_very_same_work_is_found_and_is_in_the_ledger_then(tmp_path, ledger_at, cache_at):
    filled(cache_at(tmp_path, {"model": "a"}), work()).close()
    ledger = ledger_at(tmp_path / "ledger", cache=cache_at(tmp_path, {"model": "a"}))
    assert work().kept(ledger) == {("t", 0): ended()}
    assert ledger_at(tmp_path / "ledger").kept("step-1") == {("t", 0): ended()}


@pytest.mark.parametrize(
    "other",
    [
        work(purpose="gate"),
        work(purpose="evaluation"),
        work(seed=4),
        work(lessons={"planner": "- look first"}),
        work(tasks=(TASK.model_copy(update={"answer": "8"}),)),
        work(tasks=(OTHER,)),
    ],
    ids=["split", "evaluation", "seed", "lessons", "answer", "task"],
)
def test_anything_else_is_another_key(tmp_path, other, cache_at):
    cache = filled(cache_at(tmp_path, {"model": "a"}), work())
    assert other.kept(Ledger(cache=cache)) == {}
    assert list(work().kept(Ledger(cache=cache))) == [("t", 0)]


def test_other_settings_are_another_key(tmp_path, cache_at):
    filled(cache_at(tmp_path, {"model": "a"}), work()).keep_reply("critic/1", [CALL])
    other = cache_at(tmp_path, {"model": "b"})
    assert work().kept(Ledger(cache=other)) == {}
    assert other.reply("critic/1") is None


def test_errors_are_never_cached(tmp_path, cache_at):
    cache = cache_at(tmp_path, {})
    work().keep([ended(error="EngineError")], Ledger(cache=cache))
    assert work().kept(Ledger(cache=cache)) == {}


def test_replies_of_another_run_answer_and_are_in_the_ledger_then(tmp_path, ledger_at, cache_at):
    first = ledger_at(tmp_path / "one", cache=cache_at(tmp_path, {}))
    first.keep_reply("critic/1", (CALL,))
    second = ledger_at(tmp_path / "two", cache=cache_at(tmp_path, {}))
    assert second.reply("critic/1") == (CALL,)
    assert ledger_at(tmp_path / "two").reply("critic/1") == (CALL,)


def test_another_programs_file_is_refused_and_damage_is_reported(tmp_path, cache_at):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / FILE).write_text("this is no database, but long enough to be looked at as one, surely")
    with pytest.raises(UsageError, check=coded("file-invalid", tmp_path / "a" / FILE, fix="lessons.cache")):
        cache_at(tmp_path / "a", {})
    (tmp_path / "b").write_text("")
    with pytest.raises(UsageError, check=coded("directory-unusable", tmp_path / "b")):
        cache_at(tmp_path / "b", {})
    cache = cache_at(tmp_path / "c", {})
    cache.close()
    with pytest.raises(StorageError, check=coded("storage", tmp_path / "c" / FILE, fix="lessons.cache")):
        cache.reply("critic/1")
