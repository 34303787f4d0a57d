"""Endless stateful tasks at the desks: dialogues with a user, with exact checks of the state.

Every task is made from a seed. Its split is a hash of all that its user says, so that no dialogue of one split can
occur in another; with `apart = "plans"`, of the functions that its plan calls, in their order, so that no such sequence
can. A task's metadata is its plan (`dialogue.Plan`): the desks in their first state, user turns and the
calls that do what they ask; `question` is all that the user says, `answer` the planned calls, both for people.

    base                 every turn asks for one or more goals in full
    missing_parameters   one turn leaves a value out; the agent should ask, and the next turn gives it
    missing_functions    one turn wants a function that is not offered; the next turn brings it
    long_context         base, and every result comes with thousands of characters of other things
    composite            all three

A plan is drawn goal by goal on desks that execute it, so every goal is possible when it is wanted, and later calls
build on the results of earlier ones ("find the file and read it"). In a plan that is `tight`, no call can be left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import ClassVar, Literal

from pydantic import Field, ValidationError

from midstream.components.component import Context, TasksConfig
from midstream.core.data import Settings
from midstream.core.errors import RecipeError
from midstream.core.seeds import Seed, derive_seed
from midstream.core.task import Task
from midstream.rollout import Environment, rollout
from midstream.runs.budget import require_within_budget
from midstream.sources.finite import check_known
from midstream_worlds.desks import agent, tiny
from midstream_worlds.desks.desk import Goal, State, Values
from midstream_worlds.desks.dialogue import DESKS, GOALS, DeskDialogue, Plan, PlannedCall, PlannedTurn, Room, replay
from midstream_worlds.endless import Endless
from midstream_worlds.simulated import Reply
from midstream_worlds.tiny_model import TinyWorld, Vocabulary

CATEGORIES = ("base", "missing_parameters", "missing_functions", "long_context", "composite")
SPLITS = {"train": range(67), "validation": range(67, 80), "test": range(80, 100)}  # of 100 tasks
LONG = 6000  # characters of noise in each result of a long context

_FIRST_WORDS = ("", "", "Hello. ", "Please help me. ", "Good morning. ")
_NEXT_WORDS = ("", "", "Thank you. ", "Next. ", "Good. ", "Now the next thing. ")
_JOINING = (" ", " Then: ", " After that: ", " And one more thing. ")
_BROUGHT = (
    "You have the function {name} from now on, so please do what I asked for.",
    "Sorry, now {name} is there as well. Please continue with that.",
)


class Difficulty(Settings):
    """Size of a plan: desks, user turns (without those that only complete another), goals of one turn."""

    desks: int
    turns: tuple[int, int]
    goals: tuple[int, int]


DIFFICULTIES = {
    "easy": Difficulty(desks=1, turns=(1, 2), goals=(1, 1)),
    "standard": Difficulty(desks=1, turns=(2, 3), goals=(1, 2)),
    "hard": Difficulty(desks=2, turns=(3, 5), goals=(2, 3)),
}


class Desks(TinyWorld, Endless):
    """A `core.source.TaskSource` of dialogues (`Dialogues`), and a `TrainableWorld`."""

    splits = SPLITS

    def __init__(self, config: DesksConfig) -> None:
        self.config = config
        super().__init__(
            "the world of desks",
            known=CATEGORIES,
            families=config.families,
            sampled=("desk tasks", config.seed),
            fixed=("desk set", config.seed),
        )
        check_known("desk", config.desks, DESKS, self.what, "correct `desks` in [tasks] or in the evaluation set")

    def play(self, role: str, skill: float, context: Context) -> Reply:
        """The program that plays the agent, in the template of the recipe's agent."""
        assert context.template is not None
        return agent.agent_reply(context.template, skill)

    def vocabulary(self, context: Context) -> Vocabulary:
        """All that user and agent say."""
        assert context.template is not None
        return tiny.vocabulary(self.config.desks, context.template, (*_FIRST_WORDS, *_NEXT_WORDS, *_JOINING, *_BROUGHT))

    async def warm_rate(self, environment: Environment, tasks: Sequence[Task], seed: int) -> tuple[float, str]:
        """Of all calls in the validation dialogues, the share that a desk carried out."""
        groups = await rollout(environment, tasks, seed=seed)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        require_within_budget(trajectories)
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        carried_out = [turn.observation.status == "ok" for turn in turns if turn.observation]
        return sum(carried_out) / max(1, len(carried_out)), "share of calls that a desk carried out"

    def open(self, task: Task, *, seed: int) -> DeskDialogue:
        """Open a dialogue of a task, with separate desks. `seed` is ignored: this user has a plan."""
        try:
            return DeskDialogue(Plan.model_validate(task.metadata))
        except (ValidationError, KeyError) as error:
            raise RecipeError(
                f"task {task.id!r} holds no plan for the desks", code="foreign-task", fix='take tasks of type = "desks"'
            ) from error

    def make(self, split: str, family: str, draws: Random, task_id: str) -> Task:
        """Draw one plan."""
        while True:
            plan = make_plan(family, self.config.difficulty, self.config.desks, draws)
            question = "\n".join(turn.user for turn in plan.turns)
            functions = " ".join(call.name for turn in plan.turns for call in turn.calls)
            whole = functions if self.config.apart == "plans" else question
            if derive_seed("desk split", whole) % 100 in SPLITS[split] and tight(plan):
                break
        answer: list[str] = []  # for people: the planned calls, one user turn a line
        for turn in plan.turns:
            calls = [
                f"{call.name}({', '.join(f'{name}={json.dumps(value)}' for name, value in call.arguments.items())})"
                for call in turn.calls
            ]
            answer.append(", ".join(calls) or "(asks)")
        metadata = plan.model_dump(mode="json")
        return Task(id=task_id, question=question, answer="\n".join(answer), family=family, metadata=metadata)


