"""What a lesson session is made from, and what is refused before any work."""

from __future__ import annotations

import json
import shutil

import pytest

from midstream.cli.main import main
from midstream.core.errors import RecipeError, UsageError
from midstream.lessons.commit import read_updates
from midstream.process import event_loop
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.files import to_toml
from midstream.recipe.lesson_sessions import lessons_parts_of
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import check_work
from midstream.runs import RunDirectory
from midstream.runs.budget import Budget, BudgetConfig, BudgetedAgent, BudgetedEngine
from midstream.runs.info import collect_info
from midstream_worlds.gazetteer.tasks import Gazetteer
from support.errors import coded
from support.lesson_sessions import SMALL

HOSTED = 'engines.other={type="openai_compatible", model="a model without a price"}'
PLAIN = ["lessons.tasks=6", "lessons.gate.tasks=4"]


def parts(*changes):
    recipe = load_recipe("lessons-simulated", [*PLAIN, *changes])
    with Build(recipe, budget=Budget(recipe.budget or BudgetConfig())) as build:
        return lessons_parts_of(build)


def refused(*changes) -> UsageError:
    with pytest.raises(UsageError) as failure:
        parts(*changes)
    return failure.value


def files(tmp_path, **splits):
    """A set of an evaluation, or [tasks], from questions written to files."""
    for name, questions in splits.items():
        lines = [json.dumps({"question": question, "answer": "7"}) for question in questions]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return {name: f'{{type="file", path="{tmp_path / f"{name}.jsonl"}"}}' for name in splits}


def test_everything_goes_through_the_meter():
    found = parts()
    environment = found.make_environment(chosen=found.validation_set)
    assert isinstance(environment.agent, BudgetedAgent)
    asked = [*environment.engines.values(), *found.engines.values()]
    assert all(isinstance(engine, BudgetedEngine) and engine.budget is found.budget for engine in asked)
    assert set(found.engines) == {"summariser", "critic", "merger"}
    assert found.engines["critic"] is found.engines["merger"]
    assert (len(found.tasks), len(found.validation)) == (6, 4)


def test_a_role_may_have_an_engine_of_its_own():
    found = parts('engines.other={type="simulated", plays="reflector"}', 'lessons.critic={engine="other"}')
    assert {role: engine.name for role, engine in found.engines.items()} == {
        "summariser": "reflector",
        "critic": "other",
        "merger": "reflector",
    }


def test_without_a_gate_there_are_no_validation_tasks():
    assert parts("lessons.gate.enabled=false").validation == []


def test_validation_tasks_of_the_train_split_are_left_out_of_learning():
    found = parts('evaluation.validation={name="validation", split="train"}', "tasks.train=10")
    questions = [{task.question for task in some} for some in (found.tasks, found.validation)]
    assert [len(one) for one in questions] == [6, 4]
    assert not questions[0] & questions[1]


def test_fewer_tasks_than_asked_for_are_refused_where_validation_takes_some(tmp_path):
    """A benchmark may ask the same more than once; an empty batch would teach nothing."""
    tasks = files(tmp_path, same=[f"{'What' if i % 2 else 'what'} is {i // 2}?" for i in range(12)])["same"]
    error = refused(
        f"tasks={tasks[:-1]}, splits={{train=1}}}}",
        *(f"engines.{name}={{type='openai_compatible', model='m'}}" for name in ("agent", "reflector")),
        "evaluation.sets=[]",
        'evaluation.validation={name="validation", split="train"}',
    )
    assert coded("too-few-tasks", "lessons.tasks = 6")(error)


@pytest.mark.parametrize(
    ("families", "code"),
    [(["lookup", "arith", "hop", "scale", "hopp"], "unknown-family")],
)
def test_stages_have_families_of_the_tasks_at_most_once(families, code):
    pytest.importorskip("torch", reason="the training extra is not installed")
    stages = ["tasks.difficulty=easy", f"training.stages=[{json.dumps(families)}]"]
    refused = pytest.raises(RecipeError, check=coded(code, "training.stages"))
    with Build(load_recipe("flow-grpo-tiny", stages)) as build, refused:
        check_work(build, "train")


def test_the_tasks_of_the_first_step_are_drawn_from_the_first_stage(monkeypatch):
    """So that too few of them are found before a model is loaded."""
    pytest.importorskip("torch", reason="the training extra is not installed")
    drawn = []
    sample = Gazetteer.sample
    monkeypatch.setattr(Gazetteer, "sample", lambda *given: drawn.append(sample(*given)) or drawn[-1])
    stages = 'training.stages=[["hop"], ["lookup", "sum"]]'
    with Build(load_recipe("flow-grpo-tiny", [stages])) as build:
        check_work(build, "train")
    assert {task.family for task in drawn[-1]} == {"hop"}


