"""The AgentFlow loop: order, limits, memory, who sees what, and what happens when something breaks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import JsonValue

from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.core.agent import ModuleContext, RunContext
from midstream.core.errors import DeadlineError, EngineError, PromptTooLongError, SandboxError, ToolServerError
from midstream.core.events import TurnEvent, TurnListener
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.tool import ToolResult
from midstream.core.trajectory import (
    Action,
    Call,
    Command,
    ErrorInfo,
    Memory,
    MemoryRecord,
    Observation,
    Trajectory,
    Usage,
    Verdict,
    without_clocks,
)
from midstream_worlds.scripted_engine import ScriptedEngine

QUESTION = "What is the question nobody else may see ?"
MODULES = ("planner", "executor", "verifier", "generator")
REFUSED = ErrorInfo(type="PromptTooLongError", message="")
EVENTS = ("call", "action", "call", "command", "observation", "call", "verdict")


@dataclass
class Modules:
    """All four modules; notes what each is shown. Turn t plans "step t", and the verifier stops at `stop_at`."""

    stop_at: int = 99
    malformed: tuple[int, ...] = ()
    invalid: tuple[int, ...] = ()
    seen: list[tuple[str, tuple[Any, ...], ModuleContext]] = field(default_factory=list)

    def note(self, role: str, context: ModuleContext, *shown: Any) -> tuple[Call, ...]:
        self.seen.append((role, shown, context))
        return (Call(role=role, usage=Usage(cost_usd=0.25)),)

    async def plan(self, question, tools, memory, context):
        calls, turn = self.note("planner", context, question, tools, memory), len(memory) + 1
        error = "unreadable" if turn in self.malformed else None
        return Action(sub_goal=f"step {turn}", tool="echo", context=f"step {turn}", error=error), calls

    async def command(self, action, tools, context):
        calls = self.note("executor", context, action, tools)
        error = "invalid" if int(action.context[5:]) in self.invalid else None
        return Command(tool=action.tool, arguments={"text": action.context}, error=error), calls

    async def verify(self, question, tools, memory, newest, context):
        calls = self.note("verifier", context, question, tools, memory, newest)
        return Verdict(result_valid=True, memory_sufficient=len(memory) + 1 == self.stop_at), calls

    async def generate(self, question, memory, context):
        calls = self.note("generator", context, question, memory)
        return " / ".join(record.result or "-" for record in memory.records), calls

    def shown_to(self, role: str) -> list[tuple[Any, ...]]:
        return [shown for name, shown, _ in self.seen if name == role]


@dataclass
class Echo:
    """Repeats its text; breaks at call number `breaks_at` with `failure`, and takes `delay_s` at `slow_at`."""

    breaks_at: int = 0
    failure: BaseException | None = None
    slow_at: int = 0
    delay_s: float = 60.0
    timeout_s: float = 30.0
    output_tokens: int = 100_000
    calls: int = 0
    name: str = "echo"
    description: str = "repeats"
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    )

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        self.calls += 1
        if self.failure and self.calls == self.breaks_at:
            raise self.failure
        if self.calls == self.slow_at:
            await asyncio.sleep(self.delay_s)
        return ToolResult(text=str(arguments["text"]), ok=arguments["text"] != "step 13")

    async def close(self) -> None: ...


def agent(modules: Any, **config: Any) -> AgentFlowLoop:
    return AgentFlowLoop(
        planner=modules, executor=modules, verifier=modules, generator=modules, config=LoopConfig(**config)
    )


def run(
    modules: Modules,
    tool: Echo | None = None,
    *,
    deadline_s: float | None = None,
    listener: TurnListener | None = None,
    **config: Any,
) -> Trajectory:
    limit = None if deadline_s is None else time.monotonic() + deadline_s
    task = Task(id="t", question=QUESTION, answer="")
    made = agent(modules, **config)
    context = RunContext(tools=[tool or Echo()], seed=5, order=2, deadline_s=limit, listener=listener)
    return asyncio.run(made.run(task, context))


# --- the loop -----------------------------------------------------------------------------------------------------


def test_a_turn_is_plan_command_observation_verdict():
    modules = Modules()
    trajectory = run(modules, max_turns=2)
    assert [turn.events for turn in trajectory.turns] == [EVENTS, EVENTS]
    assert [role for role, _, _ in modules.seen] == [*MODULES[:3], *MODULES[:3], "generator"]
    assert [call.role for call in trajectory.calls] == [*MODULES[:3], *MODULES[:3], "generator"]
    turn = trajectory.turns[1]
    assert (turn.index, turn.action and turn.action.sub_goal) == (2, "step 2")
    assert turn.command == Command(tool="echo", arguments={"text": "step 2"})
    assert turn.observation is not None
    assert (turn.observation.status, turn.observation.text) == ("ok", "step 2")
    assert trajectory.cost_usd == 0.25 * 7


def test_ends_at_the_turn_limit():
    trajectory = run(Modules(), max_turns=3)
    assert (len(trajectory.turns), trajectory.stop_reason, trajectory.status) == (3, "turn_limit", "ok")
    assert trajectory.answer == "step 1 / step 2 / step 3"


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_ends_at_a_stop_verdict(stop_at):
    trajectory = run(Modules(stop_at=stop_at), max_turns=3)
    assert (len(trajectory.turns), trajectory.stop_reason) == (stop_at, "verified")


@pytest.mark.parametrize(("memory_update", "answer"), [("every_turn", "step 1 / step 2"), ("on_continue", "step 1")])
def test_memory_holds_the_last_turn_under_algorithm_1_only(memory_update, answer):
    trajectory = run(Modules(stop_at=2), memory_update=memory_update)
    assert (len(trajectory.turns), trajectory.answer) == (2, answer)


@pytest.mark.parametrize("memory_update", ["every_turn", "on_continue"])
def test_memory_holds_every_turn_of_a_run_without_stop(memory_update):
    assert run(Modules(), memory_update=memory_update, max_turns=2).answer == "step 1 / step 2"


def test_planner_and_verifier_see_the_turns_before_this_one():
    modules = Modules()
    run(modules, max_turns=3)
    planned = [memory for _, _, memory in modules.shown_to("planner")]
    judged = [(memory, newest) for _, _, memory, newest in modules.shown_to("verifier")]
    ((_, whole),) = modules.shown_to("generator")
    assert [len(memory) for memory in planned] == [0, 1, 2]
    assert [memory for memory, _ in judged] == planned
    verdict = Verdict(result_valid=True, memory_sufficient=False)
    held = [memory.append(newest.model_copy(update={"verdict": verdict})) for memory, newest in judged]
    assert held == [*planned[1:], whole]
    assert all(newest.verdict is None and newest.command and newest.result for _, newest in judged)
    assert all(shown[1] == modules.shown_to("planner")[0][1] for shown in modules.shown_to("verifier")), "the tools"


def test_memory_records_what_happened():
    modules = Modules(malformed=(1,), invalid=(2,))
    run(modules, max_turns=3)
    ((_, memory),) = modules.shown_to("generator")
    assert [(one.result, one.error) for one in memory.records] == [
        ("", "unreadable"),
        ("", "invalid"),
        ("step 3", None),
    ]
    assert [one.command is None for one in memory.records] == [True, False, False]
    assert all(one.verdict is not None for one in memory.records)


# --- what a model gets wrong --------------------------------------------------------------------------------------


def test_a_malformed_action_costs_the_turn_and_runs_nothing():
    modules, tool = Modules(malformed=(1, 2)), Echo()
    trajectory = run(modules, tool, max_turns=2)
    assert (trajectory.status, len(trajectory.turns)) == ("ok", 2)
    assert modules.shown_to("executor") == []
    assert tool.calls == 0
    for turn, (_, _, _, newest) in zip(trajectory.turns, modules.shown_to("verifier"), strict=True):
        assert turn.events == ("call", "action", "observation", "call", "verdict")
        assert turn.command is None
        assert turn.observation == Observation(status="error", text="unreadable")
        assert newest == MemoryRecord(turn=turn.index, action=turn.action, error="unreadable")


def test_an_invalid_command_is_an_error_observation():
    modules, tool = Modules(invalid=(1,)), Echo()
    (turn,) = run(modules, tool, max_turns=1).turns
    assert tool.calls == 0
    assert turn.events == EVENTS
    assert turn.observation == Observation(status="error", text="invalid")


def test_a_tool_that_answers_no_is_an_error_observation():
    turns = run(Modules(), max_turns=14).turns
    errors = [turn.index for turn in turns if turn.observation and turn.observation.status == "error"]
    assert errors == [13]


def test_a_slow_tool_is_an_error_observation_and_the_run_continues():
    trajectory = run(Modules(), Echo(slow_at=1, timeout_s=0.05), max_turns=2)
    first, second = (turn.observation for turn in trajectory.turns)
    assert first
    assert second
    assert (first.status, first.text) == ("error", "echo gave no result within 0.05 s")
    assert 0.05 <= first.duration_s < 10
    assert (second.status, trajectory.status) == ("ok", "ok")


# --- what breaks around the model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [ToolServerError("index gone"), SandboxError("no fork"), EngineError("judge down")])
def test_a_broken_tool_ends_the_run_and_keeps_its_turns(failure):
    trajectory = run(Modules(), Echo(breaks_at=2, failure=failure), max_turns=3)
    assert (trajectory.status, trajectory.stop_reason, trajectory.answer) == ("error", "error", None)
    assert trajectory.error
    assert (trajectory.error.type, trajectory.error.message) == (type(failure).__name__, str(failure))
    whole, broken = trajectory.turns
    assert (whole.index, whole.error) == (1, None)
    assert (broken.index, broken.error) == (2, trajectory.error)
    assert broken.action
    assert broken.command
    assert (broken.observation, broken.verdict) == (None, None)
    assert broken.events == ("call", "action", "call", "command")
    assert [call.role for call in broken.calls] == ["planner", "executor"]


def test_a_tool_whose_own_back_end_times_out_is_broken_not_slow():
    trajectory = run(Modules(), Echo(breaks_at=1, failure=TimeoutError("socket")))
    assert trajectory.error
    assert (trajectory.status, trajectory.error.type) == ("error", "ToolServerError")


class FailsAt(Modules):
    """Raises in one module at one turn."""

    def __init__(self, role: str, turn: int, failure: Exception) -> None:
        super().__init__()
        self.role, self.turn, self.failure = role, turn, failure

    def note(self, role: str, context: ModuleContext, *shown: Any) -> tuple[Call, ...]:
        if role == self.role and len(self.shown_to(role)) + 1 == self.turn:
            raise self.failure
        return super().note(role, context, *shown)


@pytest.mark.parametrize(
    ("role", "turn", "kept"), [("planner", 2, 1), ("executor", 1, 0), ("verifier", 3, 2), ("generator", 1, 3)]
)
def test_a_broken_engine_ends_the_run_and_keeps_its_turns(role, turn, kept):
    trajectory = run(FailsAt(role, turn, EngineError("503", cause="overload", fix="wait")), max_turns=3)
    assert (trajectory.status, trajectory.stop_reason, trajectory.answer) == ("error", "error", None)
    assert trajectory.error
    assert (trajectory.error.type, trajectory.error.message) == ("EngineError", "503\n  cause: overload\n  fix: wait")
    assert sum(turn.error is None for turn in trajectory.turns) == kept
    assert [turn.error for turn in trajectory.turns[kept:]] == [trajectory.error] * (role != "generator")
    assert (trajectory.question, trajectory.agent, trajectory.seed) == (QUESTION, "agentflow", 5)


def test_a_tools_own_calls_are_kept_and_paid_for():
    class Asks(Echo):
        async def call(self, arguments):
            return ToolResult(text="said", calls=(Call(role="echo", usage=Usage(cost_usd=0.5)),))

    trajectory = run(Modules(), Asks(), max_turns=1)
    assert [call.role for call in trajectory.calls] == ["planner", "executor", "echo", "verifier", "generator"]
    assert trajectory.turns[0].events == ("call", "action", "call", "command", "call", "observation", "call", "verdict")
    assert trajectory.cost_usd == 0.25 * 4 + 0.5


def test_the_calls_of_the_module_that_broke_are_kept():
    asked, failed = Call(role="executor", completion="no JSON"), Call(role="executor", failures=("503", "reset"))
    failure = EngineError("503")
    failure.calls = (asked, failed)
    trajectory = run(FailsAt("executor", 1, failure), max_turns=3)
    assert trajectory.turns[0].calls[1:] == (asked, failed)
    assert trajectory.request_failures == 2
    failure = EngineError("503")
    failure.calls = (failed,)
    assert run(FailsAt("generator", 1, failure), max_turns=1).closing_calls == (failed,)


def test_a_listener_hears_everything_in_order_and_changes_nothing():
    heard: list[TurnEvent] = []
    trajectory = run(Modules(), Echo(), max_turns=2, listener=heard.append)
    once = [
        ("planner", "start"), ("planner", "action"), ("executor", "start"), ("executor", "command"),
        ("executor", "observation"), ("verifier", "start"), ("verifier", "verdict"),
    ]  # fmt: skip
    assert [(one.turn, one.role, one.kind) for one in heard] == [
        *((turn, *pair) for turn in (1, 2) for pair in once), (3, "generator", "start"), (3, "generator", "answer"),
    ]  # fmt: skip
    assert [one.value for one in heard if one.kind == "verdict"] == [turn.verdict for turn in trajectory.turns]
    unheard = run(Modules(), Echo(), max_turns=2)
    assert without_clocks(trajectory) == without_clocks(unheard)


def test_a_bug_is_not_taken_for_a_broken_engine_or_a_deadline():
    for failure in (KeyError("typo"), TimeoutError("not of the loop's own clock")):
        with pytest.raises(type(failure)):
            run(FailsAt("planner", 1, failure), deadline_s=60)


@pytest.mark.parametrize(("slow_at", "kept"), [(1, 0), (3, 2)])
def test_a_passed_deadline_ends_the_turns_and_the_rest_is_answered(slow_at, kept):
    modules = Modules()
    trajectory = run(modules, Echo(slow_at=slow_at), deadline_s=0.1, max_turns=3)
    assert (trajectory.status, trajectory.stop_reason, trajectory.error) == ("ok", "time_limit", None)
    assert trajectory.answer == " / ".join(f"step {turn}" for turn in range(1, kept + 1))
    assert [turn.error and turn.error.type for turn in trajectory.turns] == [None] * kept + ["DeadlineError"]
    assert trajectory.turns[-1].command is not None
    assert 0.1 <= trajectory.duration_s < 10
    *_, (role, _, context) = modules.seen
    assert role == "generator"
    assert 100 < context.deadline_s - time.monotonic() < 120  # agent.answer_s, from then on


def test_an_engine_that_runs_out_of_time_first_does_the_same():
    trajectory = run(FailsAt("verifier", 2, DeadlineError("no reply in time")), deadline_s=60)
    assert (trajectory.status, trajectory.stop_reason) == ("ok", "time_limit")
    assert [turn.verdict is None for turn in trajectory.turns] == [False, True]
    assert trajectory.answer == "step 1 / step 2"  # the observation that was not judged is in memory


def test_a_generator_that_does_not_answer_in_its_time_is_an_error():
    class Hangs(Modules):
        async def generate(self, question, memory, context):
            await asyncio.sleep(60)

    trajectory = run(Hangs(), Echo(slow_at=2), deadline_s=0.1, answer_s=0.1, max_turns=3)
    assert (trajectory.status, trajectory.stop_reason, trajectory.answer) == ("error", "time_limit", None)
    assert trajectory.error
    assert (trajectory.error.type, trajectory.error.retryable) == ("DeadlineError", False)
    assert "after 2 turns" in trajectory.error.message
    assert "agent.answer_s" in trajectory.error.message
    assert len(trajectory.turns) == 2
    assert 0.2 <= trajectory.duration_s < 10


# --- what does not fit --------------------------------------------------------------------------------------------


@dataclass
class Narrow(Modules):
    """Modules whose models take `room` characters of memory, and refuse more."""

    room: int = 10_000

    def note(self, role: str, context: ModuleContext, *shown: Any) -> tuple[Call, ...]:
        size = sum(len(record.result) for part in shown if isinstance(part, Memory) for record in part.records)
        size += sum(len(part.result) for part in shown if isinstance(part, MemoryRecord))
        if size > self.room:
            raise PromptTooLongError(f"{size} do not fit", calls=(Call(role=role, error=REFUSED),))
        return super().note(role, context, *shown)


class Long(Echo):
    async def call(self, arguments):
        return ToolResult(text=str(arguments["text"]) + " is long" * 500)


def test_a_memory_that_outgrows_the_context_ends_the_turns_and_is_answered_from_what_fits():
    modules = Narrow()
    trajectory = run(modules, Long(), max_turns=9)
    assert (trajectory.status, trajectory.stop_reason, len(trajectory.turns)) == ("ok", "context_limit", 3)
    assert trajectory.turns[2].error
    assert trajectory.turns[2].error.type == "PromptTooLongError"
    assert trajectory.turns[2].verdict is None
    [(_, memory)] = modules.shown_to("generator")
    assert [record.turn for record in memory.records] == [1, 2, 3]
    cut = "[cut: 4006 characters, of which the first 2003 are shown]"
    assert [record.result.splitlines()[-1] for record in memory.records] == [cut] * 3
    assert [call.error is not None for call in trajectory.closing_calls] == [True, False]
    assert trajectory.closing_calls[-1].role == "generator"
    assert trajectory.turns[2].observation is not None
    assert len(trajectory.turns[2].observation.text) == 4006
    again = run(Narrow(), Long(), max_turns=9)
    assert again.answer == trajectory.answer


def test_where_only_the_generator_lacks_room_the_limit_is_the_context_too():
    class Small(Modules):
        async def generate(self, question, memory, context):
            if any(record.result != "[cut]" for record in memory.records):
                raise PromptTooLongError("too long", calls=(Call(role="generator", error=REFUSED),))
            return await super().generate(question, memory, context)

    trajectory = run(Small(stop_at=3), max_turns=3)
    assert (trajectory.status, trajectory.stop_reason) == ("ok", "context_limit")
    assert trajectory.answer == "[cut] / [cut] / [cut]"
    verdict = trajectory.turns[-1].verdict
    assert verdict
    assert verdict.signal == "STOP"


@pytest.mark.parametrize(("role", "asked"), [("planner", 1), ("generator", 3)])
def test_a_question_that_does_not_fit_alone_is_an_error(role, asked):
    class NoRoom(Modules):
        def note(self, name, context, *shown):
            if name == role:
                raise PromptTooLongError("no room", calls=(Call(role=role),))
            return super().note(name, context, *shown)

    trajectory = run(NoRoom(), max_turns=2)
    assert (trajectory.status, trajectory.stop_reason, trajectory.answer) == ("error", "error", None)
    assert trajectory.error
    assert (trajectory.error.type, trajectory.error.retryable) == ("PromptTooLongError", False)
    assert sum(call.role == role for call in trajectory.calls) == asked  # the generator: whole, a turn less, none


def test_a_long_result_is_cut_once_as_it_enters_memory():
    modules = Modules()
    trajectory = run(modules, Long(), max_turns=2, memory_result_tokens=25)
    mark = "\n[cut: 4006 characters, of which the first 100 are shown]"
    cut = [(f"step {turn}" + " is long" * 12)[:100] + mark for turn in (1, 2)]
    [(_, memory)] = modules.shown_to("generator")
    assert [record.result for record in memory.records] == cut
    assert [newest.result for *_, newest in modules.shown_to("verifier")] == cut
    assert all(turn.observation and len(turn.observation.text) == 4006 for turn in trajectory.turns)


def test_an_engine_that_keeps_the_deadline_says_what_it_asked():
    """Its clock and the run's stand at the same time: the run's lets it speak first."""

    class Slow(Modules):
        async def verify(self, question, tools, memory, newest, context):
            try:
                async with asyncio.timeout(context.deadline_s - time.monotonic()):
                    await asyncio.sleep(60)
            except TimeoutError:
                failure = DeadlineError("no reply in time")
                failure.calls = (Call(role="verifier", failures=("500", "500")),)
                raise failure from None

    trajectory = run(Slow(), deadline_s=0.2)
    assert (trajectory.stop_reason, trajectory.request_failures) == ("time_limit", 2)
    assert trajectory.turns[-1].error
    assert trajectory.turns[-1].error.message == "no reply in time"


def test_a_deadline_already_passed():
    trajectory = run(Modules(), Echo(slow_at=1), deadline_s=-1)
    assert (trajectory.status, trajectory.stop_reason, trajectory.answer) == ("ok", "time_limit", "")
    assert [turn.error and turn.error.type for turn in trajectory.turns] == ["DeadlineError"]


# --- who sees what ------------------------------------------------------------------------------------------------


def test_the_executor_never_sees_the_question():
    modules = Modules()
    run(modules, max_turns=3)
    seen = [shown for role, shown, context in modules.seen if role == "executor" for shown in (*shown, context)]
    assert len(seen) == 3 * 3
    assert QUESTION not in repr(seen)
    assert all(QUESTION in repr(modules.shown_to(role)) for role in MODULES if role != "executor")


def test_each_module_gets_its_engine_its_lessons_and_a_seed_of_its_own():
    modules, engines = Modules(), {name: ScriptedEngine([], name=name) for name in ("planner", "verifier")}
    task = Task(id="t", question=QUESTION, answer="")
    flow = agent(modules, max_turns=2)
    lessons = {"planner": "look up first", "executor": "round up"}
    given = RunContext(tools=[Echo()], engines=engines, seed=5, order=2, lessons=lessons, deadline_s=1e12)
    asyncio.run(flow.run(task, given))
    for role, _, context in modules.seen:
        assert context.engine is engines.get(role)
        assert (context.order, context.lessons, context.deadline_s) == (2, lessons.get(role, ""), 1e12)
    turns = [(1, MODULES[:3]), (2, MODULES[:3]), (3, MODULES[3:])]
    expected = [derive_seed(5, turn, role) for turn, roles in turns for role in roles]
    assert [context.seed for _, _, context in modules.seen] == expected
    assert len(set(expected)) == 7


# --- the analysis of the query --------------------------------------------------------------------------------------


class Thinks:
    """An analyst, or one that fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    async def analyze(self, question, tools, context):
        if self.failure:
            raise self.failure
        return f"{question} needs {tools[0].name}", (Call(role="analyst", usage=Usage(cost_usd=0.5)),)


