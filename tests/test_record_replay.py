"""Whole runs recorded and replayed: every tool, the network off, the same trajectories to the byte."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.components.kinds import config_class, registered
from midstream.core.trajectory import Trajectory, without_clocks
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rollout import RolloutConfig, rollout
from midstream.runs import RunDirectory
from midstream.tools.recording import FILE
from midstream_worlds.graphs.tools import WorldToolConfig
from midstream_worlds.scripted_engine import ScriptedEngine
from support.errors import coded, printed
from support.every_tool import MCP_VARIABLE, SERPER_VARIABLE, Everything, Model, every_tool
from support.llm_server import AgentFlowReplies, LLMServer
from support.serper_server import KEY


def run(servers: Everything, *settings: str, tasks: Sequence[str] = (), **build: Path) -> list[Trajectory]:
    """Two trajectories of each task, by an agent whose own modules ask no network."""
    built = Build(load_recipe(str(servers.recipe), settings), **build)
    engine = ScriptedEngine(Model(servers.arguments).answer)
    environment = built.environment()
    engines = dict.fromkeys(environment.engines, engine)
    environment = replace(environment, engines=engines, config=RolloutConfig(concurrency=8, max_attempts=2))
    chosen = [task for task in servers.tasks if not tasks or task.id in tasks]

    async def go() -> list[Trajectory]:
        try:
            groups = await rollout(environment, chosen, group_size=2, seed=5)
        finally:
            await environment.close()
            await built.close()
        return [one for group in groups for one in group.trajectories]

    return asyncio.run(go())


def shown(trajectories: Sequence[Trajectory]) -> list[str]:
    return [without_clocks(one).model_dump_json() for one in trajectories]


@pytest.fixture
def no_network(monkeypatch):
    """Nothing connects, resolves a name, or starts a process."""

    def refuse(*arguments, **options):
        raise AssertionError(f"reached out: {arguments[1:]}")

    def shut():
        for name in ("connect", "connect_ex", "sendto", "bind"):
            monkeypatch.setattr(socket.socket, name, refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        monkeypatch.setattr(subprocess, "Popen", refuse)
        monkeypatch.setattr(os, "fork", refuse)

    return shut


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv(SERPER_VARIABLE, KEY)
    monkeypatch.setenv(MCP_VARIABLE, "a key")


@pytest.mark.slow
def test_every_tool_there_is_is_replayed_to_the_byte_with_the_network_off(tmp_path, no_network, monkeypatch):
    with every_tool(tmp_path) as servers:
        recorded = run(servers, record=tmp_path / "kept")
        types = {table["type"] for table in Build(load_recipe(str(servers.recipe))).resolved["tools"].values()}
    # The tools of the world of graphs need its tasks, and the others here the gazetteer's.
    graphs = {name for name in registered("tool") if issubclass(config_class("tool", name), WorldToolConfig)}
    assert types == set(registered("tool")) - graphs
    observed = {one.task_id: [turn.observation for turn in one.turns] for one in recorded}
    assert [one.error for one in recorded] == [None] * len(recorded)
    assert all(len(turns) == 2 for turns in observed.values())
    assert all(turns[0].status == "ok" for turns in observed.values()), observed
    again = run(servers, record=tmp_path / "kept")  # the servers have ended: a recording is a cache
    assert shown(again) == shown(recorded)

    no_network()
    monkeypatch.delenv(SERPER_VARIABLE)
    monkeypatch.delenv(MCP_VARIABLE)
    (tmp_path / "my_tools.py").unlink()
    replayed = run(servers, replay=tmp_path / "kept")
    assert shown(replayed) == shown(recorded)
    assert {one.sandbox for one in replayed} == {one.sandbox for one in recorded} != {""}


@pytest.mark.slow
def test_a_run_that_is_not_recorded_leaves_the_same_trajectories(tmp_path):
    with every_tool(tmp_path) as servers:
        plain = run(servers)
        assert shown(run(servers, record=tmp_path / "kept")) == shown(plain)


@pytest.mark.slow
def test_programs_are_replayed(tmp_path, no_network):
    """Programs run again in the sandbox; the calls they make are answered by the recording."""
    code = ("agent.executor.mode=code", "agent.max_turns=1")
    chosen = ("local_search", "web_search", "wikipedia")
    with every_tool(tmp_path) as servers:
        recorded = run(servers, *code, tasks=chosen, record=tmp_path / "kept")
        asked = servers.requests()
    assert all(one.turns[0].observation.tool_calls for one in recorded), recorded
    replayed = run(servers, *code, tasks=chosen, replay=tmp_path / "kept")
    assert servers.requests() == asked
    assert shown(replayed) == shown(recorded)


@pytest.mark.slow
def test_an_unseen_request_loses_its_run_once_and_no_other(tmp_path, no_network):
    with every_tool(tmp_path) as servers:
        recorded = run(servers, tasks=("local_search", "guess"), record=tmp_path / "kept")
    no_network()
    servers.arguments["guess"] = ({"question": "Something else?"},) * 2
    replayed = run(servers, tasks=("local_search", "guess"), replay=tmp_path / "kept")
    assert shown(replayed[:2]) == shown(recorded[:2])
    for lost in replayed[2:]:
        assert (lost.status, lost.reward, lost.attempts, lost.error.type) == ("error", None, 1, "ToolServerError")
        assert f'{tmp_path / "kept"} holds no answer of guess to {{"question":"Something else?"}}' in lost.error.message
        assert "--record" in lost.error.message


# --- the command line -----------------------------------------------------------------------------------------------


def command(capsys, *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([*map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
def test_solve_is_recorded_and_replayed(tmp_path, capsys):
    kept = tmp_path / "kept"
    with every_tool(tmp_path) as servers:
        port = int(servers.model.base_url.rpartition(":")[2].removesuffix("/v1"))
        solve = ("solve", "Use web_search now.", "--recipe", servers.recipe, "--json")
        code, first, _ = command(capsys, *solve, "--record", kept)
        assert code == 0
        asked = servers.requests()
    with LLMServer(Model(servers.arguments), port=port) as model:
        code, second, _ = command(capsys, *solve, "--replay", kept)
        assert code == 0
        assert 0 < len(model.bodies) < asked
        assert not [body for body in model.bodies if "Results:" in json.dumps(body)], "the summary was replayed"
        other = ("solve", "Use guess now.", "--recipe", servers.recipe, "--replay", kept)
        code, _, err = command(capsys, *other)
    assert shown([Trajectory.model_validate_json(second)]) == shown([Trajectory.model_validate_json(first)])
    assert code == 1
    assert "error: ToolServerError: " in err
    assert "holds no answer of guess to" in err
    assert KEY.encode() not in (kept / FILE).read_bytes()


def test_a_tool_is_called_by_hand_from_a_recording(tmp_path, capsys):
    call = ("call", "guess", "question=How high?", "--json")
    code, first, _ = command(capsys, *call, "--record", tmp_path)
    assert code == 0
    code, second, _ = command(capsys, *call, "--replay", tmp_path)
    assert (code, json.loads(second)["text"]) == (0, json.loads(first)["text"])
    code, out, err = command(capsys, "call", "guess", "question=How deep?", "--replay", tmp_path)
    assert (code, out) == (1, "")
    assert coded("not-recorded", "guess", '{"question":"How deep?"}')(printed(err))


def test_eval_and_its_replay_agree(tmp_path, capsys):
    sets = 'evaluation.sets=[{name = "test", split = "test", per_family = 2, families = ["arith", "lookup"]}]'
    replies = AgentFlowReplies(tool="local_search", arguments={"query": "height"}, turns=2, answer="7")
    with LLMServer(replies) as server:
        evaluate = ("eval", "gazetteer-prompted", "--json", "--set", sets, "--set", "engines.model.model=m")
        evaluate += ("--set", f"engines.model.base_url={server.base_url}")
        code, first, _ = command(capsys, *evaluate, "--record", tmp_path, "--out", tmp_path / "first")
        assert code == 0
        code, second, err = command(capsys, *evaluate, "--replay", tmp_path, "--out", tmp_path / "second")
    assert (code, json.loads(second)["evaluations"]) == (0, json.loads(first)["evaluations"])
    assert f"tools   replayed from {tmp_path}" in err
    assert "sandbox" not in err


@pytest.mark.slow
def test_training_replays(ten_steps, tmp_path, capsys):
    """A whole training run on recorded tools is the run that was recorded."""
    for out, option in (("first", "--record"), ("second", "--replay")):
        words = ("train", ten_steps, "--out", tmp_path / out, "--quiet", option, tmp_path / "kept")
        assert command(capsys, *words)[0] == 0
    first, second = (RunDirectory.open(tmp_path / out) for out in ("first", "second"))
    assert first.trajectories.steps() == second.trajectories.steps() != []
    for step in first.trajectories.steps():
        assert shown(second.trajectories.read(step)) == shown(first.trajectories.read(step))
    assert command(capsys, "resume", second.root, "--replay", tmp_path / "kept", "--quiet")[0] == 0


def test_recording_and_replaying_exclude_each_other(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["eval", "flow-grpo-tiny", "--record", str(tmp_path), "--replay", str(tmp_path)])
    assert "not allowed with argument --record" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--record", "--replay"])
def test_a_directory_without_a_name_is_not_the_one_we_are_in(option, capsys):
    code, _, err = command(capsys, "eval", "flow-grpo-tiny", option, "")
    assert code == 2
    assert coded("empty-value", option)(printed(err))


def test_a_replay_of_nothing_starts_nothing(tmp_path, capsys):
    code, _, err = command(
        capsys, "solve", "Why?", "--replay", tmp_path / "none", "--base-url", "http://h/v1", "--model", "m"
    )
    assert code == 2
    assert coded("file-not-found", tmp_path / "none" / FILE)(printed(err))