def test_a_question_in_two_splits_is_named(tmp_path):
    train = [task.question for task in parts().tasks]
    tasks = files(tmp_path, test=[train[3].upper(), "another one ?"])["test"]
    error = refused(f'evaluation.sets=[{{name="mine", tasks={tasks}, reward={{type="exact_match"}}}}]')
    assert coded("tasks-overlap", "lessons.tasks", "'mine'", "1 questions: press-", fix="different splits")(error)


def test_sets_that_are_only_evaluated_may_overlap():
    sets = '[{name="one", split="test", count=5, seed=1}, {name="two", split="test", count=5, seed=1}]'
    assert parts(f"evaluation.sets={sets}").evaluation.sets[1].name == "two"


@pytest.mark.parametrize(
    ("changes", "code", "value"),
    [
        (["lessons.reflector.engine=nobody"], "unknown-engine", "lessons.reflector.engine = 'nobody'"),
        (['lessons.critic={engine="nobody"}'], "unknown-engine", "lessons.critic.engine = 'nobody'"),
        (["lessons.group_size=1"], "recipe-invalid", "group_size = 1"),
        (['lessons.modules=["verifier"]'], "lessons-not-shown", "verifier"),
        (['lessons.modules=["cook"]'], "unknown-module", "'cook'"),
        (["agent.lessons=somewhere.md"], "setting-conflict", "agent.lessons = 'somewhere.md'"),
        (['lessons.start="/no/such/lessons.json"'], "file-not-found", "/no/such/lessons.json"),
        (["training.steps=1", 'learn=["texts"]'], "recipe-invalid", "learn"),
        (['learn=["weights", "lessons"]'], "setting-conflict", "without [training]"),
        (["lessons.gate.tasks=9000"], "too-few-tasks", "9000 tasks of the workshop (validation)"),
        (["lessons.tasks=9000"], "too-few-tasks", "9000 tasks of the workshop (train)"),
        (["budget.cost_usd=1", HOSTED], "setting-conflict", "budget.cost_usd = 1"),
        (
            ['lessons.critic={engine="reflector", prompt_file="/no/such/prompt.md"}'],
            "file-not-found",
            "/no/such/prompt.md",
        ),
        (
            ['engines.inside={type="tiny"}', 'lessons.reflector={engine="inside"}'],
            "engine-in-process",
            "lessons.reflector.engine = 'inside'",
        ),
    ],
)
def test_what_cannot_work_is_refused(changes, code, value):
    assert coded(code, value)(refused(*changes))


