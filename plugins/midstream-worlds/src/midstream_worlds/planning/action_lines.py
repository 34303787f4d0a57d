"""Action lines, a language for very small planners: short lines for an action, one line of memory a turn.

    Question What is the total height of = and = and Mistvale ?
    local_search = height 105
    local_search = height 33
    plan goal add
     tool python
     arg r2 + r1

Memory shows the last two words of a result. References in an argument stand for the last word of a result: `r1` for the
newest value, `r2` for the value before, `n1` for the newest name, such as the capital of Amberbank. Each is replaced
before the executor sees the action. What a result names is written "=" in the question: this is part of the memory's
update, so a planner need not compare names to know what is left (measured in studies/depth.md). Lessons, if any,
precede the question, a line each. A language model of usual size uses `agents.prompted` instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from midstream.components.component import ComponentConfig
from midstream.core.agent import ModuleContext
from midstream.core.engine import Request
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Call, Memory, Sampling
from midstream_worlds.planning.words import names, names_left, references

ACTION = re.compile(r" goal ([^\n]+)\n tool (\w+)\n arg ([^\n]+)")
REFERENCE = re.compile(r"\b[rn]\d+\b")
WORDS = ("Question", "goal", "tool", "arg", "error", "=")
BARE = ("plan", "malformed")  # they begin a line


def render_prompt(question: str, memory: Memory, lessons: str = "") -> str:
    """Lessons and the query first, then memory, then a tail of one word."""
    found = {*names(question)} - {*names_left(question, [record.result for record in memory.records])}
    marked = " ".join("=" if word in found else word for word in question.split())
    text = f"{lessons}\nQuestion {marked}" if lessons else f"Question {marked}"
    for record in memory.records:
        result = "error" if record.error else " ".join(record.result.split()[-2:])
        text += f"\n{record.action.tool or 'malformed'} = {result}"
    return f"{text}\nplan"


def render_action(goal: str, tool: str, argument: str) -> str:
    """The text that `parse_action` reads."""
    return f" goal {goal}\n tool {tool}\n arg {argument}"


def parse_action(text: str, tools: Sequence[Tool], memory: Memory) -> Action:
    """Total: any text gives an action, a malformed one with `error`. References are replaced by their values."""
    match = ACTION.fullmatch(text)
    if match is None:
        return Action(error="not of the form goal / tool / arg")
    goal, tool, argument = match.groups()
    if tool not in {known.name for known in tools}:
        return Action(sub_goal=goal, error=f"no tool is called {tool}")
    results = [words for record in memory.records if not record.error and (words := record.result.split())]
    values = {name: words[-1] for name, words in zip(references(results), results, strict=True)}
    missing = next((reference for reference in REFERENCE.findall(argument) if reference not in values), None)
    if missing is not None:
        return Action(sub_goal=goal, tool=tool, context=argument, error=f"{missing} names no result")
    return Action(sub_goal=goal, tool=tool, context=REFERENCE.sub(lambda m: values[m[0]], argument))


class ActionLinesPlanner:
    """The planner as an engine that writes action lines."""

    shows_lessons = True

    def __init__(self, config: ActionLinesConfig) -> None:
        self.sampling = config.sampling

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """Ask the engine for one action."""
        prompt = render_prompt(question, memory, context.lessons)
        request = Request(role="planner", prompt=prompt, sampling=self.sampling, seed=context.seed)
        call = await context.sample(request)
        context.emit("call", call)
        return parse_action(call.completion, tools, memory), (call,)


class ActionLinesConfig(ComponentConfig):
    """A model that plans in the action lines of the offline world.

    An action takes at most 15 tokens.

    Attributes:
        sampling: see `sampling`
    """

    asks = "always"
    component = ActionLinesPlanner

    sampling: Sampling = Sampling(temperature=1.0, max_tokens=20)
