"""What every run that evaluates shares: each set once, each trajectory kept, the order of a run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from midstream.core.agent import RunContext
from midstream.core.errors import BudgetError, EngineError, InfrastructureError, StorageError
from midstream.core.events import Note, RunEvent, RunFinished
from midstream.core.trajectory import Action, Call, Trajectory, Turn
from midstream.evaluation.run import SetEvaluation
from midstream.evaluation.session import JournalStore, Session, evaluate_set
from midstream.evaluation.settings import SetConfig
from midstream.rollout import Environment, RolloutConfig
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info
from support.peak_memory import growth_of_memory
from support.rollouts import TASKS, StubReward


@dataclass
class Agent:
    """Answers, or fails on the tasks of `broken`, or is stops the run at the task `interrupted`."""

    broken: tuple[str, ...] = ()
    interrupted: str = ""
    name: str = "agent"
    asked: list[str] = field(default_factory=list)

    async def run(self, task: Any, context: RunContext) -> Trajectory:
        name = task.question.removeprefix("How high is Place").removesuffix(" ?")  # an agent does not see the id
        self.asked.append(name)
        if name == self.interrupted:
            await asyncio.sleep(0.1)  # the others have ended
            raise StorageError("the disk is full")
        if name in self.broken:
            raise EngineError("503")
        return Trajectory(id=task.id, task_id=task.id, seed=context.seed, answer=name)

    async def close(self) -> None:
        pass


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "run", collect_info("x", 0, {}), "")


def of(agent: Agent, **changes: Any) -> SetEvaluation:
    settings = {"chosen": SetConfig(name="test"), "temperature": 0.0, "policy": "p", "seed": 3, "step": 2, **changes}
    environment = Environment(
        agent=agent, tools=(), engines={}, reward=StubReward(), config=RolloutConfig(max_attempts=1)
    )
    return SetEvaluation(tasks=TASKS, environment=environment, **settings)


def evaluated(directory: RunDirectory, agent: Agent, **changes: Any) -> Any:
    store = JournalStore(directory.results_path)
    try:
        return asyncio.run(evaluate_set(directory, of(agent, **changes), store))
    finally:
        store.close()


def test_a_set_of_malformed_turns_alone_ends_with_a_warning(directory):
    class Babbling(Agent):
        async def run(self, task: Any, context: RunContext) -> Trajectory:
            found = await super().run(task, context)
            action = Action(tool="python") if found.answer == self.name else Action(error="no tool is called 'x'")
            calls = (Call(role="planner", completion="I call x."),)
            return found.model_copy(update={"turns": (Turn(index=1, calls=calls, action=action),)})

    events: list[RunEvent] = []
    for step, well_formed in enumerate(("2", "")):
        store = JournalStore(directory.results_path)
        asyncio.run(evaluate_set(directory, of(Babbling(name=well_formed), step=step), store, events.append))
        store.close()
    [note] = [event.text for event in events if isinstance(event, Note)]
    assert note.endswith(f"midstream show {directory.root} {TASKS[0].id}#0")
    assert "'I call x.'" in note


def test_a_set_is_evaluated_and_written_once(directory):
    result = evaluated(directory, Agent(broken=("2",)))
    assert (result.success, result.errors, result.step) == (5 / 6, 1, 2)
    assert directory.evaluations.read() == [result]
    assert len(directory.trajectories.read("test-greedy-2")) == len(TASKS)
    again = Agent()
    assert evaluated(directory, again) is None
    assert again.asked == []


def test_another_step_is_another_evaluation(directory):
    evaluated(directory, Agent())
    assert evaluated(directory, Agent(), step=4).step == 4
    assert [result.step for result in directory.evaluations.read()] == [2, 4]


def test_a_name_without_a_step_identifies_the_files_of_a_set_that_is_evaluated_once(directory):
    evaluated(directory, Agent(), numbered=False)
    assert len(directory.trajectories.read("test-greedy")) == len(TASKS)


def test_what_ended_before_an_interruption_is_not_run_again(directory):
    with pytest.raises(StorageError):
        evaluated(directory, Agent(interrupted="4"))
    agent = Agent()
    assert evaluated(directory, agent).success == 1
    assert agent.asked == ["4"]
    assert directory.results_path.read_bytes() == b""


def test_a_set_without_any_result_has_no_numbers_and_is_run_again(directory):
    with pytest.raises(InfrastructureError) as caught:
        evaluated(directory, Agent(broken=tuple(task.answer for task in TASKS)))
    assert caught.value.code == "all-rollouts-failed"
    assert "503" in caught.value.what
    assert directory.evaluations.read() == []
    agent = Agent()
    assert evaluated(directory, agent).success == 1
    assert len(agent.asked) == len(TASKS)


def test_a_store_that_refuses_leaves_nothing_written_and_everything_kept(directory):
    class Spent(JournalStore):
        def read(self, *_: Any) -> Any:
            raise BudgetError("spent")

    store = Spent(directory.results_path)
    with pytest.raises(BudgetError):
        asyncio.run(evaluate_set(directory, of(Agent()), store))
    store.close()
    assert directory.evaluations.read() == []
    assert not list(directory.trajectories.root.iterdir())
    assert len(store.done(of(Agent()))) == len(TASKS)


@dataclass
class Wordy:
    """Answers at once; every trajectory has some 170 kB of its own text."""

    name: str = "wordy"
    given: int = 0

    async def run(self, task: Any, context: RunContext) -> Trajectory:
        self.given += 1
        call = Call(role="generator", completion=f"{self.given} " * 30_000)
        return Trajectory(id=task.id, task_id=task.id, seed=context.seed, closing_calls=(call,))


def test_memory_does_not_grow_with_the_number_of_trajectories(directory):
    store = JournalStore(directory.results_path)
    with growth_of_memory() as growth:
        result = asyncio.run(evaluate_set(directory, replace(of(Wordy()), trials=50), store))  # 50 MB of text
    assert result is not None
    assert result.trials == 50
    assert growth.mb < 25


class Steps(Session):
    """Three steps; `stop_after` ends them early, `spent_at` names what has no budget."""

    def __init__(self, stop_after: int = 9, spent_at: object = None) -> None:
        self.stop_after, self.spent_at, self.done = stop_after, spent_at, []
        self.events: list[RunEvent] = []
        self.listener = self.events.append

    def reach(self, what: object) -> None:
        if what == self.spent_at:
            raise BudgetError("spent", code="x")
        self.done.append(what)

    async def begin(self) -> range:
        self.reach("begin")
        return range(1, 4)

    async def step(self, step: int) -> None:
        self.reach(step)

    def close(self) -> None:
        self.events.append(Note("closed"))

    async def finish(self) -> None:
        self.reach("finish")

    def reason_to_stop(self) -> str:
        return "enough" if len(self.done) > self.stop_after else ""


@pytest.mark.parametrize(
    ("session", "ended", "done"),
    [
        (Steps(), "", ["begin", 1, 2, 3, "finish"]),
        (Steps(stop_after=2), "enough", ["begin", 1, 2, "finish"]),
        (Steps(spent_at=2), "spent", ["begin", 1, "finish"]),
        (Steps(spent_at="finish"), "spent", ["begin", 1, 2, 3]),
    ],
)
def test_a_session_begins_makes_its_steps_and_finishes(session, ended, done):
    assert asyncio.run(session.run()) == ended
    assert session.done == done
    assert session.events == [*([Note("spent")] if ended == "spent" else []), RunFinished(), Note("closed")]
