"""The study of a planner: arms, what is kept, what each analysis says, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from studies.planner import ANALYSES, main
from studies.planner_arms import Condition, PlannerFile, Study, errors_of, measured, read_file, summed, with_tools

from midstream.cli.main import main as midstream
from midstream.core.errors import InfrastructureError, RecipeError
from midstream.core.metrics import EvaluationResult, ToolUse
from midstream.core.trajectory import Action, ErrorInfo, Trajectory, Turn
from midstream.recipe.build import Build
from midstream.recipe.files import to_toml
from midstream.recipe.inputs import run_recipe
from midstream.runs import RunDirectory
from midstream_worlds.graphs.tasks import COSTS
from support.errors import coded
from support.served_model import save_model
from support.turns import called, malformed

SMALL = (
    "tasks.countries=40", "engines.policy.hidden_size=32", "engines.policy.layers=1", "warm_start.transcripts=60",
    "warm_start.steps=3", "warm_start.min_copy_rate=0", "training.steps=2", "training.tasks_per_step=2",
    "training.group_size=2",
    'evaluation.validation={name="validation", split="validation", per_family=1}',
    'evaluation.sets=[{name="test", per_family=1}, {name="long", families=["total3"], per_family=1, max_turns=3}]',
)  # fmt: skip


SHIPPED = Path(__file__).parents[2] / "studies" / "planner.toml"
TINY = read_file(SHIPPED).model_copy(update={"imitation": {"transcripts": 20}, "turns": (1, 2)})


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped study with few transcripts and turns."""
    path = tmp_path_factory.mktemp("file") / "planner.toml"
    path.write_text(to_toml(TINY.model_dump(mode="json")), encoding="utf-8")
    return path


def arguments(file: Path, root: Path, *more: str) -> list[str]:
    overrides = [part for override in SMALL for part in ("--set", override)]
    return [str(file), "--out", str(root), "--seeds", "1", "--quiet", *overrides, *more]


