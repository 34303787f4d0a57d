"""Checks of the servers of a recipe's models, and of the keys that they need.

A key is read here only to see whether it is there. Neither it nor a part of it goes into a check's words.
"""

from __future__ import annotations

import shlex
import time
from functools import partial
from typing import Literal

from midstream.core.data import Frozen
from midstream.core.engine import Request
from midstream.core.errors import DeadlineError, EngineError, UsageError
from midstream.core.http import redacted
from midstream.core.trajectory import Message, Sampling
from midstream.engines.openai.engine import OpenAICompatibleEngine
from midstream.engines.openai.server import fetch_models, names_model
from midstream.engines.openai.settings import OpenAIConfig
from midstream.report.numbers import cut

# A small machine may first load the model.
REQUEST_LIMIT_S = 20.0
SHOWN, LONGEST_NAME = 4, 80  # names of models, characters of one


Status = Literal["ok", "warning", "failed"]


class Check(Frozen):
    """One thing that was looked at. docs/doctor.md explains every `code`; `fix` is a line to paste, if one helps."""

    code: str
    what: str
    status: Status
    words: str
    fix: str = ""


async def check_server(name: str, config: OpenAIConfig, *, several: bool = False) -> list[Check]:
    """MS501: its key; MS502: whether it answers; MS503: whether it has the model. After a failure there are no more."""
    of = f" of {name}" if several else ""
    key_check = partial(Check, code="MS501", what=f"key{of}")
    server_check = partial(Check, code="MS502", what=f"server{of}")
    model_check = partial(Check, code="MS503", what=f"model{of}")
    variable, value = config.api_key_env, config.key()
    broken = bool(value) and not (value.isascii() and value.isprintable())
    if broken or (variable and not value and config.is_own):
        words = f"{variable} holds a line break or a letter that no key has" if broken else f"{variable} is not set"
        return [key_check(status="failed", words=words, fix=f"export {variable}=<your key>")]
    words = f"{variable} is set" if value else f"{variable} is not set, so none is sent"
    key = key_check(status="ok", words=words if variable else f"none is sent to provider {config.provider}")

    entries = await fetch_models(config)
    ids = [entry.get("id") for entry in entries]
    names = [redacted(each, config.key()) for each in ids if isinstance(each, str)]
    if names:
        server = server_check(status="ok", words=f"{config.base_url} answers")
        if any(names_model(entry, config.model) for entry in entries):
            return [key, server, model_check(status="ok", words=f"{config.model} is served")]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        listed = ", ".join(cut(served, LONGEST_NAME) for served in names[:SHOWN])
        other = next((served for served in names if len(served) <= LONGEST_NAME), "NAME")
        fix = f"midstream doctor --model {shlex.quote(other)} --base-url {config.base_url}"
        if config.provider == "ollama":
            fix = f"ollama pull {config.model}"
        words = f"{config.model} is not listed there; it has {listed}{more}"
        return [key, server, model_check(status="warning", words=words, fix=fix)]

    # No list: send one request through the engine itself, whose errors name the fix.
    engine = OpenAICompatibleEngine(config.model_copy(update={"max_attempts": 1, "token_ids": False}), name)
    request = Request(
        role="probe",
        messages=(Message(role="user", content="Say hello."),),
        sampling=Sampling(max_tokens=16),
        deadline_s=time.monotonic() + REQUEST_LIMIT_S,
    )
    try:
        await engine.sample(request)
    except (EngineError, DeadlineError, UsageError) as failure:
        return [key, server_check(status="failed", words=failure.what, fix=failure.fix)]
    finally:
        await engine.close()
    server = server_check(status="ok", words=f"{config.base_url} answers")
    return [key, server, model_check(status="ok", words=f"{config.model} answered; no list of models is given")]
