"""What a step of a stream trains on, with rollouts that end when the test says so; and work in a thread."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.task import Task
from midstream.core.trajectory import Call, Score, Trajectory, Turn
from midstream.rollout import Environment, Group
from midstream.training.protocols import LossStats
from midstream.training.settings import TrainingConfig
from midstream_async.ahead import in_thread
from midstream_async.settings import StreamConfig
from midstream_async.stream import Stream

TASKS, STEPS = 2, 8


def group(number):
    def ended(place):
        call = Call(
            role="planner", engine="e", prompt_ids=(1,), completion_ids=(2,), logprobs=(-1.0,), policy_version=0
        )  # fmt: skip
        return Trajectory(
            id=f"{number}#{place}", task_id=str(number), question="q", family="all",
            turns=(Turn(index=1, calls=(call,)),), reward=Score(value=float(place)),
        )  # fmt: skip

    return Group(task=Task(id=str(number), question="q", answer=""), trajectories=(ended(0), ended(1)))


async def nothing(*_: object) -> None:
    pass


def stream(staleness, held):
    """A stream whose group N ends once `held[N]` is done, if that is there."""
    learner: Any = SimpleNamespace(
        before_step=lambda seed: None,
        logprobs=lambda rows: [one.old_logprobs for one in rows],
        forward_backward=lambda rows, loss: LossStats(tokens=1),
        optimizer_step=lambda rate: 0.0,
    )

    class Held(Stream):
        async def roll_out(self, earlier, count, *rounds):
            number = rounds[1]
            if number in held:
                await held[number]
            return [group(number)]

    return Held(
        config=TrainingConfig(steps=STEPS, tasks_per_step=TASKS, group_size=2, minibatches=1),
        learner=learner,
        environment=Environment(agent=None, tools=(), engines={}, reward=None),  # type: ignore[arg-type]
        source=SimpleNamespace(families=("all",)),  # type: ignore[arg-type]
        publish=nothing,
        seed=0,
        ahead=StreamConfig(staleness=staleness),
        versions=SimpleNamespace(restore=nothing, publish=nothing),  # type: ignore[arg-type]
    )


def test_the_oldest_that_have_ended_come_first_and_a_late_one_is_waited_for():
    async def run():
        slow = asyncio.get_running_loop().create_future()
        algorithm = stream(1, {1: slow})
        steps = [await algorithm.step(1)]
        waiting = asyncio.create_task(algorithm.step(2))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "group 1 would be older than one version in step 3"
        slow.set_result(None)
        steps += [await waiting, await algorithm.step(3)]
        return steps

    steps = asyncio.run(run())
    assert [sorted({each.task_id for each in one.trajectories}) for one in steps] == [
        ["2", "3"],
        ["1", "4"],
        ["5", "6"],
    ]
    assert [one.metrics.policy_version for one in steps] == [0, 0, 1]


@given(st.data())
def test_whatever_ends_when_every_group_is_trained_on_once_and_none_is_too_old(data):
    staleness = data.draw(st.integers(1, 3))
    slow = data.draw(st.sets(st.integers(1, TASKS * STEPS), max_size=8))

    async def run():
        loop = asyncio.get_running_loop()
        held = {number: loop.create_future() for number in slow}
        algorithm, trained = stream(staleness, held), []
        for step in range(1, STEPS + 1):
            waiting = asyncio.create_task(algorithm.step(step))
            while not waiting.done():
                await asyncio.sleep(0.001)
                # Only where nothing else could end a step, one more ends.
                if not waiting.done() and (left := [each for each in held.values() if not each.done()]):
                    data.draw(st.sampled_from(left)).set_result(None)
            outcome = waiting.result()
            assert 0 <= step - 1 - outcome.metrics.policy_version <= staleness
            trained.append({each.task_id for each in outcome.trajectories})
        assert not algorithm._groups
        return trained

    trained = asyncio.run(run())
    assert all(len(names) == TASKS for names in trained)
    assert set.union(*trained) == {str(number) for number in range(1, TASKS * STEPS + 1)}


def test_a_rollout_that_fails_ends_the_step_and_the_others():
    async def run():
        loop = asyncio.get_running_loop()
        broken, never = loop.create_future(), loop.create_future()
        algorithm = stream(1, {1: broken, 4: never})
        broken.set_exception(OSError("disk"))
        with pytest.raises(OSError, match="disk"):
            await algorithm.step(1)
        assert never.cancelled()

    asyncio.run(run())


def test_work_in_a_thread_is_finished_before_its_caller_is_cancelled():
    begun, go, done = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        assert go.wait(10)
        done.append(1)
        return "result"

    async def caller():
        found = await in_thread(work)
        done.append(found)
        await asyncio.sleep(10)

    async def run():
        task = asyncio.create_task(caller())
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert done == [1, "result"]


def test_an_error_in_a_thread_is_the_callers_also_where_it_is_cancelled():
    begun, go = threading.Event(), threading.Event()

    def work():
        begun.set()
        assert go.wait(10)
        raise ValueError("no")

    async def run():
        task = asyncio.create_task(in_thread(work))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.sleep(0.01)
        go.set()
        with pytest.raises(ValueError, match="no"):
            await task

    asyncio.run(run())


def test_an_error_in_a_thread_is_the_callers():
    def work():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(in_thread(work))
