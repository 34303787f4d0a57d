"""Traces reach a collector while an evaluation runs, and one that goes away costs no run."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import midstream as ms
from midstream.core.trajectory import Trajectory
from midstream_extra.otlp import Otlp
from support.llm_server import LLMServer


class Collector:
    """A server that keeps what is posted, and answers with 503 once it has `most` traces."""

    def __init__(self, most: int = 10**9) -> None:
        self.traces: list[dict] = []
        self.headers: list[dict[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                works = self.path == "/v1/traces" and len(collector.traces) < most
                if works:
                    collector.traces.append(json.loads(body))
                    collector.headers.append(dict(self.headers))
                self.send_response(200 if works else 503)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words: object) -> None:
                """Be silent."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Collector:
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """A function that evaluates two questions three times with the tracker."""
    rows = [{"question": f"{number} + 2 ?", "answer": f"{number + 2}"} for number in range(2)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(collector: Collector, name: str, seen=lambda event: None) -> ms.Run:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.http.server_address[1]}/")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
        with LLMServer(lambda body: "<answer>2</answer>") as server:
            place = {"base_url": server.base_url, "model": "m", "out": tmp_path / name, "listener": seen}
            return ms.evaluate("direct", ms.tasks(tmp_path / "q.jsonl").test, trials=3, track="otlp", **place)

    return run


def test_each_run_is_a_trace_with_its_calls(evaluated):
    with Collector() as collector:
        run = evaluated(collector, "first")
    ids, names = set(), []
    for trace in collector.traces:
        [resource] = trace["resourceSpans"]
        spans = resource["scopeSpans"][0]["spans"]
        ids.add(spans[0]["traceId"])
        names.append([span["name"].split()[0] for span in spans])
        assert all(span["parentSpanId"] == spans[0]["spanId"] for span in spans[1:])
    assert names == [["invoke_agent", "chat"]] * 6
    assert len(ids) == 6
    assert {headers["Authorization"] for headers in collector.headers} == {"Bearer abc"}
    assert run.status == "finished"


def test_two_runs_of_one_id_are_two_traces(monkeypatch):
    run = Trajectory(id="t#0", task_id="t", question="?", seed=1, started_at=1.0)
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.http.server_address[1]}")
        for _ in range(2):
            tracker = Otlp()
            known = tracker.start({"name": "build", "recipe": "r", "id": None})
            tracker.trajectories([run, run.model_copy(update={"started_at": 2.0})])
        again = Otlp()
        assert again.start({"name": "build", "recipe": "r", "id": known}) == known
    traces = [trace["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] for trace in collector.traces]
    assert len({*traces}) == 4


@pytest.mark.parametrize("most", [0, 2])
def test_a_collector_that_fails_costs_no_run(evaluated, most):
    notes = []
    with Collector(most) as collector:
        run = evaluated(collector, "failing", lambda event: notes.append(str(event)))
    assert run.evaluations[0].errors == 0
    assert run.evaluations[0].tasks == 2
    assert len(collector.traces) == most
    assert sum("tracker otlp is off" in note for note in notes) == 1