@pytest.fixture(scope="module")
def whole(small_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole study of a planner that learns nothing."""
    root = tmp_path_factory.mktemp("study")
    assert main([*arguments(small_file, root), "--json"]) == 0
    return root


ONE_TRAINING = ("tools", "training", "turns", "recovery", "toolsets")


@pytest.fixture(scope="module")
def small(small_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The analyses that take one training."""
    root = tmp_path_factory.mktemp("study")
    assert main([*arguments(small_file, root), "--json", "--only", *ONE_TRAINING]) == 0
    return root


def study(root: Path) -> Study:
    return Study(root=root, config=TINY, overrides=SMALL)


def analyses(root: Path) -> dict[str, list[dict[str, Any]]]:
    return json.loads((root / "planner.json").read_text(encoding="utf-8"))["analyses"]


@pytest.mark.slow
def test_every_analysis_has_numbers_of_every_seed_and_a_figure(whole: Path) -> None:
    found = analyses(whole)
    assert [*found, "costs"] == list(ANALYSES)  # of which its file says nothing
    for name, rows in found.items():
        assert rows
        assert all(len(row["values"]) == 1 for row in rows if row["metric"] != "recovered")
        assert ElementTree.fromstring((whole / f"planner-{name}.svg").read_text(encoding="utf-8")).findall(".//{*}use")


@pytest.mark.slow
def test_the_arms(whole: Path) -> None:
    planners = {row["name"] for row in analyses(whole)["planners"]}
    assert planners == {
        "frozen", "stronger planner, frozen", "supervised, clumsy runs", "distilled, all runs", "distilled, successes",
        "Flow-GRPO",
    }  # fmt: skip
    assert {row["name"] for row in analyses(whole)["sizes"]} == {"64", "128", "192"}
    runs = {path.parent.name for path in whole.glob("*/run.json")}
    arms = ("", "-supervised", "-distilled", "-distilled-successes", "-size-64", "-size-192")
    assert runs == {f"flow-grpo-tiny{arm}-s0" for arm in arms}


@pytest.mark.slow
def test_what_is_there_is_not_done_again(small_file: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def written() -> dict[Path, int]:
        kept = [*small.glob("*/metrics.jsonl"), *small.glob("evaluations/*")]
        return {path: path.stat().st_mtime_ns for path in kept}

    before, record = written(), (small / "planner.json").read_text(encoding="utf-8")
    assert any(path.parent.name == "evaluations" for path in before)
    assert main([*arguments(small_file, small), "--only", *ONE_TRAINING]) == 0
    assert written() == before
    assert (small / "planner.json").read_text(encoding="utf-8") == record
    text = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "Flow-GRPO" in text


@pytest.mark.slow
def test_the_shares_of_tools_add_up(small: Path) -> None:
    for metric in ("before", "after"):
        for family in ("all", "sum", "lookup"):
            rows = analyses(small)["tools"]
            shares = [
                row["values"][0] for row in rows if row["name"].startswith(f"{family}: ") and row["metric"] == metric
            ]
            assert sum(shares) == pytest.approx(1)


@pytest.mark.slow
def test_more_turns_are_allowed_and_used(small: Path) -> None:
    rows = {(row["name"], row["metric"]): row["values"][0] for row in analyses(small)["turns"]}
    assert rows["1", "turns, test, frozen"] == rows["1", "turns, long, Flow-GRPO"] == 1
    assert 1 < rows["2", "turns, test, frozen"] <= 2


@pytest.mark.slow
def test_before_training_is_before_training(finished_run: Path, ten_steps: Path, tmp_path: Path) -> None:
    """Weights of the first checkpoint are gone by then; the reference policy of the last one is what they were."""
    run, unchanged = RunDirectory.open(finished_run), tmp_path / "unchanged"
    command = ["train", str(ten_steps), "--out", str(unchanged), "--quiet", "--json", "--set", "training.steps=0"]
    assert midstream(command) == 0
    with Build(run_recipe(run)) as build:
        weights = dict(build.policy.learner.model.named_parameters())
        redrawn = {name for name in weights if "embed" in name}  # names, which are drawn again at every step
        states = []
        for directory in (unchanged, finished_run):
            RunDirectory.open(directory).checkpoints.load_latest(build.policy.learner.load)
            states.append({name: tensor.detach().clone() for name, tensor in weights.items() if name not in redrawn})
        build.policy.learner.model.load_state_dict(build.policy.learner.reference.state_dict())
        before, trained = states
        assert before.keys() == weights.keys() - redrawn
        assert all(tensor.equal(weights[name]) for name, tensor in before.items())
        assert not all(tensor.equal(weights[name]) for name, tensor in trained.items())


@pytest.mark.slow
def test_an_empty_change_of_tools_is_what_the_run_evaluated(small: Path) -> None:
    here, plain = study(small), Condition(set_name="test", temperature=1.0)
    assert measured(here, "trained", 0, Condition(set_name="test", temperature=1.0, tools="all facts")) == measured(
        here, "trained", 0, plain
    )
    poorer = measured(here, "trained", 0, Condition(set_name="test", temperature=1.0, tools="half the facts"))
    assert poorer.result.tasks == 7


def test_a_search_that_knows_half_the_facts() -> None:
    here = study(Path())

    def known(name: str) -> int:
        condition = Condition(set_name="test", temperature=1.0, tools=name)
        with Build(with_tools(here.recipe("trained", 0), here, condition)) as build:
            search: Any = next(tool for tool in build.tools if tool.name == "local_search")
            return search._connection.execute("SELECT count(*) FROM documents").fetchone()[0]

    half, three, every = map(known, ("half the facts", "three quarters", "all facts"))
    assert every == 40 * 9
    assert 0.4 * every < half < 0.6 * every < 0.65 * every < three < 0.85 * every


def planner(recipe: str, *overrides: str) -> Study:
    return Study(root=Path("nowhere"), config=PlannerFile(recipe=recipe), overrides=overrides)


def test_without_a_warm_start_nobody_imitates_the_clumsy_policy(tmp_path: Path) -> None:
    assert planner("flow-grpo-lora").imitating == ("distilled", "distilled-successes")
    assert study(tmp_path).imitating == ("supervised", "distilled", "distilled-successes")


@pytest.mark.parametrize(
    ("recipe", "overrides", "arm", "code"),
    [
        ("flow-grpo-lora", [], "stronger", "missing-key"),
        ("flow-grpo-lora", [], "distilled", "missing-key"),
        ("agentflow-prompted", [], "trained", "wrong-kind-of-recipe"),
        ("flow-grpo-tiny", ["training.algorithm=supervised"], "trained", "wrong-kind-of-recipe"),
    ],
)
def test_what_a_study_does_not_define_is_refused(recipe: str, overrides: list[str], arm: str, code: str) -> None:
    with pytest.raises(RecipeError) as caught:
        planner(recipe, *overrides).recipe(arm, 0)
    assert caught.value.code == code


def test_a_wrong_key_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('recipe = "flow-grpo-tiny"\nstrong = 1\n', encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        read_file(tmp_path / "mine.toml")
    assert "strong" in caught.value.what


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--only", "nonsense"], "unknown-name"),
        (["--seeds", "0"], "empty-value"),
        (["--set", "evaluation.sets=[]"], "missing-key"),
        (["--set", "evaluation.at=none"], "setting-conflict"),
    ],
)
def test_refusals_leave_nothing_behind(
    more: list[str], code: str, small_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(small_file, tmp_path, *more)) == 1
    assert f"error[{code}]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["sizes", "toolsets", "costs", "planners"])
def test_a_file_without_variants_says_so(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plain.toml"
    file.write_text('recipe = "flow-grpo-tiny"\n', encoding="utf-8")
    assert main([*arguments(file, tmp_path / "out"), "--only", name]) == 1
    assert "error[missing-key]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("recipe", "costs"),
    [
        ("flow-grpo-graphs", {"graph": 5, "path": 2, "neighbors": 1, "oracle": 1}),
        ("flow-grpo-graphs", {**COSTS, "pyton": 1}),
        ("flow-grpo-tiny", {"local_search": 1, "python": 1, "guess": 1}),
    ],
    ids=["a tool without a cost", "a cost without a tool", "tasks without a best cost"],
)
def test_costs_that_do_not_fit_are_refused_first(
    recipe: str, costs: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.toml").write_text(to_toml({"recipe": recipe, "costs": costs}), encoding="utf-8")
    assert main([str(tmp_path / "study.toml"), "--out", str(tmp_path / "out"), "--only", "costs"]) == 1
    assert "error[setting-conflict]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_sound_plans_cost_what_the_best_ones_do(tmp_path: Path) -> None:
    shipped = read_file(SHIPPED.with_name("graphs.toml"))
    assert shipped.costs == COSTS
    sound = shipped.model_copy(update={"stronger": {"type": "clumsy", "sense": 1.0, "malformed": 0.0}})
    overrides = ("tasks.graphs=40", "evaluation.sets=[{name='test', per_family=12, max_turns=11}]")
    here = Study(root=tmp_path, config=sound, overrides=overrides)
    found = measured(here, "stronger", 0, Condition(set_name="test", temperature=1.0))
    assert found.result.success == 1
    assert {"all", "measure", "compare", "distance", "depth6"} < set(found.costs)
    regrets = {family: cost.regret for family, cost in found.costs.items() if family != "all"}
    assert regrets.pop("distance") > 0  # the cheap query is tried first, and sometimes fails
    assert set(regrets.values()) == {0}
    assert found.costs["all"].regret > 0


@pytest.mark.slow
def test_a_lora_planner_before_training_is_the_model_as_it_was_built(tmp_path: Path) -> None:
    overrides = (
        f"engines.policy.model={save_model(tmp_path / 'model')}", "tasks.families=['arith']", "tasks.countries=40",
        "agent.planner.sampling={temperature=0.7, max_tokens=4}", "training.steps=1", "training.tasks_per_step=1",
        "training.group_size=2", "training.learning_rate=1.0", "training.warmup_steps=1",
        "evaluation.validation={name='validation', split='validation', per_family=1}",
        "evaluation.sets=[{name='test', per_family=3, max_turns=1}]",
    )  # fmt: skip
    here = Study(root=tmp_path, config=PlannerFile(recipe="flow-grpo-lora"), overrides=overrides)
    before = Condition(set_name="test", temperature=0.7, before=True)
    again = Condition(set_name="test", temperature=0.7, before=True, max_turns=1)
    assert measured(here, "trained", 0, again).tools == measured(here, "trained", 0, before).tools


def test_a_measurement_without_results_is_refused() -> None:
    lost = Trajectory(
        id="a", task_id="a", status="error", error=ErrorInfo(type="ToolServerError", message="it is down")
    )
    result = EvaluationResult(
        policy="trained", set_name="test", split="test", sampling="T=1", seed=0, tasks=50, success=0.5,
        success_without_errors=0.5, errors=1, by_family={}, turns_mean=1.0, tool_use=ToolUse(),
    )  # fmt: skip
    fine = [Trajectory(id="a", task_id="a")] * 199
    assert summed(result, [*fine, lost]).use == ToolUse()
    with pytest.raises(InfrastructureError, check=coded("no-results", "2 of 102", "it is down")):
        summed(result, [*fine[:100], lost, lost])


def errors(*runs: list[Turn]) -> tuple[int, int, int]:
    found = errors_of(Trajectory(id="a", task_id="a", turns=tuple(turns)) for turns in runs)
    return found.followed, found.recoveries, found.repeats


def test_a_recovery_is_another_call_that_works() -> None:
    assert errors([called("a", failed=True), called("b")]) == (1, 1, 0)
    assert errors([called("a", failed=True), called("a", goal="look again")]) == (1, 0, 0)
    assert errors([called("a", failed=True), called("b", failed=True), called("c")]) == (2, 1, 0)
    assert errors([called("a"), called("b", failed=True)]) == (0, 0, 0)
    assert errors([malformed("x"), called("a")]) == (1, 1, 0)
    assert errors([called("a", failed=True), Turn(index=1, action=Action(tool="python"))]) == (1, 0, 0)


def test_a_repeat_fails_as_it_failed_before_in_its_own_trajectory() -> None:
    assert errors([called("a", failed=True), called("b"), called("a", failed=True, goal="once more")]) == (1, 1, 1)
    assert errors([called("a", failed=True)], [called("a", failed=True)]) == (0, 0, 0)
    assert errors([called("a", failed=True), called("a")]) == (1, 0, 0)
    assert errors([malformed("x"), malformed("y"), malformed("x")]) == (2, 0, 1)
