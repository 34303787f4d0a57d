"""One policy that thinks, calls tools and answers in one stream (ARTIST and similar agents).

Source: arXiv 2505.01441. A template's marks drive the loop: sample until a mark closes a call, or the reply ends; run
the tool; append its output to the stream; sample on; until the answer's mark, an end without one, or a limit. Where
the model's context is full the stream ends as it is; after the deadline no tool is run, and one last reply may answer.

    <think>..</think><python>..</python>   <output>..</output>   <think>..</think><answer>..</answer>
    reply 1, turn 1                        appended              reply 2, which ends the run

With a dialogue, a reply without a call goes to its user, whose next words are appended, until the dialogue is over. The
agent object holds a policy and settings only, nothing of a task: any number of runs may share it at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, JsonValue

from midstream.agents.calls import WrittenCall, read_calls, stray_calls, tools_by_name
from midstream.agents.stream_policy import Stream, StreamPolicy, stopped_at_mark
from midstream.components.agent_record import Draft, RecordedAgent, RunRecord, observe, until
from midstream.core.agent import ModuleContext, RunContext
from midstream.core.data import Settings
from midstream.core.errors import DeadlineError, PromptTooLongError
from midstream.core.seeds import derive_seed
from midstream.core.source import Dialogue, UserTurn
from midstream.core.stream import POLICY, Block, answer_of, escape_marks, said
from midstream.core.stream_template import Template
from midstream.core.task import Task
from midstream.core.text import neutral, render_lessons, to_json
from midstream.core.texts import EXAMPLES, PROMPT, Lessons
from midstream.core.tool import Tool
from midstream.core.trajectory import Call, Message, Observation, StopReason

# Of one reply: each costs a request that carries the whole stream.
_VAIN_STOPS = 50
_TOO_LATE = "no result: the time limit has passed, and no tool runs any more"


class StreamConfig(Settings):
    """Settings of the loop. 8,000 tokens are the paper's (mathematics).

    Attributes:
        max_turns: the most replies that call tools, in a dialogue for each user turn
        max_tokens: the most tokens after the prompt, sampled and appended
        stray_calls: a call in JSON outside the template's marks: `malformed`, of which the policy reads, or `run`, as
            if it were inside; only in templates whose calls are JSON and whose output is a message, and not in
            dialogues
        tools: tool names of the template mapped to those of the recipe: `{ search = "wikipedia" }`
        answer_s: seconds that the last reply has after `rollout.deadline_s`; a dialogue has none
    """

    max_turns: int = Field(default=10, ge=1)
    max_tokens: int = Field(default=8000, ge=1)
    stray_calls: Literal["malformed", "run"] = "malformed"
    tools: dict[str, str] = {}
    answer_s: float = Field(default=120.0, gt=0)


class InterleavedLoop(RecordedAgent):
    """A policy and its template as an agent (`core.agent.Agent`)."""

    dialogues = True

    def __init__(
        self, *, policy: StreamPolicy, template: Template, config: StreamConfig, name: str = "interleaved"
    ) -> None:
        self.policy, self.template, self.config, self.name = policy, template, config, name

    async def work(self, record: RunRecord, task: Task, context: RunContext) -> None:
        """Run a task or a dialogue to its end. Raises `RecipeError` if template, tools and lessons clash."""
        if (context.lessons.get(POLICY) or context.lessons.get(POLICY + EXAMPLES)) and not self.template.shows_lessons:
            fix = "put {{lessons}} into its prompt, or run without lessons"
            raise self.template.mismatch("has no place for the policy's lessons", fix)
        await _StreamRun(self, record, context).run(task.question)


class _StreamRun:
    """One run under way: its stream, its record, and what the user said last."""

    def __init__(self, agent: InterleavedLoop, record: RunRecord, context: RunContext) -> None:
        self.policy, self.config = agent.policy, agent.config
        self.template = agent.template.with_instructions(context.lessons.get(POLICY + PROMPT, ""))
        self.context, self.dialogue, self.record = context, context.dialogue, record
        self.user: UserTurn | None = None
        # Replies with calls in this user turn: each user turn has its own limit.
        self.calling = 0
        # The deadline has passed, and the next reply is the last.
        self.last = False
        self.over = False

    async def run(self, question: str) -> None:
        """The whole run."""
        first = UserTurn(text=question, tools=())
        if self.dialogue is not None:
            async with until(self.context.deadline_s):
                self.user = first = await self.dialogue.begin()
        self.tools = self._tools(first)
        rules = f"{self.dialogue.system.strip()}\n\n" if self.dialogue is not None and self.dialogue.system else ""
        prompt = render_opening(self.template, self.tools, self.context.lessons, first.text, rules=rules)
        self.stream = Stream(
            template=self.template, messages=prompt, tools=self.tools, max_tokens=self.config.max_tokens
        ).encoded(getattr(self.context.engines.get(POLICY), "codec", None))
        while not self.over:
            if self.stream.remaining <= 0:
                self.record.stop_reason = "token_limit"
                self.record.closing_calls = self.user.calls if self.user is not None else ()
                return
            await self._reply()

    def _tools(self, user: UserTurn) -> dict[str, Tool]:
        return tools_by_name([*self.context.tools, *user.tools], self.template, self.config.tools)

    async def _reply(self) -> None:
        """One reply, and what follows from it: tool calls, the user's words, or the end."""
        draft = self.record.begin_turn()
        if self.user is not None:
            draft.user = self.user.text
            draft.add("user", self.context.emitter(POLICY, draft.index))
            draft.add_calls(self.user.calls)
            self.user = None
        ending = await self._sample(draft)
        blocks = self.stream.latest
        answered = any(block.kind == "answer" and block.closed for block in blocks)
        # Inline, a call counts when sampling stopped at its mark; as messages, when the reply has ended.
        runs = ending == "ended" if self.template.appends == "message" else ending == "stopped" and not answered
        calls = self._read(blocks) if runs and self.tools else []
        if ending in ("cut", "full"):
            self._end("token_limit" if ending == "cut" else "context_limit")
        elif calls and (self.last or self.calling == self.config.max_turns):
            self._end("time_limit" if self.last else "turn_limit")
        elif calls:
            await self._act(draft, calls)
        elif self.dialogue is not None:
            await self._converse(draft, self.dialogue)
        else:
            self.record.answer = answer_of(self.stream.pieces, self.template)
            self.record.final = "".join(call.completion for call in draft.calls)
            self.context.emitter(POLICY, draft.index)("answer", self.record.answer)
            reason: StopReason = "answered" if answered or self.record.answer is not None else "ended"
            self._end("time_limit" if self.last else reason)

    def _read(self, blocks: Sequence[Block]) -> list[WrittenCall]:
        """The calls of a reply that has ended: between marks, or the stray ones of a reply without marks."""
        template, written = self.template, [block for block in blocks if block.kind == "call"]
        if written or self.dialogue is not None or (template.appends, template.body) != ("message", "json"):
            return read_calls(written, template, self.tools)
        calls = read_calls(stray_calls(blocks, self.tools), template, self.tools)
        if self.config.stray_calls == "run":
            return calls
        problem = f"the call stands outside {template.call.open} and {template.call.close}"
        return [WrittenCall(tool=call.tool, text=call.text, unreadable=problem) for call in calls]

    async def _sample(self, draft: Draft) -> Literal["stopped", "ended", "cut", "full"]:
        """Sample until a mark closes a call or the answer, the policy ends its reply, a limit of tokens, or no room.

        A closing mark that closes nothing (one that a thought mentions, or a program prints) stops sampling too. The
        policy then continues as if nothing had happened; a reply of nothing but such marks ends after `_VAIN_STOPS`.
        """
        module = self.context.begin(POLICY, draft.index)
        for _ in range(_VAIN_STOPS):
            try:
                call = await self._call(draft, module)
                # Otherwise nobody could learn from the transcript.
                if self.template.native and not self.stream.pieces:
                    tools: list[JsonValue] = [dict(tool) for tool in self.stream.request().tools]
                    call = call.model_copy(update={"sent": {**call.sent, "tools": tools}})
            except PromptTooLongError as failure:
                if not self.stream.pieces:
                    # Nothing is sampled yet: the recipe or the task alone is too long.
                    raise
                draft.add_calls(failure.calls)
                return "full"
            self.stream = self.stream.with_reply(call)
            draft.add_calls([call])
            module.emit("call", call)
            if not any(stop in call.completion for stop in self.stream.stops):
                return "cut" if call.finish_reason == "length" else "ended"
            if any(block.closed and block.kind in ("call", "answer") for block in self.stream.latest):
                return "stopped"
            if self.stream.remaining <= 0:
                return "cut"
            module.emit("start", None)
        return "ended"

    async def _call(self, draft: Draft, module: ModuleContext) -> Call:
        """One request; if it meets the deadline, another one with time for a last reply."""
        deadline_s, seed = self.context.deadline_s, derive_seed(module.seed, len(draft.calls))
        asked = replace(module, deadline_s=deadline_s, seed=seed)
        try:
            async with until(deadline_s):
                return stopped_at_mark(await self.policy.reply(self.stream, asked), self.stream)
        except DeadlineError as failure:
            if not self._begin_last():
                raise
            draft.add_calls(failure.calls)
            return await self._call(draft, module)

    def _begin_last(self) -> bool:
        """Give the policy time for a last reply; false if it had it, or if a dialogue would need more than that."""
        if self.last or self.dialogue is not None:
            return False
        self.last, self.context = True, self.context.for_answer(self.config.answer_s)
        return True

    async def _act(self, draft: Draft, calls: Sequence[WrittenCall]) -> None:
        """Run a reply's calls in order, each in its own turn, and append the output of all."""
        self.calling += 1
        outputs: list[str] = []
        for place, call in enumerate(calls):
            if place:
                self.record.end_turn()
                draft = self.record.begin_turn()
            outputs.append(await self._observe(draft, call))
        self.stream, draft.appended = self.stream.with_outputs(outputs)
        self.record.end_turn()

    async def _observe(self, draft: Draft, call: WrittenCall) -> str:
        """Run one call, and return its observation's text; of an invalid one, what is wrong with it."""
        emit = self.context.emitter(POLICY, draft.index)
        draft.action, draft.command = call.action, call.command
        draft.add("action", emit)
        if draft.command is not None:
            draft.add("command", emit)
        problem = call.unreadable or (draft.command.error if draft.command else None)
        if not problem and not self.last:
            assert draft.command is not None, "a call that can be read has a command"
            try:
                async with until(self.context.deadline_s):
                    draft.observation, inner = await observe(self.tools[call.tool], draft.command.arguments)
                draft.add_calls(inner)
            except DeadlineError:
                if not self._begin_last():
                    raise
        if draft.observation is None:
            draft.observation = Observation(status="error", text=problem or _TOO_LATE)
        draft.add("observation", emit)
        return draft.observation.text

    async def _converse(self, draft: Draft, dialogue: Dialogue) -> None:
        """Send the reply to the user, and append the user's answer to the stream."""
        self.record.answer = text = said(self.stream.pieces, self.template)
        draft.events.append("answer")
        self.context.emitter(POLICY, draft.index)("answer", text)
        async with until(self.context.deadline_s):
            self.user = await dialogue.reply(text)
        if self.user.over:
            draft.add_calls(self.user.calls)
            self._end("answered")
            return
        before, self.tools = self.tools, self._tools(self.user)
        # The prompt offered the first functions; it cannot be changed, so later ones are announced.
        new = {name: tool for name, tool in self.tools.items() if name not in before}
        draft.appended = escape_marks(neutral(self.user.text), self.template)
        if new:
            draft.appended += f"\n\nNew functions:\n{render_offers(new, self.template)}"
        self.calling = 0
        message = Message(role="user", content=draft.appended)
        self.stream = replace(self.stream, tools=self.tools).with_messages([message], draft.appended)
        self.record.end_turn()

    def _end(self, reason: StopReason) -> None:
        """End the run with the reply under way, which in a dialogue is a turn like any other."""
        self.over, self.record.stop_reason = True, reason
        draft = self.record.draft
        if self.dialogue is None and draft is not None:
            self.record.closing_calls, self.record.draft = tuple(draft.calls), None
        else:
            self.record.end_turn()