class DesksConfig(TasksConfig):
    """Endless dialogues at two simulated desks, a vehicle and a file cabinet, with functions to call.

    Attributes:
        families: categories: in `missing_parameters` the user leaves out a value, in `missing_functions` a function
            arrives later, in `long_context` results are long, `composite` has all three
        desks: the desks of the tasks
        difficulty: `easy`: one or two user turns of one goal; `standard`: two or three, of up to two goals; `hard`:
            three to five, of two or three goals, at two desks
        apart: what no two splits have in common: `dialogues`, all that the user says, or `plans`, the functions to be
            called, in their order
        seed: the world's seed
    """

    endless = True
    dialogues = True
    plays: ClassVar[tuple[str, ...]] = ("agent",)
    teacher = "desk_agent"
    component = Desks

    families: tuple[str, ...] = Field(default=CATEGORIES, min_length=1)
    desks: tuple[str, ...] = Field(default=tuple(DESKS), min_length=1)
    difficulty: Literal["easy", "standard", "hard"] = "standard"
    apart: Literal["dialogues", "plans"] = "dialogues"
    seed: Seed = 0


# --- plans ------------------------------------------------------------------------------------------------------------


class _Infeasible(Exception):
    """No such goal is possible in this state: the plan is drawn again from the start."""


def make_plan(category: str, difficulty: str, desks: Sequence[str], draws: Random) -> Plan:
    """Make a plan of one category, on some of `desks`; the same for the same state of `draws`."""
    size = DIFFICULTIES[difficulty]
    while True:
        chosen = draws.sample(list(desks), min(size.desks, len(desks)))
        states = {name: DESKS[name].stocked(draws).state() for name in chosen}
        try:
            turns = _Draft(states, draws).write(category, size)
        except _Infeasible:
            continue
        return Plan(desks=states, turns=turns, long=LONG if category in ("long_context", "composite") else 0)


def tight(plan: Plan) -> bool:
    """Whether its calls are a success, and are not where any one of them is left out."""
    success = replay(plan, [turn.calls for turn in plan.turns])["success"]
    return bool(success) and not any(replay(plan, calls)["success"] for calls in without_one(plan))


