"""The fixed cases of `midstream examine`, and the criteria of a correct reply.

Each case has `ask`: it passes the case to a role's real module and marks the result. A reply that cannot be used passes
no check: a module's fallback earns nothing.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from pydantic import JsonValue

from midstream.agents.formats import parse_verdict
from midstream.agents.interleaved import InterleavedLoop
from midstream.core.agent import Executor, Generator, ModuleContext, Planner, RunContext, Verifier
from midstream.core.data import Frozen
from midstream.core.errors import EngineError, PromptTooLongError
from midstream.core.task import Task
from midstream.core.tool import ToolResult
from midstream.core.trajectory import Action, Call, Command, Memory, MemoryRecord, Verdict

Marks = tuple[dict[str, bool], str, str]  # checks and whether each was passed, the reply, the correct reply
Asked = tuple[Marks, tuple[Call, ...]]


class CaseTool(Frozen):
    """A tool that is described to the roles; only a policy's cases call it, and get their own `result`."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    timeout_s: float = 1.0
    output_tokens: int = 1000
    result: str = ""

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Return the result."""
        return ToolResult(text=self.result)

    async def close(self) -> None:
        """Nothing to release."""


class PastTurn(Frozen):
    """A turn of a case. In memory, the verifier found it valid unless it has an error, and not sufficient."""

    sub_goal: str
    tool: str
    context: str
    arguments: dict[str, JsonValue]
    result: str = ""
    error: str | None = None
    analysis: str = "Not enough yet."

    def record(self, turn: int, *, judged: bool = True) -> MemoryRecord:
        """The turn as memory holds it, or as the verifier gets it, not yet `judged`."""
        verdict = Verdict(result_valid=self.error is None, memory_sufficient=False, analysis=self.analysis)
        return MemoryRecord(
            turn=turn,
            action=Action(sub_goal=self.sub_goal, tool=self.tool, context=self.context),
            command=Command(tool=self.tool, arguments=self.arguments),
            result=self.result,
            error=self.error,
            verdict=verdict if judged else None,
        )


class PlannerCase(Frozen):
    """Correct is one of `tools`, and a sub-goal and context that together hold every word of `needs`."""

    name: str
    question: str
    tools: tuple[str, ...]
    needs: tuple[str, ...]
    memory: tuple[PastTurn, ...] = ()

    async def ask(self, module: Planner, cases: Cases, context: ModuleContext) -> Asked:
        """Ask for the next action."""
        action, calls = await module.plan(self.question, cases.tools, memory_of(self.memory), context)
        checks = {
            "reply readable": action.error is None,
            "fitting tool": action.error is None and action.tool in self.tools,
            "context complete": action.error is None and holds(f"{action.sub_goal}\n{action.context}", self.needs),
        }
        said = action.error or f"{action.tool}: {action.sub_goal} / {action.context}"
        return (checks, said, f"{' or '.join(self.tools)}, with {', '.join(self.needs)}"), calls


class ExecutorCase(Frozen):
    """Correct are arguments with one of the values in `accept`, and with every word in `holds`."""

    name: str
    action: Action
    accept: dict[str, tuple[JsonValue, ...]] = {}
    holds: dict[str, tuple[str, ...]] = {}

    async def ask(self, module: Executor, cases: Cases, context: ModuleContext) -> Asked:
        """Ask for the command of the action."""
        command, calls = await module.command(self.action, cases.tools, context)
        valid, given = command.error is None, command.arguments
        right = all(any(equal(given.get(name), value) for value in values) for name, values in self.accept.items())
        right = right and all(holds(str(given.get(name, "")), words) for name, words in self.holds.items())
        checks = {"valid": valid, "arguments right": valid and right}
        wanted = [f"{name} with {', '.join(held)}" for name, held in self.holds.items()]
        if self.accept:
            first = {name: values[0] for name, values in self.accept.items()}
            wanted.insert(0, json.dumps(first, ensure_ascii=False))
        return (checks, command.error or json.dumps(given, ensure_ascii=False), "; ".join(wanted)), calls


class VerifierCase(Frozen):
    """Correct is this verdict; `result_valid` None: not judged."""

    name: str
    question: str
    newest: PastTurn
    memory_sufficient: bool
    result_valid: bool | None = None
    memory: tuple[PastTurn, ...] = ()

    async def ask(self, module: Verifier, cases: Cases, context: ModuleContext) -> Asked:
        """Ask for a verdict on the newest turn."""
        newest = self.newest.record(len(self.memory) + 1, judged=False)
        verdict, calls = await module.verify(self.question, cases.tools, memory_of(self.memory), newest, context)
        readable = calls[-1].repaired or parse_verdict(calls[-1].completion) is not None
        right = readable and verdict.memory_sufficient == self.memory_sufficient
        checks = {"verdict readable": readable}
        said = f"{verdict.signal}, result {'valid' if verdict.result_valid else 'not valid'}: {verdict.analysis}"
        due = wanted = "STOP" if self.memory_sufficient else "CONTINUE"
        if self.result_valid is not None:
            checks["result_valid right"] = readable and verdict.result_valid == self.result_valid
            wanted += f", result {'valid' if self.result_valid else 'not valid'}"
        checks |= {"verdict right": right, f"{due} where due": right}
        return (checks, said if readable else verdict.analysis, wanted), calls


class GeneratorCase(Frozen):
    """Correct is one of the answers in `accept`."""

    name: str
    question: str
    accept: tuple[str, ...]
    memory: tuple[PastTurn, ...]

    async def ask(self, module: Generator, cases: Cases, context: ModuleContext) -> Asked:
        """Ask for the answer that memory gives."""
        answer, calls = await module.generate(self.question, memory_of(self.memory), context)
        right = answer is not None and plain(answer) in {plain(accepted) for accepted in self.accept}
        checks = {"answer readable": answer is not None, "answer right": right}
        return (checks, answer or "(no answer)", self.accept[0]), calls


class PolicyCase(Frozen):
    """Correct is a call of `tool`, which always returns `result`, and an answer with every word of `holds`."""

    name: str
    question: str
    tool: str
    result: str
    holds: tuple[str, ...]

    async def ask(self, module: InterleavedLoop, cases: Cases, context: ModuleContext) -> Asked:
        """Run the whole loop, with tools that return the case's result: does the policy call, and read the result?"""
        known = module.template.tool
        named = {case.tool for case in cases.policy}
        offered = [tool for tool in cases.tools if tool.name in named and known in ("", tool.name)]
        run = RunContext(
            tools=[tool.model_copy(update={"result": self.result}) for tool in offered],
            engines={"policy": context.engine} if context.engine else {},
            seed=context.seed,
            order=context.order,
            deadline_s=context.deadline_s,
            listener=lambda event: context.emit(event.kind, event.value),
        )
        trajectory = await module.run(Task(id="", question=self.question, answer=""), run)
        if trajectory.error is not None:
            kind = PromptTooLongError if trajectory.error.type == PromptTooLongError.__name__ else EngineError
            failure = kind(trajectory.error.message)
            failure.calls = trajectory.calls
            raise failure
        action = trajectory.turns[0].action if trajectory.turns else None
        readable = action is not None and action.error is None
        checks = {
            "call readable": readable,
            "fitting tool": readable and action is not None and action.tool == self.tool,
            "answer right": trajectory.answer is not None and holds(trajectory.answer, self.holds),
        }
        first = trajectory.calls[0].completion
        said = f"{action.tool}, then {trajectory.answer}" if readable and action else (action and action.error) or first
        wanted = f"{self.tool}, then {' '.join(word.partition('|')[0] for word in self.holds)}"
        return (checks, said, wanted), trajectory.calls


