"""`--track otlp`: each trajectory as a trace, sent to a collector of OpenTelemetry when it ends.

OpenTelemetry's SDK sends it, and reads its own variables: OTEL_EXPORTER_OTLP_ENDPOINT (http://localhost:4318),
OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_MAX_QUEUE_SIZE. Spans wait in its
bounded queue for its thread, so a collector that is slow or gone costs spans, and no run.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from midstream.core.errors import needs_extra
from midstream.core.trajectory import Trajectory
from midstream.core.version import __version__
from midstream.exports import Origin
from midstream_extra.traces import RESULT, Span, nanoseconds, span_of

with needs_extra("traces cannot be sent without OpenTelemetry's SDK", "otel"):
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

_KINDS = {1: SpanKind.INTERNAL, 3: SpanKind.CLIENT}
# Prompts are long: a batch of 512, the default of the SDK, may be more than a collector takes in one request (20 MiB).
_BATCH = "64"


class Otlp:
    """Sends traces; metrics are for other trackers."""

    def start(self, run: Mapping[str, Any]) -> None:
        """Begin to send in a thread of the SDK."""
        self._run, self._recipe, self._made = run["name"], run["recipe"], 0
        about = {"service.name": "midstream", "service.version": __version__, "midstream.run": run["name"]}
        # What the variables say comes last and wins.
        resource = Resource.create(about).merge(OTELResourceDetector().detect())
        # What is lost is counted and said at the end; without a handler, Python prints each of the SDK's warnings.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        self._exporter = _CountingExporter()
        batch = int(os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _BATCH))
        batch = min(batch, int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", batch)))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_export_batch_size=batch))
        self._tracer = self._provider.get_tracer("midstream", __version__)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Nothing: a trace has no metrics of a run."""

    def trajectories(self, ended: Sequence[Trajectory], part: str) -> None:
        """Queue the spans of each trajectory."""
        origin = Origin(run=self._run, recipe=self._recipe, part=part, module="")
        for trajectory in ended:
            if not trajectory.started_at:
                # It failed before its agent kept a record.
                trajectory = trajectory.model_copy(update={"started_at": time.time()})
            self._queue(span_of(origin, trajectory), Context())

    def finish(self, status: str) -> str | None:
        """Send what waits, for half a minute at most; says how many spans were lost."""
        self._exporter.ending = True
        self._provider.shutdown()
        if lost := self._made - self._exporter.sent:
            return f"lost {lost} of {self._made} spans: the collector did not take them (OTEL_EXPORTER_OTLP_ENDPOINT)"
        return None

    def _queue(self, span: Span, context: Context) -> None:
        attributes = {name: _text(value) for name, value in span.attributes.items() if value is not None}
        start, end = nanoseconds(span.start), nanoseconds(span.end)
        made = self._tracer.start_span(_text(span.name), context, _KINDS[span.kind], attributes, start_time=start)
        self._made += made.is_recording()  # not one that OTEL_TRACES_SAMPLER leaves out
        if span.result:
            made.add_event(RESULT, span.result, end)
        if span.failure is not None:
            made.set_status(Status(StatusCode.ERROR, _text(span.failure) or None))
        for inner in span.inner:
            self._queue(inner, set_span_in_context(made, context))
        made.end(end)


def _text(value: Any) -> Any:
    """Text without lone surrogates, for which the SDK would lose a whole batch; other values as they are."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


class _CountingExporter(OTLPSpanExporter):
    """Counts the spans that were `sent`. `ending`: after a failure it sends nothing, since nobody waits for a retry."""

    sent, ending, _failed = 0, False, False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.ending and self._failed:
            return SpanExportResult.FAILURE
        result = super().export(spans)
        self._failed = result is not SpanExportResult.SUCCESS
        if not self._failed:
            self.sent += len(spans)
        return result
