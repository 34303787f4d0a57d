"""Trackers: what they are sent, that none can stop a run, and that each one's own reader finds the run's numbers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from midstream import api
from midstream import trackers as trackers_module
from midstream.cli.main import main
from midstream.components import own
from midstream.core.errors import BudgetError, MidstreamError
from midstream.core.events import (
    BudgetSpent,
    EvaluationFinished,
    Note,
    Phase,
    RunEvent,
    StepFinished,
    TrajectoriesFinished,
    UpdateFinished,
)
from midstream.core.metrics import Spent, StepTiming
from midstream.lessons.commit import read_updates
from midstream.recipe.overrides import changed_recipe
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info
from midstream.trackers import metrics_of, tracked, trackers_of
from support import fake_run
from support.errors import coded, printed
from support.lesson_sessions import TINY


class Recorder:
    """A tracker of one's own, which keeps what it is sent."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.calls = fails, list[tuple[Any, ...]]()

    def start(self, run: Mapping[str, Any]) -> str | None:
        self._call("start", dict(run))
        return "its-id"

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._call("log", dict(values), step)

    def finish(self, status: str) -> None:
        self._call("finish", status)

    def _call(self, name: str, *values: Any) -> None:
        if name == self.fails:
            raise SystemExit(f"{name} failed\nat length")
        self.calls.append((name, *values))

    def logged(self, name: str) -> list[tuple[int, float]]:
        return [(call[2], call[1][name]) for call in self.calls if call[0] == "log" and name in call[1]]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", collect_info("mine", 3, {"a": {"b": 1}}), "")


def steps(*numbers: int) -> list[StepFinished]:
    timings = [StepTiming(step=number, duration_s=2.0) for number in numbers]
    return [StepFinished(fake_run.metrics(number)[-1], timing) for number, timing in zip(numbers, timings, strict=True)]


def feed(run: RunDirectory, tracker: Any, *events: RunEvent) -> list[RunEvent]:
    """What the run's listener receives."""
    received: list[RunEvent] = []
    with tracked(run, trackers_of([tracker]), received.append) as listener:
        for event in events:
            listener(event)
    return received


def test_metrics_have_the_names_of_the_records():
    [step] = steps(1)
    result = fake_run.evaluations()[0].model_copy(update={"step": 5, "interval": (0.2, 0.4)})
    update = UpdateFinished(
        update=2, reward_mean=0.5, proposed=3, fates={"accepted": 1}, left_out={}, lessons=4, spent=Spent(cost_usd=0.1)
    )
    trained = metrics_of(step)
    assert trained is not None
    assert trained.step == 1
    assert trained.values["train/reward_mean"] == step.metrics.reward_mean
    assert trained.values["time/duration_s"] == 2.0
    assert trained.values["train/tool_use/share/local_search"] == step.metrics.tool_use.share["local_search"]
    for sampling, name in (("greedy", "eval/test"), ("T=0.7", "eval/test/T0.7")):
        chosen = result.model_copy(update={"set_name": "test", "sampling": sampling})
        evaluated = metrics_of(EvaluationFinished(chosen), {"tokens": 7})
        assert evaluated is not None
        assert (evaluated.step, evaluated.values[f"{name}/success"]) == (5, result.success)
        assert (evaluated.values[f"{name}/interval_low"], evaluated.values["spent/tokens"]) == (0.2, 7)
    learned = metrics_of(update)
    assert learned is not None
    assert learned.values["lessons/fates/accepted"] == 1
    assert (learned.step, learned.values["lessons/lessons"], learned.values["spent/cost_usd"]) == (2, 4, 0.1)
    assert metrics_of(Phase("loading")) is None
    assert all(isinstance(value, float) for value in trained.values.values())


@pytest.mark.parametrize("name", ["T=0.7", "a/b", "..", "", "who? me", "größer"])
def test_any_name_is_fit_for_every_tracker(name):
    [path] = trackers_module.flat("train", {name: 1})
    assert path.count("/") == 1
    assert all(character.isalnum() or character in "_.-/" for character in path)
    assert not path.endswith(("/", "/.", "/.."))


def test_a_resumed_run_continues_the_trackers_run_and_logs_no_step_twice(run):
    first, second = Recorder(), Recorder()
    feed(run, first, *steps(1, 2))
    feed(run, second, *steps(2, 3))
    about = {"name": "run", "directory": str(run.root), "kind": "training", "recipe": "mine", "seed": 3}
    assert first.calls[0] == ("start", {**about, "settings": {"a": {"b": 1}}, "id": None})
    assert second.calls[0] == ("start", {**about, "settings": {"a": {"b": 1}}, "id": "its-id"})
    assert [step for step, _ in first.logged("train/loss")] == [1, 2]
    assert [step for step, _ in second.logged("train/loss")] == [3]
    assert first.calls[-1] == ("finish", "finished")


