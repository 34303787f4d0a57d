"""The fixed cases of `midstream doctor`, and what counts as right in each.

The functions in `ASK` put a case to a role's real module and mark what it makes of the reply. A reply that cannot be
used passes no check: nobody gets credit for what a module says in its place.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from pydantic import JsonValue

from midstream.agents.formats import parse_verdict
from midstream.agents.interleaved import Interleaved
from midstream.core.data import Frozen
from midstream.core.errors import EngineError, PromptTooLongError, UnsupportedError
from midstream.core.memory import Memory, MemoryRecord
from midstream.core.protocols import Executor, Generator, ModuleContext, Planner, ToolResult, Verifier
from midstream.core.task import Task
from midstream.core.trajectory import Action, Call, Command, Observation, Verdict


class CaseTool(Frozen):
    """A tool that is described to planner and executor. The doctor stops at the command: none is ever called."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    timeout_s: float = 1.0
    output_tokens: int = 1000

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Refuse."""
        raise UnsupportedError(f"{self.name} is a tool of the doctor's cases", cause="it exists in words only")

    async def close(self) -> None:
        """Nothing to release."""


class AnsweringTool(CaseTool):
    """A tool that gives the same result whatever it is asked."""

    result: str

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The result."""
        return ToolResult(text=self.result)


class PastTurn(Frozen):
    """A turn that memory holds already; the verifier found it valid unless it has an error, and not sufficient."""

    sub_goal: str
    tool: str
    context: str
    arguments: dict[str, JsonValue]
    result: str = ""
    error: str | None = None
    analysis: str = ""


class PlannerCase(Frozen):
    """Right is one of `tools`, and a sub-goal and context that together hold every word of `needs`."""

    name: str
    question: str
    tools: tuple[str, ...]
    needs: tuple[str, ...]
    memory: tuple[PastTurn, ...] = ()


class ExecutorCase(Frozen):
    """Right are arguments with one of the values in `accept`, and with every word in `holds`."""

    name: str
    action: Action
    accept: dict[str, tuple[JsonValue, ...]] = {}
    holds: dict[str, tuple[str, ...]] = {}


class VerifierCase(Frozen):
    """Right is this verdict; `result_valid` None: not judged."""

    name: str
    question: str
    observation: Observation
    memory_sufficient: bool
    result_valid: bool | None = None
    memory: tuple[PastTurn, ...] = ()


class GeneratorCase(Frozen):
    """Right is one of the answers in `accept`."""

    name: str
    question: str
    accept: tuple[str, ...]
    memory: tuple[PastTurn, ...]


class PolicyCase(Frozen):
    """Right is a call of `tool`, which gives `result` whatever is asked, and an answer with every word of `holds`."""

    name: str
    question: str
    tool: str
    result: str
    holds: tuple[str, ...]


class Cases(Frozen):
    """The whole file."""

    tools: tuple[CaseTool, ...]
    planner: tuple[PlannerCase, ...]
    executor: tuple[ExecutorCase, ...]
    verifier: tuple[VerifierCase, ...]
    generator: tuple[GeneratorCase, ...]
    policy: tuple[PolicyCase, ...]

    @property
    def tools_of_policies(self) -> tuple[CaseTool, ...]:
        """The tools that a policy's cases are about."""
        named = {case.tool for case in self.policy}
        return tuple(tool for tool in self.tools if tool.name in named)


def load_cases() -> Cases:
    """The cases that come with midstream."""
    text = (resources.files("midstream.doctor") / "cases.toml").read_text(encoding="utf-8")
    return Cases.model_validate(tomllib.loads(text))


def memory_of(turns: Sequence[PastTurn]) -> Memory:
    """Past turns as an agent's memory holds them."""
    return Memory(
        records=tuple(
            MemoryRecord(
                turn=index,
                action=Action(sub_goal=past.sub_goal, tool=past.tool, context=past.context),
                command=Command(tool=past.tool, arguments=past.arguments),
                result=past.result,
                error=past.error,
                verdict=Verdict(
                    result_valid=past.error is None,
                    memory_sufficient=False,
                    analysis=past.analysis or "Not enough yet.",
                ),
            )
            for index, past in enumerate(turns, 1)
        )
    )


# --- asking one case -------------------------------------------------------------------------------------------------

Marks = tuple[dict[str, bool], str, str]  # checks passed, what was said, what was wanted
Asked = tuple[Marks, tuple[Call, ...]]


async def _ask_planner(module: Planner, case: PlannerCase, cases: Cases, context: ModuleContext) -> Asked:
    action, calls = await module.plan(case.question, cases.tools, memory_of(case.memory), context)
    checks = {
        "reply readable": action.error is None,
        "fitting tool": action.error is None and action.tool in case.tools,
        "context complete": action.error is None and _holds(f"{action.sub_goal}\n{action.context}", case.needs),
    }
    said = action.error or f"{action.tool}: {action.sub_goal} / {action.context}"
    return (checks, said, f"{' or '.join(case.tools)}, with {', '.join(case.needs)}"), calls


