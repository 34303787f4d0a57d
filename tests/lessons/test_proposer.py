"""Proposers: what an update gives them, how candidates are tried, and which of their changes are kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from midstream.components.tables import parse_component
from midstream.core.agent import RunContext
from midstream.core.errors import EngineError
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.lessons.approval import Approvals
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import Lesson, LessonOrigin, LessonSet, render_modules, with_bases
from midstream.lessons.operations import Operation, Rules
from midstream.lessons.proposer import Proposal, Work
from midstream.lessons.runner import Runner
from midstream.lessons.settings import ROLES, LessonsConfig
from midstream.lessons.update import LessonLearner
from midstream.rollout import Environment, RolloutConfig
from midstream.runs.budget import BudgetConfig
from midstream_worlds.scripted_engine import ScriptedEngine
from support.errors import raises
from support.rollouts import StubReward

PLACE = "planner.prompt"
BASE = "Plan. {{tools}}"
TASKS = [Task(id=f"t{number}", question=f"What is item {number} ?", answer="x") for number in range(6)]
START = with_bases(LessonSet(), {PLACE: BASE})


@dataclass
class Reader:
    """Answers with the texts of its run, which are its reward: the number that they end with. `fails` fail."""

    name: str = "reader"
    fails: str = ""
    runs: list[tuple[str, str]] = field(default_factory=list)

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        shown = " ".join(context.lessons.values())
        self.runs.append((task.id, shown))
        if self.fails and self.fails in shown:
            raise EngineError("the endpoint failed")
        return Trajectory(
            id="", task_id="", question=task.question, seed=context.seed, answer=shown, stop_reason="answered"
        )

    async def close(self) -> None: ...


def worth(task: Task, trajectory: Trajectory) -> float:
    last = (trajectory.answer or "").split()[-1:]
    return float(last[0]) if last and last[0].replace(".", "").isdigit() else 0.2


def learner(made: Any, /, *, agent=None, engine=None, ledger=None, tasks=TASKS, **settings: Any) -> LessonLearner:
    config = LessonsConfig.model_validate(
        {
            "group_size": 2,
            "modules": [PLACE, "planner"],
            "reflector": {"engine": "m"},
            "search_rollouts": 12,
            "gate": {"enabled": False},
            "tasks": 6,
            "batch_size": 6,
            "epochs": 1,
            **settings,
        }
    )
    return LessonLearner(
        config=config,
        tasks=tasks,
        validation=[],
        environment=Environment(
            agent=agent or Reader(),
            tools=(),
            engines={},
            reward=StubReward(worth),
            config=RolloutConfig(max_attempts=1),
        ),
        engines=dict.fromkeys(ROLES, engine or ScriptedEngine(lambda request: "said")),
        proposers={name: Proposing(function) for name, function in made.items()},
        ledger=ledger or Ledger(),
        seed=1,
    )


@dataclass
class Proposing:
    """A proposer by a function."""

    made: Any

    async def propose(self, work: Work) -> Any:
        return await self.made(work)


def propose(made: LessonLearner, before: LessonSet = START, tasks=TASKS) -> Proposal:
    rules = Rules(modules=made.config.modules, max_tokens=500, lesson_tokens=100, repeats=False)
    return asyncio.run(asyncio.wait_for(made.propose(1, tasks, before, rules), timeout=30))


def version(text: str, **more: Any) -> list[Operation]:
    return [Operation(kind="modify", id="L1", text=f"{text}", **more)]


def best_of(*candidates, **more):
    """The choice of `Work.best`, and the runs that it made, as the batch's come first."""
    found: dict[str, Any] = {}

    async def choose(work: Work):
        found["before"], found["left"] = len(agent.runs), work.rollouts
        found["chosen"] = await work.best(candidates)
        found["after"] = work.rollouts
        return ()

    agent = Reader(fails=more.pop("fails", ""))
    propose(learner({"mine": choose}, agent=agent, **more))
    return found["chosen"], agent.runs[found["before"] :], found["left"] - found["after"]


# --- trying candidates ---


def test_the_candidate_that_earns_most_is_chosen_and_all_have_equal_rollouts_on_equal_tasks():
    low, high = version("{{tools}} Plan 0.3"), version("{{tools}} Plan 0.9")
    chosen, runs, used = best_of(low, high)
    assert chosen == high
    # 12 rollouts for three sides: each four tasks once.
    by_text = {text: sorted(task for task, shown in runs if shown == text) for _, text in runs}
    assert len(by_text) == 3
    assert len({tuple(tasks) for tasks in by_text.values()}) == 1
    assert {len(tasks) for tasks in by_text.values()} == {4}
    assert used == 12


