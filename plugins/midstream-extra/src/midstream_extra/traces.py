"""Trajectories as ATIF (the Agent Trajectory Interchange Format of Harbor) or as OpenTelemetry spans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from midstream.core.trajectory import Call, Trajectory, Turn, usage_of
from midstream.core.version import __version__
from midstream.exports.write import Format, Origin, Row, write_lines
from midstream.runs.files import encode_record, storage_errors

_INTERNAL, _CLIENT = 1, 3  # kinds of spans
_FAILED = 2  # a span's status


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


def otel(origin: Origin, trajectory: Trajectory) -> Iterator[Row]:
    """A trajectory as one trace: OTLP's `TracesData`, with the attributes of the GenAI semantic conventions.

    The span of the agent has the spans of its model calls and tools below it. Start and duration of the agent and
    durations of tools were measured. Those of model calls were not: they share the rest of the time by their tokens,
    and have the attribute `midstream.estimated_time`.
    """
    place = f"{origin.run}/{origin.part}/{trajectory.id}"
    start, end = trajectory.started_at, trajectory.started_at + trajectory.duration_s
    score = trajectory.reward

    def placed(span: dict[str, Any], key: object, start: float, end: float) -> dict[str, Any]:
        return {
            "traceId": blake2b(place.encode(), digest_size=16).hexdigest(),
            "spanId": blake2b(f"{place} {key}".encode(), digest_size=8).hexdigest(),
            **span,
            "startTimeUnixNano": _nanoseconds(start),
            "endTimeUnixNano": _nanoseconds(end),
        }

    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "midstream",
        "gen_ai.agent.name": trajectory.agent,
        "gen_ai.conversation.id": trajectory.id,
        "gen_ai.input.messages": _messages([("user", trajectory.question)]),
        "gen_ai.output.messages": _messages([("assistant", trajectory.final or trajectory.answer or "")], "stop"),
        "error.type": trajectory.error.type if trajectory.error else None,
        "midstream.part": origin.part,
        "midstream.task.id": trajectory.task_id,
        "midstream.stop_reason": trajectory.stop_reason,
    }
    failure = trajectory.error.message if trajectory.error else None
    agent = placed(_span(f"invoke_agent {trajectory.agent}", _INTERNAL, attributes, failure), "agent", start, end)
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
        if isinstance(done, Call):
            span, end = _call_span(done), start + rest * (done.usage.completion_tokens + 1) / tokens
        else:
            span, end = _tool_span(done), start + (done.observation.duration_s if done.observation else 0.0)
        spans.append({**placed(span, number, start, end), "parentSpanId": agent["spanId"]})
        start = end
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


def _call_span(call: Call) -> dict[str, Any]:
    operation, address = "chat" if call.messages else "text_completion", urlsplit(str(call.sent.get("base_url", "")))
    asked = [(message.role, message.content) for message in call.messages] or [("user", call.prompt)]
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
        "midstream.estimated_time": True,
    }
    kind, failure = _CLIENT if address.hostname else _INTERNAL, call.error.message if call.error else None
    return _span(f"{operation} {_model(call)}", kind, attributes, failure)


def _tool_span(turn: Turn) -> dict[str, Any]:
    assert turn.command is not None
    assert turn.observation is not None
    failed = turn.observation.status == "error"
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": turn.command.tool,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": f"call-{turn.index}",
        "gen_ai.tool.call.arguments": json.dumps(_arguments(turn), ensure_ascii=False),
        "gen_ai.tool.call.result": turn.observation.text,
        "error.type": "tool_error" if failed else None,
    }
    return _span(f"execute_tool {turn.command.tool}", _INTERNAL, attributes, "" if failed else None)


def _span(name: str, kind: int, attributes: Mapping[str, Any], failure: str | None) -> dict[str, Any]:
    """A span without ids and times; `failure` is None where nothing failed, "" without a message."""
    span = {"name": name.strip(), "kind": kind, "attributes": _attributes(attributes)}
    if failure is not None:
        span["status"] = {"code": _FAILED} | ({"message": failure} if failure else {})
    return span


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


def _messages(messages: Iterable[tuple[str, str]], finish_reason: str = "") -> str:
    """Roles and texts as the conventions' JSON, which has a finish reason in output only."""
    reason = {"finish_reason": finish_reason} if finish_reason else {}
    said = [{"role": role, "parts": [{"type": "text", "content": text}], **reason} for role, text in messages]
    return json.dumps(said, ensure_ascii=False)


ATIF = Format("", atif, _write_documents)
OTEL = Format(".jsonl", otel, write_lines)