async def _ask_executor(module: Executor, case: ExecutorCase, cases: Cases, context: ModuleContext) -> Asked:
    command, calls = await module.command(case.action, cases.tools, context)
    valid, given = command.error is None, command.arguments
    right = all(any(_equal(given.get(name), value) for value in values) for name, values in case.accept.items())
    right = right and all(_holds(str(given.get(name, "")), words) for name, words in case.holds.items())
    checks = {"valid": valid, "arguments right": valid and right}
    wanted = {name: values[0] for name, values in case.accept.items()}
    words = [f"{name} with {', '.join(held)}" for name, held in case.holds.items()]
    return (checks, command.error or _json(given), "; ".join([_json(wanted)] * bool(wanted) + words)), calls


async def _ask_verifier(module: Verifier, case: VerifierCase, cases: Cases, context: ModuleContext) -> Asked:
    verdict, calls = await module.verify(case.question, case.observation, memory_of(case.memory), context)
    readable = calls[-1].repaired or parse_verdict(calls[-1].completion) is not None
    right = readable and verdict.memory_sufficient == case.memory_sufficient
    checks = {"verdict readable": readable}
    said = f"{verdict.signal}, result {'valid' if verdict.result_valid else 'not valid'}: {verdict.analysis}"
    due = wanted = "STOP" if case.memory_sufficient else "CONTINUE"
    if case.result_valid is not None:
        checks["result_valid right"] = readable and verdict.result_valid == case.result_valid
        wanted += f", result {'valid' if case.result_valid else 'not valid'}"
    checks |= {"verdict right": right, f"{due} where due": right}
    return (checks, said if readable else verdict.analysis, wanted), calls


async def _ask_generator(module: Generator, case: GeneratorCase, cases: Cases, context: ModuleContext) -> Asked:
    answer, calls = await module.generate(case.question, memory_of(case.memory), context)
    right = answer is not None and _plain(answer) in {_plain(accepted) for accepted in case.accept}
    checks = {"answer readable": answer is not None, "answer right": right}
    return (checks, answer or "(no answer)", case.accept[0]), calls


async def _ask_policy(module: Interleaved, case: PolicyCase, cases: Cases, context: ModuleContext) -> Asked:
    """The whole loop, with tools that give the case's result: what is examined is the form, and that it is read."""
    known = module.template.tool
    offered = [tool for tool in cases.tools_of_policies if known in ("", tool.name)]
    tools = [AnsweringTool(**tool.model_dump(), result=case.result) for tool in offered]
    trajectory = await module.run(
        Task(id="", question=case.question, answer=""),
        tools,
        {"policy": context.engine} if context.engine else {},
        seed=context.seed,
        order=context.order,
        deadline_s=context.deadline_s,
        listener=lambda event: context.emit(event.kind, event.value),
    )
    if trajectory.error is not None:
        kind = PromptTooLongError if trajectory.error.type == PromptTooLongError.__name__ else EngineError
        failure = kind(trajectory.error.message)
        failure.calls = trajectory.calls
        raise failure
    action = trajectory.turns[0].action if trajectory.turns else None
    readable = action is not None and action.error is None
    checks = {
        "call readable": readable,
        "fitting tool": readable and action is not None and action.tool == case.tool,
        "answer right": trajectory.answer is not None and _holds(trajectory.answer, case.holds),
    }
    first = trajectory.calls[0].completion
    said = f"{action.tool}, then {trajectory.answer}" if readable and action else (action and action.error) or first
    wanted = f"{case.tool}, then {' '.join(word.partition('|')[0] for word in case.holds)}"
    return (checks, said, wanted), trajectory.calls


ASK: Mapping[str, Callable[..., Awaitable[Asked]]] = {
    "planner": _ask_planner, "executor": _ask_executor, "verifier": _ask_verifier, "generator": _ask_generator,
    "policy": _ask_policy,
}  # fmt: skip


def _holds(text: str, words: Sequence[str]) -> bool:
    folded = " ".join(text.casefold().split())
    return all(
        any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", folded) for one in word.casefold().split("|"))
        for word in words
    )


def _equal(said: JsonValue, accepted: JsonValue) -> bool:
    if isinstance(accepted, list):
        return isinstance(said, list) and len(said) == len(accepted) and all(map(_equal, said, accepted))
    if isinstance(accepted, int | float):
        return isinstance(said, int | float) and math.isclose(said, accepted)
    return str(said).strip().casefold() == str(accepted).casefold()


def _plain(answer: str) -> str:
    text = " ".join(answer.casefold().split()).rstrip(".")
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
