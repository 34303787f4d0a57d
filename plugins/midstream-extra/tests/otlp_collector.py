"""A collector of traces in a process of its own: it reads OTLP's protobuf and writes each span as a line of JSON.

`python otlp_collector.py FILE [--deaf]` prints its port; `--deaf`: it takes requests and never answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Span = dict[str, Any]
LONGEST_WAIT_S = 15.0


class Collector:
    """The test's side: the process, its address, and the spans that it has so far."""

    def __init__(self, file: Path, process: subprocess.Popen[str]) -> None:
        self.file, self.process = file, process
        assert process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"

    def spans(self) -> list[Span]:
        lines = self.file.read_text(encoding="utf-8").split("\n")[:-1]  # the last may be half a line
        return [json.loads(line) for line in lines]

    def wait_for(self, attribute: str, value: object) -> list[Span]:
        """The spans with this attribute, once there is one."""
        until = time.monotonic() + LONGEST_WAIT_S
        while time.monotonic() < until:
            if found := [span for span in self.spans() if span["attributes"].get(attribute) == value]:
                return found
            time.sleep(0.02)
        raise AssertionError(f"no span with {attribute} = {value} in {LONGEST_WAIT_S:.0f} s")


@contextmanager
def collector(file: Path, *options: str) -> Iterator[Collector]:
    file.touch()
    command = [sys.executable, __file__, str(file), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Collector(file, process)
        finally:
            process.kill()


def serve(file: Path, deaf: bool) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    one_at_a_time = threading.Lock()

    def value_of(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return [value_of(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    def table(attributes: Any) -> dict[str, Any]:
        return {each.key: value_of(each.value) for each in attributes}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if deaf:
                time.sleep(3600)
            lines = ""
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for span in (span for scope in resource.scope_spans for span in scope.spans):
                    row = {
                        "path": self.path,
                        "authorization": self.headers["Authorization"],
                        "resource": table(resource.resource.attributes),
                        "trace": span.trace_id.hex(),
                        "id": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "name": span.name,
                        "kind": span.kind,
                        "start": span.start_time_unix_nano,
                        "end": span.end_time_unix_nano,
                        "attributes": table(span.attributes),
                        "status": [span.status.code, span.status.message],
                        "events": {event.name: table(event.attributes) for event in span.events},
                    }
                    lines += json.dumps(row) + "\n"
            # In one piece: the test reads while this is written.
            with one_at_a_time, file.open("a", encoding="utf-8") as written:
                written.write(lines)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Be silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), deaf="--deaf" in sys.argv)
