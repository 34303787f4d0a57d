"""The functions that start and continue work, called as a library calls them."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from midstream import api, process
from midstream.core.errors import MidstreamError, UsageError
from midstream.core.events import AgentBuilt, EvaluationFinished, Note, RunFinished, RunLoads, RunStarted, StepFinished
from midstream.process import event_loop
from midstream.recipe.build import Build
from midstream.recipe.overrides import changed_recipe
from midstream.recipe.schema import load_recipe
from midstream.report.comparison import compare
from midstream.runs import RunDirectory
from support.tiny_runs import LESSONS_TABLE

SHORT = ("training.steps=1", "warm_start.steps=1", "warm_start.transcripts=5")


@pytest.fixture(scope="module")
def trained(ten_steps: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, list[object]]:
    """A run of one step, and its events."""
    events: list[object] = []
    root = tmp_path_factory.mktemp("api") / "run"
    run = api.train(changed_recipe(str(ten_steps), overrides=SHORT), out=root, listener=events.append).directory
    return run, events


def test_training_returns_the_finished_run_and_emits_its_events(trained, capsys):
    run, events = trained
    assert run.status().state == "finished"
    assert (run.root / "report.html").is_file()
    loads, built, *_ = events
    assert loads == RunLoads(recipe=run.info().recipe_name, directory=str(run.root), pytorch=True)
    assert isinstance(built, AgentBuilt)
    assert (built.work, built.replay) == ("training", "")
    kinds = [type(event) for event in events]
    assert kinds.index(RunStarted) < kinds.index(StepFinished) < kinds.index(RunFinished)
    assert capsys.readouterr() == ("", "")


def test_a_finished_run_of_the_same_recipe_is_returned_and_another_is_refused(trained, ten_steps):
    run, _ = trained
    before = run.status()
    same = changed_recipe(str(ten_steps), overrides=SHORT)
    assert api.train(same, out=run.root, exist_ok=True).directory.status() == before
    assert api.resume(run).directory.status() == before
    with pytest.raises(UsageError) as caught:
        api.train(same, out=run.root, exist_ok=False)
    assert caught.value.code == "run-exists"
    with pytest.raises(UsageError) as caught:
        api.train(changed_recipe(str(ten_steps), overrides=SHORT, seed=9), out=run.root, exist_ok=True)
    assert caught.value.code == "run-exists"


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"overrides": ["training.steps=5"]}, "inputs-changed"), ({"retry_errors": True}, "option-without-effect")],
)
def test_a_training_run_resumes_as_it_began(trained, changes, code):
    with pytest.raises(UsageError) as caught:
        api.resume(trained[0], **changes)
    assert caught.value.code == code


def test_a_finished_training_run_stays_finished_whatever_its_limits(trained):
    run, _ = trained
    before = run.status()
    assert api.resume(run, overrides=["budget.rollouts=1"]).directory.status() == before


def test_an_evaluation_is_kept_and_its_settings_are_arguments(trained, tmp_path):
    run, _ = trained
    events: list[object] = []
    overrides = ["evaluation.temperatures=[0.0]"]
    evaluated = api.evaluate(
        run, out=tmp_path / "e", count=2, trials=2, overrides=overrides, listener=events.append
    ).directory
    [result] = evaluated.evaluations.read()
    assert (result.tasks, result.trials, result.step) == (2, 2, 1)
    assert [event for event in events if isinstance(event, EvaluationFinished)] == [EvaluationFinished(result)]
    events.clear()
    api.evaluate(str(run.root), out=tmp_path / "e", count=2, trials=2, overrides=overrides, listener=events.append)
    assert events == []  # finished: nothing runs again
    with pytest.raises(UsageError) as caught:
        api.evaluate(run, out=tmp_path / "e", count=3, trials=2, overrides=overrides)
    assert caught.value.code == "run-exists"
    with pytest.raises(UsageError) as caught:
        api.evaluate(evaluated.root)
    assert caught.value.code == "wrong-kind-of-run"


def test_evaluations_are_compared_and_those_without_a_common_set_are_refused(trained):
    run, _ = trained
    comparison = compare(f"{run.root}@0", str(run.root))
    assert [compared.name for compared in comparison.runs] == [f"{run.root}@0", str(run.root)]
    assert {(paired.set_name, paired.sampling) for paired in comparison.found} >= {("test", "T=1"), ("test", "greedy")}
    with pytest.raises(UsageError) as caught:
        compare(str(run.root), f"{run.root}@7")
    assert caught.value.code == "no-evaluation"
    names = [compared.name for compared in compare(run, run.root).runs]
    assert names == [str(run.root), f"{run.root} again"]


def test_an_argument_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="'trails'"):
        api.evaluate("direct", trails=2)  # type: ignore[call-arg]


def test_a_question_is_answered_by_a_runs_planner(trained):
    run, _ = trained
    trajectory = api.solve(run, "What is 45 plus 17 ?", listener=lambda event: None)
    assert (trajectory.status, trajectory.gold, trajectory.reward) == ("ok", None, None)
    with pytest.raises(UsageError) as caught:
        api.solve(run, " ")
    assert caught.value.code == "empty-value"
    with pytest.raises(UsageError) as caught:
        api.solve("flow-grpo-tiny", "What is 45 plus 17 ?")
    assert caught.value.code == "untrained"


@pytest.mark.parametrize("work", ["solve", "evaluate"])
def test_servers_answer_before_a_runs_weights_are_loaded_onto_them(trained, tmp_path, monkeypatch, work):
    began = []

    @contextmanager
    def served(recipe, listener):
        began.append("servers")
        yield

    def load_weights(*args, **settings):
        began.append("weights")
        raise KeyboardInterrupt

    monkeypatch.setattr(process if work == "solve" else api, "served", served)
    monkeypatch.setattr(process, "load_weights", load_weights)
    run, _ = trained
    with pytest.raises(KeyboardInterrupt):
        api.solve(run, "What is 45 plus 17 ?") if work == "solve" else api.evaluate(run, out=tmp_path / "out").directory
    assert began == ["servers", "weights"]


def test_warnings_are_printed_where_no_listener_is_given(capsys):
    api.print_warnings(Note("[bold]careful[/bold]"))
    api.print_warnings(RunFinished())
    assert capsys.readouterr() == ("", "warning: [bold]careful[/bold]\n")


def test_an_interrupted_coroutine_leaves_no_task_behind():
    """Ctrl-C that ends the loop itself: the tasks are cancelled before the caller closes what they use."""
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    async def interrupted() -> None:
        asyncio.create_task(work("a")).add_done_callback(lambda task: None)
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    with event_loop(Build(load_recipe("agentflow-prompted"))) as run_coroutine:
        with pytest.raises(KeyboardInterrupt):
            run_coroutine(interrupted())
        assert ended == ["a"]


def test_a_failed_run_keeps_its_error_in_its_status(ten_steps, tmp_path, monkeypatch):
    def fail(*arguments: object, **options: object) -> None:
        raise MidstreamError("it broke", code="broken", fix="repair it")

    monkeypatch.setattr(api, "write_runs", fail)
    with pytest.raises(MidstreamError):
        api.train(changed_recipe(str(ten_steps), overrides=("training.steps=0", *SHORT[1:])), out=tmp_path / "run")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], "it broke" in status["message"]) == ("failed", True)


def test_a_lesson_run_without_updates_has_finished_zero_of_them(tmp_path):
    small = [f"{key}={value}" for key, value in LESSONS_TABLE.items()]
    changes = [*small, "budget.updates=0", "evaluation.sets=[]"]
    run = api.train(load_recipe("lessons-simulated", changes), out=tmp_path / "run").directory
    assert (run.status().state, run.status().step) == ("finished", 0)
    more = ["budget.updates=1"]
    assert api.resume(run, overrides=more).directory.status().step == 1, "a limit ended it: it continues with another"