def test_more_rollouts_than_tasks_repeat_all_tasks_equally():
    chosen, runs, used = best_of(version("{{tools}} Plan 0.9"), search_rollouts=27)
    assert chosen
    # 13 a side: each of six tasks twice; the odd ones are not used.
    assert (len(runs), used) == (24, 24)
    assert len({(task, text) for task, text in runs}) == 12


def test_texts_as_they_are_stay_where_no_candidate_earns_more():
    assert best_of(version("{{tools}} Plan 0.1"), version("{{tools}} Plan 0.0"))[0] == ()


def test_of_equal_candidates_the_shortest_is_chosen_and_of_equally_long_ones_the_first():
    long, short, other = (version(f"{{{{tools}}}} {text} 0.5") for text in ("Plan with much care", "Plan", "Pick"))
    assert best_of(long, short, other)[0] == short
    assert best_of(other, long, short)[0] == other
    # At equal worth a shorter text than the present one; a longer one is not worth it.
    assert best_of(version("{{tools}}"))[0] == version("{{tools}}")
    assert best_of(version("{{tools}} Plan with much care."))[0] == ()


def test_unsound_candidates_get_no_rollouts():
    chosen, runs, used = best_of(version("No places 0.9"), version(BASE), [], version("{{tools}} Plan 0.4"))
    assert chosen == version("{{tools}} Plan 0.4")
    assert len({text for _, text in runs}) == 2
    assert used == 12
    assert best_of(version("No places 0.9")) == ((), [], 0)


def test_of_a_candidate_its_sound_operations_are_tried():
    mixed = [*version("{{tools}} Plan 0.9"), Operation(kind="delete", id="L1"), Operation(kind="modify", id="L7")]
    chosen, runs, _ = best_of(mixed)
    assert chosen == mixed
    assert any(text.endswith("0.9") for _, text in runs)


@pytest.mark.parametrize("left", [0, 1])
def test_with_too_few_rollouts_the_first_sound_candidate_is_chosen_untried(left):
    chosen, runs, used = best_of(
        version("No places"), version("{{tools}} A 0.1"), version("{{tools}} B 0.9"), search_rollouts=left
    )
    assert (chosen, runs, used) == (version("{{tools}} A 0.1"), [], 0)


def test_failed_rollouts_do_not_count_as_a_reward_of_zero():
    chosen, _, _ = best_of(version("{{tools}} Plan 0.1"), version("{{tools}} Broken 0.9"), fails="Broken")
    assert chosen == ()


def test_playing_beyond_the_limit_is_refused_before_any_rollout():
    agent = Reader()

    async def greedy(work: Work):
        await work.play(work.lesson_set, work.tasks)
        await work.play(work.lesson_set, work.tasks, 2)

    with raises("proposer-limit", "'greedy' wants 12 rollouts, and has 6", "lessons.search_rollouts"):
        propose(learner({"greedy": greedy}, agent=agent))
    assert len(agent.runs) == 12 + 6


def test_every_play_has_seeds_and_trajectories_of_its_own():
    found = []

    async def twice(work: Work):
        for _ in range(2):
            found.extend(await work.play(work.lesson_set, work.tasks[:1], 2))
        return ()

    propose(learner({"a": twice, "b": twice}))
    seeds = [trajectory.seed for group in found for trajectory in group.trajectories]
    assert len(set(seeds)) == len(seeds) == 8


# --- asking ---


def test_a_prompt_is_asked_without_thoughts_and_again_where_nothing_is_said():
    replies = iter(["<think>hm</think>  ", "<think>hm</think> It is short. "])
    engine, said = ScriptedEngine(lambda request: next(replies)), []

    async def asks(work: Work):
        said.append(await work.ask("Shorten it."))
        return ()

    propose(learner({"mine": asks}, engine=engine))
    assert said == ["It is short."]
    assert [request.messages[0].content for request in engine.requests] == ["Shorten it."] * 2
    assert {request.role for request in engine.requests} == {"critic"}
    assert len({request.seed for request in engine.requests}) == 2


