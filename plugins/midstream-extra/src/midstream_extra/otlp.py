"""`--track otlp`: each trajectory of an evaluation as a trace, sent to a collector of OpenTelemetry when it ends.

OTLP over HTTP takes the JSON that `midstream export --format otel` writes, so no SDK is needed: any collector, Phoenix,
MLflow and others with `/v1/traces`. Variables are those of OpenTelemetry: OTEL_EXPORTER_OTLP_ENDPOINT (by default
http://localhost:4318) and OTEL_EXPORTER_OTLP_HEADERS ("name=value,name=value").
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from midstream.core.trajectory import Trajectory
from midstream.exports.write import Origin
from midstream_extra.traces import otel

_TIMEOUT_S = 10.0


class Otlp:
    """Sends traces; metrics are for other trackers. It raises where the collector does not answer with 200."""

    def start(self, run: Mapping[str, Any]) -> str:
        """Remember the run, whose name every trace has."""
        self._origin = Origin(run=run["name"], recipe=run["recipe"], part="live", module="")
        endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
        self._url = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or f"{endpoint.rstrip('/')}/v1/traces"
        pairs = (pair.partition("=") for pair in os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",") if pair)
        self._headers = {name.strip(): unquote(value.strip()) for name, _, value in pairs}
        return run["id"] or run["name"]

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Nothing: a trace has no metrics of a run."""

    def trajectories(self, ended: Sequence[Trajectory]) -> None:
        """Send a trace for each trajectory."""
        for trajectory in ended:
            for trace in otel(self._origin, trajectory):
                body = json.dumps(trace).encode("utf-8", "surrogatepass")
                headers = {"Content-Type": "application/json", **self._headers}
                request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                    pass

    def finish(self, status: str) -> None:
        """Nothing is left to send."""
