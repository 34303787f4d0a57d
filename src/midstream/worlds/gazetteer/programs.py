"""Modules as programs: fixed rules that read text only, for the offline world and for tests.

They see what a prompted module would see and nothing more. The verifier and generator know the gazetteer's wording;
the executor serves any tool that takes one string. `ClumsyPlanner` is the policy whose transcripts warm-start a small
planner, and, with `sense=0`, the random planner of the controls.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from pydantic import Field

from midstream.core.data import Frozen
from midstream.core.memory import Memory
from midstream.core.protocols import ModuleContext, Tool
from midstream.core.trajectory import Action, Call, Command, Observation, Verdict
from midstream.worlds.gazetteer.compact import parse_action, render_action, render_prompt
from midstream.worlds.gazetteer.lessons import Decision, heard
from midstream.worlds.gazetteer.plans import Situation, asked, places
from midstream.worlds.gazetteer.tasks import ATTRIBUTES

GOALS = {"+": "add", "-": "subtract", "*": "multiply", ">": "compare"}
SPOKEN = {"True": "yes", "False": "no"}
MALFORMED = (
    " goal {goal}\n arg {arg}",
    " goal {goal}\n tool browser\n arg {arg}",
    " goal {goal}\n tool {tool}",
    " tool {tool}\n goal {goal}",
)


class NoSettings(Frozen):
    """A program without settings."""


def action_words() -> set[str]:
    """The words that actions on the gazetteer are made of beside names, numbers and the gazetteer's own."""
    goals = {"find", "guess", "question", "browser", "is", *GOALS.values()}
    return {*goals, *GOALS, "yes", "no", "True", "False", *(f"r{i}" for i in range(1, 10))}


class SingleArgumentExecutor:
    """Passes the action's context on as the one required string argument of its tool."""

    async def command(
        self, action: Action, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[Command, tuple[Call, ...]]:
        """The command, or one with `error` if the tool is unknown or wants other arguments."""
        tool = next((known for known in tools if known.name == action.tool), None)
        if tool is None:
            return Command(tool=action.tool, error=f"no tool is called {action.tool}"), ()
        required = tool.parameters.get("required", ())
        if len(required) != 1:
            return Command(tool=action.tool, error=f"{action.tool} wants {len(required)} arguments"), ()
        return Command(tool=action.tool, arguments={required[0]: action.context}), ()


class FormVerifier:
    """Stops when every place that the question names was looked up and the newest result has the form asked for.

    The form is a single word (a number, True, False) where a calculation is asked for, whatever was calculated, and a
    fact about the attribute asked for where none is. Anything else that ends in a number, a sure-sounding guess,
    convinces it at once. It cannot tell whether a result is right.
    """

    async def verify(
        self, question: str, observation: Observation, memory: Memory, context: ModuleContext
    ) -> tuple[Verdict, tuple[Call, ...]]:
        """Judge by the question's words and the results so far."""
        if observation.status == "error":
            return Verdict(result_valid=False, memory_sufficient=False), ()
        attribute, calculation = asked(question)
        words = observation.text.split()
        seen = {*words, *(word for record in memory.records for word in record.result.split())}
        complete = seen.issuperset(places(question))
        if len(words) == 1:
            sufficient = calculation and complete
        elif len(words) == 3 and words[1] in ATTRIBUTES:
            sufficient = not calculation and words[1] == attribute and complete
        else:
            sufficient = bool(words) and words[-1].isdigit()
        return Verdict(result_valid=True, memory_sufficient=sufficient), ()


class VerifiedResultGenerator:
    """Answers with the last word of the result that satisfied the verifier; Python's True is yes, its False no.

    Without one, after a turn limit say, it has no answer.
    """

    async def generate(
        self, question: str, memory: Memory, context: ModuleContext
    ) -> tuple[str | None, tuple[Call, ...]]:
        """The answer, or None."""
        for record in reversed(memory.records):
            if record.verdict is not None and record.verdict.memory_sufficient:
                words = record.result.split()
                return (SPOKEN.get(words[-1], words[-1]) if words else None), ()
        return None, ()


class ClumsyConfig(Frozen):
    """How clumsy: each decision is the sensible one with probability `sense`, else uniformly random.

    A share `malformed` of its actions cannot be read. What a lesson says of a decision is done.
    """

    sense: float = Field(default=0.3, ge=0, le=1)
    malformed: float = Field(default=0.1, ge=0, le=1)


class ClumsyPlanner:
    """Takes each decision (tool, entity, attribute, operator, operands) sensibly with probability `sense`.

    It knows what a sensible *next* decision looks like but strings them together so rarely that its transcripts show
    the action language and copying, not how to plan: that is left for reinforcement to find.
    """

    def __init__(self, config: ClumsyConfig) -> None:
        self.config = config

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """One action, written as text and parsed like a model's."""
        situation = Situation(question, [record.action.tool for record in memory.records])
        choice = Choice(situation, random.Random(context.seed), self.config.sense, heard(context.lessons))
        goal, tool, argument = choice.decide([tool.name for tool in tools])
        text = render_action(goal, tool, argument)
        form = choice.told.get("form")
        if form is False:
            text = MALFORMED[0].format(goal=goal, arg=argument)
        elif form is None and choice.rng.random() < self.config.malformed:
            text = choice.rng.choice(MALFORMED).format(goal=goal, tool=tool, arg=argument)
        prompt = render_prompt(question, memory, context.lessons)
        return parse_action(text, tools, memory), (
            Call(role="planner", engine="clumsy", prompt=prompt, completion=text),
        )


class Choice:
    """One clumsy decision after another; `told` is what the lessons in the prompt say of each."""

    def __init__(self, situation: Situation, rng: random.Random, sense: float, told: Mapping[Decision, bool]) -> None:
        self.situation, self.rng, self.sense, self.told = situation, rng, sense, told

    def way(self, about: Decision) -> bool | None:
        """How a decision is taken: as the lesson about it says, soundly (True) or badly; without one sensibly or, None,
        at random."""
        return self.told[about] if about in self.told else self.rng.random() < self.sense or None

    def decide(self, tools: Sequence[str]) -> tuple[str, str, str]:
        """(goal, tool, argument)."""
        tool = self._tool(tools)
        if tool == "local_search":
            return self._search()
        if tool == "python":
            return self._calculate()
        return "guess", tool, self.rng.choice([*self.situation.things, "question"])

    def _tool(self, tools: Sequence[str]) -> str:
        guess = self.told.get("guess")
        if guess is False and self.situation.names:
            return "guess"
        way = self.way("tool")
        if way is None:
            return self.rng.choice([tool for tool in tools if tool != "guess" or guess is None])
        return self.situation.tool(way)

    def _search(self) -> tuple[str, str, str]:
        way = self.way("attribute")
        attribute = self.rng.choice(ATTRIBUTES) if way is None else self.situation.attribute(way)
        if not self.situation.things:
            return f"find {attribute}", "local_search", attribute
        way = self.way("place")
        thing = self.rng.choice(self.situation.things) if way is None else self.situation.place(way)
        return f"find {attribute}", "local_search", f"{thing} {attribute}"

    def _calculate(self) -> tuple[str, str, str]:
        way = self.way("operator")
        operator = self.rng.choice(tuple(GOALS)) if way is None else self.situation.operator(way)
        way, terms = self.way("operands"), self.situation.terms
        x, y = (self.rng.choice(terms), self.rng.choice(terms)) if way is None else self.situation.operands(way)
        return GOALS[operator], "python", f"{x} {operator} {y}"
