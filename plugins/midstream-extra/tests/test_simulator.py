"""Transcripts for a search simulator: what is collected, how it is judged, and that a simulator learns from them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import midstream_worlds
from midstream.cli.main import main
from midstream.core.errors import RewardError, UsageError
from midstream.core.trajectory import Command, Refinement, ToolCall, Turn
from midstream.exports import OF_A_STRATEGY
from midstream.runs import RunDirectory
from midstream.training.transcripts import read_transcripts
from midstream_extra.simulated import ModelSimulator, SimulatedConfig, read_documents
from midstream_extra.transcripts import Kind, UsefulJudge, by_rule, write_transcripts
from midstream_worlds.gazetteer.tasks import Gazetteer, GazetteerConfig
from searches import run_of, searched, three_searches, trajectory
from support.errors import coded
from support.http_engine import engine_for
from support.llm_server import Body, LLMServer, prompt_of
from support.tiny_runs import settings

SHORT = SimulatedConfig(documents=2, prompt_file=Path(midstream_worlds.__path__[0]) / "recipes/short-prompts/search.md")


def write(runs: Sequence[RunDirectory], path: Path, label: Any = by_rule, **options: Any) -> Any:
    options = {"tool": "local_search", "config": SHORT} | options
    return asyncio.run(write_transcripts(runs, path, label=label, **options))


def messages(path: Path) -> list[tuple[str, str]]:
    return [tuple(message.content for message in row.messages) for _, row in read_transcripts(path)]  # type: ignore[misc]


# --- what is collected ------------------------------------------------------------------------------------------------


def test_a_search_becomes_the_very_prompt_of_the_simulator_and_a_reply_that_it_reads(tmp_path: Path) -> None:
    found = "1. Amberbank height 105\n2. Oakfell height 20"
    run = run_of(tmp_path / "run", trajectory("Amberbank", searched("Amberbank height", found)))
    written, kinds = write([run], tmp_path / "out.jsonl")
    assert (written.rows, kinds) == (1, {"useful": 1})
    [(asked, reply)] = messages(written.path)
    with LLMServer(lambda body: reply) as server:

        async def simulate() -> list[str]:
            engine = engine_for(server)
            arguments = {"query": "Amberbank height", "question": "How high is Amberbank ?", "kind": "useful"}
            result = await ModelSimulator(SHORT, engine).call({**arguments, "answers": '["105"]'})
            await engine.close()
            return json.loads(result.text)

        assert asyncio.run(simulate()) == ["Amberbank height 105", "Oakfell height 20"]
    assert [prompt_of(body) for body in server.bodies] == [asked]


def test_only_results_of_the_tool_itself_count(tmp_path: Path) -> None:
    programs = (
        ToolCall(tool="local_search", arguments={"query": "c"}, status="ok", text="Amberbank area 7"),
        ToolCall(tool="local_search", arguments={"query": "d"}, status="error", text="no document matches 'd'"),
        ToolCall(tool="python", arguments={"code": "1"}, status="ok", text="1"),
    )
    run = run_of(
        tmp_path / "run",
        trajectory("failed", searched("a", "no document matches 'a'", status="error")),
        trajectory("simulated", searched("b", "Amberbank height 105", marks=("useful",))),
        trajectory("unscored", searched("e", "Amberbank height 105"), gold=None),
        trajectory("code", searched("print(local_search('c'))", "Amberbank area 7", tool_calls=programs)),
        trajectory("silent", Turn(index=1)),
    )
    written, _ = write([run], tmp_path / "out.jsonl")
    [(asked, reply)] = messages(written.path)
    assert asked.endswith("Query: c")
    assert read_documents(reply, SHORT) == ["Amberbank area 7"]
    assert written.left_out == {"without a result of local_search itself": 3, "without a gold answer": 1}


def test_evaluations_of_a_run_that_learned_are_left_out_unless_named(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", trajectory("Oakfell", searched("q", "t")), part="test-greedy-1")
    with pytest.raises(UsageError, check=coded("nothing-to-export")):
        write([run], tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    assert write([run], tmp_path / "out.jsonl", parts="eval-*")[0].rows == 1


def test_several_runs_are_one_file_and_equal_searches_one_transcript(tmp_path: Path) -> None:
    wrong, right = (trajectory("Oakfell", searched("Oakfell area", "Oakfell area 9"), reward=r) for r in (0.0, 1.0))
    noise = trajectory("Oakfell", searched("Oakfell area", "Oakfell height 8"))
    runs = [run_of(tmp_path / "a", wrong, noise), run_of(tmp_path / "b", right, wrong)]
    written, kinds = write(runs, tmp_path / "out.jsonl")
    assert (written.rows, kinds) == (2, {"useful": 1, "noisy": 1})
    with pytest.raises(UsageError, check=coded("file-exists")):
        write(runs, written.path)


def test_what_helped_one_trajectory_is_useful_to_every_question(tmp_path: Path) -> None:
    right = trajectory("Oakfell", searched("Oakfell area", "Oakfell area 9"), reward=1.0)
    wrong = trajectory("Mistfield", searched("Oakfell area", "Oakfell area 9"), searched("Oakfell", "Oakfell area 9"))
    written, kinds = write([run_of(tmp_path / "run", wrong, right)], tmp_path / "out.jsonl")
    assert kinds == {"useful": 2, "noisy": 1}
    assert {asked.split()[2] for asked, _ in messages(written.path) if asked.endswith("Oakfell area")} == {"useful"}


def test_what_ended_in_an_error_or_belongs_to_a_strategy_is_left_out(tmp_path: Path) -> None:
    found = trajectory("Oakfell", searched("q", "Mistfield river Oakfell"))
    run = run_of(
        tmp_path / "run",
        found,
        found.model_copy(update={"status": "error", "reward": None}),
        found.model_copy(update={"refinement": Refinement(strategy="vote")}),
    )
    written, kinds = write([run], tmp_path / "out.jsonl")
    assert kinds == {"noisy": 1}
    assert written.left_out == {"ended in an error": 1, OF_A_STRATEGY: 1}


def test_without_a_reward_the_rule_says_nothing_and_a_judge_decides(tmp_path: Path) -> None:
    run = run_of(
        tmp_path / "run",
        *(trajectory(text.split()[0], searched("q", text)) for text in ("Amberbank height 105", "Oakfell river Mist")),
        trajectory("Oakfell", searched("q", "Oakfell capital Mistfield")).model_copy(update={"reward": None}),
    )
    written, kinds = write([run], tmp_path / "rule.jsonl")
    assert (kinds, written.left_out) == ({"useful": 1, "noisy": 1}, {"without a reward": 1})
    with LLMServer(judge) as server:
        written, kinds = by_judge(server, run, tmp_path / "judge.jsonl")
    assert (kinds, written.left_out) == ({"useful": 1, "noisy": 2}, {})


# --- useful or noisy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reward", "kind"),
    [
        ("Amberbank height 105", 0.0, "useful"),
        ("Amberbank height 1056", 0.0, "noisy"),
        ("Amberbank capital Oakfell", 0.0, "noisy"),
        ("Amberbank capital Oakfell", 1.0, "useful"),
        ("Amberbank capital Oakfell", 0.9, "noisy"),
    ],
)
def test_the_rule_is_the_outcome_or_the_gold_answer(tmp_path: Path, text: str, reward: float, kind: Kind) -> None:
    run = run_of(tmp_path / "run", trajectory("Amberbank", searched("q", text), reward=reward))
    written, kinds = write([run], tmp_path / "out.jsonl")
    assert kinds == {kind: 1}
    assert messages(written.path)[0][0].startswith(f"Write 2 {kind} documents.")


def judge(body: Body) -> str:
    """Useful is what names a capital."""
    return json.dumps({"analysis": "seen", "correct": "capital" in prompt_of(body).rpartition("Answer to judge: ")[2]})


def by_judge(server: LLMServer, run: RunDirectory, path: Path) -> Any:
    async def work() -> Any:
        engine = engine_for(server, max_attempts=1)
        asked = UsefulJudge(engine, model={"model": "m"}, cache=path.with_suffix(".verdicts"))
        try:
            return await write_transcripts([run], path, tool="local_search", config=SHORT, label=asked.label)
        finally:
            await asked.close()
            await engine.close()

    return asyncio.run(work())


def test_a_model_judges_by_question_query_gold_answer_and_documents(tmp_path: Path) -> None:
    with LLMServer(judge) as server:
        written, kinds = by_judge(server, three_searches(tmp_path / "run"), tmp_path / "out.jsonl")
    assert kinds == {"useful": 1, "noisy": 2}
    marked = {reply: asked.split()[2] for asked, reply in messages(written.path)}
    assert marked["Doc 1: Oakfell capital Mistfield"] == "useful"
    said = [prompt_of(body) for body in server.bodies]
    assert len(said) == 3
    assert all("Rules for search results" in text and "Query: q" in text and '["105"]' in text for text in said)


@pytest.mark.parametrize(("faults", "reply", "code"), [([500], None, "judge-failed"), ([], "ok", "judge-unreadable")])
def test_a_judge_that_fails_is_an_error_never_noisy(tmp_path: Path, faults: list[int], reply: str, code: str) -> None:
    out = tmp_path / "out.jsonl"
    answer = judge if reply is None else lambda body: reply
    with LLMServer(answer, faults=faults) as server, pytest.raises(RewardError, check=coded(code)):
        by_judge(server, three_searches(tmp_path / "run"), out)
    assert not out.exists()


def test_verdicts_are_kept_for_the_next_time(tmp_path: Path) -> None:
    run, out = three_searches(tmp_path / "run"), tmp_path / "out.jsonl"
    with LLMServer(judge) as server:
        first = by_judge(server, run, out)
    assert len(server.bodies) == 3
    out.unlink()
    with LLMServer(judge) as server:
        assert by_judge(server, run, out) == first
    assert not server.bodies


# --- the command ------------------------------------------------------------------------------------------------------


def command(*arguments: object) -> int:
    return main(["simulator", *map(str, arguments), "--recipe", "zerosearch-tiny"])


def test_its_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    three_searches(Path("run"))
    assert command("run", "--out", "simulator.jsonl") == 0
    assert capsys.readouterr().out == "3 searches in simulator.jsonl: 1 useful, 2 noisy\n"


def test_the_command_asks_an_engine_of_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    with LLMServer(judge) as server:
        engine = f'engines.asked={{ type = "openai_compatible", model = "m", base_url = "{server.base_url}" }}'
        asked = ("--judge", "asked", "--set", engine, "--set", "wrappers.local_search.simulated.documents=3")
        assert command(three_searches(tmp_path / "run").root, "--out", out, "--json", *asked) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(out), "rows": 3, "useful": 1, "noisy": 2, "left_out": {},
    }  # fmt: skip
    assert len(server.bodies) == 3
    assert all(asked.startswith("Write 3 ") for asked, _ in messages(out))


@pytest.mark.parametrize(
    ("table", "settings", "called"),
    [
        ("local_search", '{ type = "local_search", alias = "lookup" }', "lookup"),
        ("index", '{ type = "local_search" }', "local_search"),
        ("lookup", '{ type = "function", function = "my_tools.py:find" }', "lookup"),
    ],
)
def test_a_table_is_named_and_its_tool_found_by_what_agents_call_it(
    tmp_path: Path, table: str, settings: str, called: str
) -> None:
    turn = searched("q", "Amberbank height 105").model_copy(
        update={"command": Command(tool=called, arguments={"query": "q"})}
    )
    run, out = run_of(tmp_path / "run", trajectory("Amberbank", turn)), tmp_path / "out.jsonl"
    changes = ("--set", f"tools.{table}={settings}", "--set", f"wrappers.{table}.simulated={{}}")
    assert command(run.root, "--out", out, "--tool", table, *changes) == 0
    assert len(messages(out)) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--tool", "python"], "unknown-tool"),
        (["--tool", "web", "--set", "wrappers.web.simulated={}"], "unknown-tool"),
        (["--set", "wrappers.local_search.simulated=false"], "missing-option"),
        (["--judge", "nobody"], "unknown-engine"),
        (["--part", "eval-*"], "nothing-to-export"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    assert command(three_searches(tmp_path / "run").root, "--out", tmp_path / "out.jsonl", *arguments) in (1, 2)
    assert f"error[{code}]" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


# --- training ---------------------------------------------------------------------------------------------------------


SIMULATOR = {"engines.policy.hidden_size": 32, "warm_start.steps": 60, "warm_start.batch_size": 16}
POLICY = {
    "tasks.countries": 40, "tasks.families": '["lookup"]', "engines.policy.hidden_size": 32, "engines.policy.layers": 1,
    "warm_start.transcripts": 150, "warm_start.steps": 60, "warm_start.batch_size": 32,
    "warm_start.learning_rate": 2e-2, "warm_start.min_copy_rate": 0.0,
    "warm_start.policy": "{ sense = 1.0, malformed = 0.0 }", "training.steps": 2, "training.tasks_per_step": 4,
    "training.group_size": 4, "evaluation.at": "none", "wrappers.local_search.simulated.noise": 0.5,
}  # fmt: skip


@pytest.mark.slow
def test_a_simulator_learns_from_searches_and_a_policy_from_the_simulator(tmp_path: Path) -> None:
    world = Gazetteer(GazetteerConfig(countries=40))
    train = set(world.names("train"))
    facts = [text for _, text in world.documents() if text.split()[0] in train]
    searches = [
        trajectory(fact, searched(" ".join(fact.split()[:2]), found), gold=fact.split()[-1])
        for fact, other in zip(facts, [*facts[1:], facts[0]], strict=True)
        for found in (fact, other)
    ]
    out, simulator = tmp_path / "simulator.jsonl", tmp_path / "simulator"
    assert command(run_of(tmp_path / "searches", *searches).root, "--out", out, "--quiet") == 0
    small = settings(SIMULATOR | {"warm_start.file": out})
    assert main(["train", "simulator-tiny", "--out", str(simulator), "--quiet", *small]) == 0
    engine = f'{{ type = "tiny_text", weights = "{simulator / "policy"}" }}'
    with_simulator = {"engines.simulator": engine, "wrappers.local_search.simulated.engine": "simulator"}
    root = tmp_path / "policy"
    assert main(["train", "zerosearch-tiny", "--out", str(root), "--quiet", *settings(POLICY | with_simulator)]) == 0
    turns = [
        turn for _, part in RunDirectory.open(root).trajectories.parts().items() for row in part for turn in row.turns
    ]
    answered = [turn.observation for turn in turns if turn.command and turn.command.tool == "local_search"]
    marks = Counter(mark for result in answered if result for mark in result.marks)
    assert marks["useful"] > 0
    assert marks["noisy"] > 0
