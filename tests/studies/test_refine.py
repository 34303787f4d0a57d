"""`--strategy` and `studies.refine` from the command line: a simulated model, a scripted server, kill -9."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from threading import Barrier
from typing import Any
from xml.etree import ElementTree

import pytest
from studies.refine import main as refine
from studies.refine import study_refinement

import midstream as ms
from midstream import api
from midstream.cli.main import main
from midstream.core.trajectory import Trajectory
from midstream.recipe.build import Build
from midstream.recipe.estimate import counts
from midstream.recipe.overrides import evaluation_recipe
from midstream.runs import RunDirectory
from support.errors import printed, raises
from support.killed_evaluation import finish, start
from support.llm_server import AgentFlowReplies, Body, LLMServer, prompt_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "refine_simulated.toml"
STRATEGY = "dser:K=3,T=2,early_stop=no"
RUNS = 15  # of a task
KEPT = "strategy/eval-sums-T0.7.jsonl"


def evaluate(root: Path, *more: str, strategy: str = STRATEGY, size: int = 10) -> RunDirectory:
    words = ["eval", str(EXAMPLE), "--strategy", strategy, "--count", str(size), "--out", str(root), "--quiet"]
    assert main([*words, *more]) == 0
    return RunDirectory.open(root)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return evaluate(tmp_path_factory.mktemp("deep") / "run", strategy="dser:K=5,T=3,early_stop=no", size=40)


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_every_chain_and_round_is_recorded_and_nothing_is_left_behind(run: RunDirectory):
    trajectories = run.trajectories.read("sums-T0.7")
    assert len(trajectories) == 40
    for trajectory in trajectories:
        assert trajectory.refinement is not None
        assert trajectory.refinement.agent_runs == len(trajectory.calls) == 35
        assert [len(answers) for answers in trajectory.refinement.answers] == [4] * 5
        votes = Counter(answers[-1] for answers in trajectory.refinement.answers)
        assert trajectory.answer == votes.most_common(1)[0][0]
        assert trajectory.reward is not None
        assert trajectory.reward.value == (trajectory.answer == trajectory.gold)
    assert not (run.root / KEPT).parent.exists()
    recorded: Any = run.info().resolved["evaluation"]
    assert recorded["strategy"] == "dser:K=5,T=3,early_stop=no"


def test_its_screens_show_such_trajectories(run: RunDirectory, capsys: pytest.CaptureFixture[str]):
    assert main(["show", str(run.root)]) == 0
    first = run.trajectories.read("sums-T0.7")[0]
    capsys.readouterr()
    assert main(["show", str(run.root), first.id]) == 0
    shown = capsys.readouterr().out
    assert f"answer   {first.answer}" in shown
    assert "35 agent runs" in shown


@pytest.mark.parametrize(("form", "rows"), [("trl", 0), ("sft", 0), ("parquet", 40), ("verl", 40)])
def test_replies_of_a_vote_are_no_demonstrations(form: Any, rows: int, run: RunDirectory, tmp_path: Path):
    """Half of them led to a wrong answer, whatever the vote scored."""
    file = tmp_path / ("out.parquet" if rows else "out.jsonl")
    if rows:
        assert api.export(run, form, file).rows == rows
        return
    with raises("nothing-to-export", "40 left out"):
        api.export(run, form, file)


def test_any_agent_can_refine(tmp_path: Path):
    """AgentFlow with its four modules and a tool: two chains of three agent runs, and none too many."""
    tasks, root = questions(tmp_path / "sums.jsonl", 1), tmp_path / "run"
    with LLMServer(AgentFlowReplies(tool="python", arguments={"code": "print(3)"}, turns=1, answer="3")) as server:
        words = ["eval", "agentflow-prompted", "--base-url", server.base_url, "--model", "m", "--tasks", str(tasks)]
        more = ["--tools", "python", "--strategy", "dser:K=2,T=1,early_stop=no", "--out", str(root), "--quiet"]
        assert main([*words, *more]) == 0
    [result] = RunDirectory.open(root).evaluations.read()
    assert (result.success, result.errors) == (1.0, 0)
    [trajectory] = RunDirectory.open(root).trajectories.read("sums-T0.7")
    assert trajectory.refinement is not None
    assert trajectory.refinement.answers == (("3", "3"), ("3", "3"))
    assert trajectory.refinement.agent_runs == 6
    assert len(trajectory.calls) == len(server.bodies)
    assert [turn.index for turn in trajectory.turns] == list(range(1, len(trajectory.turns) + 1))
    assert sum(turn.observation is not None for turn in trajectory.turns) == 6


@pytest.mark.slow
def test_with_an_early_stop_the_votes_are_the_same(tmp_path: Path):
    full, early = (evaluate(tmp_path / text[-2:], strategy=text) for text in (STRATEGY, "dser:K=3,T=2"))
    pairs = list(zip(*(run.trajectories.read("sums-T0.7") for run in (full, early)), strict=True))
    assert [one.answer for one, _ in pairs] == [two.answer for _, two in pairs]
    taken = [two.refinement.agent_runs for _, two in pairs if two.refinement]
    assert max(taken) <= RUNS
    assert sum(taken) < RUNS * len(pairs)


def test_the_estimate_counts_agent_runs(capsys: pytest.CaptureFixture[str]):
    with Build(evaluation_recipe(str(EXAMPLE), strategy=STRATEGY, count=10)) as build:
        found = counts(build, training=False)
    assert (found["trajectories"], found["requests"]) == (10, 150)
    assert main(["eval", str(EXAMPLE), "--strategy", STRATEGY, "--count", "10", "--dry-run"]) == 0
    assert "15 agent runs" in capsys.readouterr().out


def test_a_budget_of_rollouts_counts_agent_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["eval", str(EXAMPLE), "--strategy", STRATEGY, "--count", "4", "--out", str(tmp_path / "run"), "--quiet"]
    assert main([*words, "--budget", "20 rollouts", "--set", "rollout.concurrency=1"]) == 1
    assert printed(capsys.readouterr().err).code == "budget-spent"
    kept = (tmp_path / "run" / KEPT).read_bytes().count(b"\n")
    assert kept == 20
    assert main(["resume", str(tmp_path / "run"), "--set", "budget.rollouts=60", "--quiet"]) == 0  # 4 x 15 in all
    assert [result.errors for result in RunDirectory.open(tmp_path / "run").evaluations.read()] == [0]


def test_from_python_and_for_one_question(capsys: pytest.CaptureFixture[str]):
    trajectory = ms.solve(str(EXAMPLE), "How much is 3 plus 4?", strategy=STRATEGY, seed=1)
    assert trajectory.refinement is not None
    assert trajectory.refinement.agent_runs == RUNS
    capsys.readouterr()
    words = ["solve", "How much is 3 plus 4?", "--recipe", str(EXAMPLE), "--strategy", STRATEGY, "--seed", "1"]
    assert main([*words, "--json"]) == 0
    again = Trajectory.model_validate_json(capsys.readouterr().out)
    assert again.refinement == trajectory.refinement
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert shown.count("round 2, refine") == 3
    assert str(trajectory.answer) in shown


@pytest.mark.slow
def test_an_evaluation_from_python(tmp_path: Path):
    done = ms.evaluate(str(EXAMPLE), strategy=STRATEGY, out=tmp_path / "run", quiet=True, settings={"seed": 3})
    assert done.evaluations[0].tasks == 60
    study = study_refinement(done.directory)[0]
    assert study.chains == 180


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["eval", str(EXAMPLE), "--strategy", "dser:K=8"], "strategy-invalid"),
        (["eval", str(EXAMPLE), "--set", "evaluation.strategy=best-of-8"], "strategy-invalid"),
        (["eval", "function-calling-simulated", "--strategy", STRATEGY], "dialogues-not-supported"),
        (["train", "flow-grpo-tiny", "--set", f'evaluation.strategy="{STRATEGY}"'], "setting-conflict"),
        (["train", "flow-grpo-tiny", "--dry-run", "--set", f'evaluation.strategy="{STRATEGY}"'], "setting-conflict"),
        (["train", "lessons-simulated", "--set", f'evaluation.strategy="{STRATEGY}"'], "setting-conflict"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert printed(capsys.readouterr().err).code == code
    assert not list(tmp_path.rglob("run.json"))


def test_an_engine_in_this_process_answers_several_chains(finished_run: Path, tmp_path: Path):
    """A tiny model of its own, which would wait forever for chains in lockstep."""
    words = [
        "eval",
        str(finished_run),
        "--count",
        "2",
        "--strategy",
        "dser:K=2,T=0,early_stop=no",
        "--temperature",
        "1",
    ]
    assert main([*words, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    run = RunDirectory.open(tmp_path / "run")
    [result] = run.evaluations.read()
    assert (result.tasks, result.errors) == (2, 0)
    taken = [one.refinement.agent_runs for one in run.trajectories.read("test-T1") if one.refinement]
    assert taken == [2, 2]


# --- a server, faults and kills ---------------------------------------------------------------------------------------


def simulated(body: Body) -> str:
    """The example's model behind HTTP."""
    namespace: dict[str, Any] = {"__name__": "refine_simulated"}
    exec(compile(EXAMPLE.with_suffix(".py").read_text(encoding="utf-8"), "example", "exec"), namespace)
    time.sleep(0.01)
    return namespace["reply"](body["messages"], body["seed"])


