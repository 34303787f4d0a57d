"""Trajectories as ATIF and OpenTelemetry spans, and that their readers take them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from midstream import api
from midstream.cli.main import main
from midstream.exports import Origin
from midstream.runs import RunDirectory
from midstream_extra.traces import atif, otel
from support import fake_run
from support.errors import raises
from support.spoken import spoken, spoken_run

ORIGIN = Origin(run="run", recipe="mine", part="step-000001", module="")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return spoken_run(tmp_path / "run")


def written(run: RunDirectory, format: str, name: str) -> Path:
    return api.export(run, format, run.root.parent / name).path


def test_atif_has_a_step_for_each_turn():
    [document] = atif(ORIGIN, spoken("t1", 1.0))
    assert [(step["step_id"], step["source"]) for step in document["steps"]] == [
        (1, "user"),
        (2, "agent"),
        (3, "agent"),
    ]
    called = document["steps"][1]
    assert called["tool_calls"] == [
        {"tool_call_id": "call-1", "function_name": "search", "arguments": {"query": "Amberbank"}}
    ]
    assert called["observation"]["results"][0]["content"] == "105"
    assert (called["metrics"]["prompt_tokens"], called["llm_call_count"], called["model_name"]) == (20, 1, "m-1")
    assert document["steps"][2]["message"] == "It is 112."
    assert document["final_metrics"]["total_completion_tokens"] == 10
    assert document["extra"]["reward"] == 1.0


def test_a_trace_has_a_span_for_each_call_and_tool_inside_that_of_the_agent():
    [traces] = otel(ORIGIN, spoken("t1", 1.0))
    [spans] = [scope["spans"] for resource in traces["resourceSpans"] for scope in resource["scopeSpans"]]
    assert [span["name"] for span in spans] == [
        "invoke_agent interleaved",
        "chat m-1",
        "execute_tool search",
        "chat m-1",
    ]
    root, *below = spans
    assert {span["parentSpanId"] for span in below} == {root["spanId"]}
    assert len({span["spanId"] for span in spans}) == 4
    assert len({span["traceId"] for span in spans}) == 1
    times = [int(time) for span in below for time in (span["startTimeUnixNano"], span["endTimeUnixNano"])]
    assert times == sorted(times)
    # The tool's time was measured, that of the calls not.
    start = int(root["startTimeUnixNano"])
    assert [round((time - start) / 1e9, 3) for time in times] == [0, 0, 0, 0.5, 0.5, 0.5]
    assert int(root["endTimeUnixNano"]) - start == 2.5e9
    estimated = [item["key"] for span in spans for item in span["attributes"] if "estimated" in item["key"]]
    assert estimated == ["midstream.estimated_time"] * 2
    about = {item["key"]: item["value"] for item in spans[1]["attributes"]}
    assert about["gen_ai.usage.output_tokens"] == {"intValue": "5"}
    assert about["server.address"] == {"stringValue": "models.example"}
    assert json.loads(about["gen_ai.output.messages"]["stringValue"])[0]["finish_reason"] == "stop"
    [event] = root["events"]
    assert event["attributes"][1] == {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 1.0}}


def test_atif_has_a_file_for_each_id(run):
    ids = ["问题一", "问题二", "a/1", "a:1"]
    run.trajectories.write(2, [fake_run.solved().model_copy(update={"id": id}) for id in ids])
    names = {path.stem for path in written(run, "atif", "atif").rglob("*.json")}
    assert names >= {"问题一", "问题二", "a%2F1", "a%3A1"}


@pytest.mark.parametrize("format", ["atif", "otel"])
def test_the_command_offers_the_formats(run, tmp_path, capsys, format):
    out = tmp_path / "out.jsonl"
    assert main(["export", str(run.root), "--format", format, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(out), "rows": 4, "left_out": {}}
    with raises("file-exists"):
        api.export(run, format, out)
    with raises("nothing-to-export", "step-9*"):
        api.export(run, format, tmp_path / "none.jsonl", part="step-9*")
    assert not (tmp_path / "none.jsonl").exists()


@pytest.fixture
def mixed(run: RunDirectory) -> RunDirectory:
    """The run with everything that can be in a trajectory."""
    run.trajectories.write(2, [fake_run.solved(), fake_run.unsolved(), fake_run.lost(), fake_run.broken()])
    return run


def test_atif_is_read_by_its_models(mixed):
    models = pytest.importorskip("atif", reason="atif is not installed\nfix: pip install atif")
    files = sorted(written(mixed, "atif", "atif").rglob("*.json"))
    documents = [models.Trajectory.model_validate_json(file.read_text(encoding="utf-8")) for file in files]
    assert len(documents) == 8
    assert documents[1].steps[1].tool_calls[0].function_name == "search"


def test_traces_are_read_by_the_messages_of_opentelemetry(mixed):
    reason = "opentelemetry-proto is not installed\nfix: pip install opentelemetry-proto"
    trace_pb2 = pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2", reason=reason)
    json_format = pytest.importorskip("google.protobuf.json_format", reason=reason)

    def as_protobuf(value: Any) -> Any:
        """OTLP's JSON has ids as hexadecimal numbers, protobuf's as base64."""
        if isinstance(value, dict):
            ids = ("traceId", "spanId", "parentSpanId")
            return {
                key: base64.b64encode(bytes.fromhex(inner)).decode() if key in ids else as_protobuf(inner)
                for key, inner in value.items()
            }
        return [as_protobuf(inner) for inner in value] if isinstance(value, list) else value

    traces = [
        json_format.ParseDict(as_protobuf(json.loads(line)), trace_pb2.TracesData())
        .resource_spans[0]
        .scope_spans[0]
        .spans
        for line in written(mixed, "otel", "otel.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(traces) == 8
    assert all((len(span.trace_id), len(span.span_id)) == (16, 8) for spans in traces for span in spans)
    assert {span.name for spans in traces for span in spans} >= {"chat m-1", "execute_tool search"}
