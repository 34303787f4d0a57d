"""Agent runs on disk: found by their whole key, also after a kill in the middle of a record."""

from __future__ import annotations

import asyncio
from pathlib import Path

from midstream.core.trajectory import Trajectory
from midstream.runs.results import AGENT_RUNS, AgentRuns
from support.errors import raises


def ended(answer: str) -> Trajectory:
    return Trajectory(id="t", task_id="t", answer=answer)


def test_a_run_is_found_by_its_whole_key(tmp_path: Path):
    runs = AgentRuns(tmp_path)
    runs.keep(ended("one"), "set", 1)
    runs.keep(ended("two"), "set", 2)
    runs.keep(ended("text"), "set", "1")
    assert [runs.find("set", number) for number in (1, 2, 3)] == [ended("one"), ended("two"), None]
    assert runs.find("set", "1") == ended("text")
    asyncio.run(runs.close())
    again = AgentRuns(tmp_path)
    assert again.find("set", 2) == ended("two")
    again.keep(ended("three"), "set", 3)
    assert again.find("set", 3) == ended("three")
    again.forget()
    assert not list(tmp_path.iterdir())
    assert again.find("set", 1) is None
    asyncio.run(again.close())


def test_a_torn_record_is_cut_off_and_the_others_stay(tmp_path: Path):
    runs = AgentRuns(tmp_path)
    runs.keep(ended("one"), 1)
    runs.keep(ended("two"), 2)
    asyncio.run(runs.close())
    path = tmp_path / AGENT_RUNS
    path.write_bytes(path.read_bytes()[:-20])
    again = AgentRuns(tmp_path)
    assert (again.find(1), again.find(2)) == (ended("one"), None)
    again.keep(ended("two again"), 2)
    assert again.find(2) == ended("two again")
    asyncio.run(again.close())


def test_damage_is_an_error(tmp_path: Path):
    runs = AgentRuns(tmp_path)
    runs.keep(ended("one"), 1)
    runs.keep(ended("two"), 2)
    asyncio.run(runs.close())
    path = tmp_path / AGENT_RUNS
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))
    again = AgentRuns(tmp_path)
    with raises("file-damaged", AGENT_RUNS):
        again.find(1)
    asyncio.run(again.close())


def test_without_a_directory_nothing_is_kept(tmp_path: Path):
    runs = AgentRuns(None)
    runs.keep(ended("one"), 1)
    assert runs.find(1) is None
    runs.forget()