def questions(path: Path, size: int) -> Path:
    rows = [{"question": f"How much is {7 * i + 1} plus {i + 2}?", "answer": str(8 * i + 3)} for i in range(size)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def served(server: LLMServer, tasks: Path, root: Path, strategy: str = STRATEGY) -> list[str]:
    words = ["eval", "direct", "--base-url", server.base_url, "--model", "m", "--tasks", str(tasks)]
    return [*words, "--strategy", strategy, "--out", str(root)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signal 9")
def test_after_kill_9_nothing_on_disk_is_asked_again(tmp_path: Path):
    tasks, root, size = questions(tmp_path / "sums.jsonl", 5), tmp_path / "run", 5
    with LLMServer(simulated) as server:
        process = start(*served(server, tasks, root, "dser:K=8,T=4,early_stop=no"), "--set", "rollout.concurrency=2")
        journal, began = root / KEPT, time.monotonic()
        while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 100):
            assert time.monotonic() - began < 60
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        with journal.open("ab") as file:
            file.write(b'{"key": ["sums 0.7", "torn')  # as a kill in the middle of a write leaves it
        time.sleep(0.2)  # replies under way
        kept = journal.read_bytes().count(b"\n")
        before = len(server.bodies)
        finish("resume", root)
        asked = Counter(json.dumps(body, sort_keys=True) for body in server.bodies)
        run = RunDirectory.open(root)
        ended = run.trajectories.read("sums-T0.7")
    assert len(asked) == size * 72
    assert kept > 100
    repeated = asked.total() - len(asked)
    assert repeated == before - kept  # those that were under way
    assert repeated <= 16  # two trajectories of eight chains
    assert [trajectory.refinement.agent_runs for trajectory in ended if trajectory.refinement] == [72] * size
    assert not journal.exists()


def test_a_fault_of_the_verifiers_engine_scores_nothing(tmp_path: Path):
    both = Barrier(2)  # no chain fails before the other has its solution

    def reply(body: Body) -> str | Body:
        prompt = prompt_of(body)
        if "# Candidate solution" in prompt and "# Verification" not in prompt and "How much is 1 plus 2?" in prompt:
            both.wait(60)
            return {"error": {"message": "the verifier is down"}}
        return simulated(body)

    tasks, root = questions(tmp_path / "sums.jsonl", 3), tmp_path / "run"
    with LLMServer(reply) as server:
        retries = ["--set", "engines.model.max_attempts=1", "--set", "rollout.max_attempts=2", "--quiet"]
        assert main([*served(server, tasks, root, "dser:K=2,T=1,early_stop=no"), *retries]) == 0
        run = RunDirectory.open(root)
        [broken] = [one for one in run.trajectories.read("sums-T0.7") if one.status == "error"]
        assert broken.error is not None
        assert (broken.error.type, broken.reward, broken.answer, broken.attempts) == ("EngineError", None, None, 1)
        [result] = run.evaluations.read()
        assert (result.errors, result.tasks) == (1, 3)
        assert (root / KEPT).exists()  # what it was part of may run again
        [study] = study_refinement(run)
        assert (study.left_out, study.tasks) == (1, 2)
        server.reply, before = simulated, len(server.bodies)
        assert main(["resume", str(root), "--retry-errors", "--quiet"]) == 0
    assert [result.errors for result in RunDirectory.open(root).evaluations.read()] == [0]
    assert len(server.bodies) - before == 4  # two verifications and two refinements: the solutions are on disk
    assert not (root / KEPT).exists()


# --- the study --------------------------------------------------------------------------------------------------------


def test_the_study_estimates_the_models_probabilities(run: RunDirectory, capsys: pytest.CaptureFixture[str]):
    capsys.readouterr()
    assert refine([str(run.root), "--budget", "63", "--json"]) == 0
    [study] = json.loads(capsys.readouterr().out)
    for name, truth in (("start", 0.4), ("improvement", 0.35), ("degradation", 0.1)):
        low, high = study[name]["interval"]
        assert low <= truth <= high
    assert (study["tasks"], study["chains"], study["cut_short"], study["agent_runs"]) == (40, 200, 0, 35)
    assert (study["advice"], study["budget"]) == ("refine", 63)
    assert study["plan"]["K"] * (1 + 2 * study["plan"]["T"]) == study["plan"]["agent_runs"] <= 63
    assert [each["number"] for each in study["rounds"]] == [0, 1, 2, 3]
    assert study["rounds"][-1]["consensus"] == run.evaluations.read()[0].success


@pytest.mark.slow
def test_it_advises_against_refinement_that_harms(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = evaluate(tmp_path / "run", "--set", "engines.model.degrade=0.6", size=30)
    capsys.readouterr()
    assert refine([str(run.root), "--quiet"]) == 0
    assert capsys.readouterr().out == "sums T=0.7: do not refine\n"


def test_its_screen_and_figure(run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("matplotlib")
    capsys.readouterr()
    assert refine([str(run.root), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "advice   refine" in shown
    assert "|1 - p - q|" in shown
    figure = tmp_path / "out" / "refinement-sums-T0.7.svg"
    texts = [element.text for element in ElementTree.parse(figure).iter() if element.tag.endswith("}text")]
    assert {"Avg@K", "Avg@K, closed form", "Cons@K", "round"} <= set(texts)
    [study] = json.loads((tmp_path / "out" / "refinement.json").read_text(encoding="utf-8"))
    assert study["set_name"] == "sums"


def test_early_stops_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = evaluate(tmp_path / "run", strategy="dser:K=5,T=0")
    capsys.readouterr()
    assert refine([str(run.root)]) == 0
    assert "early_stop=no" in capsys.readouterr().out


def test_only_evaluations_with_a_strategy_are_studied(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with raises("wrong-kind-of-run"):
        study_refinement(finished_run)
    plain = tmp_path / "plain"
    assert main(["eval", str(EXAMPLE), "--count", "2", "--out", str(plain), "--quiet"]) == 0
    with raises("wrong-kind-of-run"):
        study_refinement(plain)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nowhere"], "not-a-run"),
        (["RUN", "--budget", "0"], "setting-range"),
    ],
)
def test_wrong_words_are_refused(run: RunDirectory, words: list[str], code: str, capsys: pytest.CaptureFixture[str]):
    given = [str(run.root) if word == "RUN" else word for word in words]
    assert refine(given) == 1
    assert printed(capsys.readouterr().err).code == code


def test_other_tasks_than_those_of_the_run_are_refused(tmp_path: Path):
    tasks, root = questions(tmp_path / "sums.jsonl", 2), tmp_path / "run"
    with LLMServer(simulated) as server:
        assert main([*served(server, tasks, root, "dser:K=1,T=1"), "--quiet"]) == 0
    tasks.write_text(tasks.read_text(encoding="utf-8").replace('"3"', '"4"'), encoding="utf-8")
    with raises("inputs-changed"):
        study_refinement(root)
