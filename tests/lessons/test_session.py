"""A lesson run as a whole: what it leaves behind, its limits, and that only its settings decide the result."""

from __future__ import annotations

import json

import pytest

from midstream.core.agent import lessons_digest
from midstream.core.errors import EngineError, InfrastructureError, RecipeError, RunError
from midstream.core.events import Note
from midstream.lessons.commit import Committer, History, MadeUpdate, read_updates
from midstream.lessons.lesson_set import LessonSet, render_modules
from midstream.report.run import next_steps
from midstream.runs import RunDirectory
from midstream.runs.budget import read_spent
from midstream_worlds.simulated import SimulatedEngine
from support.errors import coded
from support.lesson_sessions import SMALL, counting, die, differences, killed_after, learn, trajectories
from support.lesson_sets import marked
from support.served_workshop import served_workshop

UNGATED = {"lessons.gate.enabled": False}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two updates, one rollout at a time; with the number of requests that it made."""
    root = tmp_path_factory.mktemp("lessons") / "whole"
    with pytest.MonkeyPatch.context() as patch, counting(patch) as asked:
        assert learn(root) == ""
    return root, asked.calls


def test_a_run_leaves_everything_behind(whole):
    root, calls = whole
    run = RunDirectory.open(root)
    updates, evaluations = read_updates(run), run.evaluations.read()
    assert [update.step for update in updates] == [one.step for one in run.timings.read()] == [1, 2]
    assert [(evaluation.policy, evaluation.step, evaluation.tasks) for evaluation in evaluations] == [
        ("no lessons", 0, 3),
        ("with lessons", 2, 3),
    ]
    assert len({task for update in updates for task in update.tasks}) == 6
    assert [[change.fate for change in update.changes] for update in updates] == [
        ["accepted"] * 2,
        ["rejected", "pending"],
    ]
    assert (updates[0].epoch, updates[0].groups) == (1, 3)
    found = trajectories(root)
    assert len(found["step-000001"]) == len(found["step-000002"]) == 9
    assert sum(map(len, found.values())) == updates[-1].spent.rollouts + 3
    assert calls > updates[-1].spent.calls > updates[0].spent.calls > 0
    spent = read_spent(run.ledger_dir / "spent.jsonl")
    assert sum(value.calls for value in spent.values()) == calls
    assert {phase for phase, _ in spent} == {"evaluation 0", "learning", "gate", "evaluation 2"}
    assert {role for phase, role in spent if phase == "learning"} >= {"", "planner", "summariser", "critic"}


def test_records_hold_no_clock(whole):
    for line in (whole[0] / "updates.jsonl").read_text().splitlines():
        assert not [key for key in json.loads(line) if key.endswith("_s") or "time" in key]


def test_the_ledger_is_empty_at_the_end(whole):
    assert {
        path.name: path.stat().st_size for path in (whole[0] / "ledger").iterdir() if path.name != "spent.jsonl"
    } == {
        "rollouts.jsonl": 0,
        "replies.jsonl": 0,
    }


def test_learning_and_evaluation_have_the_lesson_sets_lessons_in_their_prompts(whole):
    run, found = RunDirectory.open(whole[0]), trajectories(whole[0])
    versions = {version.number: version.lesson_set for version in History(run.lessons_dir).all()}
    updates = read_updates(run)
    assert {one.lessons for one in found["step-000001"]} == {""}
    assert {one.lessons for one in found["eval-test-T0.7-0"]} == {""}
    after = [lessons_digest(render_modules(versions[update.version])) for update in updates]
    assert {one.lessons for one in found["step-000002"]} == {after[0]}
    assert {one.lessons for one in found["eval-test-T0.7-2"]} == {after[1]}


def test_concurrency_and_the_order_of_answers_change_nothing(whole, tmp_path, monkeypatch):
    with counting(monkeypatch, shuffled=True) as asked:
        learn(tmp_path / "wide", {"rollout.concurrency": 8})
    assert differences(whole[0], tmp_path / "wide") == []
    assert asked.calls == whole[1]


@pytest.mark.slow
def test_another_seed_gives_another_run(whole, tmp_path):
    learn(tmp_path / "other", {"seed": 5})
    assert differences(whole[0], tmp_path / "other") == [
        "updates.jsonl",
        "evaluations.jsonl",
        "lessons/lessons.json",
        "trajectories",
    ]


def test_without_a_gate_everything_is_accepted_and_nothing_is_proven(tmp_path):
    learn(tmp_path / "run", UNGATED)
    run = RunDirectory.open(tmp_path / "run")
    updates, lesson_set = read_updates(run), History(run.lessons_dir).current().lesson_set
    assert {change.fate for update in updates for change in update.changes} == {"accepted"}
    assert lesson_set.rendered
    assert lesson_set.proven_for == ""
    assert next(lesson.used for lesson in lesson_set.lessons if lesson.origin.update == 1) == 9


def test_where_nothing_was_learned_the_last_evaluation_is_the_first(tmp_path, monkeypatch):
    with counting(monkeypatch) as asked:
        learn(tmp_path / "run", {**UNGATED, "lessons.lessons_from": "model", "lessons.limits.max_tokens": 1})
    run = RunDirectory.open(tmp_path / "run")
    first, last = run.evaluations.read()
    assert last == first.model_copy(update={"policy": "with lessons", "step": 2})
    assert run.trajectories.read("test-T0.7-0") == run.trajectories.read("test-T0.7-2")
    assert asked.roles.count("planner") == sum(len(one.turns) for one in run.trajectories.read("test-T0.7-0"))
    assert read_updates(run)[0].proposed[0].refused


def test_shuffled_rewards_teach_by_chance_and_are_kept_as_they_were(whole, tmp_path):
    learn(tmp_path / "run", {"lessons.shuffle_rewards": True})
    one, other = trajectories(whole[0]), trajectories(tmp_path / "run")
    assert one["step-000001"] == other["step-000001"]
    assert one["eval-test-T0.7-0"] == other["eval-test-T0.7-0"]
    records = [read_updates(RunDirectory.open(root)) for root in (whole[0], tmp_path / "run")]
    assert records[0][0].mean_reward == records[1][0].mean_reward
    assert records[0][0].proposed != records[1][0].proposed


# -- limits ------------------------------------------------------------------------------------------------------------


def test_updates_may_be_limited(whole, tmp_path):
    assert learn(tmp_path / "run", {"budget.updates": 1}).startswith("1 of 2 updates")
    run = RunDirectory.open(tmp_path / "run")
    assert read_updates(run) == read_updates(RunDirectory.open(whole[0]))[:1]
    assert [one.step for one in run.evaluations.read()] == [0, 1]


@pytest.mark.matrix(3)
@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("limit", ["rollouts=25", "rollouts=9", "tokens=40000", "tokens=12000"])
def test_a_limit_ends_the_run_with_what_was_accepted_and_an_evaluation(tmp_path, limit, concurrency):
    name, _, value = limit.partition("=")
    ended = learn(tmp_path / "run", {f"budget.{name}": value, "rollout.concurrency": concurrency})
    assert f"the budget of {int(value):,} ({name}) is spent" in ended
    run = RunDirectory.open(tmp_path / "run")
    spent = read_spent(run.ledger_dir / "spent.jsonl")
    assert sum(getattr(value, name) for value in spent.values()) <= int(value)
    updates, steps = read_updates(run), [one.step for one in run.evaluations.read()]
    assert steps == ([0, len(updates)] if updates else [0])
    assert all(one.errors == 0 for one in run.evaluations.read())


@pytest.mark.matrix(1)
@pytest.mark.parametrize(("limit", "warned"), [(9, True), (200, False)])
def test_a_limit_without_room_for_an_update_is_named_at_the_start(tmp_path, limit, warned):
    noted = []
    learn(tmp_path / "run", {"budget.rollouts": limit}, listener=noted.append)
    notes = [event.text for event in noted if isinstance(event, Note)]
    assert any("no room for the first update" in note for note in notes) == warned
    resumed = f"midstream resume {tmp_path / 'run'} --budget"
    assert any(resumed in note for note in notes) == warned
    steps = next_steps(RunDirectory.open(tmp_path / "run"))
    assert any("midstream compare" in step for step in steps) != warned


def test_with_more_to_spend_the_run_resumes_where_it_was(whole, tmp_path, monkeypatch):
    with counting(monkeypatch) as asked:
        learn(tmp_path / "run", {"budget.rollouts": 25})
        assert learn(tmp_path / "run") == ""
    assert (tmp_path / "run" / "lessons/lessons.json").read_bytes() == (whole[0] / "lessons/lessons.json").read_bytes()
    [first, *others] = RunDirectory.open(tmp_path / "run").evaluations.read()
    assert [first, others[-1]] == RunDirectory.open(whole[0]).evaluations.read()
    assert asked.calls <= whole[1] + 3 * 3  # the evaluation in between


def test_the_time_a_run_takes_is_limited(tmp_path):
    assert "(time_s) is spent" in learn(tmp_path / "run", {"budget.time_s": 0})
    assert RunDirectory.open(tmp_path / "run").evaluations.read() == []


# -- what breaks -------------------------------------------------------------------------------------------------------


def broken(monkeypatch, is_broken):
    inner = SimulatedEngine.sample

    async def sample(self, request):
        if is_broken(request):
            raise EngineError("the server is down")
        return await inner(self, request)

    monkeypatch.setattr(SimulatedEngine, "sample", sample)


def test_a_server_that_is_down_stops_the_run_which_then_ends_as_if_it_had_not(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        seen = []
        broken(patch, lambda request: seen.append(1) or len(seen) > 12)
        with pytest.raises((EngineError, InfrastructureError), match="down"):
            learn(tmp_path / "run")
    learn(tmp_path / "run")
    assert (tmp_path / "run" / "lessons/lessons.json").read_bytes() == (whole[0] / "lessons/lessons.json").read_bytes()
    assert trajectories(tmp_path / "run") == trajectories(whole[0])


def test_a_rollout_that_broke_is_named_and_no_reward_of_zero(tmp_path, monkeypatch):
    seen = []
    broken(monkeypatch, lambda request: request.role == "planner" and not seen.append(1) and len(seen) in (8, 9))
    learn(tmp_path / "run", {**UNGATED, "rollout.max_attempts": 2})
    [first, _] = read_updates(RunDirectory.open(tmp_path / "run"))
    [(name, reason)] = first.failed.items()
    assert reason == "EngineError: the server is down"
    ended = [trajectory for trajectory in trajectories(tmp_path / "run")["step-000001"] if trajectory.id != name]
    assert first.mean_reward == sum(one.reward.value for one in ended) / 8


# -- people in between, and a lesson set to begin with ---------------------------------------------------------------


def test_a_lesson_set_edited_between_two_updates_is_the_one_that_is_used(tmp_path, monkeypatch):
    root = tmp_path / "run"
    learn(root, {**UNGATED, "budget.updates": 1})
    history = History(RunDirectory(root).lessons_dir)
    kept = history.current().lesson_set.lessons[0].id
    history.add(marked(history.current().lesson_set, kept, "pinned"), by="edit")
    learn(root, UNGATED)
    assert [version.by for version in history.all()] == ["start", "learning", "edit", "learning"]
    assert history.current().lesson_set.find(kept).state == "pinned"


def test_an_edit_while_an_update_was_half_written_is_not_lost(tmp_path, monkeypatch):
    root = tmp_path / "run"
    with killed_after(monkeypatch, root, 10**9) as written:
        learn(tmp_path / "other", UNGATED)
    with killed_after(monkeypatch, tmp_path / "other2", 10**9) as written:
        learn(tmp_path / "other2", UNGATED)
    with killed_after(monkeypatch, root, written.index("ledger/update.json") + 1):
        assert die(root, UNGATED)
    history = History(RunDirectory(root).lessons_dir)
    history.add(history.current().lesson_set, by="edit", note="looked at")
    learn(root, UNGATED)
    assert [version.by for version in history.all()] == ["start", "edit", "learning", "learning"]
    assert [record.version for record in read_updates(RunDirectory(root))] == [3, 4]


def test_an_update_without_the_lesson_set_it_began_with_is_not_dropped(whole, tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.ledger_dir.mkdir(parents=True)
    record = read_updates(RunDirectory(whole[0]))[0]
    made = MadeUpdate(before=1, lesson_set=LessonSet(), operations=(), record=record, duration_s=0.0)
    (run.ledger_dir / "update.json").write_text(made.model_dump_json())
    with pytest.raises(RunError, check=coded("no-lessons")):
        Committer(run, report=print).recover()
    assert (run.ledger_dir / "update.json").exists()


def test_a_run_begins_with_the_lesson_set_it_is_given(whole, tmp_path):
    start = whole[0] / "lessons" / "lessons.json"
    learn(tmp_path / "run", {**UNGATED, "lessons.start": f'"{start}"'})
    run = RunDirectory.open(tmp_path / "run")
    first = History(run.lessons_dir).get(1)
    assert first.by == "start"
    assert first.lesson_set == History(whole[0] / "lessons").current().lesson_set
    assert {trajectory.lessons for trajectory in trajectories(tmp_path / "run")["step-000001"]} == {
        lessons_digest(render_modules(first.lesson_set))
    }
    assert {trajectory.lessons for trajectory in trajectories(tmp_path / "run")["eval-test-T0.7-0"]} == {""}


def test_a_damaged_update_is_reported(tmp_path):
    learn(tmp_path / "run", {**UNGATED, "budget.updates": 1})
    (tmp_path / "run" / "ledger" / "update.json").write_text("{")
    with pytest.raises(RecipeError.__mro__[2]) as caught:
        learn(tmp_path / "run", UNGATED)
    assert caught.value.code == "file-damaged"
    assert "update.json" in caught.value.what


# -- through real servers that fail ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_at_30_percent_faults_nothing_is_lost(tmp_path):
    for name, fault_rate in (("sound", 0.0), ("failing", 0.3)):
        with served_workshop(SMALL, fault_rate) as served:
            learn(tmp_path / name, {**served, "rollout.concurrency": 8})
    runs = [RunDirectory.open(tmp_path / name) for name in ("sound", "failing")]
    assert read_updates(runs[0]) == read_updates(runs[1])
    lessons = [History(run.lessons_dir).current().lesson_set.lessons for run in runs]
    assert lessons[0] == lessons[1] != ()
    assert sum(one.request_failures for one in runs[0].evaluations.read()) == 0
    assert sum(one.request_failures for found in trajectories(runs[1].root).values() for one in found) > 10


@pytest.mark.matrix(1)
@pytest.mark.parametrize("limit", ["rollouts=25", "tokens=40000", "cost_usd=0.05"])
def test_at_30_percent_faults_no_limit_is_passed(tmp_path, limit):
    name, _, value = limit.partition("=")
    prices = {
        f"engines.{one}.price_{kind}_usd": 1.0 for one in ("agent", "reflector") for kind in ("prompt", "completion")
    }
    with served_workshop(SMALL, 0.3) as served:
        changes = {**served, **prices, "rollout.concurrency": 8, f"budget.{name}": value}
        ended = learn(tmp_path / "run", changes)
    assert f"({name}) is spent" in ended
    run = RunDirectory.open(tmp_path / "run")
    assert sum(getattr(value, name) for value in read_spent(run.ledger_dir / "spent.jsonl").values()) <= float(value)
    assert all(one.errors == 0 for one in run.evaluations.read())