def test_a_model_that_never_says_anything_gives_an_empty_reply():
    async def asks(work: Work):
        assert await work.ask("Shorten it.") == ""
        return ()

    propose(learner({"mine": asks}, engine=ScriptedEngine(lambda request: " ")))


# --- several proposers ---


def plain(found: Proposal) -> list[Operation]:
    """The operations without the origins that they were given."""
    assert all(operation.origin.why.startswith("suggested by ") for operation in found.operations)
    return [operation.model_copy(update={"origin": LessonOrigin()}) for operation in found.operations]


def fixed(*operations: Operation):
    async def give(work: Work):
        return operations

    return give


def test_of_two_proposers_versions_of_one_text_the_better_is_kept_and_other_changes_stay():
    agent = Reader()
    lesson = Operation(kind="add", text="Look first.", module="planner")
    proposers = {"a": fixed(lesson, *version("{{tools}} A 0.4")), "b": fixed(*version("{{tools}} B 0.8"))}
    found = propose(learner(proposers, agent=agent))
    assert plain(found) == [lesson, *version("{{tools}} B 0.8")]
    # The batch, and 12 for the present text and two versions.
    assert len(agent.runs) == 12 + 12
    worse = {"a": fixed(*version("{{tools}} A 0.1")), "b": fixed(*version("{{tools}} B 0.0"))}
    assert propose(learner(worse)).operations == []


def test_lessons_of_two_proposers_are_not_tried_against_each_other():
    agent = Reader()
    adds = [Operation(kind="add", text=text, module="planner") for text in ("Look first.", "Ask twice.")]
    found = propose(learner({"a": fixed(adds[0]), "b": fixed(adds[1])}, agent=agent))
    assert (plain(found), len(agent.runs)) == (adds, 12)


def test_each_proposer_has_an_equal_number_of_rollouts_and_a_seed_of_its_own():
    seen = []

    async def look(work: Work):
        seen.append((work.name, work.rollouts, work.seed))
        work.rollouts = 0
        return Proposal(operations=(), unreadable=[f"{work.name} says so"], broken={work.name: "x"}, uniform=len(seen))

    found = propose(learner({"a": look, "b": look}))
    assert [(name, rollouts) for name, rollouts, _ in seen] == [("a", 12), ("b", 12)]
    assert len({seed for *_, seed in seen}) == 2
    assert (found.unreadable, found.broken, found.uniform) == (["a says so", "b says so"], {"a": "x", "b": "x"}, 2)


def test_where_nothing_is_graded_versions_are_not_tried_by_their_rewards():
    """With truth = "none" or lessons from a model alone no gold answer may choose: the first one is kept."""
    two = fixed(*version("{{tools}} A 0.4"), *version("{{tools}} B 0.8"))
    agent = Reader()
    made = learner({"reflection": two}, agent=agent, truth="none", proposers=["reflection"])
    assert plain(propose(made)) == version("{{tools}} A 0.4")
    assert len(agent.runs) == 12
    # The recipe's proposers, by which settings are checked, try nothing.
    assert not made.config.searching


def test_bounds_count_comparisons_of_versions_also_where_no_proposer_searches():
    def most(**settings):
        found = learner({"a": fixed()}, **settings).config.most_rollouts(BudgetConfig())
        return next((count for what, count in found.items() if what.startswith("trying")), 0)

    own = {"proposers": [{"type": f"{__file__}:nothing"}]}
    assert most(modules=["planner"], proposers=["reflection"]) == 0
    assert most(modules=["planner", PLACE], proposers=["reflection"]) == 12
    assert most(modules=["planner"], **own) == 12
    assert most(modules=["planner", PLACE, "tools.a"], **own) == 36


# --- failures, and runs that continue ---


async def nothing(work):
    """A proposer of a file."""
    return []


class Boom(Exception):
    """The process is gone."""