def analyzed(modules: Modules, analyst: Thinks) -> Trajectory:
    flow = AgentFlowLoop(
        planner=modules, executor=modules, verifier=modules, generator=modules, analyst=analyst,
        config=LoopConfig(max_turns=2),
    )  # fmt: skip
    return asyncio.run(flow.run(Task(id="t", question=QUESTION, answer=""), RunContext(tools=[Echo()], seed=5)))


def test_an_analysis_is_seen_by_all_but_the_executor_recorded_and_counted():
    modules = Modules()
    trajectory = analyzed(modules, Thinks())
    analysis = f"{QUESTION} needs echo"
    assert (trajectory.status, trajectory.analysis) == ("ok", analysis)
    memories = [part for _, shown, _ in modules.seen for part in shown if isinstance(part, Memory)]
    assert [memory.analysis for memory in memories] == [analysis] * 5
    assert [call.role for call in trajectory.calls][:2] == ["analyst", "planner"]
    assert trajectory.cost_usd == 0.5 + 0.25 * 7
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    old = trajectory.model_dump(mode="json", exclude={"analysis", "opening_calls"})
    assert Trajectory.model_validate(old).analysis == ""


def test_an_analyst_that_fails_ends_the_run_as_any_module_does():
    failed = (Call(role="analyst", failures=("503",)),)
    for failure in (EngineError("down"), PromptTooLongError("long"), DeadlineError("late")):
        failure.calls = failed
        trajectory = analyzed(Modules(), Thinks(failure))
        assert (trajectory.status, trajectory.turns, trajectory.answer) == ("error", (), None)
        assert (trajectory.opening_calls, trajectory.closing_calls) == (failed, ())