@pytest.mark.parametrize("fails", ["start", "log", "finish"])
def test_a_tracker_that_fails_is_off_after_one_note_and_the_run_receives_every_event(run, fails):
    events, broken = steps(1, 2, 3), Recorder(fails)
    received = feed(run, broken, *events)
    assert [event for event in received if isinstance(event, StepFinished)] == events
    [note] = [event for event in received if isinstance(event, Note)]
    assert f"{fails} failed" in note.text
    assert "tracker recorder is off" in note.text


def test_a_tracker_may_receive_trajectories_and_say_what_it_lost(run):
    class Follower(Recorder):
        def trajectories(self, ended, part):
            self._call("trajectories", [one.id for one in ended], part)

        def finish(self, status):
            return "lost 1 of 2 traces"

    follower, one = Follower(), fake_run.solved()
    events = [TrajectoriesFinished([one], "step-1"), TrajectoriesFinished([one], "eval-test", earlier=True)]
    received = feed(run, follower, *events)
    assert follower.calls[1:] == [("trajectories", [one.id], "step-1")]
    assert received == [*events, Note("tracker follower lost 1 of 2 traces")]


def test_a_tracker_that_hangs_is_left_behind(run, monkeypatch):
    class Hangs(Recorder):
        def log(self, values, step):
            release.wait(30)

    monkeypatch.setattr(trackers_module, "_FINISH_S", 0.1)
    release = threading.Event()
    received = feed(run, Hangs(), *steps(1, 2, 3, 4, 5))
    release.set()
    assert len([event for event in received if isinstance(event, Note)]) == 1
    assert len(received) == 6


class Needs(Recorder):
    def __init__(self, address):
        super().__init__()


STOPPED = [(KeyboardInterrupt(), "interrupted"), (BudgetError("spent"), "interrupted"), (ValueError(), "failed")]


@pytest.mark.parametrize(("stopped", "status"), STOPPED)
def test_a_tracker_learns_how_the_run_ended(run, stopped, status):
    tracker = Recorder()
    with pytest.raises(type(stopped)), tracked(run, trackers_of(tracker), lambda event: None):
        raise stopped
    assert tracker.calls[-1] == ("finish", status)


def test_names_may_have_spaces_between_them():
    assert [name for name, _ in trackers_of("wandb, mlflow")] == ["wandb", "mlflow"]


@pytest.mark.parametrize(
    ("track", "code"),
    [("wandb,banana", "unknown-type"), ([object()], "component-invalid"), ([Needs], "component-invalid")],
)
def test_what_is_no_tracker_is_refused_before_the_run_begins(track, code, tmp_path):
    with pytest.raises(MidstreamError, check=coded(code)):
        api.train("lessons-simulated", out=tmp_path / "run", track=track)
    assert not (tmp_path / "run").exists()


def test_what_is_no_tracker_is_named_as_its_user_named_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tr.py").write_text("class M:\n    def start(self, run): ...\n")
    with pytest.raises(MidstreamError, check=coded("component-invalid", "tr.py:M is not a tracker", "log and finish")):
        trackers_of("tr.py:M")


def test_a_dry_run_refuses_an_unknown_tracker(capsys):
    assert main(["train", "lessons-simulated", "--dry-run", "--track", "tensorbord"]) == 2
    assert printed(capsys.readouterr().err).code == "unknown-type"


def test_a_lesson_run_and_an_evaluation_are_tracked(tmp_path):
    tracker, overrides = Recorder(), [f"{key}={value}" for key, value in TINY.items()]
    events: list[RunEvent] = []
    recipe = changed_recipe("lessons-simulated", overrides=overrides)
    run = api.train(recipe, out=tmp_path / "run", track=[tracker], listener=events.append).directory
    updates = read_updates(run)
    assert tracker.logged("lessons/reward_mean") == [
        (place, record.event.reward_mean) for place, record in enumerate(updates, 1)
    ]
    [kept] = {result.sampling for result in run.evaluations.read()}
    success = [(result.step, result.success) for result in run.evaluations.read()]
    assert tracker.logged(f"eval/test/{kept.replace('=', '')}/success") == success
    spent = [event.spent.calls for event in events if isinstance(event, BudgetSpent)]
    assert max(calls for _, calls in tracker.logged("spent/calls")) == spent[-1]
    evaluated = Recorder()
    api.evaluate("lessons-simulated", out=tmp_path / "e", count=2, track=[evaluated], listener=events.append)
    assert [call[0] for call in evaluated.calls] == ["start", "log", "finish"]


def blocks() -> list[str]:
    page = (Path(__file__).parents[1] / "docs" / "tracking.md").read_text(encoding="utf-8")
    return [part.partition("```")[0] for part in page.split("```python\n")[1:]]


def test_the_tracker_of_the_documentation_works(run, tmp_path, capsys):
    code = blocks()[0].partition("\n\nms.train")[0]
    tracker = tmp_path / "my_tracker.py"
    tracker.write_text(code, encoding="utf-8")
    [step] = steps(1)
    feed(run, f"{tracker}:Printed", step)
    feed(run, own.load(f"{tracker}:Printed")(), step)
    reward = step.metrics.reward_mean
    assert capsys.readouterr().out == f"begins run\n1 {reward}\nfinished\ncontinues run\nfinished\n"
