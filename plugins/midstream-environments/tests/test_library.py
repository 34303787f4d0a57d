"""A library in its process: what it answers, and what becomes of everything that goes wrong in it."""

import asyncio
import logging
import os
import subprocess
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from midstream.core.errors import InfrastructureError, MidstreamError, RecipeError, RewardError, UnsupportedError
from midstream.core.trajectory import Trajectory
from midstream_environments.cases import Cases, case_of
from midstream_environments.episodes import EpisodeCases
from midstream_environments.library import Library, library_of
from midstream_environments.reward import EnvironmentReward
from toys import ToyConfig


@pytest.fixture
def library():
    made = []

    def make(**settings) -> Library:
        made.append(library_of(ToyConfig(**settings)))
        made[-1].users += 1
        return made[-1]

    yield make
    for each in made:
        asyncio.run(each.close())


def score(library: Library, answer: str):
    task = Cases(library).fixed("train", seed=0)[0]
    reward = EnvironmentReward()
    reward.check(task)
    return task, asyncio.run(reward.score(task, Trajectory(id="1", task_id=task.id, answer=answer)))


def test_its_rows_are_tasks_and_its_scorer_is_the_reward(library):
    task, right = score(library(), "0")
    assert (task.question, task.answer, task.family) == ("0 + 0?", "0", "sum")
    assert (right.value, right.parts, right.feedback) == (1.0, {"length": 1.0}, "seen")
    assert score(library(), "1")[1].value == 0.0


def test_rows_without_a_split_are_shared_out_and_no_question_is_in_two(library):
    cases = Cases(library())
    sizes = {split: len(cases.fixed(split, seed=0)) for split in ("train", "validation", "test")}
    assert sum(sizes.values()) == 40
    assert sizes["train"] > sizes["test"] > 0


def test_a_question_of_the_test_split_is_left_out_of_training(library):
    cases = Cases(library(wrong="splits"))
    split = {name: {task.question for task in cases.fixed(name, seed=0)} for name in ("train", "validation", "test")}
    assert len(split["test"]) == 10
    assert len(split["train"] | split["validation"]) == 30
    assert not split["train"] & split["test"]
    assert sum(cases.left_out["train"].values()) + sum(cases.left_out.get("validation", {}).values()) == 10