# --- many at once -------------------------------------------------------------------------------------------------


class Wanderer:
    """Modules that act on the question, the seed and memory alone; turns, failures and stops differ by seed."""

    async def plan(self, question, tools, memory: Memory, context: ModuleContext):
        await asyncio.sleep(0)
        rng = random.Random(context.seed)
        error = "unreadable" if rng.random() < 0.2 else None
        text = f"{question} turn {len(memory) + 1} draw {rng.randrange(10**6)}"
        return Action(sub_goal=question, tool="jitter", context=text, error=error), (Call(role="planner", prompt=text),)

    async def command(self, action, tools, context):
        return Command(tool="jitter", arguments={"text": action.context}), ()

    async def verify(self, question, tools, memory, newest, context):
        return Verdict(result_valid=True, memory_sufficient=random.Random(context.seed).random() < 0.25), ()

    async def generate(self, question, memory, context):
        if context.seed % 7 == 0:
            raise EngineError(f"{question} has no answer")
        return " | ".join(f"{record.turn}: {record.result or record.error}" for record in memory.records), ()


class Jitter(Echo):
    """Answers after a random time, a different one each time the test runs."""

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        await asyncio.sleep(random.SystemRandom().random() * 0.01)
        return ToolResult(text=f"seen {arguments['text']}")