class Cases(Frozen):
    """The whole file."""

    tools: tuple[CaseTool, ...]
    planner: tuple[PlannerCase, ...]
    executor: tuple[ExecutorCase, ...]
    verifier: tuple[VerifierCase, ...]
    generator: tuple[GeneratorCase, ...]
    policy: tuple[PolicyCase, ...]


def load_cases() -> Cases:
    """Read the cases that come with midstream."""
    text = (resources.files("midstream_extra.examination") / "cases.toml").read_text(encoding="utf-8")
    return Cases.model_validate(tomllib.loads(text))


def memory_of(turns: Sequence[PastTurn]) -> Memory:
    """Past turns as an agent's memory holds them."""
    return Memory(records=tuple(past.record(index) for index, past in enumerate(turns, 1)))


def holds(text: str, words: Sequence[str]) -> bool:
    """Whether a text has every word as a whole word; `a|b` means that either will do; case and spaces are ignored."""
    folded = " ".join(text.casefold().split())
    forms = ("|".join(map(re.escape, word.casefold().split("|"))) for word in words)
    return all(re.search(rf"(?<!\w)(?:{form})(?!\w)", folded) for form in forms)


def equal(said: JsonValue, accepted: JsonValue) -> bool:
    """Compare arguments: numbers by value, texts without case, lists by element."""
    if isinstance(accepted, list):
        return isinstance(said, list) and len(said) == len(accepted) and all(map(equal, said, accepted))
    if isinstance(accepted, int | float):
        return isinstance(said, int | float) and math.isclose(said, accepted)
    return str(said).strip().casefold() == str(accepted).casefold()


def plain(answer: str) -> str:
    """An answer without case, extra spaces, a final full stop and thousands commas."""
    text = " ".join(answer.casefold().split()).rstrip(".")
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