@pytest.mark.parametrize(
    ("wrong", "kind", "code"),
    [
        ("import", UnsupportedError, "missing-extra"),
        ("load", RecipeError, "environment-failed"),
        ("load exits", InfrastructureError, "environment-failed"),
        ("load hangs", InfrastructureError, "environment-failed"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_an_error(library, wrong, kind, code):
    with pytest.raises(kind) as caught:
        library(wrong=wrong, load_s=1.0 if wrong == "load hangs" else 60.0).call("rows")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        ("raises", "reward-failed", "a bug in the scorer"),
        ("hangs", "reward-failed", "more than 1 s"),
        ("exits", "reward-failed", "noise of the library"),
        ("nan", "reward-not-finite", "nan"),
        ("text", "reward-not-finite", "good"),
        ("high", "reward-out-of-range", "2"),
    ],
)
def test_a_scorer_that_fails_is_an_error_and_no_reward(library, wrong, code, words):
    with pytest.raises(RewardError) as caught:
        score(library(wrong=wrong, call_s=1.0), "0")
    assert caught.value.code == code
    assert words in str(caught.value)


def test_the_range_of_an_environment_becomes_0_to_1(library):
    assert score(library(wrong="high", range=(-2.0, 6.0)), "0")[1].value == 0.5


def test_after_a_process_ended_the_next_call_has_a_new_one(library):
    toy = library(wrong="exits")

    async def twice():
        for _ in range(2):
            with pytest.raises(InfrastructureError):
                await toy.ask("score", case="1", answer="2")
        return await toy.ask("rows")

    assert len(asyncio.run(twice())) == 40


def test_a_call_that_is_cancelled_and_does_not_end_ends_its_process(library):
    toy = library(wrong="hangs", call_s=1.0)

    async def cancelled():
        process = await toy.hold()
        call = asyncio.ensure_future(toy.ask("score", process=process, case="1", answer="2"))
        await asyncio.sleep(0.2)
        call.cancel()
        await asyncio.wait({call})
        return process

    process = asyncio.run(cancelled())
    until = time.monotonic() + 30
    while not process.gone and time.monotonic() < until:
        time.sleep(0.05)
    assert process.gone == "a call that was cancelled did not end"


def test_what_an_environment_starts_ends_with_it(library, tmp_path):
    toy = library(wrong="forks", file=str(tmp_path / "pid"))
    toy.call("rows")
    child = int((tmp_path / "pid").read_text())
    os.kill(child, 0)
    asyncio.run(toy.close())
    until = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_who_starts_a_process_uses_it_though_another_is_idle_by_then(library, monkeypatch):
    """One that nobody uses is never loaded."""
    toy = library(processes=2)

    async def two():
        first = await toy.hold()
        start = toy._started

        def meanwhile():
            first.hold(-1)
            return start()

        monkeypatch.setattr(toy, "_started", meanwhile)
        return first, await toy.hold()

    first, second = asyncio.run(two())
    assert first is not second
    assert first.version == second.version


@pytest.mark.parametrize("late", ["chosen", "_started"])
def test_a_process_whose_caller_has_gone_ends_with_its_library(library, monkeypatch, late):
    """It is closed before the process is started, or meanwhile."""
    toy, begun, closed = library(), threading.Event(), threading.Event()
    start, made = toy._started, []

    def kept():
        made.append(start())
        return made[-1]

    monkeypatch.setattr(toy, "_started", kept)
    work = getattr(toy, late)

    def slow():
        begun.set()
        closed.wait(30 if late == "chosen" else 0.3)
        return work()

    monkeypatch.setattr(toy, late, slow)

    async def leave():
        holding = asyncio.ensure_future(toy.hold())
        await asyncio.to_thread(begun.wait)
        holding.cancel()
        await asyncio.wait({holding})
        await toy.close()
        closed.set()

    asyncio.run(leave())
    until = time.monotonic() + 30
    while not (made and made[0]._process.returncode is not None) and time.monotonic() < until:
        time.sleep(0.05)
    [process] = made
    assert process.gone == "it was closed"
    assert process._process.returncode is not None
    assert not Path(process._directory.name).exists()


def test_a_process_that_cannot_be_started_leaves_nothing(library, monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: os.open(tmp_path / "nothing", os.O_RDONLY))
    # The name of a socket has a limit, which pytest's own directory may pass.
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        with pytest.raises(OSError, match="nothing"):
            library().call("rows")
        assert not os.listdir(short)


def test_a_version_that_was_not_tested_is_named_once(library, caplog, monkeypatch):
    monkeypatch.setattr(ToyConfig, "tested", ("0.1", "0.2"))
    with caplog.at_level(logging.WARNING, "midstream.environments"):
        toy = library(count=3, processes=2)

        async def two():
            return [await toy.hold(), await toy.hold()]

        first, second = asyncio.run(two())
    assert first is not second
    assert [record.getMessage().split()[0] for record in caplog.records] == ["toy"]


def test_episodes_next_to_each_other_repeat(library):
    """Each has random states of its own, though the environment draws from the one that Python shares."""
    toy = library()
    source = EpisodeCases(toy)
    tasks = source.fixed("train", seed=0)[:2]

    async def draws(order: str) -> list[str]:
        episodes = [source.open(task, seed=7 + place) for place, task in enumerate(tasks)]
        for episode in episodes:
            await episode.begin()
        drawn = ["", ""]
        for place in map(int, order):
            drawn[place] += (await episodes[place].call("draw", {})).text
        for episode in episodes:
            await episode.close()
        return drawn

    first, second = asyncio.run(draws("0000011111")), asyncio.run(draws("0101010101"))
    assert first == second
    assert first[0] != first[1]


def test_a_step_that_ends_the_process_is_an_error(library):
    source = EpisodeCases(library(wrong="step exits"))

    async def step():
        episode = source.open(source.fixed("train", seed=0)[0], seed=1)
        await episode.begin()
        try:
            await episode.reply("4")
        finally:
            await episode.close()

    with pytest.raises(InfrastructureError) as caught:
        asyncio.run(step())
    assert caught.value.code == "environment-failed"


def test_tasks_of_other_sources_are_refused(library):
    task = Cases(library()).fixed("train", seed=0)[0]
    with pytest.raises(MidstreamError) as caught:
        case_of(task.model_copy(update={"metadata": {}}))
    assert caught.value.code == "task-unfit"


def test_a_call_that_a_library_does_not_have_is_an_error(library):
    with pytest.raises(InfrastructureError, match="nothing_like_it"):
        asyncio.run(library().ask("nothing_like_it"))


@pytest.mark.slow
def test_a_scorer_that_holds_the_interpreter_does_not_block_midstream(library):
    """Its process reads nothing then, and answers wait in midstream until the call has taken too long."""
    toy, clock = library(wrong="backtracks", call_s=1.0), []

    async def tick():
        while True:
            clock.append(time.monotonic())
            await asyncio.sleep(0.05)

    async def many():
        ticking = asyncio.ensure_future(tick())
        found = await asyncio.gather(
            *(toy.ask("score", case="1", answer="a" * 200_000) for _ in range(8)), return_exceptions=True
        )
        ticking.cancel()
        return found

    found = asyncio.run(many())
    assert all(isinstance(each, InfrastructureError) for each in found)
    assert max(later - earlier for earlier, later in pairwise(clock)) < 10


def test_a_loop_that_is_stuck_ends_its_process(library):
    toy = library(wrong="run hangs", call_s=1.5)
    with pytest.raises(InfrastructureError) as caught:
        asyncio.run(toy.run(case="1", base_url="", api_key="", model=""))
    assert caught.value.code == "environment-timeout"


def test_an_own_loop_cleans_up_when_its_process_is_closed(library, tmp_path):
    toy = library(wrong="cleans", file=str(tmp_path / "cleaned"))

    async def closed():
        process = await toy.hold()
        running = asyncio.ensure_future(toy.run(case="1", base_url="", api_key="", model=""))
        while not process.busy > 1:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        await toy.close()
        await asyncio.wait({running})

    asyncio.run(closed())
    assert (tmp_path / "cleaned").exists()
