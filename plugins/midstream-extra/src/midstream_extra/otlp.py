"""`--track otlp`: each trajectory of an evaluation as a trace, sent to a collector of OpenTelemetry when it ends.

OTLP over HTTP takes the JSON that `midstream export --format otel` writes, so no SDK is needed: the OpenTelemetry
Collector and others that take JSON at `/v1/traces`, which pass it on. Variables are those of OpenTelemetry:
OTEL_EXPORTER_OTLP_ENDPOINT (by default http://localhost:4318) and OTEL_EXPORTER_OTLP_HEADERS ("name=value,name=value").
"""

from __future__ import annotations

import json
import os
import secrets
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from midstream.core.trajectory import Trajectory
from midstream.exports.write import Origin
from midstream_extra.traces import otel

_TIMEOUT_S = 10.0


class Otlp:
    """Sends traces; metrics are for other trackers. It raises where the collector does not take it."""

    def start(self, run: Mapping[str, Any]) -> str:
        """Remember the run, whose name every trace has."""
        # A name of its own: another run in a directory of this name has other traces.
        self._id, self._recipe = run["id"] or f"{run['name']}-{secrets.token_hex(4)}", run["recipe"]
        endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
        self._url = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or f"{endpoint.rstrip('/')}/v1/traces"
        pairs = (pair.partition("=") for pair in os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",") if pair)
        self._headers = {name.strip(): unquote(value).strip() for name, _, value in pairs}
        return self._id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Nothing: a trace has no metrics of a run."""

    def trajectories(self, ended: Sequence[Trajectory]) -> None:
        """Send a trace for each trajectory."""
        for trajectory in ended:
            # One task has several runs of one id: under other samplings, or again after an error.
            origin = Origin(run=self._id, recipe=self._recipe, part=f"live {trajectory.started_at:.6f}", module="")
            for trace in otel(origin, trajectory):
                body = json.dumps(trace).encode()
                headers = {"Content-Type": "application/json", **self._headers}
                request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                    pass

    def finish(self, status: str) -> None:
        """Nothing is left to send."""
