"""A study trains what is missing, reads what is there, and refuses what it does not know."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.core.errors import MidstreamError, RecipeError, UsageError
from midstream.report.study import study_tables
from midstream.study import DEFAULT_METRICS, SHIPPED, Metric, StudyFile, plan, read_study, rows, run_study
from support.errors import coded, raises
from support.fake_run import evaluation

SMALL = (
    "tasks.countries=20", "engines.policy.hidden_size=8", "engines.policy.layers=1", "warm_start.transcripts=4",
    "warm_start.steps=1", "warm_start.min_copy_rate=0", "training.steps=2", "training.tasks_per_step=1",
    "training.minibatches=1", "training.group_size=2", "training.supervised.transcripts=4",
    "training.validate_every=1", "agent.max_turns=1", "evaluation.validation.per_family=1",
    'evaluation.sets=[{name="test", per_family=1}]',
)  # fmt: skip


def study(root: Path, *arms: str) -> list[str]:
    overrides = [part for override in SMALL for part in ("--set", override)]
    return ["study", "controls", "--seeds", "2", "--out", str(root), "--quiet", "--only", *arms, *overrides]


@pytest.mark.slow
def test_rows_of_every_policy_and_nothing_trained_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = study(tmp_path, "Flow-GRPO", "random planner", "supervised, same number of updates")
    assert main([*arguments, "--json"]) == 0
    first = capsys.readouterr().out
    rows, differences, curves = json.loads(first).values()
    names = {row["name"] for row in rows}
    assert len(names) == 4
    assert {row["name"] for row in differences} == names - {"Flow-GRPO"}
    assert all(len(row["values"]) == 2 and all(0 <= value <= 1 for value in row["values"]) for row in rows)
    assert {row["name"] for row in curves} == {"0", "1", "2"}, "a supervised arm counts no trajectories"
    assert json.loads((tmp_path / "study.json").read_text(encoding="utf-8")) == json.loads(first)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/metrics.jsonl")}
    assert {path.parent.name for path in written} == {
        f"{recipe}-s{seed}" for recipe in ("flow-grpo-tiny", "control-supervised") for seed in (0, 1)
    }
    assert main([*arguments, "--json"]) == 0
    assert capsys.readouterr().out == first
    assert main(arguments) == 0
    assert "warm start only" in capsys.readouterr().out
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/metrics.jsonl")}


def test_arms_of_one_recipe_that_trains_nothing_share_an_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "two.toml"
    arms = [f'[[arms]]\nname = "{name}"\nrecipe = "control-random"\ntrain = false' for name in ("one", "other")]
    file.write_text("\n".join(['name = "two"', *arms]))
    overrides = [word for setting in SMALL for word in ("--set", setting)]
    arguments = ["study", str(file), "--seeds", "1", "--out", str(tmp_path / "runs"), "--quiet", *overrides]
    assert main([*arguments, "--json"]) == 0
    rows, differences, curves = json.loads(capsys.readouterr().out).values()
    assert {row["name"] for row in rows} == {"one", "other"}
    assert {row["name"]: row["values"] for row in differences} == {"other": [0]}
    assert curves == []
    assert (tmp_path / "runs" / "study.svg").exists()
    assert len(list((tmp_path / "runs").glob("*/evaluations.jsonl"))) == 1
    assert main([*arguments, "--dry-run", "--json"]) == 0
    assert {run["state"] for run in json.loads(capsys.readouterr().out)} == {"finished"}


def test_the_studies_are_listed_and_a_dry_run_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["study", "--list"]) == 0
    listed = capsys.readouterr().out
    assert "controls" in listed
    assert "Modular and interleaved agents" in listed
    assert main([*study(tmp_path / "runs", "Flow-GRPO"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"Flow-GRPO +2 missing +85 ", shown)
    assert "Left, at most: 170 trajectories" in shown
    assert main(["study", "--list", "--json"]) == 0
    [controls] = [found for found in json.loads(capsys.readouterr().out) if found["name"] == "controls"]
    assert {"Flow-GRPO", "random planner"} <= {arm["name"] for arm in controls["arms"]}
    assert main([*study(tmp_path / "runs", "Flow-GRPO"), "--dry-run", "--json"]) == 0
    first, _ = json.loads(capsys.readouterr().out)
    assert (first["arm"], first["recipe"], first["seed"], first["state"]) == (
        "Flow-GRPO",
        "flow-grpo-tiny",
        0,
        "missing",
    )
    assert first["changes"][-1] == "seed=0"
    assert first["at most"]["optimizer steps"] == 2 * 1 + 1
    assert not (tmp_path / "runs").exists()


def test_one_seed_has_the_interval_of_its_tasks() -> None:
    results = [evaluation(0.5, 3, "T=1").model_copy(update={"success": 0.25, "interval": (0.1, 0.4)})]
    settings = StudyFile.model_validate(
        {"name": "s", "arms": [{"name": "a", "recipe": "r"}], "metrics": {"after": {"value": "success"}}}
    )
    [alone] = rows(settings, {"a": [results]})
    assert alone.interval == (0.1, 0.4)
    [table] = study_tables([alone], "arm", "")
    assert list(table.columns[2].cells) == ["25.0 (10.0–40.0)"]
    [several] = rows(settings, {"a": [results, results]})
    assert several.interval is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "missing-option"),
        (["controls", "--only", "nonsense"], "unknown-name"),
        (["controls", "--seeds", "0"], "empty-value"),
        (["controls", "--seeds", "-1"], "empty-value"),
        (["nonsense"], "file-not-found"),
        (["nonsense.toml"], "file-not-found"),
    ],
)
def test_refusals_leave_nothing_behind(
    arguments: list[str], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", *arguments, "--out", str(tmp_path)]) in (1, 2)
    assert f"error[{code}]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_recipe_is_no_study(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "flow-grpo-tiny"\nname = "mine"\n', encoding="utf-8")
    with pytest.raises(RecipeError, check=coded("recipe-invalid", file, "is a recipe", fix="mine.toml")):
        read_study(file)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("two-ways", "python -m studies.two_ways"),
        ("gate", "python -m studies.gate"),
        (SHIPPED / "graphs.toml", "python -m studies.planner studies/graphs.toml"),
    ],
)
def test_the_file_of_a_program_is_refused_with_its_command(name: str | Path, command: str) -> None:
    with pytest.raises(UsageError, check=coded("recipe-invalid", name, fix=command)):
        read_study(name)


def test_a_file_names_arms_and_the_numbers_have_defaults(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\n[[arms]]\nname = "plain"\nrecipe = "flow-grpo-tiny"\n', encoding="utf-8")
    assert read_study(file).metrics == DEFAULT_METRICS
    file.write_text("name = 3", encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        read_study(file)
    assert "arms" in caught.value.what
    assert caught.value.what.startswith(f"the study {file} is invalid")
    assert "--set" not in caught.value.fix
    file.write_text("name =", encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        read_study(file)
    assert caught.value.code == "file-invalid"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ('[[arms]]\nname = "b"\nrecipe = "flow-grpo-tiny"\noverrides = ["training.stepz=1"]', "training.stepz"),
        ('[[arms]]\nname = "b"\nrecipe = "flow-grpo-tiny"\noverrides = ["reward.type=nonsense"]', "reward.type"),
        ('[metrics]\nm = { value = "succes" }', "succes"),
    ],
)
def test_an_error_in_a_later_arm_or_a_metric_is_found_before_anything_is_trained(
    wrong: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'name = "mine"\n[[arms]]\nname = "a"\nrecipe = "flow-grpo-tiny"\n{wrong}\n', encoding="utf-8")
    assert main(["study", str(file), "--out", str(tmp_path / "out")]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


QUESTIONS = {f"How much is {i} plus {i} ?": str(2 * i) for i in range(4)}
OWN = """
extends = "direct"
name = "own"
engines.model = {{ base_url = "{url}", model = "scripted", max_attempts = 1 }}
[tasks]
type = "file"
path = "{questions}"
[evaluation]
sets = [{{ name = "sums" }}]
"""


def own_recipe(directory: Path, *, url: str = "http://127.0.0.1:9/v1", name: str = "own.toml") -> Path:
    rows = [json.dumps({"question": question, "answer": answer}) for question, answer in QUESTIONS.items()]
    (directory / "questions.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (directory / name).write_text(OWN.format(url=url, questions=directory / "questions.jsonl"), encoding="utf-8")
    return directory / name


def own_study(directory: Path, *arms: str, more: str = "") -> StudyFile:
    """A study next to `own.toml`: an arm as it is, and others with these lines."""
    texts = ['[[arms]]\nname = "plain"\nrecipe = "own.toml"\n']
    texts += [f'[[arms]]\nname = "arm {place}"\nrecipe = "own.toml"\n{arm}\n' for place, arm in enumerate(arms)]
    (directory / "study.toml").write_text('name = "mine"\nseeds = 2\n' + "".join(texts) + more, encoding="utf-8")
    return read_study(directory / "study.toml")


def test_paths_are_relative_to_the_file_and_set_is_texts_or_a_table(tmp_path: Path) -> None:
    own_recipe(tmp_path)
    texts = 'set = ["evaluation.trials=2", "tasks.path=questions.jsonl", "description=file"]'
    table = 'set = { evaluation.trials = 2, tasks.path = "questions.jsonl", description = "file" }'
    planned = plan(own_study(tmp_path, texts, table), tmp_path / "runs")  # the working directory is another
    first, other = planned.study.arms[1:]
    assert first.overrides == other.overrides
    assert first.overrides[1] == f'tasks.path="{tmp_path / "questions.jsonl"}"'
    assert [run.out.name for run in planned.runs] == [
        f"{arm}-s{seed}" for arm in ("own", "arm-0", "arm-1") for seed in (0, 1)
    ]
    assert not any(run.trained for run in planned.runs), "the recipe learns nothing: it is evaluated as it is"
    assert planned.study.metrics["after"].set == "sums", "the first set that all arms have"


@pytest.mark.parametrize(
    ("arm", "more", "code", "named"),
    [
        ('set = { evaluation.temperatures = [0.0] }', "", "not-comparable", "'before'"),
        ('set = { evaluation.sets = [{ name = "sums", reward.type = "numeric" }] }', "", "not-comparable", "numeric"),
        ('set = ["tasks.path=others.jsonl"]', "", "not-comparable", "'arm 0'"),
        ("set = { evaluation.sets = [{ name = 'sums', count = 2 }] }", "", "not-comparable", "2 are in both"),
        ("set = { agent.max_turn = 3 }", "", "recipe-invalid", "arm 'arm 0': the recipe is invalid: agent.max_turn"),
        ('set = ["tasks.path=none.jsonl"]', "", "file-not-found", "arm 'arm 0'"),
        ('recipe = "none.toml"', "", "unknown-recipe", "arm 'arm 0'"),
        ("", '[metrics]\nm = { value = "success", set = "other" }', "not-comparable", "'m'"),
    ],
    ids=["sampling", "reward", "tasks", "some-tasks", "key", "file", "recipe", "metric"],
)  # fmt: skip
def test_arms_that_cannot_be_compared_are_refused_by_name(
    arm: str, more: str, code: str, named: str, tmp_path: Path
) -> None:
    own_recipe(tmp_path)
    (tmp_path / "others.jsonl").write_text('{"question": "Who ?", "answer": "you"}', encoding="utf-8")
    with raises(code, named):
        arm = arm if arm.startswith("recipe") else f'recipe = "own.toml"\ndirectory = "other"\n{arm}'
        more = f'[[arms]]\nname = "arm 0"\n{arm}\n{more}'
        plan(own_study(tmp_path, more=more), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_study_of_the_documentation_can_run_and_what_to_know_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    (tmp_path / "group-size.toml").write_text(page.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    study = read_study(tmp_path / "group-size.toml")
    planned = plan(study, tmp_path, seeds=1)
    assert [run.out.name for run in planned.runs] == ["flow-grpo-tiny-s0", "groups-of-4-s0"]
    assert not planned.notes, "both arms train on the same number of trajectories"
    monkeypatch.setattr("midstream.study.find_spec", lambda name: None)
    fewer = study.arms[1].model_copy(update={"set": {"training": {"steps": 10}}})
    budgets, figures = plan(study.model_copy(update={"arms": (study.arms[0], fewer)}), tmp_path, seeds=1).notes
    assert "groups of 8 on 16,640, groups of 4 on 1,280" in budgets
    assert "midstream[studies]" in figures


def test_a_study_continues_with_another_limit_and_with_no_other_setting(tmp_path: Path) -> None:
    own_recipe(tmp_path)
    study = own_study(tmp_path)
    with pytest.raises(MidstreamError):  # nobody answers
        run_study(plan(study, tmp_path, seeds=1, overrides=["budget.rollouts=1"]))
    [run] = plan(study, tmp_path, seeds=1, overrides=["budget.rollouts=9"]).runs
    assert (run.out / "run.json").exists()
    with raises("inputs-changed", "max_tokens"):
        plan(study, tmp_path, seeds=1, overrides=["agent.policy.sampling.max_tokens=7"])


def test_two_arms_that_would_share_a_directory_are_refused() -> None:
    arms = [{"name": "a", "recipe": "one/mine.toml"}, {"name": "b", "recipe": "two/mine.toml"}]
    with raises("name-clash", "mine"):
        StudyFile.model_validate({"name": "s", "arms": arms})
    StudyFile.model_validate({"name": "s", "arms": [arms[0], {**arms[1], "directory": "other"}]})
    StudyFile.model_validate({"name": "s", "arms": [arms[0], {**arms[0], "name": "b"}]})  # one run, two rows


def test_two_rows_of_one_name_are_refused() -> None:
    arm = {"name": "a", "recipe": "flow-grpo-tiny"}
    with raises("name-clash", "a"):
        StudyFile.model_validate({"name": "s", "arms": [arm, arm]})


def test_a_metric_reads_the_last_step_the_first_or_the_difference() -> None:
    results = [evaluation(0.0, 0), evaluation(0.5, 5), evaluation(1.0, 10), evaluation(1.0, 10, "T=1")]
    first, last = results[0], results[2]
    assert Metric(value="success", sampling="greedy").of(results) == last.success
    assert Metric(value="success", sampling="greedy", at="before").of(results) == first.success
    assert Metric(value="success", sampling="greedy", at="gain").of(results) == last.success - first.success
    errors = Metric(value=("success", "tool_use.error_rate"), sampling="greedy").of(results)
    assert errors == pytest.approx((last.success + last.tool_use.error_rate) / 2)
    assert Metric(value="tool_use.share.guess", sampling="greedy", missing=0).of(results) == 0
    assert Metric(value="turns_mean", sampling="greedy", per_run=True).of(results) == last.turns_mean / last.tasks


@pytest.mark.parametrize("metric", [{"value": "tool_use.nonsense"}, {"value": "success", "set": "other"}])
def test_a_number_that_is_not_there_is_refused(metric: dict[str, str]) -> None:
    with pytest.raises(RecipeError) as caught:
        Metric.model_validate({**metric, "sampling": "greedy"}).of([evaluation(1.0, 5)])
    assert caught.value.code == "missing-key"


def test_the_wheel_holds_every_study_that_the_checkout_lists():
    built = tomllib.loads((SHIPPED.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    packaged = {path for path in built["force-include"] if path.startswith("studies/")}
    assert packaged == {f"studies/{path.name}" for path in SHIPPED.glob("*.toml") if "[[arms]]" in path.read_text()}