def test_64_runs_at_once_on_one_agent_do_not_meet():
    flow, tool = agent(Wanderer(), max_turns=6), Jitter(name="jitter")
    tasks = [Task(id=f"t{i}", question=f"question-{i}-", answer="") for i in range(64)]

    async def one(i: int) -> Trajectory:
        return without_clocks(await flow.run(tasks[i], RunContext(tools=[tool], seed=i, order=i)))

    async def together() -> list[Trajectory]:
        return await asyncio.gather(*(one(i) for i in range(64)))

    async def alone() -> list[Trajectory]:
        return [await one(i) for i in range(64)]

    at_once = asyncio.run(together())
    for i, trajectory in enumerate(at_once):
        questions = {f"question-{j}-" for j in range(64) if f"question-{j}-" in repr(trajectory)}
        assert questions == {f"question-{i}-"}
    assert {len(trajectory.turns) for trajectory in at_once} == {1, 2, 3, 4, 5, 6}
    assert {trajectory.status for trajectory in at_once} == {"ok", "error"}
    assert at_once == asyncio.run(alone())


def test_the_agent_keeps_nothing_of_a_run():
    flow = agent(Wanderer(), max_turns=3)
    before = dict(vars(flow))
    task = Task(id="t", question="q", answer="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AgentFlowLoop, "__setattr__", lambda self, name, value: pytest.fail(f"{name} set on the agent"))
        asyncio.run(flow.run(task, RunContext(tools=[Jitter(name="jitter")], seed=1)))
    assert vars(flow) == before
