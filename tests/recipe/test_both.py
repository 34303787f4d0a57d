"""Weights and lessons in one run: turns in order, whatever ends the process and whenever, and each of the two alone."""

from __future__ import annotations

import asyncio
import json
import shutil
import tomllib

import pytest

from midstream.cli.main import main
from midstream.core.agent import lessons_digest
from midstream.core.errors import BudgetError
from midstream.core.events import StepFinished, UpdateFinished
from midstream.interface.results import Run
from midstream.lessons.commit import History, read_updates
from midstream.lessons.lesson_set import render_modules
from midstream.process import open_budget
from midstream.recipe.both import TAKEN_AWAY
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.estimate import batches_of
from midstream.recipe.files import to_toml
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import session_of
from midstream.report.comparison import open_compared
from midstream.report.run import run_page
from midstream.runs import RunDirectory
from midstream.runs.budget import Budget, BudgetConfig
from midstream.runs.info import collect_info
from support import lesson_sessions
from support.errors import raises
from support.lesson_sessions import killed_after, trajectories
from support.tiny_runs import TRAINING

pytest.importorskip("torch", reason="the training extra is not installed")

OWN = """
from midstream.core.texts import SHOWN
from midstream.lessons.operations import Operation

TEXTS = ("Never guess", "Stay calm", "Read with care")


async def adds(work):
    return [Operation(kind="add", text=TEXTS[work.step % 3], module="planner")]


def graded(trajectory) -> float:
    return 0.1 * (len(trajectory.calls[0].completion) % 2) + 0.45 * min(2, SHOWN.get().get("planner", "").count("- "))
"""
LESSONS = {
    "tasks": 2,
    "epochs": 3,
    "batch_size": 2,
    "group_size": 2,
    "search_rollouts": 0,
    "reflector": {"engine": "reflector"},
    "gate": {
        "tasks": 2,
        "block": 8,
        "test_pairs": 24,
        "bisect_pairs": 8,
        "error_rate": 0.9,
        "margin": 0.05,
        "min_effect": 0.3,
    },
}
STEPS, UPDATES = 5, 3


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A file with a proposer, and a reward that prefers more lessons, up to two."""
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(OWN, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def no_power_cut(monkeypatch):
    """A killed process loses nothing that it wrote: waiting for the disk would show nothing."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def recipe_of(own, *changes):
    table = {
        **TRAINING,
        "warm_start.min_copy_rate": 0,
        "training.steps": STEPS,
        "training.group_size": 4,
        "training.checkpoint_every": 2,
        "training.family_sampling": "uniform",
        "reward": json.dumps({"type": f"{own}:graded"}).replace(":", "=", 1),
        "engines.reflector": '{type="simulated",plays="reflector"}',
    }
    lessons = {**LESSONS, "proposers": [f"{own}:adds"]}
    sets = [f"{key}={value}" for key, value in table.items()]
    sets += [f"lessons.{key}={json.dumps(value)}" for key, value in lessons.items() if not isinstance(value, dict)]
    sets += [
        f"lessons.{key}.{name}={json.dumps(value)}"
        for key, inner in lessons.items()
        if isinstance(inner, dict)
        for name, value in inner.items()
    ]
    return load_recipe("flow-grpo-tiny-lessons", [*sets, *changes])


def learn(root, own, *changes, listener=lambda event: None):
    """Begin a run in `root`, or resume the one there, to its end."""
    recipe = recipe_of(own, *changes)
    with Build(recipe, budget=Budget(recipe.budget or BudgetConfig())) as build:
        make, run = session_of(build), RunDirectory(root)
        if not run.info_path.exists():
            info = collect_info(recipe.name, recipe.seed, build.resolved)
            run = RunDirectory.create(root, info, to_toml(build.resolved))
        with run.lock(), open_budget(run, build.budget):
            return asyncio.run(make(run, listener).run())


