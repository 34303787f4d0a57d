"""Trajectories as ATIF (the Agent Trajectory Interchange Format of Harbor) or as OpenTelemetry spans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from midstream.core.trajectory import Call, Observation, ToolCall, Trajectory, Turn, usage_of
from midstream.core.version import __version__
from midstream.exports import Format, Origin, Row, write_lines
from midstream.runs.files import encode_record, storage_errors

_INTERNAL, _CLIENT = 1, 3  # kinds of spans
_FAILED = 2  # a span's status
RESULT = "gen_ai.evaluation.result"  # the event that holds the reward


# --- ATIF -------------------------------------------------------------------------------------------------------------


def atif(origin: Origin, trajectory: Trajectory) -> Iterator[Row]:
    """An ATIF-v1.7 document: the question, a step for each turn, and the answer.

    A step has the first reply of its turn as message and the sum of all its calls as metrics; the other replies (an
    executor's, a verifier's) are in its `extra`. Token ids and log-probabilities are those of turns with one call.
    """
    steps: list[dict[str, Any]] = []

    def add(source: str, message: str, **fields: Any) -> None:
        step = {"step_id": len(steps) + 1, "source": source, "message": message, **fields}
        steps.append({key: value for key, value in step.items() if value is not None})

    if trajectory.question:
        start = datetime.fromtimestamp(trajectory.started_at, UTC).isoformat(timespec="milliseconds")
        add("user", trajectory.question, timestamp=start if trajectory.started_at else None)
    if trajectory.opening_calls:
        add("agent", trajectory.opening_calls[0].completion, **_model_fields(trajectory.opening_calls))
    for turn in trajectory.turns:
        if turn.user and (not steps or turn.user != steps[-1]["message"]):
            add("user", turn.user)
        message = turn.calls[0].completion if turn.calls else turn.action.sub_goal if turn.action else ""
        add("agent", message, **_tool_fields(turn), **_model_fields(turn.calls))
    last = trajectory.closing_calls[-1].completion if trajectory.closing_calls else ""
    add("agent", trajectory.final or last or trajectory.answer or "", **_model_fields(trajectory.closing_calls))
    calls, used = trajectory.calls, usage_of(trajectory.calls)
    yield {
        "schema_version": "ATIF-v1.7",
        "session_id": f"{origin.part}/{trajectory.id}",
        "agent": {"name": trajectory.agent or "midstream", "version": __version__, **_model_name(calls)},
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": used.prompt_tokens,
            "total_completion_tokens": used.completion_tokens,
            "total_cost_usd": trajectory.cost_usd,
            "total_steps": len(steps),
        },
        "extra": {
            "task_id": trajectory.task_id,
            "answer": trajectory.answer,
            "gold": trajectory.gold,
            "reward": trajectory.reward.value if trajectory.reward else None,
            "reward_parts": trajectory.reward.parts if trajectory.reward else {},
            "stop_reason": trajectory.stop_reason,
            "error": trajectory.error.message if trajectory.error else None,
        },
    }


def _tool_fields(turn: Turn) -> dict[str, Any]:
    """The tool call of a turn and what it returned; a malformed action has an observation of no call."""
    fields: dict[str, Any] = {}
    name = f"call-{turn.index}"
    called = turn.command is not None and turn.command.error is None
    if turn.command is not None and called:
        fields["tool_calls"] = [
            {"tool_call_id": name, "function_name": turn.command.tool, "arguments": _arguments(turn)}
        ]
    if turn.observation is not None:
        source = {"source_call_id": name} if called else {}
        extra = {"status": turn.observation.status, "duration_s": turn.observation.duration_s}
        fields["observation"] = {"results": [{**source, "content": turn.observation.text, "extra": extra}]}
    extra = {
        "replies": [{"module": call.role, "text": call.completion} for call in turn.calls[1:]] or None,
        "verdict": turn.verdict.signal if turn.verdict else None,
        "error": turn.error.message if turn.error else None,
    }
    return fields | {"extra": {key: value for key, value in extra.items() if value is not None} or None}


def _model_fields(calls: Sequence[Call]) -> dict[str, Any]:
    if not calls:
        return {"llm_call_count": 0}
    metrics: dict[str, Any] = usage_of(calls).model_dump()
    if len(calls) == 1 and calls[0].completion_ids:
        metrics |= {
            "prompt_token_ids": list(calls[0].prompt_ids),
            "completion_token_ids": list(calls[0].completion_ids),
            "logprobs": list(calls[0].logprobs),
        }
    return {"llm_call_count": len(calls), **_model_name(calls), "metrics": metrics}


def _model_name(calls: Sequence[Call]) -> dict[str, str]:
    return {"model_name": _model(calls[0])} if calls else {}


def _model(call: Call) -> str:
    return str(call.sent.get("model") or call.engine)


def _arguments(turn: Turn) -> dict[str, Any]:
    assert turn.command is not None
    return turn.command.arguments if turn.command.code is None else {"code": turn.command.code}


def _write_documents(path: Path, documents: Iterable[Row]) -> None:
    """A JSON file for each document, in a directory for each part."""
    for document in documents:
        part, _, name = document["session_id"].partition("/")
        # Encoded, not replaced: other ids have other files.
        encoded = re.sub(r"[^\w.#=+-]", lambda match: quote(match[0], safe=""), name)
        file = path / part / f"{encoded}.json"
        with storage_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode_record(document))


# --- OpenTelemetry ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A span of a trace, with those inside it; `start` and `end` are seconds since the epoch.

    `failure` is None where nothing failed, "" for a failure without a message. `result` are the attributes of an event
    at the end, the reward. Attributes that are None are left out.
    """

    name: str
    kind: int
    attributes: Mapping[str, Any]
    start: float
    end: float
    failure: str | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    inner: Sequence[Span] = ()


