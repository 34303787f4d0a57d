"""A session: one run of an agent of another program, made of its requests to midstream's models.

    request  "... 12 * 7 ?"  -> call, which calls the tool `times`           turn 1: call, action, command
    request  ... tool: "84"  -> call, "84"                                   turn 1: observation; closing call

Each answered request is a `Call` on the exact prompt that was sampled from. A reply that calls tools ends a turn for
each call; the tool's answer is found in a later request, by its id.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from midstream.components.agent_record import Draft, Outcome, RunRecord
from midstream.core.agent import ModuleContext, RunContext
from midstream.core.data import JsonObject, problems_of
from midstream.core.engine import ForwardedReply, ForwardedRequest, LockstepEngine, ReplyPiece, Request, ServedEngine
from midstream.core.errors import EngineError, InfrastructureError, MidstreamError, PromptTooLongError
from midstream.core.seeds import derive_seed
from midstream.core.text import render_lessons
from midstream.core.tool_calls import parsed
from midstream.core.trajectory import Action, Call, Command, Message, Observation, Sampling, Score, StopReason
from midstream.gateway.forms import (
    ChatReply,
    ChatRequest,
    FormError,
    Relayed,
    call_id,
    find_changing,
    media_of,
    parts_of,
)
from midstream.gateway.parsers import parse_reply
from midstream.gateway.server import Gateway, PendingReply, Step
from midstream.gateway.settings import POLICY, SessionSettings


@dataclass(kw_only=True)
class PendingRequest(PendingReply):
    """One request of the agent, and what became of it."""

    # Its turns: one, or one for each tool call of the reply.
    drafts: list[Draft]
    call: Call | None = None
    reply: ChatReply = field(init=False)
    # When it was answered, as a time of `time.monotonic()`.
    done_s: float = 0.0


class AgentSession:
    """One run under way: what its agent asked, and the limits that it meets (`gateway.server.SessionHandle`).

    All of it happens in the event loop in which it was made. `failure` is set when something around the model failed:
    the agent's run is then over, whatever the agent makes of it.
    """

    def __init__(self, gateway: Gateway, context: RunContext, settings: SessionSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.gateway, self.context, self.settings = gateway, context, settings
        self.failure: asyncio.Future[MidstreamError] = self.loop.create_future()
        self.reward: Score | None = None
        # The limit that the latest request met.
        self.limit: StopReason | None = None
        # Why the server refused the latest request.
        self.refused: EngineError | None = None
        # Of what was refused, sent again, not delivered.
        self.counts: Counter[str] = Counter()
        # When the latest request came or was answered.
        self.active_s = time.monotonic()
        self.over = False
        # For a caller from outside, who ends the session through `ended`.
        self.waits = False
        self.ended: asyncio.Future[Outcome] | None = None
        # Why such a session could not be recorded, or "".
        self.recorded: asyncio.Task[str] | None = None
        # Of the run, whose budget counts what its requests cost.
        self._variables = copy_context()
        self._requests: list[PendingRequest] = []
        # The first of each body.
        self._replies: dict[str, asyncio.Task[PendingRequest]] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        # Answered requests to other APIs than those of chats, and how many were made.
        self.forwarded: list[Call] = []
        self._forwards = 0
        self._same: Counter[str] = Counter()
        # By id of a tool call without an answer.
        self._tools: dict[str, tuple[PendingRequest, Draft]] = {}
        # An engine that waits for all trajectories answers one request of each at a time.
        lockstep = any(isinstance(engine, LockstepEngine) for engine in context.engines.values())
        self._place: AbstractAsyncContextManager[object] = asyncio.Lock() if lockstep else nullcontext()

    @property
    def names(self) -> list[str]:
        """The names of its models."""
        others = [name for name in self.context.engines if name not in (POLICY, "*")]
        return [*self.trained, *others]

    @property
    def trained(self) -> list[str]:
        """The names under which the policy answers, but for "*"."""
        named = [name for name, model in self.gateway.config.models.items() if model.train and name != "*"]
        return [*dict.fromkeys([*self.gateway.roles, *named])] or [POLICY]

    @property
    def idle(self) -> bool:
        """Whether the agent has begun, and waits for no model."""
        return not self._under_way and not self.waits

    def begin(self) -> None:
        """The agent has begun."""
        now_s = time.monotonic()
        if self.context.deadline_s is not None:
            # The deadline is of its turns: the wait for a caller does not count.
            self.context = replace(self.context, deadline_s=self.context.deadline_s + now_s - self.active_s)
        self.waits, self.active_s = False, now_s

    @property
    def calls(self) -> list[Call]:
        """The answered requests so far."""
        return [pending.call for pending in self._requests if pending.call is not None]

    # -- what the gateway calls ------------------------------------------------------------------------------------

    async def ask(self, chat: ChatRequest, digest: str, retried: bool, step: Step) -> PendingRequest:
        """Answer a request; one that a client `retried` gets the answer of the first of its body."""
        self._check_open()
        task = self._replies.get(digest) if retried else None
        if task is None:
            task = self.loop.create_task(self._answer(chat, digest, step), context=self._variables)
            self._replies.setdefault(digest, task)
            self._under_way.add(task)
            task.add_done_callback(self._on_done)
        else:
            self.counts["retried"] += 1
        # Who hangs up does not take the sample from a retry.
        return await asyncio.shield(task)

    async def forward(self, request: ForwardedRequest) -> ForwardedReply:
        """The answer of a server to a request to another of its APIs.

        It is the server of the model that the request names, for any other name that of "*" or of the policy.
        """
        self._check_open()
        self._count()
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        task.add_done_callback(self._on_done)
        body = parsed(request.body.decode("utf-8", "replace"))
        name = body.get("model") if isinstance(body, dict) else None
        role = self._role(str(name))
        context = self.context.begin(role if role in self.context.engines else POLICY, len(self._requests) + 1)
        engine, why = context.engine, ""
        if isinstance(self.context.sampling, Sampling):
            why = "weights are trained"
        elif self.ended is not None:
            why = "callers from outside reach chats only"
        elif not isinstance(engine, ServedEngine):
            why = f"engine {engine.name!r} has no such API" if engine else "no engine answers"
        if why or not isinstance(engine, ServedEngine):
            words = f"{request.method} {request.path} is not answered, because {why}"
            raise self._refusal(400, "unsupported_parameter", words)
        self._forwards += 1
        started, clock = time.time(), time.monotonic()
        try:
            asked = replace(request, own_model=name in self.names, deadline_s=context.deadline_s)
            reply = await self.loop.create_task(engine.forward(asked), context=self._variables)
        except MidstreamError as failure:
            self.fail(failure)
            raise self._refusal(503, failure.code, f"the server cannot answer: {failure.what}") from failure
        sent: JsonObject = {"method": request.method, "path": request.path, "name": name, "status": reply.status}
        took = time.monotonic() - clock
        call = Call(role="api", engine=engine.name, usage=reply.usage, sent=sent, started_at=started, duration_s=took)
        self.forwarded.append(call)
        self.refused = None
        # What a server does not have to show is an answer.
        if reply.status >= 400 and request.method == "POST":
            words, fix = f"{engine.name} answered {reply.status} to {request.path}", "look at what the agent asks"
            self.refused = EngineError(words, code="request-refused", fix=fix, retryable=False)
        return reply

    def _check_open(self) -> None:
        self.active_s = time.monotonic()
        if self.over:
            raise self._refusal(409, "session-ended", "this session has ended; its agent may ask no more")

    async def take_reward(self, body: object) -> None:
        """Take the agent's reward: {"reward": 0.5, "feedback": "why"}; or one reply's: {"call": ID, "reward": -1}."""
        fields = body if isinstance(body, dict) else {}
        name = fields.get("call")
        value = _checked_reward(fields.get("reward"), 0 if name is None else -1)
        if self.over:
            raise FormError("session-ended", "this session has ended; it takes no reward", None, status=409)
        if name is not None:
            for pending in self._requests:
                # An API puts a prefix before the id of a reply; a server's own reply has the server's id.
                if pending.call and (name == pending.reply.body.get("id") or str(name).endswith(pending.reply.id)):
                    pending.call = pending.call.model_copy(update={"reward": value})
                    return
            words = f"no reply of this session has the id {name!r:.100}; send the `id` of a reply as it came"
            raise FormError("unknown-call", words, "call", status=404)
        feedback = Outcome(feedback=str(fields.get("feedback", ""))).feedback
        self.reward = Score(value, feedback=feedback)

    async def take_end(self, body: object) -> None:
        """End a session that was opened from outside: {"answer": "42"}, or {"error": "why"}."""
        if self.ended is None:
            raise FormError("unsupported_parameter", "midstream runs this agent, and sees its end", None)
        if not isinstance(body, dict):
            raise FormError("invalid_type", 'an object is needed, e.g. {"answer": "42"}', None)
        if self.ended.done():
            raise FormError("session-ended", "this session has ended", None, status=409)
        if body.get("reward") is not None:
            _checked_reward(body["reward"])
        try:
            outcome = Outcome.model_validate({key: value for key, value in body.items() if key != "error"})
        except ValidationError as failure:
            raise FormError("invalid_value", "; ".join(problems_of(failure)), None) from failure
        if error := body.get("error"):
            fix = "look at the caller's log"
            self.ended.set_exception(agent_failed(f"the caller ended its session: {error!s:.2000}", fix))
        else:
            self.ended.set_result(outcome)
        if self.recorded is not None and (why := await asyncio.shield(self.recorded)):
            raise FormError("session-lost", f"the session was not recorded: {why}", None, status=500)

    # -- a request -------------------------------------------------------------------------------------------------

    def _role(self, name: str) -> str:
        """The role of the engine that answers under a name; "*" for any other name."""
        every = self.gateway.config.models.get("*")
        if name in self.trained or (name not in self.context.engines and every is not None and every.train):
            return POLICY
        # Where roles are trained, a call of no role would be lost.
        unknown = name not in self.context.engines or (name == POLICY and self.gateway.roles)
        return "*" if unknown else name

    def _count(self) -> None:
        """Refuse a request beyond the limit of calls."""
        if (asked := len(self._requests) + self._forwards) >= self.settings.max_calls:
            # The agent's own doing: its run is scored.
            self.limit = "turn_limit"
            words = f"the agent has made {asked} calls, the most that agent.max_calls allows"
            raise self._refusal(400, "call-limit", words)

    async def _answer(self, chat: ChatRequest, digest: str, step: Step) -> PendingRequest:
        role = self._role(chat.model)
        if role not in self.context.engines or chat.model == "*":
            names = ", ".join(self.names)
            raise self._refusal(404, "unknown-model", f"no model {chat.model!r:.100}; there are: {names}", "model")
        self._observe(chat.messages)
        self._count()
        # The seed is of what is asked, not of when: concurrent requests then draw alike in any order.
        seed = derive_seed(self.context.seed, digest, self._same[digest])
        sampling = self._sampling(chat, role, seed, step)
        self._same[digest] += 1
        pending = PendingRequest(drafts=[Draft(index=len(self._requests) + 1)])
        self._requests.append(pending)
        context, met = self.context.begin(role, pending.drafts[0].index), self.limit
        request = Request(
            role=chat.model if chat.model in self.gateway.roles else role,
            messages=with_lessons(chat.messages, context),
            tools=chat.tools,
            json_schema=chat.json_schema,
            **sampling,
        )
        try:
            async with self._place:
                call = await context.sample(request)
                sent = {"name": chat.model, "asked": to_jsonable_python(chat.given), "seed": request.seed}
                pending.call = call.model_copy(update={"sent": call.sent | sent})
        except PromptTooLongError as failure:
            self.limit = "context_limit"
            if not self.calls:
                # Nothing is sampled yet: the task alone is too long.
                self.fail(failure)
            raise self._refusal(400, "context_length_exceeded", failure.what, "messages") from failure
        except MidstreamError as failure:
            if isinstance(failure, EngineError) and failure.code == "request-refused":
                # Of the agent's own request, unless it ends with it.
                self.refused = failure
                raise self._refusal(400, failure.code, failure.what) from failure
            self.fail(failure)
            raise self._refusal(503, failure.code, f"the model cannot answer: {failure.what}") from failure
        self.refused = None
        context.emit("call", call)
        # Another request may have met a limit in the meantime.
        if self.limit == met:
            self.limit = None
        if call.reply:
            text, thoughts, uses = parts_of(call.reply, f"{seed:016x}")
        else:
            own = parse_reply(call.completion, chat.tools, self.gateway.config.parser)
            text, thoughts, uses = own.text, own.thoughts, own.tool_uses(f"{seed:016x}")
        pending.reply = ChatReply(
            id=f"{seed:016x}",
            model=chat.model,
            created=int(time.time()),
            text=text,
            thoughts=thoughts,
            tool_uses=uses,
            finish="length" if call.finish_reason == "length" else "stop",
            prompt_tokens=call.usage.prompt_tokens,
            completion_tokens=call.usage.completion_tokens,
            body=call.reply,
        )
        for place, use in enumerate(uses):
            if place:
                pending.drafts.append(Draft(index=pending.drafts[0].index))
            draft = pending.drafts[-1]
            draft.action = Action(tool=use.name, context=use.arguments)
            values, none = use.values, "the arguments are not a JSON object"
            draft.command = Command(tool=use.name, arguments=values or {}, error=none if values is None else None)
            draft.add("action", context.emit)
            draft.add("command", context.emit)
            self._tools[use.id] = (pending, draft)
        pending.done_s = time.monotonic()
        return pending

    def _sampling(self, chat: ChatRequest, role: str, seed: int, step: Step) -> dict[str, Any]:
        """The fields of a `Request` by which a model samples: as the agent asks, unless the weights are trained."""
        forced = self.context.sampling if role == POLICY else None
        own = chat.given
        stop = own.pop("stop", ())
        is_trained, engine = isinstance(forced, Sampling), self.context.engines[role]
        # Token ids, where they are asked for, are of one reply.
        is_relayed = isinstance(engine, ServedEngine) and not is_trained and not engine.token_exact
        name = find_changing(chat.options) or media_of(chat.messages)
        if name is not None and not is_relayed:
            why = "the weights are trained" if is_trained else f"engine {engine.name!r} cannot use it"
            raise self._refusal(400, "unsupported_parameter", f"it is not supported, because {why}: remove it", name)
        if isinstance(forced, Sampling):
            limit, stop = min(own.get("max_tokens", forced.max_tokens), forced.max_tokens), (*forced.stop, *stop)
            own = {"temperature": forced.temperature, "top_p": forced.top_p, "max_tokens": limit}
        elif forced is not None:
            own["temperature"] = forced
        values = {key: value for key, value in own.items() if key in Sampling.model_fields}
        sampling = Sampling.model_validate({"max_tokens": self.settings.sampling.max_tokens, **values, "stop": stop})
        fields: dict[str, Any] = {"sampling": sampling, "seed": own.get("seed", seed), "options": own}
        if is_relayed and chat.stream:

            def relay(chunk: JsonObject, pieces: Sequence[ReplyPiece]) -> None:
                reply_id = f"{seed:016x}"
                known = [
                    replace(piece, id=piece.id or call_id(reply_id, piece.place)) if piece.kind == "call" else piece
                    for piece in pieces
                ]
                step(Relayed(id=reply_id, chunk=chunk, pieces=known))

            fields["relay"] = relay
        if is_relayed and chat.body is not None:
            return fields | {"options": chat.body if forced is None else {**chat.body, "temperature": forced}}
        return fields | {"capped": own.pop("max_tokens", None) is not None}

    def _observe(self, messages: Sequence[Message]) -> None:
        """Find the answers of tools in the messages of a request."""
        for message in messages:
            if message.role == "tool" and (waiting := self._tools.pop(str(message.fields.get("tool_call_id")), None)):
                pending, draft = waiting
                took = time.monotonic() - pending.done_s
                began, text = time.time() - took, message.content
                draft.observation = Observation(status="ok", text=text, started_at=began, duration_s=took)
                draft.add("observation", self.context.emitter(POLICY, draft.index))

    def _refusal(self, status: int, code: str, words: str, param: str | None = None) -> FormError:
        self.counts[f"refused: {code}"] += 1
        return FormError(code, words, param, status=status)

    def fail(self, failure: MidstreamError) -> None:
        """Something around the model failed: the run is over."""
        if not self.failure.done():
            self.failure.set_result(failure)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        self.active_s = time.monotonic()
        if task.cancelled() or not (error := task.exception()) or isinstance(error, FormError):
            return
        self.fail(InfrastructureError(f"a request failed: {error!r}", code="gateway-failed", retryable=False))

    # -- the end ---------------------------------------------------------------------------------------------------

    async def end(self, record: RunRecord) -> None:
        """End the session: requests under way are dropped, and what was answered is written as turns."""
        self.over = True
        for task in list(self._under_way):
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)
        if not self.failure.done():
            self.failure.cancel()
        drafts: list[Draft] = []
        record.closing_calls = tuple(self.forwarded)
        for pending in self._requests:
            if pending.call is not None:
                self.counts["not delivered"] += not pending.delivered
                call = pending.call if pending.delivered else pending.call.model_copy(update={"delivered": False})
                # The call stands in the first of its turns.
                pending.drafts[0].calls = [call]
                drafts += pending.drafts
        if drafts and drafts[-1].action is None:
            record.closing_calls += tuple(drafts.pop().calls)
        for index, draft in enumerate(drafts, 1):
            draft.index = index
            draft.events[:0] = ["call" for _ in draft.calls]
            record.turns.append(draft.turn())
        record.outcome = {name: count for name, count in sorted(self.counts.items()) if count}


def _checked_reward(value: object, least: int = 0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1:
        raise FormError("reward-invalid", f"a reward here is a number in [{least}, 1], not {value!r:.100}", "reward")
    return float(value)


def agent_failed(what: str, fix: str, cause: str = "") -> InfrastructureError:
    """The error of an agent's program: its run is tried again, and never scored."""
    return InfrastructureError(what, code="agent-failed", cause=cause, fix=fix)


def with_lessons(messages: tuple[Message, ...], context: ModuleContext) -> tuple[Message, ...]:
    """The messages with lessons and examples at the end of the system message, or in one of their own."""
    text = render_lessons(context.lessons, context.examples).strip()
    if not text:
        return messages
    if not messages or messages[0].role != "system":
        return (Message(role="system", content=text), *messages)
    first, *others = messages
    fields = {key: value for key, value in first.fields.items() if key != "content"}
    content = f"{first.content}\n\n{text}" if first.content else text
    return (first.model_copy(update={"content": content, "fields": fields}), *others)