@pytest.fixture(scope="module")
def whole(own, tmp_path_factory):
    """The run that nobody interrupts: where it is, its events, and its writes."""
    root, events = tmp_path_factory.mktemp("both") / "whole", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        with killed_after(patch, root, 10**9) as written:
            learn(root, own, listener=events.append)
    return root, events, written


def result_of(root):
    """All that a run has found out, but for clocks and what was spent."""
    files = ("metrics.jsonl", "evaluations.jsonl", "lessons/lessons.json", "policy/model.safetensors")
    found = {name: (root / name).read_bytes() for name in files if (root / name).exists()}
    updates = [record.model_copy(update={"spent": None}) for record in read_updates(RunDirectory(root))]
    return found | {"updates": updates, "trajectories": trajectories(root)}


def differing(expected, found):
    one, other = result_of(expected), result_of(found)
    return [name for name in one | other if one.get(name) != other.get(name)]


def shown(root, name):
    """The digests of the lessons in the prompts of a file of trajectories."""
    return {trajectory.lessons for trajectory in trajectories(root)[name]}


def digests(root):
    """The digest of the lessons after each update, and before the first."""
    history = History(root / "lessons")
    return [lessons_digest(render_modules(history.get(1).lesson_set))] + [
        lessons_digest(render_modules(history.get(record.version).lesson_set))
        for record in read_updates(RunDirectory(root))
    ]


def test_turns_are_in_order_and_steps_have_the_lessons_of_the_updates_before_them(whole):
    root, events, _ = whole
    turns = [
        ("step", event.metrics.step) if isinstance(event, StepFinished) else ("update", event.update)
        for event in events
        if isinstance(event, StepFinished | UpdateFinished)
    ]
    # Five steps in three rounds: the last is shorter.
    assert turns == [
        ("step", 1), ("step", 2), ("update", 1), ("step", 3), ("step", 4), ("update", 2), ("step", 5), ("update", 3),
    ]  # fmt: skip
    after = digests(root)
    assert after[0] == ""
    assert len(set(after)) == 3
    fates = [
        [(change.operation.kind, change.fate) for change in record.changes]
        for record in read_updates(RunDirectory(root))
    ]
    # From the second update on, the removal of a lesson is tested, which nobody suggested.
    assert fates == [
        [("add", "accepted")],
        [("add", "accepted"), ("delete", "rejected")],
        [("add", "rejected"), ("delete", "rejected")],
    ]
    assert all(metrics.grad_norm > 1 for metrics in RunDirectory(root).metrics.read()[1:4]), "weights change, too"
    assert [shown(root, f"step-{step:06}") for step in range(1, 6)] == [
        {after[0]}, {after[0]}, {after[1]}, {after[1]}, {after[2]},
    ]  # fmt: skip


def write(written, name, number=1):
    """The place (from 1) of the `number`-th write of a file; -1 is the last."""
    places = [place for place, path in enumerate(written, start=1) if path == name]
    return places[number - 1 if number > 0 else number]


def killed_at(count, root, own, *changes):
    """Begin or resume a run that is dead after so many writes; whether it was killed."""
    return lesson_sessions.killed_at(root, count, lambda: learn(root, own, *changes))


KEPT = {"timings.jsonl", "ledger/rollouts.jsonl"}
# Within a step, between a step and its checkpoint, in the rollouts of an update, before and after it is on record.
MOMENTS = [
    ("metrics.jsonl", 3),
    ("timings.jsonl", 4),
    ("ledger/rollouts.jsonl", 2),
    ("ledger/update.json", 2),
    ("lessons/versions.jsonl", -1),
    ("updates.jsonl", 2),
    ("trajectories/eval-test-greedy.jsonl.gz", 1),
]


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(moment, id=f"{moment[0]} {moment[1]}", marks=[] if moment[0] in KEPT else [pytest.mark.slow])
        for moment in MOMENTS
    ],
)
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(moment, whole, own, tmp_path):
    expected, _, written = whole
    assert killed_at(write(written, *moment), tmp_path / "run", own)
    learn(tmp_path / "run", own)
    assert differing(expected, tmp_path / "run") == []


