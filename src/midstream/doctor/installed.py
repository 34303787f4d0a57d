"""What is installed: Python, midstream's own requirements, its extras, PyTorch, a GPU.

Which versions are wanted is read from the package's metadata, and so stands in pyproject.toml alone.
"""

from __future__ import annotations

import asyncio
import json
import platform
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from midstream.report.doctor import Check, Status

PROBE_LIMIT_S = 120.0  # a first import of PyTorch from a slow disk takes a minute
# Code, what it is for, and the types of tools that do not work without it.
EXTRAS: Mapping[str, tuple[str, str, frozenset[str]]] = {
    "math": ("MS111", "numpy and sympy for code in the sandbox", frozenset()),
    "web": ("MS112", "web search and web pages", frozenset({"web_search", "web_page"})),
    "mcp": ("MS113", "tools of MCP servers", frozenset({"mcp"})),
}
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*([^;]*?)\s*(?:;\s*extra\s*==\s*['\"]([\w-]+)['\"])?")
_CLAUSE = re.compile(r"(==|>=|<)\s*([\w.+]+)")
# In a process of its own: a PyTorch that does not fit its driver can take the whole process with it.
_TORCH = """
import json, torch
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps({
    "version": torch.__version__, "toolkit": torch.version.cuda or torch.version.hip or "",
    "gpus": [[one.name, one.total_memory >> 20] for one in found] if torch.cuda.is_available() else [],
    "mps": torch.backends.mps.is_available(),
}))
"""
_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


def check_python() -> Check:
    """MS101: which Python, on what."""
    words = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    return Check(code="MS101", what="Python", status="ok", words=words)


def check_requirements() -> Check:
    """MS102: the packages that midstream cannot do without."""
    wanted, lacking = _state_of("")
    if not wanted:
        words = "midstream runs from its source and is not installed: what it requires is not known"
        return Check(code="MS102", what="packages", status="warning", words=words, fix="pip install -e .")
    if lacking:
        fix = "pip install --upgrade midstream"
        return Check(code="MS102", what="packages", status="failed", words="; ".join(lacking), fix=fix)
    return Check(code="MS102", what="packages", status="ok", words=f"all {len(wanted)} that are required")


def check_extras(tools: Collection[str] = ()) -> list[Check]:
    """MS111 to MS113: the extras that tools need; `tools` are the types of those that will be used."""
    return [_extra(name, code, use, sorted(of.intersection(tools))) for name, (code, use, of) in EXTRAS.items()]


def _extra(name: str, code: str, use: str, missed_by: list[str]) -> Check:
    wanted, lacking = _state_of(name)
    what, fix = f"extra {name}", f"pip install 'midstream[{name}]'"
    if not wanted:
        return Check(code=code, what=what, status="not checked", words="see MS102")
    if not lacking:
        return Check(code=code, what=what, status="ok", words=", ".join(wanted))
    absent = len(lacking) == len(wanted) and all("not installed" in one for one in lacking)
    if absent and not missed_by:
        return Check(code=code, what=what, status="ok", words="not installed", fix=fix)
    words = f"{'not installed' if absent else '; '.join(lacking)}; it is for {', '.join(missed_by) or use}"
    return Check(code=code, what=what, status="warning", words=words, fix=fix)


async def check_training() -> list[Check]:
    """MS201: the extra `train` is there and PyTorch can be imported; MS202: a GPU, and whether PyTorch sees it."""
    card = await _nvidia()
    fix = "pip install 'midstream[train]'"
    wanted, lacking = _state_of("train")
    if find_spec("torch") is None:
        words = "not installed; the demo, training and models in this process need it"
        return [_train("warning", words, fix), _gpu(card, None)]
    code, said, complaint = await run_briefly(sys.executable, "-P", "-c", _TORCH)
    torch = _last_object(said)
    if code != 0 or torch is None:
        words = f"PyTorch cannot be imported: {complaint or f'exit code {code}'}"
        return [_train("failed", words, "pip install --force-reinstall --no-deps torch"), _gpu(card, None)]
    if lacking:
        return [_train("warning", "; ".join(lacking), fix), _gpu(card, torch)]
    others = [one for one in wanted if one.startswith("transformers ")]
    return [_train("ok", ", ".join([f"torch {torch['version']}", *others]), ""), _gpu(card, torch)]


def _train(status: Status, words: str, fix: str) -> Check:
    return Check(code="MS201", what="extra train", status=status, words=words, fix=fix)


def _gpu(card: str, torch: Mapping[str, Any] | None) -> Check:
    """`card` is what nvidia-smi lists, "" for nothing; `torch` what the probe found, None where it could not run."""
    status: Status = "ok"
    fix = ""
    if torch and torch["gpus"]:
        words = ", ".join(f"{name}, {mb / 1024:.0f} GiB" for name, mb in torch["gpus"])
    elif card and torch:
        status = "warning"
        words = f"{card}: not seen by PyTorch {torch['version']}"
        fix = f"pip install --force-reinstall 'torch=={torch['version'].partition('+')[0]}'"
        if torch["toolkit"]:
            words += f", which was built for CUDA {torch['toolkit']}"
            fix = "python -m torch.utils.collect_env   # its driver may be older than that"
    elif card:
        words = f"{card}; PyTorch was not asked"
    else:
        words = "Apple's (mps)" if torch and torch["mps"] else "none; the demo and remote models need none"
    return Check(code="MS202", what="GPU", status=status, words=words, fix=fix)


async def _nvidia() -> str:
    """What nvidia-smi lists, or ""."""
    try:
        code, said, _ = await run_briefly(*_SMI)
    except OSError:  # there is no such command
        return ""
    rows = [row.rpartition(",") for row in said.splitlines() if "," in row] if code == 0 else []
    return ", ".join(f"{name.strip()}, {int(mb) / 1024:.0f} GiB" for name, _, mb in rows if mb.strip().isdigit())


async def run_briefly(*command: str) -> tuple[int, str, str]:
    """Exit code, what it printed, and the last line of its complaints; ended after `PROBE_LIMIT_S`.

    Raises:
        OSError: it cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(PROBE_LIMIT_S):
            said, complaint = await process.communicate()
    except TimeoutError:
        process.kill()
        with suppress(TimeoutError):  # a driver that hangs lets nobody end
            await asyncio.wait_for(process.wait(), 1)
        return -1, "", f"not finished after {PROBE_LIMIT_S:g} s"
    lines = complaint.decode("utf-8", "replace").strip().splitlines()
    return process.returncode or 0, said.decode("utf-8", "replace"), lines[-1] if lines else ""


def _last_object(said: str) -> dict[str, Any] | None:
    """The JSON object on the last line; what libraries print before it is theirs."""
    try:
        value = json.loads(said.strip().rpartition("\n")[2])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


# --- versions ---------------------------------------------------------------------------------------------------------


def requirements(extra: str) -> Iterator[tuple[str, str]]:
    """(name, version specifiers) of what midstream, or one of its extras, requires."""
    try:
        lines = metadata.requires("midstream") or []
    except metadata.PackageNotFoundError:  # midstream runs from its source
        return
    for line in lines:
        match = _REQUIREMENT.fullmatch(line)
        if match and (match[3] or "") == extra:
            yield match[1], match[2]


def fits(version: str, specifiers: str) -> bool:
    """Whether a version satisfies specifiers made of ==, >= and <, by its numbers; others count as satisfied."""
    have = _numbers(version)
    for operator, wanted in _CLAUSE.findall(specifiers):
        want = _numbers(wanted)
        if not {"==": have == want, ">=": have >= want, "<": have < want}[operator]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """Release numbers without trailing zeros: "2.13.0+cpu" is (2, 13)."""
    numbers = [int(one) for one in re.findall(r"\d+", re.split(r"[+a-z]", version)[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _state_of(extra: str) -> tuple[list[str], list[str]]:
    """What an extra requires, each with the version that is there; and what is lacking, in words."""
    wanted, lacking = [], []
    for name, specifiers in requirements(extra):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            wanted.append(name)
            lacking.append(f"{name} is not installed")
            continue
        wanted.append(f"{name} {version}")
        if not fits(version, specifiers):
            lacking.append(f"{name} {version} is not {specifiers}")
    return wanted, lacking