def test_a_limit_in_dollars_needs_no_price_of_a_listed_model(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    hosted = 'engines.hosted={type="openai_compatible", model="gpt-4o-mini"}'
    assert parts("budget.cost_usd=1", hosted).budget.limits.cost_usd == 1
    local = 'engines.local={type="openai_compatible", provider="ollama", model="qwen2.5:7b"}'
    assert coded("setting-conflict", "budget.cost_usd = 1")(refused("budget.cost_usd=1", local))
    free = "engines.local.price_prompt_usd=0"
    assert parts("budget.cost_usd=1", local, free).budget.limits.cost_usd == 1


@pytest.mark.parametrize("setting", ["lessons.gate.tasks", "lessons.tasks"])
def test_too_few_tasks_name_the_setting_that_asked_for_them(setting):
    assert coded("too-few-tasks", setting)(refused(f"{setting}=9000"))


def test_groups_of_one_may_teach_where_uniform_ones_are_not_skipped():
    assert parts("lessons.group_size=1", "lessons.skip_uniform=false").lessons.group_size == 1


def test_a_lesson_set_to_begin_with_is_named_by_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text('{"lessons": [{"id": "L1", "text": "look first"}], "next_number": 2}')
    recipe = load_recipe("lessons-simulated", [*PLAIN, "lessons.start=mine.json"])
    assert resolve(recipe)["lessons"]["start"] == str(tmp_path / "mine.json")
    assert parts("lessons.start=mine.json").start.lessons[0].text == "look first"


def test_what_cannot_work_leaves_no_run_behind(tmp_path, capsys):
    words = ["train", "lessons-simulated", "--quiet", "--out", str(tmp_path / "run")]
    assert main([*words, "--set", "lessons.gate.tasks=9000"]) == 2
    assert "9000" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_neither_trains_nor_learns_is_refused(tmp_path, capsys):
    assert main(["train", "agentflow-prompted", "--out", str(tmp_path / "run")]) == 2
    assert "no [training] and no [lessons] table" in " ".join(capsys.readouterr().err.split())


# -- the commands ------------------------------------------------------------------------------------------------------


def words(changes):
    return [f"--set={key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changes.items()]


@pytest.fixture(scope="module")
def spent_run(tmp_path_factory):
    """A run that its budget ended within its second update."""
    root = tmp_path_factory.mktemp("learned") / "run"
    limited = {**SMALL, "budget.rollouts": 80, "tasks.test": 20}
    assert main(["train", "lessons-simulated", "--quiet", "--out", str(root), *words(limited)]) == 0
    return root


def test_a_limit_is_no_error_and_the_status_says_it(spent_run):
    status = RunDirectory.open(spent_run).status()
    assert status.state == "finished"
    assert "(rollouts) is spent" in status.message
    assert "<html" in (spent_run / "report.html").read_text(encoding="utf-8")


def test_a_finished_run_is_left_alone_unless_its_limits_change(spent_run, tmp_path, capsys):
    root = shutil.copytree(spent_run, tmp_path / "run")
    before = read_updates(RunDirectory(root))
    assert main(["resume", str(root), "--quiet"]) == 0
    assert read_updates(RunDirectory(root)) == before
    assert main(["resume", str(root), "--quiet", "--set", "budget.rollouts=9000"]) == 0
    run = RunDirectory(root)
    assert (len(before), len(read_updates(run))) == (1, 2)
    assert (run.status().state, run.status().message, run.status().step) == ("finished", "", 2)


@pytest.mark.parametrize("change", ["lessons.group_size=4", "seed=4", "lessons.budgets=1"])
def test_nothing_else_of_a_run_may_change(spent_run, change, capsys):
    assert main(["resume", str(spent_run), "--quiet", "--set", change]) == 2
    said = capsys.readouterr().err
    assert "cannot be changed in" in said or "invalid" in said


def test_an_evaluation_resumes_with_its_own_settings_alone(tmp_path, capsys):
    root = tmp_path / "evaluation"
    sets = 'evaluation.sets=[{name="test",split="test",count=2}]'
    assert main(["eval", "lessons-simulated", "--quiet", "--out", str(root), "--set", sets]) == 0
    assert main(["resume", str(root), "--set", "lessons.tasks=9"]) == 2
    assert "error[inputs-changed]" in capsys.readouterr().err


def test_training_on_tasks_that_its_reward_cannot_score_is_refused(tmp_path):
    """All questions of a file are looked at, not only those of the first step."""
    lines = [json.dumps({"question": f"How much is {i} ?", "answer": str(i)}) for i in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join([*lines, '{"question": "Is it ?", "answer": "yes"}']) + "\n")
    tasks = f'{{type="file", path="{tmp_path / "train.jsonl"}", splits={{train=1}}}}'
    recipe = load_recipe("torl-7b", [f"tasks={tasks}", "reward={type='numeric'}", "training.tasks_per_step=1"])
    with Build(recipe) as build, pytest.raises(UsageError, check=coded("task-unfit", "'yes'")):
        check_work(build, "train")


def test_lessons_warms_its_planner_up_once_a_run(tmp_path):
    """And then has the weights of its checkpoint."""
    pytest.importorskip("torch", reason="the training extra is not installed")
    changes = [
        "tasks.countries=40", "engines.policy.hidden_size=8", "warm_start.transcripts=4", "warm_start.steps=2",
        "warm_start.batch_size=2", "warm_start.min_copy_rate=0", "lessons.tasks=6", "lessons.gate.enabled=false",
        "evaluation.validation.per_family=1",
    ]  # fmt: skip
    recipe = load_recipe("lessons-tiny", changes)
    weights, reported = [], []
    for _ in range(2):
        with Build(recipe, budget=Budget(recipe.budget or BudgetConfig())) as build:
            found = lessons_parts_of(build)
            root = tmp_path / "run"
            info = collect_info(recipe.name, recipe.seed, build.resolved)
            run = RunDirectory.open(root) if root.exists() else RunDirectory.create(root, info, to_toml(build.resolved))
            said: list[str] = []
            with event_loop(build) as run_coroutine:
                run_coroutine(found.prepare(run, said.append))
            weights.append({name: each.clone() for name, each in build.policy.learner.model.state_dict().items()})
            reported.append(said)
    assert all(each.equal(weights[1][name]) for name, each in weights[0].items())
    assert [bool(said) for said in reported] == [True, False]
