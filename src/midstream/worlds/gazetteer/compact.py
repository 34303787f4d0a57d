"""A compact language for very small planners: short action lines, one line of memory a turn.

    Question How high is Amberbank plus 7 ?
    r1 local_search = height 105
    r2 plan goal add
     tool python
     arg r1 + 7

Memory shows the last two words of a result; `r1` in an argument stands for the last word of result 1 and is replaced
before the executor sees the action. Lessons, where there are any, stand before the question, a line each. A language
model of usual size uses `agents.prompted` instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from midstream.core.data import Frozen
from midstream.core.memory import Memory, MemoryRecord
from midstream.core.protocols import ModuleContext, Request, Tool
from midstream.core.trajectory import Action, Call, Sampling

ACTION = re.compile(r" goal ([^\n]+)\n tool (\w+)\n arg ([^\n]+)")
REFERENCE = re.compile(r"\br(\d+)\b")
WORDS = ("Question", "plan", "goal", "tool", "arg", "malformed", "error", "=")


def render_prompt(question: str, memory: Memory, lessons: str = "") -> str:
    """Lessons and the query first, then append-only memory, then a tail of two words."""
    head = f"{lessons}\n" if lessons else ""
    lines = "".join(f"\nr{record.turn} {_line(record)}" for record in memory.records)
    return f"{head}Question {question}{lines}\nr{len(memory) + 1} plan"


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
    values = {str(record.turn): _value(record) for record in memory.records}
    missing = next((ref for ref in REFERENCE.findall(argument) if not values.get(ref)), None)
    if missing is not None:
        return Action(sub_goal=goal, tool=tool, context=argument, error=f"r{missing} names no result")
    return Action(sub_goal=goal, tool=tool, context=REFERENCE.sub(lambda m: values[m[1]], argument))


class Config(Frozen):
    """How the planner samples; an action of the offline world takes at most 20 tokens."""

    sampling: Sampling = Sampling(temperature=1.0, max_tokens=20)


class CompactPlanner:
    """The planner as an engine with the compact prompt."""

    shows_lessons = True

    def __init__(self, config: Config) -> None:
        self.sampling = config.sampling

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """Ask the engine for one action."""
        assert context.engine is not None, "recipe/build.py gives every prompted module an engine"
        call = await context.engine.sample(
            Request(
                role="planner",
                prompt=render_prompt(question, memory, context.lessons),
                sampling=self.sampling,
                seed=context.seed,
                order=context.order,
                deadline_s=context.deadline_s,
                tell=context.tell,
            )
        )
        context.tell("call", call)
        return parse_action(call.completion, tools, memory), (call,)


def _line(record: MemoryRecord) -> str:
    tool = record.action.tool or "malformed"
    return f"{tool} = error" if record.error else f"{tool} = {' '.join(record.result.split()[-2:])}"


def _value(record: MemoryRecord) -> str:
    words = record.result.split()
    return words[-1] if words and not record.error else ""