@pytest.mark.slow
def test_killed_after_every_write_it_ends_the_same(whole, own, tmp_path):
    expected, _, written = whole
    for count in range(written.index("run.json") + 1, len(written) + 1):
        root = tmp_path / str(count)
        assert killed_at(count, root, own)
        learn(root, own)
        assert (written[count - 1], differing(expected, root)) == (written[count - 1], [])


@pytest.mark.slow
def test_killed_again_and_again_it_ends_the_same(whole, own, tmp_path):
    root, deaths = tmp_path / "run", 0
    while killed_at(13, root, own):
        deaths += 1
        assert deaths < 60, "it never ended"
    assert deaths > 3
    assert differing(whole[0], root) == []


@pytest.fixture
def after_two_updates(whole, own, tmp_path):
    """A run that was killed once its second update was on record, after four of five steps."""
    root = tmp_path / "run"
    assert killed_at(write(whole[2], "updates.jsonl", 2), root, own)
    assert RunDirectory(root).checkpoints.steps() == [2, 4]
    return root


def test_where_the_newest_checkpoint_was_deleted_steps_repeat_with_the_lessons_of_then(whole, own, after_two_updates):
    root, events = after_two_updates, []
    shutil.rmtree(root / "checkpoints" / "step-000004")
    learn(root, own, listener=events.append)
    assert [event.metrics.step for event in events if isinstance(event, StepFinished)] == [3, 4, 5]
    assert [event.update for event in events if isinstance(event, UpdateFinished)] == [3]
    assert shown(root, "step-000003") == {digests(root)[1]} != {digests(root)[2]}
    assert differing(whole[0], root) == []


def test_ctrl_c_saves_a_checkpoint_from_which_it_continues(whole, own, tmp_path):
    root = tmp_path / "run"

    def stop(event):
        if isinstance(event, StepFinished) and event.metrics.step == 3:
            asyncio.current_task().cancel()

    with pytest.raises(asyncio.CancelledError):
        learn(root, own, listener=stop)
    assert RunDirectory(root).checkpoints.steps() == [2, 3]
    learn(root, own)
    assert differing(whole[0], root) == []


def test_a_spent_budget_leaves_a_checkpoint_from_which_it_continues(whole, own, tmp_path):
    root, limit = tmp_path / "run", 60
    with pytest.raises(BudgetError):
        learn(root, own, f"budget.rollouts={limit}")
    done = RunDirectory(root).checkpoints.steps()[-1]
    assert [metrics.step for metrics in RunDirectory(root).metrics.read()] == list(range(1, done + 1))
    learn(root, own)
    # Rollouts of the gate that were left ran in a smaller batch, which rounds log-probabilities another way.
    assert differing(whole[0], root) in ([], ["trajectories"])


@pytest.mark.parametrize("updates", [0, 1])
def test_a_limit_on_updates_is_refused(updates, own, tmp_path):
    # Steps and updates take turns, so that another number of updates is another schedule.
    with raises("setting-conflict", f"budget.updates = {updates}"):
        learn(tmp_path / "run", own, f"budget.updates={updates}", "evaluation.at=none")


def test_it_is_evaluated_with_both_and_with_the_lessons_taken_away(whole):
    root, [first, *_, last] = whole[0], digests(whole[0])
    assert shown(root, "eval-test-greedy-0") == {first}
    assert shown(root, f"eval-test-greedy-{STEPS}") == {last}
    assert shown(root, "eval-test-greedy") == {""}
    found = [(result.policy, result.set_name, result.step) for result in RunDirectory(root).evaluations.read()]
    # Last is the agent as it was left, which is what the run is compared by.
    assert found[-2:] == [(TAKEN_AWAY, "test", None), ("trained", "test", STEPS)]
    compared = open_compared(root).results["test", "greedy"]
    assert (compared.policy, compared.step) == ("trained", STEPS)
    assert set(trajectories(root)) == {
        *(f"step-{step:06}" for step in range(1, STEPS + 1)),
        *(f"eval-{kind}-{update}" for kind in ("update", "gate") for update in range(1, UPDATES + 1)),
        *(f"eval-validation-greedy-{step}" for step in (0, 2, 4, 5)),
        *(f"eval-test-greedy{step}" for step in ("-0", "-5", "")),
    }


