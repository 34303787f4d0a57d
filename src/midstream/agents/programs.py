"""Modules as programs: fixed rules that read text only, for the offline world and for tests.

They see what a prompted module would see and nothing more. The verifier and generator know the gazetteer's wording;
the executor serves any tool that takes one string. `ClumsyPlanner` is the policy whose transcripts warm-start a small
planner, and, with `sense=0`, the random planner of the controls.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pydantic import Field

from midstream.agents.compact import parse_action, render_action, render_prompt
from midstream.core.data import Frozen
from midstream.core.memory import Memory
from midstream.core.protocols import ModuleContext, Tool
from midstream.core.trajectory import Action, Call, Command, Observation, Verdict
from midstream.tasks.worlds.gazetteer import ATTRIBUTES, PLACE_ATTRIBUTES

ADJECTIVES = {
    "people": "population",
    "large": "area",
    "larger": "area",
    "high": "height",
    "higher": "height",
    "long": "length",
}
CALCULATION_WORDS = {"plus", "minus", "times", "total", "together", "than"}
GOALS = {"+": "add", "-": "subtract", "*": "multiply", ">": "compare"}
SPOKEN = {"True": "yes", "False": "no"}
MALFORMED = (
    " goal {goal}\n arg {arg}",
    " goal {goal}\n tool browser\n arg {arg}",
    " goal {goal}\n tool {tool}",
    " tool {tool}\n goal {goal}",
)


def places(question: str) -> list[str]:
    """The places that a question names: its capitalised words but the first."""
    return [word for word in question.split()[1:] if word[0].isupper()]


class NoSettings(Frozen):
    """A program without settings."""


def action_words() -> set[str]:
    """The words that actions on the gazetteer are made of beside names, numbers and the gazetteer's own."""
    goals = {"find", "guess", "question", "browser", "is", *GOALS.values()}
    return {*goals, *GOALS, "yes", "no", "True", "False", *(f"r{i}" for i in range(1, 10))}


def asked(question: str) -> tuple[str | None, bool]:
    """What a question wants, from its words alone: the attribute asked for, and whether a calculation is."""
    words = question.split()
    noun = next((word for word in words if word in (*PLACE_ATTRIBUTES, "length")), None)
    attribute = noun or next((ADJECTIVES[word] for word in words if word in ADJECTIVES), None)
    return attribute, not CALCULATION_WORDS.isdisjoint(words)


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
    """How clumsy: each decision is the sensible one with probability `sense`, else uniformly random."""

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
        choice = _Choice(question, memory, random.Random(context.seed), self.config.sense)
        goal, tool, argument = choice.decide([tool.name for tool in tools])
        text = render_action(goal, tool, argument)
        if choice.rng.random() < self.config.malformed:
            text = choice.rng.choice(MALFORMED).format(goal=goal, tool=tool, arg=argument)
        call = Call(role="planner", engine="clumsy", prompt=render_prompt(question, memory), completion=text)
        return parse_action(text, tools, memory), (call,)


class _Choice:
    """One clumsy decision; holds what can be read off the question and memory."""

    def __init__(self, question: str, memory: Memory, rng: random.Random, sense: float) -> None:
        self.rng, self.sense = rng, sense
        self.words = question.split()
        self.attribute, _ = asked(question)
        self.names = places(question)
        self.numbers = [word for word in self.words if word.isdigit()]
        self.slots = [f"r{record.turn}" for record in memory.records]
        self.found = sum(record.action.tool == "local_search" for record in memory.records)
        self.relation = next((word for word in ("capital", "river") if word in self.words), None)

    def sensible(self) -> bool:
        return self.rng.random() < self.sense

    def decide(self, tools: Sequence[str]) -> tuple[str, str, str]:
        """(goal, tool, argument)."""
        needed = 2 if self.relation else len(self.names)
        tool = ("local_search" if self.found < needed else "python") if self.sensible() else self.rng.choice(tools)
        if tool == "local_search":
            return self._search()
        if tool == "python":
            return self._calculate()
        return "guess", tool, self.rng.choice([*self.names, *self.slots, "question"])

    def _search(self) -> tuple[str, str, str]:
        sensible = self.relation if self.relation and not self.found else self.attribute or "area"
        attribute = sensible if self.sensible() else self.rng.choice(ATTRIBUTES)
        things = [*self.names, *self.slots]
        if not things:
            return f"find {attribute}", "local_search", attribute
        wanted = self.slots if self.relation and self.slots else self.names[self.found :]
        thing = (wanted or things)[0] if self.sensible() else self.rng.choice(things)
        return f"find {attribute}", "local_search", f"{thing} {attribute}"

    def _calculate(self) -> tuple[str, str, str]:
        operator = self._operator() if self.sensible() else self.rng.choice(tuple(GOALS))
        things = [*self.slots, *self.numbers] or ["r1"]
        x, y = (things[0], things[-1]) if self.sensible() else (self.rng.choice(things), self.rng.choice(things))
        return GOALS[operator], "python", f"{x} {operator} {y}"

    def _operator(self) -> str:
        signs = {"plus": "+", "total": "+", "together": "+", "times": "*", "Is": ">", "Do": ">"}
        return next((signs[word] for word in self.words if word in signs), "-")