def without_one(plan: Plan) -> Iterator[list[list[PlannedCall]]]:
    """Yield the plan's calls turn by turn, each time without another one; without the last call at the end."""
    for i, turn in enumerate(plan.turns):
        for j in range(len(turn.calls)):
            calls = [list(turn.calls) for turn in plan.turns]
            del calls[i][j]
            yield calls


class _Draft:
    """A plan in progress, on a room that executes it."""

    def __init__(self, states: Mapping[str, State], draws: Random) -> None:
        self.room, self.draws = Room(states), draws
        self.goals = [(desk, goal) for desk in states for goal in GOALS[desk]]
        self.seen: State = {}
        self.turns: list[PlannedTurn] = []

    def write(self, category: str, size: Difficulty) -> tuple[PlannedTurn, ...]:
        """Write all user turns; the special ones of the category are at random places."""
        draws = self.draws
        count = draws.randint(*size.turns)
        kinds: list[str] = [""] * count
        special = [kind for kind in ("missing_parameters", "missing_functions") if category in (kind, "composite")]
        for place, kind in zip(draws.sample(range(count), min(len(special), count)), special, strict=False):
            kinds[place] = kind
        if len(special) > count:
            kinds.append(special[-1])
        for kind in kinds:
            if kind == "missing_parameters":
                self.missing_parameter()
            elif kind == "missing_functions":
                self.missing_function()
            else:
                self.in_full(draws.randint(*size.goals))
        return tuple(self.turns)

    def in_full(self, count: int) -> None:
        """Add a turn of goals that are asked for in full."""
        texts: list[str] = []
        calls: list[PlannedCall] = []
        for _ in range(count):
            goal, values = self.choose(self.goals)
            calls += self.execute(goal, values)
            texts.append(self.draws.choice(goal.texts).format(**values))
        self.ask(texts[0] + "".join(self.draws.choice(_JOINING) + text for text in texts[1:]), calls)

    def missing_parameter(self) -> None:
        """Add a turn that leaves a value out, and one that gives it."""
        goal, values = self.choose([(desk, goal) for desk, goal in self.goals if goal.vague])
        text, then = self.draws.choice(goal.vague)
        self.ask(text.format(**values), ())
        self.say(then.format(**values), self.execute(goal, values))

    def missing_function(self) -> None:
        """Add a turn that wants a function which was not offered from the start, and one that brings it."""
        used = {call.name for turn in self.turns for call in turn.calls}
        goal, values = self.choose([(desk, goal) for desk, goal in self.goals if goal.hold and goal.hold not in used])
        self.ask(self.draws.choice(goal.texts).format(**values), ())
        self.turns = [turn.model_copy(update={"withheld": (goal.hold,)}) for turn in self.turns]
        self.say(self.draws.choice(_BROUGHT).format(name=goal.hold), self.execute(goal, values))

    def choose(self, goals: Sequence[tuple[str, Goal]]) -> tuple[Goal, Values]:
        """Draw one of these goals that is possible in this state, and its values."""
        for desk, goal in self.draws.sample(goals, len(goals)):
            values = goal.draw(self.room.desks[desk], self.draws)
            if values is not None:
                return goal, values
        raise _Infeasible("no goal is left")

    def execute(self, goal: Goal, values: Values) -> list[PlannedCall]:
        """Make a goal's calls."""
        made: list[PlannedCall] = []
        for step in goal.steps:
            call = PlannedCall(name=step.function, arguments=step.fill(values, self.seen))
            result = self.room.call(call.name, call.arguments)
            if "error" in result:
                raise _Infeasible(f"{goal.texts[0]}: {result['error']}")
            self.seen.update(result)
            made.append(call)
        return made

    def ask(self, text: str, calls: Sequence[PlannedCall]) -> None:
        """Add a user turn that wants something new."""
        self.say(self.draws.choice(_NEXT_WORDS if self.turns else _FIRST_WORDS) + text, calls)

    def say(self, text: str, calls: Sequence[PlannedCall]) -> None:
        """Add a user turn."""
        self.turns.append(PlannedTurn(user=text, calls=tuple(calls)))
