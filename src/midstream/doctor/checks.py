"""Checks of the machine: `check_machine` runs all of them, in the order in which they are shown."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import tempfile
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path

from midstream.core.errors import MidstreamError, UnsupportedError
from midstream.doctor.installed import check_extras, check_python, check_requirements, check_training
from midstream.doctor.servers import check_search, check_server, no_server
from midstream.engines.openai.settings import OpenAIConfig
from midstream.recipe.build import Build
from midstream.report.doctor import Check
from midstream.report.numbers import cut
from midstream.rollout import run_concurrently
from midstream.sandbox import tiers

RUNS = Path("runs")
LITTLE_MB, TOO_LITTLE_MB = 2048, 64  # a demo leaves about 30 MB, a LoRA adapter's checkpoints some hundreds
DEFAULT_CONCURRENCY = 64  # trajectories at once in a rollout, unless the recipe changes it
FILES_PER_TRAJECTORY = 4  # a connection to the model, one of a tool, the two of a program's channel
OTHER_FILES = 64  # standard streams, the run directory, workers, libraries
LONGEST_CAUSE = 300


async def check_machine(build: Build, *, named: bool) -> tuple[Check, ...]:
    """Run every check; a broken thing never raises. `named`: the user chose the recipe or its model."""
    recipe = build.recipe
    engines: Mapping[str, OpenAIConfig] = {
        name: engine.config
        for name, engine in recipe.engines.items()
        if named and isinstance(engine.config, OpenAIConfig)
    }
    tools = {tool.type for tool in recipe.tools.values() if named}
    slow: list[Coroutine[None, None, list[Check]]] = [
        check_training(),
        check_sandbox(recipe.sandbox, wanted=named and build.runs_code),
        *(check_server(name, config, several=len(engines) > 1) for name, config in engines.items()),
    ]
    training, sandbox, *servers = await run_concurrently(slow)
    return (
        check_python(),
        check_requirements(),
        *check_extras(tools),
        *training,
        check_runs(),
        check_open_files(max(DEFAULT_CONCURRENCY, recipe.rollout.concurrency)),
        *sandbox,
        *(check for found in servers or [no_server()] for check in found),
        check_search({name: tool.table() for name, tool in recipe.tools.items()}),
    )


def check_runs(root: Path = RUNS) -> Check:
    """MS301: the directory of the runs can be written to, and has room."""
    check = partial(Check, code="MS301", what="runs")
    place = root
    try:
        place = root.absolute()  # fails where this directory is gone, as `exists` does where it may not be searched
        while not place.exists() and place != place.parent:
            place = place.parent
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"midstream")
            file.flush()
            os.fsync(file.fileno())
        free_mb = shutil.disk_usage(place).free >> 20
    except OSError as failure:
        words = f"{place} cannot be written to: {failure.strerror or failure}"
        return check(
            status="failed", words=words, fix="cd to a directory of your own, or give every run --out DIRECTORY"
        )
    words = f"{free_mb / 1024:,.1f} GiB free in {place}"
    if free_mb >= LITTLE_MB:
        return check(status="ok", words=words)
    fix = f"du -xh -d 1 {shlex.quote(str(place))} | sort -h   # shows what takes the room; or give runs --out DIRECTORY"
    return check(status="failed" if free_mb < TOO_LITTLE_MB else "warning", words=words, fix=fix)


def check_open_files(concurrency: int) -> Check:
    """MS302: a process may open enough files for that many trajectories at once."""
    check = partial(Check, code="MS302", what="open files")
    try:
        import resource
    except ImportError:  # Windows
        return check(status="not checked", words="this system has no such limit")
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted = OTHER_FILES + FILES_PER_TRAJECTORY * concurrency
    if allowed == resource.RLIM_INFINITY:
        return check(status="ok", words="no limit")
    if allowed >= wanted:
        return check(status="ok", words=f"{allowed:,} allowed")
    words = f"{allowed:,} allowed; {concurrency} trajectories at once may take {wanted:,}"
    return check(status="warning", words=words, fix="ulimit -n 4096")


async def check_sandbox(config: tiers.SandboxConfig, *, wanted: bool) -> list[Check]:
    """MS401: the tier that works here, by its own probe. `wanted`: the user's recipe has a tool that runs code."""
    check = partial(Check, code="MS401", what="sandbox")
    try:
        sandbox = await asyncio.to_thread(tiers.choose, config)
    except UnsupportedError as failure:
        words = f"{failure.what}, so code that a model writes will not run: {cut(failure.cause, LONGEST_CAUSE)}"
        return [check(status="failed" if wanted else "warning", words=words, fix=failure.fix)]
    words = f"{sandbox.tier}: {sandbox.mechanisms}"
    if sandbox.tier in ("arithmetic", "unsafe"):  # these do not run code, or do not hold it back
        return [check(status="warning", words=words)]
    if sandbox.tier == "standard" and config.tier == "auto":
        stronger = tiers.attempt("strong", "")
        if isinstance(stronger, MidstreamError):
            words += f"; strong does not work: {stronger.what}"
            return [check(status="warning", words=words, fix=stronger.fix)]
    return [check(status="ok", words=words)]
