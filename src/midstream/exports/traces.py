"""One trajectory as ATIF (the Agent Trajectory Interchange Format of Harbor) or as OpenTelemetry spans."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

from midstream.core.trajectory import Call, Message, Trajectory, Turn
from midstream.core.version import __version__

_INTERNAL, _CLIENT = 1, 3  # kinds of spans
_FAILED = 2  # a span's status


# --- ATIF -------------------------------------------------------------------------------------------------------------


def atif(part: str, trajectory: Trajectory) -> dict[str, Any]:
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
    calls = trajectory.calls
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": f"{part}/{trajectory.id}",
        "agent": {"name": trajectory.agent or "midstream", "version": __version__, **_model_name(calls)},
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(call.usage.prompt_tokens for call in calls),
            "total_completion_tokens": sum(call.usage.completion_tokens for call in calls),
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
    fields: dict[str, Any] = {"llm_call_count": len(calls)}
    if not calls:
        return fields
    metrics: dict[str, Any] = {
        "prompt_tokens": sum(call.usage.prompt_tokens for call in calls),
        "completion_tokens": sum(call.usage.completion_tokens for call in calls),
        "cost_usd": sum(call.usage.cost_usd for call in calls),
    }
    if len(calls) == 1 and calls[0].completion_ids:
        metrics |= {
            "prompt_token_ids": list(calls[0].prompt_ids),
            "completion_token_ids": list(calls[0].completion_ids),
            "logprobs": list(calls[0].logprobs),
        }
    return {**fields, **_model_name(calls), "metrics": metrics}


def _model_name(calls: Sequence[Call]) -> dict[str, str]:
    return {"model_name": _model(calls[0])} if calls else {}


def _model(call: Call) -> str:
    return str(call.sent.get("model") or call.engine)


def _arguments(turn: Turn) -> dict[str, Any]:
    assert turn.command is not None
    return turn.command.arguments if turn.command.code is None else {"code": turn.command.code}


# --- OpenTelemetry ----------------------------------------------------------------------------------------------------


def otel(run: str, part: str, trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as one trace: OTLP's `TracesData`, with the attributes of the GenAI semantic conventions.

    The span of the agent has the spans of its model calls and tools below it. Start and duration of the agent and
    durations of tools were measured. Those of model calls were not: they share the rest of the time by their tokens,
    and have the attribute `midstream.estimated_time`.
    """
    place = f"{run}/{part}/{trajectory.id}"
    trace = blake2b(place.encode(), digest_size=16).hexdigest()
    root = blake2b(f"{place} agent".encode(), digest_size=8).hexdigest()
    start, end = trajectory.started_at, trajectory.started_at + trajectory.duration_s
    score = trajectory.reward
    agent = _span(f"invoke_agent {trajectory.agent}", trace, root, _INTERNAL, start, end) | {
        "attributes": _attributes(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": "midstream",
                "gen_ai.agent.name": trajectory.agent,
                "gen_ai.conversation.id": trajectory.id,
                "gen_ai.input.messages": _messages([Message(role="user", content=trajectory.question)]),
                "gen_ai.output.messages": _messages(
                    [Message(role="assistant", content=trajectory.final or trajectory.answer or "")], "stop"
                ),
                "error.type": trajectory.error.type if trajectory.error else None,
                "midstream.part": part,
                "midstream.task.id": trajectory.task_id,
                "midstream.stop_reason": trajectory.stop_reason,
            }
        )
    }
    if trajectory.error is not None:
        agent["status"] = {"code": _FAILED, "message": trajectory.error.message}
    if score is not None:
        about = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": float(score.value)}
        parts = {f"midstream.reward.{name}": float(value) for name, value in score.parts.items()}
        event = {"name": "gen_ai.evaluation.result", "timeUnixNano": _nanoseconds(end)}
        agent["events"] = [{**event, "attributes": _attributes(about | parts)}]
    calls, turns = trajectory.calls, trajectory.turns
    measured = sum(turn.observation.duration_s for turn in turns if turn.observation)
    tokens = sum(call.usage.completion_tokens + 1 for call in calls)
    rest = max(0.0, trajectory.duration_s - measured)
    spans = [agent]
    for number, done in enumerate(_in_order(trajectory)):
        span_id = blake2b(f"{place} {number}".encode(), digest_size=8).hexdigest()
        if isinstance(done, Call):
            end = start + rest * (done.usage.completion_tokens + 1) / tokens
            span = _call_span(done, trace, span_id, start, end)
        else:
            end = start + (done.observation.duration_s if done.observation else 0.0)
            span = _tool_span(done, trace, span_id, start, end)
        spans.append({**span, "parentSpanId": root})
        start = end
    resource = _attributes({"service.name": "midstream", "service.version": __version__, "midstream.run": run})
    scopes = [{"scope": {"name": "midstream", "version": __version__}, "spans": spans}]
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": scopes}]}


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


def _call_span(call: Call, trace: str, span_id: str, start: float, end: float) -> dict[str, Any]:
    operation, address = "chat" if call.messages else "text_completion", urlsplit(str(call.sent.get("base_url", "")))
    asked = call.messages or [Message(role="user", content=call.prompt)]
    span = _span(f"{operation} {_model(call)}", trace, span_id, _CLIENT if address.hostname else _INTERNAL, start, end)
    span["attributes"] = _attributes(
        {
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
            "gen_ai.output.messages": _messages(
                [Message(role="assistant", content=call.completion)], call.finish_reason or "stop"
            ),
            "server.address": address.hostname,
            "server.port": address.port or (443 if address.scheme == "https" else 80) if address.hostname else None,
            "error.type": call.error.type if call.error else None,
            "midstream.module": call.role,
            "midstream.estimated_time": True,
        }
    )
    if call.error is not None:
        span["status"] = {"code": _FAILED, "message": call.error.message}
    return span


def _tool_span(turn: Turn, trace: str, span_id: str, start: float, end: float) -> dict[str, Any]:
    assert turn.command is not None
    assert turn.observation is not None
    span = _span(f"execute_tool {turn.command.tool}", trace, span_id, _INTERNAL, start, end)
    failed = turn.observation.status == "error"
    span["attributes"] = _attributes(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": turn.command.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": f"call-{turn.index}",
            "gen_ai.tool.call.arguments": json.dumps(_arguments(turn), ensure_ascii=False),
            "gen_ai.tool.call.result": turn.observation.text,
            "error.type": "tool_error" if failed else None,
        }
    )
    return span | ({"status": {"code": _FAILED}} if failed else {})


def _span(name: str, trace: str, span_id: str, kind: int, start: float, end: float) -> dict[str, Any]:
    times = {"startTimeUnixNano": _nanoseconds(start), "endTimeUnixNano": _nanoseconds(end)}
    return {"traceId": trace, "spanId": span_id, "name": name.strip(), "kind": kind, **times}


def _nanoseconds(seconds: float) -> str:
    """A time as OTLP's JSON has it: 64-bit integers are text."""
    return str(int(seconds * 1e9))


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


def _messages(messages: Sequence[Message], finish_reason: str = "") -> str:
    """Messages as the conventions' JSON, which has a finish reason in output only."""
    reason = {"finish_reason": finish_reason} if finish_reason else {}
    texts = [
        {"role": message.role, "parts": [{"type": "text", "content": message.content}], **reason}
        for message in messages
    ]
    return json.dumps(texts, ensure_ascii=False)
