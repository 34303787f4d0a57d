"""Every command, in process: what it prints, what it leaves behind, and how it says no."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib

import pytest

from midstream.cli.main import main
from midstream.core.trajectory import Trajectory, without_clocks
from midstream.core.version import __version__
from midstream.runs import RunDirectory
from midstream.training.flow_grpo import FlowGRPO
from support.errors import coded, printed
from support.tiny_runs import TRAINING, settings

WITHOUT_TORCH = """
import sys

for name in ("torch", "transformers", "tokenizers", "safetensors", "peft", "numpy"):
    sys.modules[name] = None  # cannot be imported
"""


def run(capsys, *arguments):
    """(exit code, standard output, standard error) of one command; argparse's own exits count too."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def bare(code, *arguments):
    """Run Python code where nothing of the extra `train` is installed."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH + code, *map(str, arguments)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


COMMANDS = ("demo", "train", "resume", "eval", "solve", "doctor", "show", "compare", "study", "lessons")

# -- the base install ------------------------------------------------------------------------------------------------


def test_help_and_import_need_no_torch():
    code = "import midstream, midstream.training, midstream.recipe.build, midstream.api; "
    code += "from midstream.cli.main import main; main(['--help'])"
    done = bare(code)
    assert (done.returncode, done.stderr) == (0, "")
    for command in COMMANDS:
        assert command in done.stdout


@pytest.mark.slow
def test_a_dry_run_without_torch_shows_the_recipe_and_what_is_missing(ten_steps):
    done = bare("from midstream.cli.main import main; sys.exit(main(sys.argv[1:]))", "train", ten_steps, "--dry-run")
    assert 'name = "ten-steps"' in done.stdout
    assert "10 steps" in done.stdout
    assert done.returncode == 2
    assert coded("missing-extra", "torch", fix="pip install 'midstream[train]'")(printed(done.stderr))


@pytest.mark.slow
def test_training_without_torch_says_what_to_install(ten_steps, tmp_path):
    code = "from midstream.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = bare(code, "train", ten_steps, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert coded("missing-extra", fix="pip install 'midstream[train]'")(printed(done.stderr))
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_version_and_help(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(capsys, "--version") == (0, f"midstream {__version__}\n", "")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "midstream train" in out
    assert max(map(len, out.splitlines())) <= 80
    assert run(capsys) == run(capsys, "help") == (0, out, "")
    assert run(capsys, "help", "train") == run(capsys, "train", "--help")
    for command in COMMANDS:
        code, out, _ = run(capsys, command, "--help")
        assert (code, "--help" in out) == (0, True)


# -- what is done ----------------------------------------------------------------------------------------------------


def test_a_dry_run_prints_the_resolved_recipe_and_starts_nothing(ten_steps, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "train", ten_steps, "--dry-run", "--seed", "8", "--set", "training.steps=7")
    assert (code, err) == (0, "")
    table = tomllib.loads(out)
    assert (table["seed"], table["training"]["steps"], table["training"]["loss"]["kl_kind"]) == (8, 7, "k3")
    bill = "112  of 4 turns: training, 7 steps x 4 tasks x 4"
    assert 0 < out.index(bill) < out.index("\nseed = 8")
    assert list(tmp_path.iterdir()) == []
    for command in (["eval", ten_steps], ["demo"], ["solve", "q", "--recipe", ten_steps]):
        code, out, _ = run(capsys, *command, "--dry-run")
        assert code == 0
        assert tomllib.loads(out)["agent"]
    assert list(tmp_path.iterdir()) == []


def test_train_prints_what_changed_and_where(ten_steps, tmp_path, capsys):
    options = settings({**TRAINING, "training.steps": 1, "warm_start.steps": 2})
    code, out, err = run(capsys, "train", ten_steps, "--out", tmp_path / "run", *options)
    assert code == 0
    assert "Success on test" in out
    assert "arith" in out
    assert "step 1/1" in err
    resolved = tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())
    assert (resolved["training"]["steps"], resolved["warm_start"]["steps"]) == (1, 2)
    info = RunDirectory.open(tmp_path / "run").info()
    assert (info.recipe_name, info.seed) == ("ten-steps", 3)
    assert info.resolved["training"]["steps"] == 1


def test_quiet_json_is_all_that_train_prints(ten_steps, tmp_path, capsys):
    options = settings(TRAINING)
    code, out, _ = run(capsys, "train", ten_steps, "--out", tmp_path / "run", "--quiet", "--json", *options)
    assert code == 0
    result = json.loads(out)
    assert result["run"] == str(tmp_path / "run")
    assert {one["policy"] for one in result["evaluations"]} == {"warm start", "trained"}


def test_the_default_run_directory_is_named_after_recipe_and_seed(ten_steps, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = settings({**TRAINING, "training.steps": 0})
    assert run(capsys, "train", ten_steps, "--quiet", *options)[0] == 0
    [root] = (tmp_path / "runs").iterdir()
    assert root.name.startswith("ten-steps-s3-")


def test_eval_of_a_run_repeats_its_last_evaluation(finished_run, tmp_path, capsys):
    code, out, _ = run(capsys, "eval", finished_run, "--json", "--quiet", "--out", tmp_path / "evaluation")
    assert code == 0
    last = [one for one in RunDirectory.open(finished_run).evaluations.read() if one.step == 10]
    recorded = {one.sampling: json.loads(one.model_dump_json()) for one in last if one.set_name == "test"}
    found = {one["sampling"]: one for one in json.loads(out)["evaluations"]}
    assert found.keys() == recorded.keys() == {"T=1", "greedy"}
    for sampling, one in found.items():
        assert {**one, "policy": "", "seed": 0} == {**recorded[sampling], "policy": "", "seed": 0}


def test_eval_takes_other_settings(finished_run, ten_steps, tmp_path, capsys):
    options = ("--set", "evaluation.temperatures=[0.0]", "--set", "agent.max_turns=1", "--json", "--quiet", "--out")
    code, out, _ = run(capsys, "eval", finished_run, *options, tmp_path / "run")
    [result] = json.loads(out)["evaluations"]
    assert (code, result["turns_mean"], result["step"]) == (0, 1.0, 10)
    code, out, _ = run(capsys, "eval", ten_steps, *options, tmp_path / "recipe")  # its planner as it is: untrained
    [result] = json.loads(out)["evaluations"]
    assert (code, result["success"], result["step"]) == (0, 0.0, None)


def test_eval_shows_a_table(finished_run, tmp_path, capsys):
    options = ("--quiet", "--set", "evaluation.temperatures=[0.0]", "--out", tmp_path / "evaluation")
    code, out, _ = run(capsys, "eval", finished_run, *options)
    assert code == 0
    assert "Success (95% interval over tasks)" in out
    assert "greedy" in out


def test_solve_answers_with_a_runs_planner(finished_run, capsys):
    question = "What is 45 plus 17 ?"
    code, out, _ = run(capsys, "solve", question, "--planner", finished_run, "--json")
    assert code == 0
    trajectory = Trajectory.model_validate_json(out)
    assert (trajectory.question, trajectory.status, trajectory.gold, trajectory.reward) == (question, "ok", None, None)
    assert trajectory.turns
    assert all(call.sampling.temperature == 0 for call in trajectory.calls)
    again = Trajectory.model_validate_json(run(capsys, "solve", question, "--planner", finished_run, "--json")[1])
    assert without_clocks(again) == without_clocks(trajectory)
    warm = run(capsys, "solve", question, "--planner", finished_run, "--json", "--temperature", "0.8")[1]
    assert {call.sampling.temperature for call in Trajectory.model_validate_json(warm).calls} == {0.8}


def test_solve_shows_the_turns(finished_run, capsys):
    code, out, _ = run(capsys, "solve", "What is 45 plus 17 ?", "--planner", finished_run)
    assert code == 0
    assert re.match(r"What is 45 plus 17 \?\nsandbox (strong|standard): [^\n]+\n([^\n]+\n)?\nturn 1\n", out)
    assert "  stopped  " in out
    assert "\x1b" not in out


def test_show_gives_a_runs_numbers(finished_run, capsys):
    code, out, _ = run(capsys, "show", finished_run)
    assert code == 0
    assert "ten-steps" in out
    assert "status  finished" in out
    code, out, _ = run(capsys, "show", finished_run, "--json")
    shown = json.loads(out)
    run_directory = RunDirectory.open(finished_run)
    assert shown["metrics"] == [one.model_dump(mode="json") for one in run_directory.metrics.read()]
    assert len(shown["evaluations"]) == 7
    assert shown["status"]["state"] == "finished"


def test_show_gives_one_trajectory_turn_by_turn(finished_run, capsys):
    wanted = RunDirectory.open(finished_run).trajectories.read(3)[5]
    code, out, _ = run(capsys, "show", finished_run, wanted.id, "--json")
    assert code == 0
    assert Trajectory.model_validate_json(out) == wanted
    code, out, _ = run(capsys, "show", finished_run, wanted.id)
    assert code == 0
    assert " ".join(wanted.question.split()) in " ".join(out.split())


# -- how it says no --------------------------------------------------------------------------------------------------

REFUSED = {
    "unknown recipe": (["train", "flow-grpo-tinny"], "unknown-recipe", "'flow-grpo-tinny'", "flow-grpo-tiny"),
    "unknown key": (
        ["train", "RECIPE", "--set", "training.stps=3"],
        "recipe-invalid",
        "training.stps = 3",
        "known keys",
    ),
    "impossible value": (
        ["train", "RECIPE", "--set", "training.group_size=1"],
        "recipe-invalid",
        "training.group_size = 1",
        "--set",
    ),
    "malformed override": (
        ["train", "RECIPE", "--set", "steps"],
        "recipe-invalid",
        "--set 'steps'",
        "training.steps=50",
    ),
    "negative seed": (["train", "RECIPE", "--seed", "-3"], "recipe-invalid", "seed = '-3'", ""),
    "unknown tool": (
        ["train", "RECIPE", "--set", "tools.browser={}"],
        "unknown-type",
        "tools.browser.type = 'browser'",
        "local_search",
    ),
    "unknown reward": (
        ["train", "RECIPE", "--set", "reward.type=magic"],
        "unknown-type",
        "reward.type = 'magic'",
        "exact_match",
    ),
    "unknown engine": (
        ["train", "RECIPE", "--set", "agent.planner.engine=gpt"],
        "unknown-engine",
        "engine = 'gpt'",
        "[engines.NAME]",
    ),
    "unknown family": (
        ["train", "RECIPE", "--set", 'tasks.families=["riddle"]'],
        "unknown-family",
        "'riddle'",
        "families",
    ),
    "too small a world": (
        ["train", "RECIPE", "--set", "tasks.countries=3"],
        "setting-range",
        "countries = 3",
        "between 20",
    ),
    "too few questions": (
        [
            "train",
            "RECIPE",
            "--set",
            "evaluation.validation.per_family=200",
            "--set",
            "warm_start.steps=1",
            "--set",
            "evaluation.sets=[]",
        ],
        "too-few-tasks",
        "validation",
        "per_family",
    ),
    "nothing to evaluate on": (
        ["eval", "RECIPE", "--set", "evaluation.sets=[]"],
        "missing-key",
        "'ten-steps'",
        "per_family",
    ),
    "a run that is not there": (["resume", "TMP/nowhere"], "not-a-run", "nowhere", "--out"),
    "a directory that is no run": (["show", "TMP"], "not-a-run", "", "--out"),
    "a run of another version": (["show", "TMP/old"], "run-format", "99", "midstream==9.9"),
    "a run that exists": (["train", "RECIPE", "--out", "RUN"], "run-exists", "whole", "midstream resume"),
    "no such trajectory": (["show", "RUN", "nonsense"], "trajectory-not-found", "nonsense", ""),
    "several trajectories": (["show", "RUN", "train-"], "trajectory-ambiguous", "train-", ""),
    "an engine that is no name": (
        ["train", "RECIPE", "--set", "agent.planner.engine=[1]"],
        "recipe-invalid",
        "engine = [1]",
        "known keys",
    ),
    "impossible sampling": (
        ["train", "RECIPE", "--set", "agent.planner.sampling.max_tokens=0"],
        "recipe-invalid",
        "sampling.max_tokens = 0",
        "--set",
    ),
    "impossible temperature": (
        ["solve", "7", "--planner", "RUN", "--temperature", "nan"],
        "recipe-invalid",
        "ture = nan",
        "--set",
    ),
    "an empty question": (["solve", "  ", "--planner", "RUN"], "empty-value", "'  '", "midstream solve"),
    "a question in another encoding": (
        ["solve", "caf\udcff", "--planner", "RUN"],
        "not-utf-8",
        "'caf\\udcff'",
        "iconv",
    ),
    "no address": (
        ["solve", "q", "--base-url", "localhost:8000"],
        "recipe-invalid",
        "base_url = 'localhost:8000'",
        "base_url",
    ),
    "half an address": (
        ["solve", "q", "--base-url", "http://[::1"],
        "recipe-invalid",
        "base_url = 'http://[::1'",
        "base_url",
    ),
    "a port out of range": (
        ["solve", "q", "--base-url", "http://h:99999"],
        "recipe-invalid",
        "'http://h:99999'",
        "base_url",
    ),
    "eval of a run that is not there": (["eval", "TMP/nowhere"], "not-a-run", "nowhere", "--out"),
    "a run without a recipe": (["show", "TMP/bare"], "file-damaged", "bare/recipe.toml", "run.json"),
    "a run with half a recipe": (["resume", "TMP/torn"], "file-damaged", "torn/recipe.toml", "run.json"),
    "a directory without a run": (["eval", "TMP"], "not-a-run", "run.json", "--out"),
    "an empty directory name": (["train", "TMP/ten.toml", "--out="], "empty-value", "--out", "leave the option out"),
    "a file as a run": (["eval", "RUN", "--out", "TMP/bare/run.json"], "directory-unusable", "run.json", "--out"),
    "a directory of questions": (["list", "benchmarks", "gpqa", "--file", "TMP"], "file-unreadable", "directory", "ls"),
    "solve with no such run": (["solve", "q", "--planner", "TMP/nowhere"], "not-a-run", "nowhere", ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_exit_code_two_and_names_value_cause_and_fix(
    case, ten_steps, finished_run, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    old = tmp_path / "old"
    old.mkdir()
    (old / "run.json").write_text(json.dumps({"format": 99, "midstream": "9.9"}))
    for name in ("bare", "torn"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes((finished_run / "run.json").read_bytes())
    (tmp_path / "torn" / "recipe.toml").write_text("[training")
    arguments, kind, value, fix = REFUSED[case]
    places = {"RECIPE": str(ten_steps), "RUN": str(finished_run), "TMP": str(tmp_path)}
    for name, place in places.items():
        arguments = [argument.replace(name, place) for argument in arguments]
    before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")}
    code, out, err = run(capsys, *arguments, "--quiet")
    assert code == 2, err
    assert out == ""
    error = printed(err)
    assert coded(kind, value, fix=fix)(error)
    assert error.fix
    assert "Traceback" not in err
    assert {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")} == before


def test_wrong_arguments_are_exit_code_two(capsys):
    for arguments in (
        ["fly"],
        ["train"],
        ["train", "x", "--sede", "3"],
        ["solve", "q", "--planner", "a", "--recipe", "b"],
    ):
        code, _, err = run(capsys, *arguments)
        assert code == 2
        assert "usage: midstream" in err


def test_refused_input_leaves_no_run_behind(ten_steps, tmp_path, capsys):
    root = tmp_path / "run"
    assert run(capsys, "train", ten_steps, "--out", root, "--set", "tools.browser={}")[0] == 2
    assert not root.exists()


def test_a_server_that_is_not_there_is_said_once(capsys):
    """`solve` on a dead address: exit code 1, since nothing was wrong with the input, and what to start."""
    code, out, err = run(
        capsys, "solve", "What is 1 plus 1 ?", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--json"
    )
    trajectory = Trajectory.model_validate_json(out)
    assert (code, trajectory.status) == (1, "error")
    assert trajectory.error is not None
    assert "http://127.0.0.1:9/v1" in trajectory.error.message
    assert "Traceback" not in out + err


def test_an_evaluation_without_any_result_prints_why(tmp_path, capsys):
    """Not "success 0%": nothing was learnt about the agent."""
    root = tmp_path / "evaluation"
    overrides = ("engines.model.base_url=http://127.0.0.1:9/v1", 'evaluation.sets=[{ name = "t", per_family = 1 }]')
    code, out, err = run(capsys, "eval", "gazetteer-prompted", "--set", overrides[0], "--set", overrides[1], "--json",
                         "--out", root)  # fmt: skip
    assert (code, out) == (1, "")
    assert coded("no-results", "all 7 runs on t T=0.7", "http://127.0.0.1:9/v1")(printed(err))


@pytest.mark.slow
def test_a_reader_that_stops_early_gets_no_traceback(finished_run):
    show = f"{sys.executable} -m midstream show {finished_run} --json"
    piped = subprocess.run(f"{show} | head -c 1", shell=True, capture_output=True, text=True)
    assert (piped.stdout, piped.stderr) == ("{", "")


def test_a_question_without_quotes(capsys):
    code, _, err = run(capsys, "solve", "What", "is", "45", "plus", "17", "--quiet")
    assert (code, 'solve "What is 45 plus 17"' in err) == (2, True)


def test_ctrl_c_while_a_command_is_imported(capsys, monkeypatch):
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("midstream.cli.main.import_module", interrupted)
    assert run(capsys, "train", "demo") == (130, "", "\nstopped\n")


@pytest.mark.slow
def test_two_trainers_cannot_share_a_run(ten_steps, tmp_path, capsys, monkeypatch):
    def stop(self, step):
        raise KeyboardInterrupt

    root = tmp_path / "run"
    options = ("--set", "warm_start.steps=1", "--set", "warm_start.transcripts=5", "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(FlowGRPO, "step", stop)
        assert run(capsys, "train", ten_steps, "--out", root, *options)[0] == 130
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys\nfrom pathlib import Path\nfrom midstream.runs import RunDirectory\n"
         "with RunDirectory.open(Path(sys.argv[1])).lock():\n    print('held', flush=True)\n    sys.stdin.read()\n",
         str(root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        code, _, err = run(capsys, "resume", root, "--quiet")
        assert code == 2
        assert coded("run-in-use", root)(printed(err))
    finally:
        holder.communicate()


def test_what_cannot_be_built_leaves_no_run_behind(ten_steps, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["train", str(ten_steps), "--out", str(out), "--quiet", "--set", "tools.local_search.index=nosuch.db"]
    assert main(arguments) == 2
    assert coded("file-not-found", "nosuch.db", fix="midstream index build")(printed(capsys.readouterr().err))
    assert not out.exists()


def test_an_untrained_planner_answers_nothing(capsys):
    assert main(["solve", "What is 45 plus 17 ?", "--recipe", "flow-grpo-tiny"]) == 2
    assert coded("untrained", "'flow-grpo-tiny'")(printed(capsys.readouterr().err))


@pytest.mark.slow
def test_a_run_uses_the_threads_of_its_recipe_and_a_learner_alone_changes_none(ten_steps, tmp_path, monkeypatch):
    import torch

    from midstream.recipe.build import Build
    from midstream.recipe.schema import load_recipe

    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    with Build(load_recipe(str(ten_steps), ["learner.threads=2"])) as build:
        build.policy.learner  # noqa: B018  # built on first use
    assert set_to == []
    options = ("--set", "training.steps=0", "--set", "warm_start.steps=1", "--set", "warm_start.transcripts=5")
    assert main(["train", str(ten_steps), "--out", str(tmp_path / "run"), "--quiet", *options]) == 0
    assert set(set_to) == {1}


# -- several processes -----------------------------------------------------------------------------------------------


def test_several_processes_are_started_once(monkeypatch):
    started = []
    monkeypatch.setattr("midstream.torchrun.launch", lambda processes, words: started.append((processes, words)) or 5)
    words = ["train", "flow-grpo-tiny", "--nproc", "2"]
    assert main(words) == 5
    assert started == [(2, words)]


def test_a_process_of_torchrun_ends_with_it_and_leaves_its_error_to_rank_0(monkeypatch, capsys):
    done = []
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setattr("midstream.torchrun.end_with_parent", lambda: done.append("end"))
    monkeypatch.setattr("midstream.torchrun.report_after_rank_0", lambda: done.append("report"))
    assert main(["train", "nowhere", "--nproc", "2"]) == 2
    assert done == ["end", "report"]
    assert printed(capsys.readouterr().err).code == "unknown-recipe"