def span_of(origin: Origin, trajectory: Trajectory) -> Span:
    """A trajectory as spans, with the attributes of the GenAI semantic conventions.

    The agent's span holds those of its model calls and tools, and a tool's those of the calls that its code made. Times
    are as they were measured. A request that has none, such as one that a tool made, begins and ends where what came
    before it ended, and has the attribute `midstream.estimated_time`.
    """
    step = re.match(r"(?:step|gate)-0*(\d+)", origin.part)
    score, answer = trajectory.reward, trajectory.final or trajectory.answer or ""
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "midstream",
        "gen_ai.agent.name": trajectory.agent,
        "gen_ai.conversation.id": f"{origin.run}/{origin.part}/{trajectory.id}",
        "gen_ai.input.messages": _messages([("user", trajectory.question)]),
        "gen_ai.output.messages": _messages([("assistant", answer)], "stop"),
        # OpenInference's names, from which Phoenix lists an agent's question and answer.
        "input.value": trajectory.question,
        "output.value": answer,
        "error.type": trajectory.error.type if trajectory.error else None,
        "midstream.run": origin.run,
        "midstream.recipe": origin.recipe,
        "midstream.part": origin.part,
        "midstream.step": int(step[1]) if step else None,
        "midstream.task.id": trajectory.task_id,
        "midstream.reward": float(score.value) if score else None,
        "midstream.stop_reason": trajectory.stop_reason,
    }
    result: dict[str, Any] = {}
    if score is not None:
        result = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": float(score.value)}
        result |= {f"midstream.reward.{name}": float(value) for name, value in score.parts.items()}
    start, inner = trajectory.started_at, list[Span]()
    for part in _in_order(trajectory):
        before = inner[-1].end if inner else start
        inner.append(_call_span(part, before) if isinstance(part, Call) else _tool_span(part, before))
    return Span(
        name=f"invoke_agent {trajectory.agent}".strip(),
        kind=_INTERNAL,
        attributes=attributes,
        start=start,
        end=start + trajectory.duration_s,
        failure=trajectory.error.message if trajectory.error else None,
        result=result,
        inner=inner,
    )