def test_after_a_failed_engine_no_rollout_and_no_request_is_repeated(tmp_path):
    agent, asked = Reader(), []
    broken = [True]

    def reply(request):
        asked.append(request.messages[0].content)
        if request.messages[0].content == "second" and broken[0]:
            raise EngineError("no answer", retryable=False)
        return f"{{{{tools}}}} {request.messages[0].content} 0.9"

    async def searches(work: Work):
        first = version(await work.ask("first"))
        await work.play(work.changed(first), work.tasks, 1)
        second = version(await work.ask("second"))
        return await work.best([first, second])

    def attempt():
        ledger = Ledger(tmp_path)
        try:
            return propose(learner({"mine": searches}, agent=agent, engine=ScriptedEngine(reply), ledger=ledger))
        finally:
            ledger.close()

    with pytest.raises(EngineError, match="no answer"):
        attempt()
    runs, requests = len(agent.runs), len(asked)
    assert runs == 12 + 6
    scopes = {line.split('"set":"')[1].split('"')[0] for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()}
    assert scopes == {"step-1", "try-1-mine-1"}
    broken[0] = False
    found = attempt()
    assert len(agent.runs) == runs + 6
    assert asked[requests:] == ["second"]
    assert plain(found) == version("{{tools}} first 0.9")


# --- proposers of your own ---

OWN = """
from midstream.lessons.operations import Operation
from midstream.lessons.proposer import Proposal


async def lesson(work, text: str = "Look first."):
    return [Operation(kind="add", text=f"{text} {len(work.groups)}", module="planner")]


def plain(work):
    return []


async def silent(work):
    pass


def raises(work):
    raise ValueError("no idea")


class Shorter:
    def __init__(self, to: int = 4):
        self.to = to

    async def propose(self, work):
        found = next(each for each in work.lesson_set.lessons if each.module == "planner.prompt")
        change = Operation(kind="modify", id=found.id, text="{{tools}}"[: self.to * 9])
        return Proposal(operations=await work.best([[change]]), unreadable=["one"])


class NoProposer:
    def __init__(self):
        self.x = 1
"""


@pytest.fixture
def own(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN, encoding="utf-8")
    return path


def built(own: Path, name: str, **settings):
    component = parse_component("proposer", {"type": f"{own}:{name}", **settings}, "lessons.proposers.0")
    return component.config.build(None)


def with_own(own, name, **settings):
    made = learner({})
    made.proposers = {"mine": built(own, name, **settings)}
    return propose(made)


def test_a_function_of_a_file_is_a_proposer_with_settings(own):
    [found] = with_own(own, "lesson").operations
    assert found.text == "Look first. 6"
    [found] = with_own(own, "lesson", text="Ask.").operations
    assert found.text == "Ask. 6"
    assert with_own(own, "plain").operations == with_own(own, "silent").operations == []


def test_a_class_of_a_file_is_a_proposer_with_settings(own):
    found = with_own(own, "Shorter", to=1)
    assert [(one.id, one.text) for one in found.operations] == [("L1", "{{tools}}")]
    assert found.unreadable == ["one"]


def test_what_a_proposer_of_your_own_raises_is_its_own_error(own):
    with raises("component-failed", "proposer", "raised ValueError: no idea", "mine.py"):
        with_own(own, "raises")


def test_what_is_no_proposer_is_refused(own):
    with raises("component-invalid", "NoProposer"):
        built(own, "NoProposer")


def test_an_update_with_a_proposer_changes_the_set_and_records_it():
    made = learner({"mine": fixed(*version("{{tools}} Plan 0.9"), Operation(kind="delete", id="L1"))})
    start = START.model_copy(update={"lessons": (*START.lessons, Lesson(id="L2", text="Act."))})
    found = asyncio.run(asyncio.wait_for(made.update(1, start, (), 2, Approvals()), timeout=30))
    assert render_modules(found.lesson_set) == {PLACE: "{{tools}} Plan 0.9", "planner": "- Act."}
    assert [bool(outcome.refused) for outcome in found.record.proposed] == [False, True]
    assert [(lesson.id, lesson.used) for lesson in found.lesson_set.lessons] == [("L1", 0), ("L2", 12)]


def test_without_a_result_of_the_texts_as_they_are_no_candidate_is_chosen():
    class Failing(Runner):
        """Loses every reward of the texts as they are."""

        async def groups(self, scope, tasks, lesson_set, group_size):
            found = await super().groups(scope, tasks, lesson_set, group_size)
            if lesson_set.rendered:
                return found
            return [
                replace(
                    group, trajectories=tuple(one.model_copy(update={"reward": None}) for one in group.trajectories)
                )
                for group in found
            ]

    async def proposed(work):
        work.runner = Failing(**vars(work.runner))
        return await work.best([version("{{tools}} A 0.9")])

    assert propose(learner({"mine": proposed})).operations == []
