"""A compact language for very small planners: short action lines, one line of memory a turn.

    Question How high is Amberbank plus 7 ?
    r1 local_search = height 105
    r2 plan goal add
     tool python
     arg r1 + 7

Memory shows the last two words of a result; `r1` in an argument stands for the last word of result 1 and is replaced
before the executor sees the action. Lessons, if any, precede the question, a line each. A language model of usual size
uses `agents.prompted` instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from midstream.core.component import ComponentConfig
from midstream.core.protocols import ModuleContext, Request, Tool
from midstream.core.trajectory import Action, Call, Memory, Sampling

ACTION = re.compile(r" goal ([^\n]+)\n tool (\w+)\n arg ([^\n]+)")
REFERENCE = re.compile(r"\br(\d+)\b")
WORDS = ("Question", "plan", "goal", "tool", "arg", "malformed", "error", "=")


def render_prompt(question: str, memory: Memory, lessons: str = "") -> str:
    """Lessons and the query first, then append-only memory, then a tail of two words."""
    text = f"{lessons}\nQuestion {question}" if lessons else f"Question {question}"
    for record in memory.records:
        result = "error" if record.error else " ".join(record.result.split()[-2:])
        text += f"\nr{record.turn} {record.action.tool or 'malformed'} = {result}"
    return f"{text}\nr{len(memory) + 1} plan"


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
    # A reference stands for the last word of a result; a turn without a result has no value.
    results = {str(record.turn): record.result.split() for record in memory.records if not record.error}
    values = {turn: words[-1] for turn, words in results.items() if words}
    missing = next((reference for reference in REFERENCE.findall(argument) if reference not in values), None)
    if missing is not None:
        return Action(sub_goal=goal, tool=tool, context=argument, error=f"r{missing} names no result")
    return Action(sub_goal=goal, tool=tool, context=REFERENCE.sub(lambda m: values[m[1]], argument))


class CompactPlanner:
    """The planner as an engine with the compact prompt."""

    shows_lessons = True

    def __init__(self, config: CompactConfig) -> None:
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


class CompactConfig(ComponentConfig):
    """A model that plans in the compact language of the offline world.

    An action takes at most 20 tokens.

    Attributes:
        sampling: see `sampling`
    """

    asks = "always"
    component = CompactPlanner

    sampling: Sampling = Sampling(temperature=1.0, max_tokens=20)