def test_what_it_learned_is_read_like_that_of_any_run(whole, capsys):
    run = Run(RunDirectory.open(whole[0]))
    assert [lesson.text for lesson in run.lessons] == ["Stay calm", "Read with care"]
    shown = "# Lessons from earlier tasks\n\n- Stay calm\n- Read with care"
    assert run.prompts()["planner"].messages() == [{"role": "system", "content": shown}]
    assert main(["lessons", "versions", str(whole[0])]) == 0
    assert "learning 2" in capsys.readouterr().out


def test_the_estimate_of_a_run_of_both_is_an_upper_bound(whole, own):
    with Build(recipe_of(own)) as build:
        most = {batch.what.partition(",")[0]: batch.count for batch in batches_of(build, training=True)}
    made = trajectories(whole[0])

    def count(start):
        return sum(len(found) for name, found in made.items() if name.startswith(start))

    assert count("eval-test") == most["test"]
    assert count("eval-validation") == most["validation"]
    assert count("step-") == most["training"]
    assert count("eval-update") <= most["learning"]
    assert count("eval-gate") <= most["gate"]


def test_its_page_compares_before_with_and_without_and_lists_the_lessons(whole):
    page = json.dumps(run_page(RunDirectory.open(whole[0])))
    assert "Weights and lessons" in page
    assert "lessons taken away" in page
    assert "Updates of the lesson set" in page


def test_a_lesson_is_proven_for_the_weights_of_its_update_and_later_ones_for_none(whole):
    """What is accepted later was tested against lessons that were accepted at other weights."""
    history = History(whole[0] / "lessons")
    names = [history.get(record.version).lesson_set.proven_for for record in read_updates(RunDirectory(whole[0]))]
    assert [bool(name) for name in names] == [True, False, False]


def test_evaluating_the_run_uses_its_weights_and_its_lessons(whole, tmp_path):
    root = tmp_path / "whole"
    shutil.copytree(whole[0], root)
    assert main(["eval", str(root), "--out", str(tmp_path / "eval"), "--quiet", "--trust"]) == 0
    assert shown(tmp_path / "eval", "eval-test-greedy") == {digests(root)[-1]}
    info = RunDirectory(tmp_path / "eval").info()
    assert (info.lessons, info.evaluation.step) == (digests(root)[-1], STEPS)


@pytest.mark.parametrize(("alone", "other"), [("weights", "lessons"), ("lessons", "training")])
def test_one_alone_equals_the_recipe_without_the_other(alone, other, own, tmp_path):
    table = tomllib.loads(to_toml(resolve(recipe_of(own))))
    table.pop(other)
    paths = {name: tmp_path / f"{name}.toml" for name in ("chosen", "without")}
    paths["chosen"].write_text(to_toml(resolve(recipe_of(own, f'learn=["{alone}"]'))))
    paths["without"].write_text(to_toml(table))
    for name, path in paths.items():
        assert main(["train", str(path), "--out", str(tmp_path / name), "--quiet", "--trust"]) == 0
    assert differing(tmp_path / "without", tmp_path / "chosen") == []


def test_learn_may_name_both_and_leaves_out_the_rest(own):
    both = resolve(recipe_of(own, 'learn=["weights", "lessons"]'))
    assert (both["training"] is None, both["lessons"] is None) == (False, False)
    assert resolve(recipe_of(own, 'learn=["weights"]')).get("lessons") is None
    assert resolve(recipe_of(own, 'learn=["lessons"]')).get("training") is None


def test_a_learner_elsewhere_cannot_learn_both(own, monkeypatch):
    monkeypatch.setattr("midstream.training.settings.LearnerConfig.elsewhere", True)
    with raises("setting-conflict", "both [training] and [lessons]", 'learn = ["weights"]'):
        resolve(recipe_of(own))
