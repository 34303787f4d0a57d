"""What a server can do besides answering: token ids, and replies under a JSON schema."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from midstream.core.engine import Engine, Request
from midstream.core.errors import DeadlineError, EngineError, UnsupportedError
from midstream.core.json_schema import schema_error
from midstream.core.trajectory import Message, Sampling
from midstream.engines.openai.engine import OpenAICompatibleEngine
from midstream_extra.examination.report import JSON_SCHEMA, TOKEN_IDS, Probe

PROBE_LIMIT_S = 600.0
PROBE_SCHEMA: Mapping[str, Any] = {
    "type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"], "additionalProperties": False,
}  # fmt: skip


async def probe_engine(engine: Engine) -> list[Probe]:
    """Does it give token ids and log-probabilities? Does it enforce a JSON schema?"""
    if not isinstance(engine, OpenAICompatibleEngine):
        said = "sampled in this process" if engine.token_exact else "not recorded"
        return [Probe(engine=engine.name, what=TOKEN_IDS, works=engine.token_exact, words=said)]
    exact = OpenAICompatibleEngine(engine.config.model_copy(update={"token_ids": True}), engine.name)
    try:
        return [await _probe(exact, TOKEN_IDS, None), await _probe(engine, JSON_SCHEMA, PROBE_SCHEMA)]
    finally:
        await exact.close()


async def _probe(engine: Engine, what: str, schema: Mapping[str, Any] | None) -> Probe:
    """Ask for one plain word: under a schema, only a server that enforces it can answer in JSON."""
    request = Request(
        role="probe",
        messages=(Message(role="user", content="Reply with the single word hello, in plain text, without JSON."),),
        sampling=Sampling(temperature=1.0, max_tokens=512),
        json_schema=schema,
        deadline_s=time.monotonic() + PROBE_LIMIT_S,
    )
    probe = partial(Probe, engine=engine.name, what=what)
    try:
        call = await engine.sample(request)
    except UnsupportedError as failure:
        return probe(works=False, words=failure.what)
    except (EngineError, DeadlineError) as failure:
        # Refused at once is a no; repeated failures and a time-out leave the question open.
        spent = isinstance(failure, DeadlineError) or any(call.failures for call in failure.calls)
        return probe(works=None if spent else False, words=failure.what)
    if schema is None:
        return probe(works=True, words=f"{len(call.completion_ids)} for a short reply")
    try:
        value = json.loads(call.completion)
        enforced = isinstance(value, dict) and schema_error(value, schema) is None
    except ValueError:
        enforced = False
    return probe(works=enforced, words=f"replied {call.completion}")
