"""AgentFlow: planner, executor, verifier and generator work together through an evolving memory.

Source: arXiv 2510.05592, section 3.1 and Algorithm 1. Per turn t: action a_t ~ planner(q, K, M_t); command and
observation e_t ~ executor(a_t, K); verdict v_t ~ verifier(q, e_t, M_t); M_{t+1} = f_mem(M_t, a_t, e_t, v_t). The loop
ends at a STOP verdict, at `max_turns`, or where a prompt no longer fits the model's context or the deadline passes;
then answer o ~ generator(q, M_T), of as much of M_T as fits. As in the released agent, the verifier also sees K, a_t
and the command: without them a result such as "57" cannot be judged.

The agent object holds modules and settings only, nothing of a task: any number of runs may share it at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from midstream.agents.rendering import smaller_memories
from midstream.components.agent_record import Draft, RecordedAgent, RunRecord, observe, until
from midstream.core.agent import Analyst, Executor, Generator, ModuleContext, Planner, RunContext, Verifier
from midstream.core.data import Settings
from midstream.core.errors import DeadlineError, PromptTooLongError
from midstream.core.task import Task
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN, cut_result
from midstream.core.trajectory import Action, Memory, MemoryRecord, Observation, Turn
from midstream.sandbox.code_runner import ProgramRunner


class LoopConfig(Settings):
    """Settings of AgentFlow's loop.

    Attributes:
        max_turns: the most turns of a trajectory; an evaluation set may set another limit
        memory_update: `every_turn` (Algorithm 1 of the paper) or `on_continue` (its section 3.1: the last turn is not
            recorded)
        memory_result_tokens: the most tokens of a result in memory, at four characters a token; the trajectory keeps
            all of it
        answer_s: seconds that the generator has for the answer, even after `rollout.deadline_s`
    """

    max_turns: int = Field(default=3, ge=1)
    memory_update: Literal["every_turn", "on_continue"] = "every_turn"
    memory_result_tokens: int = Field(default=4000, ge=1)
    answer_s: float = Field(default=120.0, gt=0)


@dataclass(kw_only=True, eq=False)
class AgentFlowLoop(RecordedAgent):
    """The four modules of AgentFlow as one agent (`core.agent.Agent`)."""

    planner: Planner
    executor: Executor
    verifier: Verifier
    generator: Generator
    analyst: Analyst | None = None
    config: LoopConfig
    code_runner: ProgramRunner | None = None
    name: str = "agentflow"

    async def work(self, record: RunRecord, task: Task, context: RunContext) -> None:
        """Algorithm 1: turns until a STOP verdict or a limit, then the answer."""
        question, memory = task.question, Memory()
        try:
            async with until(context.deadline_s):
                if self.analyst is not None:
                    module = context.begin("analyst", 0)
                    record.analysis, record.opening_calls = await self.analyst.analyze(question, context.tools, module)
                    memory = Memory(analysis=record.analysis)
                    module.emit("analysis", record.analysis)
                for _ in range(self.config.max_turns):
                    await self._turn(record.begin_turn(), memory, question, context)
                    turn = record.end_turn()
                    stop = turn.verdict is not None and turn.verdict.memory_sufficient
                    if self.config.memory_update == "every_turn" or not stop:
                        memory = memory.append(self._memory_record(turn))
                    if stop:
                        record.stop_reason = "verified"
                        break
        except (PromptTooLongError, DeadlineError) as failure:
            first = not record.turns and (record.draft is None or record.draft.action is None)
            if first and (isinstance(failure, PromptTooLongError) or record.draft is None):
                # The run has made nothing yet: the recipe or the task alone is too long.
                raise
            turn = record.end_at_limit(failure)
            if turn.observation is not None:
                memory = memory.append(self._memory_record(turn))
        # A limit ends the turns, not the run: training would otherwise lose exactly the long runs of a group.
        module = context.for_answer(self.config.answer_s).begin("generator", len(record.turns) + 1)
        async with until(module.deadline_s):
            await self._answer(record, memory, question, module)
        module.emit("answer", record.answer)

    async def close(self) -> None:
        """Close the code runner."""
        if self.code_runner is not None:
            await self.code_runner.close()

    async def _answer(self, record: RunRecord, memory: Memory, question: str, context: ModuleContext) -> None:
        """Write the answer from the memory, or from as much of it as the generator's model takes."""
        smaller = smaller_memories(memory)
        while True:
            try:
                record.answer, calls = await self.generator.generate(question, memory, context)
            except PromptTooLongError as failure:
                fits = next(smaller, None)
                if fits is None:
                    raise
                memory, record.stop_reason = fits, "context_limit"
                record.closing_calls += failure.calls
            else:
                record.closing_calls += calls
                record.final = calls[-1].completion if calls else ""
                return

    async def _turn(self, draft: Draft, memory: Memory, question: str, context: RunContext) -> None:
        """One decision: plan, act, observe, verify. A malformed action costs the turn: nothing is executed."""
        tools, module = context.tools, context.begin("planner", draft.index)
        draft.action, calls = await self.planner.plan(question, tools, memory, module)
        draft.add("action", module.emit, calls)
        if draft.action.error:
            draft.observation = Observation(status="error", text=draft.action.error)
        else:
            module = context.begin("executor", draft.index)
            draft.command, calls = await self.executor.command(draft.action, tools, module)
            draft.add("command", module.emit, calls)
            command = draft.command
            if command.error:
                draft.observation = Observation(status="error", text=command.error)
            else:
                tool = next(tool for tool in tools if tool.name == command.tool)
                if command.code is None:
                    draft.observation, calls = await observe(tool, command.arguments)
                else:
                    assert self.code_runner is not None, "recipe/build.py gives one to an agent that writes code"
                    draft.observation, calls = await self.code_runner.run(command.code, tool)
                draft.add_calls(calls)
        draft.add("observation", module.emit)
        module = context.begin("verifier", draft.index)
        # As memory will hold it, so that the next turn's prompt repeats it.
        newest = self._memory_record(draft)
        draft.verdict, calls = await self.verifier.verify(question, tools, memory, newest, module)
        draft.add("verdict", module.emit, calls)

    def _memory_record(self, turn: Turn | Draft) -> MemoryRecord:
        """f_mem: the turn as memory keeps it; before its verdict, as the verifier sees it."""
        assert turn.observation is not None, "a turn without an observation is not recorded"
        text = cut_result(turn.observation.text, self.config.memory_result_tokens * CHARACTERS_PER_TOKEN)
        failed = turn.observation.status == "error"
        return MemoryRecord(
            turn=turn.index,
            action=turn.action or Action(),
            command=turn.command,
            result="" if failed else text,
            error=text if failed else None,
            verdict=turn.verdict,
        )