def otel(origin: Origin, trajectory: Trajectory) -> Iterator[Row]:
    """A trajectory as one trace: OTLP's `TracesData`."""
    place = f"{origin.run}/{origin.part}/{trajectory.id}"
    trace_id, spans = blake2b(place.encode(), digest_size=16).hexdigest(), list[dict[str, Any]]()

    def add(span: Span, parent: str = "") -> None:
        span_id = blake2b(f"{place} {len(spans)}".encode(), digest_size=8).hexdigest()
        row: dict[str, Any] = {"traceId": trace_id, "spanId": span_id, "name": span.name, "kind": span.kind}
        row |= {"parentSpanId": parent} if parent else {}
        row |= {"startTimeUnixNano": str(nanoseconds(span.start)), "endTimeUnixNano": str(nanoseconds(span.end))}
        row["attributes"] = _attributes(span.attributes)
        if span.failure is not None:
            row["status"] = {"code": _FAILED} | ({"message": span.failure} if span.failure else {})
        if span.result:
            event = {"name": RESULT, "timeUnixNano": row["endTimeUnixNano"], "attributes": _attributes(span.result)}
            row["events"] = [event]
        spans.append(row)
        for each in span.inner:
            add(each, span_id)

    add(span_of(origin, trajectory))
    resource = _attributes({"service.name": "midstream", "service.version": __version__, "midstream.run": origin.run})
    scopes = [{"scope": {"name": "midstream", "version": __version__}, "spans": spans}]
    yield {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": scopes}]}


def _in_order(trajectory: Trajectory) -> Iterator[Call | Turn]:
    """Model calls, and turns for their tool's execution, in the order in which they happened."""
    yield from trajectory.opening_calls
    for turn in trajectory.turns:
        calls = iter(turn.calls)
        called = turn.command is not None and turn.command.error is None and turn.observation is not None
        for kind in turn.events or (*("call" for _ in turn.calls), "observation"):
            if kind == "call" and (call := next(calls, None)) is not None:
                yield call
            elif kind == "observation" and called:
                yield turn
        yield from calls
    yield from trajectory.closing_calls


def _call_span(call: Call, before: float) -> Span:
    operation, address = "chat" if call.messages else "text_completion", urlsplit(str(call.sent.get("base_url", "")))
    if call.role == "api":
        # A request of an agent to another API of its model's server.
        operation = str(call.sent["path"])
    asked = [(message.role, message.content) for message in call.messages] or [("user", call.prompt)]
    start = call.started_at or before
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": address.hostname or "midstream",
        "gen_ai.request.model": _model(call),
        "gen_ai.request.temperature": float(call.sampling.temperature),
        "gen_ai.request.top_p": float(call.sampling.top_p),
        "gen_ai.request.max_tokens": call.sampling.max_tokens,
        "gen_ai.response.finish_reasons": [call.finish_reason] if call.finish_reason else None,
        "gen_ai.usage.input_tokens": call.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": call.usage.completion_tokens,
        "gen_ai.input.messages": _messages(asked),
        "gen_ai.output.messages": _messages([("assistant", call.completion)], call.finish_reason or "stop"),
        "server.address": address.hostname,
        "server.port": address.port or (443 if address.scheme == "https" else 80) if address.hostname else None,
        "error.type": call.error.type if call.error else None,
        "midstream.module": call.role,
        "midstream.estimated_time": None if call.started_at else True,
    }
    return Span(
        name=f"{operation} {_model(call)}".strip(),
        kind=_CLIENT if address.hostname else _INTERNAL,
        attributes=attributes,
        start=start,
        end=start + call.duration_s,
        failure=call.error.message if call.error else None,
    )


def _tool_span(turn: Turn, before: float) -> Span:
    assert turn.command is not None
    assert turn.observation is not None
    done, call_id = turn.observation, f"call-{turn.index}"
    span = _executed(turn.command.tool, call_id, _arguments(turn), done, before)
    numbered = enumerate(done.tool_calls, 1)
    inner = [_executed(made.tool, f"{call_id}.{n}", made.arguments, made, span.start) for n, made in numbered]
    return replace(span, inner=inner)


def _executed(
    tool: str, call_id: str, arguments: Mapping[str, Any], done: Observation | ToolCall, before: float
) -> Span:
    failed, start = done.status == "error", done.started_at or before
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call_id,
        "gen_ai.tool.call.arguments": json.dumps(arguments, ensure_ascii=False),
        "gen_ai.tool.call.result": done.text,
        "error.type": "tool_error" if failed else None,
    }
    failure, end = "" if failed else None, start + done.duration_s
    return Span(
        name=f"execute_tool {tool}", kind=_INTERNAL, attributes=attributes, start=start, end=end, failure=failure
    )


def nanoseconds(seconds: float) -> int:
    """A time as OTLP has it."""
    return int(seconds * 1e9)


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": value}


def _messages(messages: Iterable[tuple[str, str]], finish_reason: str = "") -> str:
    """Roles and texts as the conventions' JSON, which has a finish reason in output only."""
    reason = {"finish_reason": finish_reason} if finish_reason else {}
    said = [{"role": role, "parts": [{"type": "text", "content": text}], **reason} for role, text in messages]
    return json.dumps(said, ensure_ascii=False)


ATIF = Format("", atif, _write_documents)
OTEL = Format(".jsonl", otel, write_lines)
