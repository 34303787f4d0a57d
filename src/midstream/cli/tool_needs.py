"""What a tool cannot work without, and whether it is there now: an extra, a key, a model, a sandbox, settings.

A key is looked at only to see whether it is set. Nothing is asked over the network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit

from midstream.core.component import ComponentConfig, Table, parse_component
from midstream.core.data import Frozen
from midstream.doctor.installed import requirements
from midstream.engines.openai.providers import PROVIDERS
from midstream.report.tools import Need


def needs_of(
    engines: Mapping[str, Table], tool: Table, component: type[ComponentConfig], config: Frozen | None
) -> Iterator[Need]:
    """Everything that the tool of this table needs beside `config`, its settings, where it has them already."""
    keyless = getattr(config, "provider", "") == "ddgs"  # the one provider that wants an extra, and no key
    if component.extra and (keyless or not hasattr(config, "provider")):
        yield _extra(component.extra)
    variable = getattr(config, "api_key_env", "")
    if variable and not keyless:
        yield _key(variable)
    if component.asks == "always" or "engine" in tool:
        yield _engine(engines, tool.get("engine"))
    elif component.asks == "optional":
        yield Need(what="a model", state='engine = "model" in its table gives it one', there=None, optional=True)
    if tool.get("type") == "python":
        yield Need(what="a sandbox", state="midstream doctor tries it", there=None)
    for name in (*getattr(config, "env_pass", ()), *getattr(config, "headers_env", {}).values()):
        yield _key(name)


def _extra(extra: str) -> Need:
    lacking = [name for name, _ in requirements(extra) if not _installed(name)]
    state = f"{', '.join(lacking)} not installed" if lacking else "installed"
    return Need(what=f"extra {extra}", state=state, there=not lacking, fix=f"pip install 'midstream[{extra}]'")


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _key(variable: str) -> Need:
    there = bool(os.environ.get(variable, "").strip())
    state = f"{variable} is {'set' if there else 'not set'}"
    return Need(what="a key", state=state, there=there, fix=f"export {variable}=<your key>")


def _engine(engines: Mapping[str, Table], name: Any) -> Need:
    """The model that a tool asks: which, where, and whether its key is there."""
    what = f"a model ({name})"
    table = engines.get(name or "")
    if table is None:
        fix = "name one: --model NAME with --provider NAME or --base-url URL"
        return Need(what="a model", state=f"the recipe has no engine {name!r}", there=False, fix=fix)
    config: Any = parse_component("engine", table, f"engines.{name}").config
    if config.in_process:
        state, fix = "it samples in process, where a tool cannot ask it", "give the tool an engine that is a server"
        return Need(what=what, state=state, there=False, fix=fix)
    state = f"{config.model} at {config.base_url}"
    hosted = urlsplit(config.base_url).hostname == urlsplit(PROVIDERS[config.provider].base_url).hostname
    if hosted and config.api_key_env and not _key(config.api_key_env).there:
        fix = f"export {config.api_key_env}=<your key>, or --provider ollama --model NAME"
        return Need(what=what, state=f"{state}; {config.api_key_env} is not set", there=False, fix=fix)
    return Need(what=what, state=state, there=True)
