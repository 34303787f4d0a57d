"""Checks of the machine: `check_machine` runs all of them, in the order in which they are shown."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

from midstream.core.errors import MidstreamError, UnsupportedError
from midstream.doctor.servers import Check, check_server
from midstream.engines.openai.settings import OpenAIConfig
from midstream.recipe.build import Build
from midstream.report.numbers import cut
from midstream.rollout import run_concurrently
from midstream.sandbox import tiers

# A first import of PyTorch from a slow disk takes a minute.
PROBE_LIMIT_S = 120.0
# Run in another process: a PyTorch that does not fit its driver can crash the process that imports it.
_TORCH = """
import json, torch
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps({
    "version": torch.__version__, "toolkit": torch.version.cuda or torch.version.hip or "",
    "gpus": [[gpu.name, gpu.total_memory >> 20] for gpu in found] if torch.cuda.is_available() else [],
    "mps": torch.backends.mps.is_available(),
}))
"""
_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


async def check_training() -> list[Check]:
    """MS201: PyTorch can be imported; MS202: a GPU, and whether PyTorch sees it."""
    check = partial(Check, code="MS201", what="PyTorch")
    fix = "pip install 'midstream[train]'"
    try:
        code, printed, _ = await run_briefly(*_SMI)
    except OSError:  # there is no such command
        code, printed = 1, ""
    rows = [row.rpartition(",") for row in printed.splitlines() if "," in row] if code == 0 else []
    card = ", ".join(f"{name.strip()}, {int(mb) / 1024:.0f} GiB" for name, _, mb in rows if mb.strip().isdigit())
    if find_spec("torch") is None:
        words = "not installed; training and models in this process need it"
        return [check(status="warning", words=words, fix=fix), _check_gpu(card, None)]

    code, printed, complaint = await run_briefly(sys.executable, "-P", "-c", _TORCH)
    try:
        torch = json.loads(printed.strip().rpartition("\n")[2])  # libraries may print other lines before it
    except ValueError:
        torch = None
    if code != 0 or not isinstance(torch, dict):
        words = f"PyTorch cannot be imported: {complaint or f'exit code {code}'}"
        fix = "pip install --force-reinstall --no-deps torch"
        return [check(status="failed", words=words, fix=fix), _check_gpu(card, None)]
    return [check(status="ok", words=f"torch {torch['version']}"), _check_gpu(card, torch)]


def _check_gpu(card: str, torch: Mapping[str, Any] | None) -> Check:
    """`card` is what nvidia-smi lists, "" for nothing; `torch` what the probe found, None where it could not run."""
    check = partial(Check, code="MS202", what="GPU")
    if torch and torch["gpus"]:
        return check(status="ok", words=", ".join(f"{name}, {mb / 1024:.0f} GiB" for name, mb in torch["gpus"]))
    if card and torch:
        words = f"{card}: not seen by PyTorch {torch['version']}"
        fix = f"pip install --force-reinstall 'torch=={torch['version'].partition('+')[0]}'"
        if torch["toolkit"]:
            words += f", which was built for CUDA {torch['toolkit']}"
            fix = "python -m torch.utils.collect_env   # its driver may be older than that"
        return check(status="warning", words=words, fix=fix)
    if card:
        return check(status="ok", words=f"{card}; PyTorch was not asked")
    mps = torch is not None and torch["mps"]
    return check(status="ok", words="Apple's (mps)" if mps else "none; remote and small models need none")


async def run_briefly(*command: str) -> tuple[int, str, str]:
    """Exit code, output, last line of errors; killed after `PROBE_LIMIT_S`. Raises `OSError` if it cannot start."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(PROBE_LIMIT_S):
            printed, complaint = await process.communicate()
    except TimeoutError:
        process.kill()
        with suppress(TimeoutError):  # a process that waits for a hanging driver cannot be killed
            await asyncio.wait_for(process.wait(), 1)
        return -1, "", f"not finished after {PROBE_LIMIT_S:g} s"
    lines = complaint.decode("utf-8", "replace").strip().splitlines()
    return process.returncode or 0, printed.decode("utf-8", "replace"), lines[-1] if lines else ""


async def check_machine(build: Build, *, named: bool) -> tuple[Check, ...]:
    """Run every check; a broken thing never raises. `named`: the user chose the recipe or its model."""
    recipe = build.recipe
    engines: Mapping[str, OpenAIConfig] = {
        name: engine.config
        for name, engine in recipe.engines.items()
        if named and isinstance(engine.config, OpenAIConfig)
    }
    slow: list[Coroutine[None, None, list[Check]]] = [
        check_training(),
        check_sandbox(recipe.sandbox, wanted=named and build.runs_code),
        *(check_server(name, config, several=len(engines) > 1) for name, config in engines.items()),
    ]
    training, sandbox, *servers = await run_concurrently(slow)
    system = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    python = Check(code="MS101", what="Python", status="ok", words=system)
    return (python, *training, *sandbox, *(check for found in servers for check in found))


async def check_sandbox(config: tiers.SandboxConfig, *, wanted: bool) -> list[Check]:
    """MS401: the tier that works here, by its own probe. `wanted`: the user's recipe has a tool that runs code."""
    check = partial(Check, code="MS401", what="sandbox")
    try:
        sandbox = await asyncio.to_thread(tiers.choose, config)
    except UnsupportedError as failure:
        words = f"{failure.what}, so code that a model writes will not run: {cut(failure.cause, 300)}"
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
