"""A study trains what is missing, reads what is there, and refuses what it does not know."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.core.errors import MidstreamError, RecipeError
from midstream_extra.study import StudyFile, plan, read_study, run_study, shipped_studies, study_rows
from midstream_extra.study_tables import study_blocks
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
    rows, differences = json.loads(first).values()
    names = {row["name"] for row in rows}
    assert len(names) == 4
    assert {row["name"] for row in differences} == names - {"Flow-GRPO"}
    assert all(len(row["values"]) == 2 and all(0 <= value <= 1 for value in row["values"]) for row in rows)
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
    rows, differences = json.loads(capsys.readouterr().out).values()
    assert {row["name"] for row in rows} == {"one", "other"}
    assert {(row["name"], *row["values"]) for row in differences} == {("other", 0)}
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
    compared = [(results[0].set_name, "T=1")]
    alone, errors, turns = study_rows({"a": [results]}, compared)
    assert alone.interval == (0.1, 0.4)
    assert errors.values == (results[0].tool_use.error_rate,)
    assert turns.values == (results[0].turns_mean,)
    table, *_ = study_blocks([alone], "arm", "")
    assert table is not None
    assert table["rows"][0]["cells"][2] == "25.0 (10.0–40.0)"
    several, *_ = study_rows({"a": [results, results]}, compared)
    assert several.interval is None


def test_a_row_is_of_the_last_step_that_was_evaluated() -> None:
    results = [evaluation(1.0, 10), evaluation(0.0, 0), evaluation(1.0, 10, "T=1")]
    row, *_ = study_rows({"a": [results]}, [(results[0].set_name, "greedy")])
    assert row.values == (results[0].success,)
    with raises("missing-key", "'other'"):
        study_rows({"a": [results]}, [("other", "greedy")])


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
    with pytest.raises(RecipeError, check=coded("recipe-invalid", file, "arms")):
        read_study(file)


def test_a_file_names_arms(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\n[[arms]]\nname = "plain"\nrecipe = "flow-grpo-tiny"\n', encoding="utf-8")
    assert [arm.name for arm in read_study(file).arms] == ["plain"]
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
        ("[metric]", "metric"),
    ],
)
def test_an_error_in_a_later_arm_or_the_file_is_found_before_anything_is_trained(
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
    assert planned.compared[0][0] == "sums", "the first set that all arms have"


@pytest.mark.parametrize(
    ("arm", "code", "named"),
    [
        ("set = { evaluation.temperatures = [0.0] }", "not-comparable", "in common"),
        ('set = { evaluation.sets = [{ name = "sums", reward.type = "numeric" }] }', "not-comparable", "'arm 0'"),
        ('set = ["tasks.path=others.jsonl"]', "not-comparable", "'arm 0'"),
        ("set = { evaluation.sets = [{ name = 'sums', count = 2 }] }", "not-comparable", "'arm 0'"),
        ("set = { agent.max_turn = 3 }", "recipe-invalid", "arm 'arm 0': the recipe is invalid: agent.max_turn"),
        ('set = ["tasks.path=none.jsonl"]', "file-not-found", "arm 'arm 0'"),
        ('recipe = "none.toml"', "unknown-recipe", "arm 'arm 0'"),
    ],
    ids=["sampling", "reward", "tasks", "some-tasks", "key", "file", "recipe"],
)  # fmt: skip
def test_arms_that_cannot_be_compared_are_refused_by_name(arm: str, code: str, named: str, tmp_path: Path) -> None:
    own_recipe(tmp_path)
    (tmp_path / "others.jsonl").write_text('{"question": "Who ?", "answer": "you"}', encoding="utf-8")
    with raises(code, named):
        arm = arm if arm.startswith("recipe") else f'recipe = "own.toml"\ndirectory = "other"\n{arm}'
        more = f'[[arms]]\nname = "arm 0"\n{arm}\n'
        plan(own_study(tmp_path, more=more), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_study_of_the_documentation_can_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (tmp_path / "group-size.toml").write_text(page.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    planned = plan(read_study(tmp_path / "group-size.toml"), tmp_path, seeds=1)
    assert [run.out.name for run in planned.runs] == ["flow-grpo-tiny-s0", "groups-of-4-s0"]


def test_a_study_continues_with_another_limit_and_with_no_other_setting(tmp_path: Path) -> None:
    own_recipe(tmp_path)
    study = own_study(tmp_path)
    with pytest.raises(MidstreamError):  # nobody answers
        run_study(plan(study, tmp_path, seeds=1, overrides=["budget.rollouts=1"]))
    [run] = plan(study, tmp_path, seeds=1, overrides=["budget.rollouts=9"]).runs
    assert (run.out / "run.json").exists()
    with raises("run-exists", "max_tokens"):
        run_study(plan(study, tmp_path, seeds=1, overrides=["agent.policy.sampling.max_tokens=7"]))


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


DRAW_MUCH = ("agents-graphs", "depth-graphs", "function-calling")  # whole worlds


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in DRAW_MUCH else ())
        for name in shipped_studies()
        if name != "simulators"
    ],
)
def test_every_published_study_can_run(name: str, tmp_path: Path) -> None:
    planned = plan(read_study(name), tmp_path, seeds=1)
    assert planned.compared
    assert [run.state for run in planned.runs] == ["missing"] * len(planned.study.arms)


def test_a_study_whose_weights_are_trained_first_is_read_and_refused_without_them(tmp_path: Path) -> None:
    assert len(read_study("simulators").arms) == 4
    with raises("file-not-found", "simulator-small"):
        plan(read_study("simulators"), tmp_path, seeds=1)
