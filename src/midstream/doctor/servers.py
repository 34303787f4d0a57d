"""The servers of a recipe's models, and the keys that they and the tools want.

A key is read here only to see whether it is there. Neither it nor a part of it goes into a check's words.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2

from midstream.core.errors import DeadlineError, EngineError, UsageError
from midstream.core.protocols import Request
from midstream.core.trajectory import Message, Sampling
from midstream.engines.openai.engine import Config, OpenAICompatibleEngine
from midstream.engines.openai.providers import PROVIDERS
from midstream.engines.openai.reply import redacted
from midstream.recipe.schema import Table
from midstream.report.doctor import Check, Status
from midstream.report.numbers import cut

LIST_LIMIT_S = 5.0
REQUEST_LIMIT_S = 20.0  # a small machine may first load the model
LONGEST_LIST = 8 << 20  # bytes
SEARCH_KEY = "SERPER_API_KEY"
SHOWN, LONGEST_NAME = 4, 80  # names of models, characters of one


async def check_server(name: str, config: Config, *, several: bool = False) -> list[Check]:
    """MS501 its key, MS502 whether it answers, MS503 whether it has the model."""
    of = f" of {name}" if several else ""
    key = _key(config, f"key{of}")
    if key.status == "failed":
        words = "its key is missing"
        return [key, _server(of, "not checked", words), _model(of, "not checked", words)]
    names = await _listed(config)
    if names is None:
        return [key, *await _ask(name, config, of)]
    server = _server(of, "ok", f"{config.base_url} answers")
    if config.model in names or f"{config.model}:latest" in names:  # Ollama adds what a name leaves out
        return [key, server, _model(of, "ok", f"{config.model} is served")]
    words = f"{config.model} is not listed there; it has {_some(names)}"
    name = next((one for one in names if len(one) <= LONGEST_NAME), "NAME")
    other = f"midstream doctor --model {shlex.quote(name)} --base-url {config.base_url}"
    fix = f"ollama pull {config.model}" if config.provider == "ollama" else other
    return [key, server, _model(of, "warning", words, fix)]


def _key(config: Config, what: str) -> Check:
    """The variable that the setting names: there, or not."""
    variable, fix = config.api_key_env, ""
    status: Status = "ok"
    key = os.environ.get(variable, "").strip() if variable else ""
    hosted = urlsplit(PROVIDERS[config.provider].base_url).hostname
    if not variable:
        words = f"none is sent to provider {config.provider}"
    elif key and key.isascii() and key.isprintable():
        words = f"{variable} is set"
    elif key:
        status, words = "failed", f"{variable} holds a line break or a letter that no key has"
    elif urlsplit(config.base_url).hostname == hosted:
        status, words = "failed", f"{variable} is not set"
    else:
        words = f"{variable} is not set, so none is sent"
    if status == "failed":
        fix = f"export {variable}=<your key>"
    return Check(code="MS501", what=what, status=status, words=words, fix=fix)


async def _listed(config: Config) -> list[str] | None:
    """The names that GET /models gives; None where it gives none, whatever the reason: a request then finds it out."""
    key = os.environ.get(config.api_key_env, "").strip() if config.api_key_env else ""
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    body = bytearray()
    try:
        async with (
            asyncio.timeout(LIST_LIMIT_S),
            httpx2.AsyncClient() as client,
            client.stream("GET", f"{config.base_url.rstrip('/')}/models", headers=headers) as answer,
        ):
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > LONGEST_LIST:
                    return None
        found = json.loads(body)["data"] if answer.status_code == 200 else ()
        names = [redacted(one["id"], key) for one in found if isinstance(one["id"], str)]
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ImportError, ValueError, KeyError, TypeError):
        return None
    return names or None


async def _ask(name: str, config: Config, of: str) -> list[Check]:
    """The engine's own request, once: its errors say what to do."""
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
        return [_server(of, "failed", failure.what, failure.fix), _model(of, "not checked", "its server failed")]
    finally:
        await engine.close()
    return [
        _server(of, "ok", f"{config.base_url} answers"),
        _model(of, "ok", f"{config.model} answered; no list of models is given"),
    ]


def _server(of: str, status: Status, words: str, fix: str = "") -> Check:
    return Check(code="MS502", what=f"server{of}", status=status, words=words, fix=fix)


def _model(of: str, status: Status, words: str, fix: str = "") -> Check:
    return Check(code="MS503", what=f"model{of}", status=status, words=words, fix=fix)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(cut(name, LONGEST_NAME) for name in names[:SHOWN])}{more}"


def no_server() -> list[Check]:
    """MS501 to MS503 where no model is named."""
    words = "no model is named"
    return [
        Check(code="MS501", what="key", status="not checked", words=words),
        _server("", "not checked", words),
        _model("", "not checked", words),
    ]


def check_search(tools: Mapping[str, Table]) -> Check:
    """MS601: the key of a paid web search, which only a recipe that names its provider needs."""
    serper = [table for table in tools.values() if table.get("provider") == "serper"]
    asking = [name for table in serper if (name := table.get("api_key_env", SEARCH_KEY))]  # "" sends none
    variable = asking[0] if asking else SEARCH_KEY
    if os.environ.get(variable, "").strip():
        return Check(code="MS601", what="search key", status="ok", words=f"{variable} is set")
    words = f"{variable} is not set"
    if asking:
        return Check(code="MS601", what="search key", status="failed", words=words, fix=f"export {variable}=<your key>")
    return Check(code="MS601", what="search key", status="ok", words=f"{words}; only Serper needs it")