def render_opening(
    template: Template, tools: Mapping[str, Tool], lessons: Lessons, query: str, *, rules: str = ""
) -> tuple[Message, ...]:
    """The messages before the policy's first reply; `tools` are by the policy's names, `rules` those of a dialogue."""
    # An example is in the form of the stream, so that a policy can continue it: the template's marks stay.
    examples = template.grammar.neutral(lessons.get(POLICY + EXAMPLES, "").strip())
    shown = render_lessons(lessons.get(POLICY, "")) + (f"{examples}\n\n" if examples else "")
    values = {"tools": render_offers(tools, template), "lessons": shown, "query": neutral(query)}
    system = (rules + template.filled(template.system, **values)).strip()
    user = template.filled(template.user, **values)
    if not template.chat:
        return (Message(role="user", content=system + user),)
    return (*([Message(role="system", content=system)] if system else ()), Message(role="user", content=user))


def render_offers(tools: Mapping[str, Tool], template: Template) -> str:
    """A line for each tool, by the policy's name for it: its description, and its parameters if calls name them."""
    if template.body == "text":
        return "\n".join(f"- {name}: {neutral(tool.description)}" for name, tool in tools.items())
    return "\n".join(
        to_json({"name": name, "description": tool.description, "parameters": tool.parameters})
        for name, tool in tools.items()
    )
