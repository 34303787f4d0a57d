"""Traces reach a collector during a run, and one that is slow, gone or killed costs no run."""

from __future__ import annotations

import json
import socket
import sys

import pytest

import midstream as ms
from midstream import api
from midstream.core.events import Note, RunFinished, StepFinished, TrajectoriesFinished
from midstream.core.trajectory import ErrorInfo, Observation, ToolCall, Trajectory, without_clocks
from midstream.recipe.overrides import changed_recipe
from midstream.trackers import trackers_of
from otlp_collector import collector
from support.errors import raises
from support.lesson_sessions import TINY
from support.llm_server import LLMServer
from support.spoken import spoken
from support.tiny_runs import TRAINING, result_of, settings

REASON = "OpenTelemetry's SDK is not installed\nfix: pip install 'midstream[otel]'"
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=REASON)
pytest.importorskip("opentelemetry.sdk", reason=REASON)


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """What is sent is sent soon, and what fails fails soon."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SERVICE_NAME", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")


@pytest.fixture
def evaluate(tmp_path):
    """A function that evaluates two questions three times."""
    rows = [{"question": f"{number} + 2 ?", "answer": f"{number + 2}"} for number in range(2)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(name: str, listener=lambda event: None, track=()) -> ms.Run:
        with LLMServer(lambda body: "<answer>2</answer>") as server:
            model = {"base_url": server.base_url, "model": "m"}
            tasks = ms.tasks(tmp_path / "q.jsonl").test
            return ms.evaluate("direct", tasks, trials=3, track=track, out=tmp_path / name, listener=listener, **model)

    return run


def results(run: ms.Run) -> list:
    """All that two evaluations must have in common; the address of the server is another in each."""

    def still(trajectory: Trajectory) -> str:
        text = without_clocks(trajectory).model_dump_json()
        return text.replace(json.loads(text)["closing_calls"][0]["sent"]["base_url"], "")

    found = run.evaluations[0]
    return [found.errors, found.success, sorted(map(still, run.trajectories()))]


def test_spans_of_an_evaluation_arrive_before_it_ends(evaluate, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    ended = []

    def listen(event):
        if isinstance(event, TrajectoriesFinished):
            ended.extend(event.trajectories)
            if len(ended) == 2:
                # The run waits here, for what it sent of the first.
                assert server.wait_for("midstream.part", event.part)

    with collector(tmp_path / "spans") as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{server.endpoint}/")
        run = evaluate("first", listen, "otlp")
        spans = server.spans()
    agents = [span for span in spans if span["name"] == "invoke_agent direct"]
    assert len(agents) == len(ended) == 6
    assert len({span["trace"] for span in agents}) == 6
    assert all(span["authorization"] == "Bearer abc" and span["path"] == "/v1/traces" for span in spans)
    assert {span["resource"]["service.name"] for span in spans} == {"mine"}
    assert {span["resource"]["midstream.run"] for span in spans} == {"first"}
    assert run.status == "finished"
    by_task = {one.id: one for one in ended}
    for agent in agents:
        [chat] = [span for span in spans if span["parent"] == agent["id"]]
        one = by_task[agent["attributes"]["gen_ai.conversation.id"].rpartition("/")[2]]
        [call] = one.calls
        assert agent["attributes"]["midstream.reward"] == one.reward.value
        assert agent["attributes"]["midstream.task.id"] == one.task_id
        assert (agent["start"] / 1e9, agent["end"] / 1e9) == (
            pytest.approx(one.started_at, abs=1e-5),
            pytest.approx(one.started_at + one.duration_s, abs=1e-5),
        )
        assert (chat["name"], chat["trace"]) == ("chat m", agent["trace"])
        assert call.duration_s > 0
        assert agent["start"] < chat["start"] == int(call.started_at * 1e9) < chat["end"]
        [reply] = json.loads(chat["attributes"]["gen_ai.output.messages"])
        assert reply["parts"] == [{"type": "text", "content": "<answer>2</answer>"}]


def test_spans_of_every_training_step_arrive_before_the_next_and_a_kill_changes_no_number(
    ten_steps, tmp_path, monkeypatch
):
    steps, notes = [], []

    def listen(event):
        if isinstance(event, Note):
            notes.append(event.text)
        if isinstance(event, StepFinished):
            steps.append(event.metrics.step)
            found = server.wait_for("midstream.step", event.metrics.step)
            assert {span["attributes"]["midstream.part"] for span in found} == {f"step-{event.metrics.step}"}
        if steps == [1, 2] and server.process.poll() is None:
            server.process.kill()
            server.process.wait()

    recipe = changed_recipe(str(ten_steps), overrides=settings(TRAINING)[1::2])
    with collector(tmp_path / "spans") as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.endpoint)
        run = api.train(recipe, out=tmp_path / "run", track="otlp", listener=listen).directory
        sent = {span["attributes"].get("gen_ai.conversation.id") for span in server.spans()}
    assert steps == [1, 2]
    assert [note for note in notes if "tracker otlp lost" in note] == notes[-1:]
    assert sent > {f"run/step-1/{one.id}" for one in run.trajectories.read(1)}
    before = [one for name, part in run.trajectories.parts().items() if name.endswith("-0") for one in part]
    assert {one.id for one in before} <= {name.rpartition("/")[2] for name in sent if name and "/eval-" in name}
    api.train(recipe, out=tmp_path / "untracked", listener=lambda event: None)
    assert result_of(tmp_path / "run") == result_of(tmp_path / "untracked")


def test_rollouts_of_a_lesson_run_are_sent(tmp_path, monkeypatch):
    recipe = changed_recipe("lessons-simulated", overrides=[f"{key}={value}" for key, value in TINY.items()])
    with collector(tmp_path / "spans") as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.endpoint)
        api.train(recipe, out=tmp_path / "run", track="otlp", listener=lambda event: None)
        parts = {span["attributes"].get("midstream.part", "").split("-")[0] for span in server.spans()}
    assert parts >= {"step", "gate", "eval"}


@pytest.mark.parametrize("fault", ["killed", "absent", "deaf", "slow"])
def test_a_collector_that_fails_costs_no_run(evaluate, tmp_path, monkeypatch, fault, capfd):
    notes, finished = [], []
    if fault == "slow":
        # More spans wait than the queue holds.
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")

    def listen(event):
        if isinstance(event, TrajectoriesFinished) and fault == "killed" and server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        if isinstance(event, Note):
            notes.append(event.text)
        if isinstance(event, RunFinished):
            finished.append(event)

    expected = results(evaluate("untracked"))
    with collector(tmp_path / "spans", *["--deaf"] * (fault in ("deaf", "slow"))) as server, socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens there
        absent = f"http://127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", absent if fault == "absent" else server.endpoint)
        capfd.readouterr()
        run = evaluate("tracked", listen, "otlp")
    assert results(run) == expected
    assert len(finished) == 1
    assert run.status == "finished"
    assert notes == [
        "tracker otlp lost 12 of 12 spans: the collector did not take them (OTEL_EXPORTER_OTLP_ENDPOINT)",
    ]
    assert "opentelemetry" not in capfd.readouterr().err


def test_spans_are_nested_with_measured_times_and_any_text(tmp_path, monkeypatch):
    one = spoken("t1", 0.5)
    at, [turn], [last] = one.started_at, one.turns, one.closing_calls
    asked, times = {"q": "\ud800"}, {"started_at": at + 1.2, "duration_s": 0.1}
    inner = ToolCall(tool="search", arguments=asked, status="error", text="", **times)
    done = Observation(status="ok", text="\ud800", started_at=at + 1, duration_s=0.5, tool_calls=(inner,))
    calls = (turn.calls[0].model_copy(update={"started_at": at + 0.25, "duration_s": 0.5}),)
    turn = turn.model_copy(update={"observation": done, "calls": calls})
    one = one.model_copy(update={"turns": (turn,), "closing_calls": (last.model_copy(update={"duration_s": 0.0}),)})
    broken = Trajectory(
        id="t2#0", task_id="t2", question="?", status="error", error=ErrorInfo(type="ValueError", message="no")
    )
    with collector(tmp_path / "spans") as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.endpoint)
        [(_, tracker)] = trackers_of("otlp")
        tracker.start({"name": "build", "recipe": "r", "id": None})
        tracker.trajectories([one, broken], "step-3")
        assert tracker.finish("finished") is None
        spans = server.spans()
    names = {span["id"]: span["name"] for span in spans}
    rows = [
        (span["name"], names.get(span["parent"]), *(round(span[name] / 1e9 - at, 3) for name in ("start", "end")))
        for span in spans
        if span["trace"] != spans[-1]["trace"]
    ]
    agent, tool = "invoke_agent interleaved", "execute_tool search"
    assert sorted(rows, key=lambda row: row[2]) == [
        (agent, None, 0.0, 2.5),
        ("chat m-1", agent, 0.25, 0.75),
        (tool, agent, 1.0, 1.5),
        (tool, tool, 1.2, 1.3),
        ("chat m-1", agent, 1.5, 1.5),
    ]
    estimated = [span["attributes"].get("midstream.estimated_time") for span in spans if "chat" in span["name"]]
    assert estimated == [None, True]
    [root] = [span for span in spans if span["name"] == agent]
    assert root["events"]["gen_ai.evaluation.result"]["gen_ai.evaluation.score.value"] == 0.5
    assert (spans[-1]["status"], spans[-1]["name"]) == ([2, "no"], "invoke_agent")
    assert spans[-1]["start"] > at * 1e9


def test_without_the_sdk_the_run_does_not_begin(evaluate, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "midstream_extra.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with raises("missing-extra", "midstream[otel]"):
        evaluate("none", track="otlp")
    assert not (tmp_path / "none").exists()
