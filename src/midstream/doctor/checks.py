"""Checks of the machine: `check_machine` runs all of them, in the order in which they are shown.

Of what is installed (Python, midstream's own requirements, its extras, PyTorch, a GPU), the required versions are read
from the package's metadata, so that pyproject.toml alone states them.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from midstream.core.errors import MidstreamError, UnsupportedError
from midstream.doctor.servers import check_search, check_server, no_server
from midstream.engines.openai.settings import OpenAIConfig
from midstream.recipe.build import Build
from midstream.report.doctor import Check
from midstream.report.numbers import cut
from midstream.rollout import run_concurrently
from midstream.sandbox import tiers

PROBE_LIMIT_S = 120.0  # a first import of PyTorch from a slow disk takes a minute
# Code, what it is for, and the types of tools that do not work without it.
EXTRAS: Mapping[str, tuple[str, str, frozenset[str]]] = {
    "math": ("MS111", "the math reward, and for numpy and sympy in the sandbox", frozenset()),
    "web": ("MS112", "web search and web pages", frozenset({"web_search", "web_page"})),
    "mcp": ("MS113", "tools of MCP servers", frozenset({"mcp"})),
    "graph": (
        "MS114",
        "graph algorithms",
        frozenset({"graph", "graph_query", "path_query", "neighbor_query", "oracle"}),
    ),
}
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


def check_python() -> Check:
    """MS101: the version of Python, and the system."""
    words = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    return Check(code="MS101", what="Python", status="ok", words=words)


def check_requirements() -> Check:
    """MS102: the packages that midstream cannot run without."""
    check = partial(Check, code="MS102", what="packages")
    wanted, lacking = extra_state("")
    if not wanted:
        words = "midstream runs from its source and is not installed: what it requires is not known"
        return check(status="warning", words=words, fix="pip install -e .")
    if lacking:
        return check(status="failed", words="; ".join(lacking), fix="pip install --upgrade midstream")
    return check(status="ok", words=f"all {len(wanted)} that are required")


def check_extras(tools: Collection[str] = ()) -> list[Check]:
    """MS111 to MS114: the extras that tools need; `tools` are the types of those that will be used."""
    checks = []
    for name, (code, use, of) in EXTRAS.items():
        check, fix = partial(Check, code=code, what=f"extra {name}"), f"pip install 'midstream[{name}]'"
        used_by = sorted(of.intersection(tools))
        wanted, lacking = extra_state(name)
        absent = len(lacking) == len(wanted) and all("not installed" in problem for problem in lacking)
        if not wanted:
            checks.append(check(status="not checked", words="see MS102"))
        elif not lacking:
            checks.append(check(status="ok", words=", ".join(wanted)))
        elif absent and not used_by:
            checks.append(check(status="ok", words="not installed", fix=fix))
        else:
            words = f"{'not installed' if absent else '; '.join(lacking)}; it is for {', '.join(used_by) or use}"
            checks.append(check(status="warning", words=words, fix=fix))
    return checks


async def check_training() -> list[Check]:
    """MS201: the extra `train` is there and PyTorch can be imported; MS202: a GPU, and whether PyTorch sees it."""
    check = partial(Check, code="MS201", what="extra train")
    fix = "pip install 'midstream[train]'"
    try:
        code, printed, _ = await run_briefly(*_SMI)
    except OSError:  # there is no such command
        code, printed = 1, ""
    rows = [row.rpartition(",") for row in printed.splitlines() if "," in row] if code == 0 else []
    card = ", ".join(f"{name.strip()}, {int(mb) / 1024:.0f} GiB" for name, _, mb in rows if mb.strip().isdigit())
    wanted, lacking = extra_state("train")
    if find_spec("torch") is None:
        words = "not installed; the demo, training and models in this process need it"
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
    if lacking:
        return [check(status="warning", words="; ".join(lacking), fix=fix), _check_gpu(card, torch)]
    others = [package for package in wanted if package.startswith("transformers ")]
    words = ", ".join([f"torch {torch['version']}", *others])
    return [check(status="ok", words=words), _check_gpu(card, torch)]


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
    return check(status="ok", words="Apple's (mps)" if mps else "none; the demo and remote models need none")


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


def requirements(extra: str) -> Iterator[Requirement]:
    """The packages that midstream, or one of its extras, requires, with their version specifiers."""
    try:
        lines = metadata.requires("midstream") or []
    except metadata.PackageNotFoundError:  # midstream runs from its source
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        of_extra = not always and marker is not None and marker.evaluate({"extra": extra})
        if of_extra if extra else always:
            yield requirement


def extra_state(extra: str) -> tuple[list[str], list[str]]:
    """The packages of an extra with their installed versions, and the problems among them as text."""
    wanted, lacking = [], []
    for requirement in requirements(extra):
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wanted.append(requirement.name)
            lacking.append(f"{requirement.name} is not installed")
            continue
        wanted.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            lacking.append(f"{requirement.name} {version} is not {requirement.specifier}")
    return wanted, lacking


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
