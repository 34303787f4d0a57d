"""LoRA adapters on a vLLM server: the newest version is loaded, every older one of the same run unloaded.

An adapter's directory is named after its content and its name on the server after that directory. So new weights never
meet the server's prefix cache of old ones, also after a resume, while equal weights find theirs again; and what a
killed run left on the server is known from what it left on disk. The server must read the same disk, run with
`--enable-lora`, and have VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from midstream.core.errors import EngineError, StorageError
from midstream.core.http import TransientError
from midstream.engines.openai.reply import LONGEST_PAUSE_S, may_pass

KEPT = 2  # directories: the adapter in use, and the one before


class AdapterEngine(Protocol):
    """An engine that can sample from an adapter."""

    async def use_adapter(self, version: int, path: Path) -> None:
        """Load the adapter at `path` and sample from it; calls record `version`."""
        ...

    async def drop_adapter(self, path: Path) -> None:
        """Unload the adapter at `path`, if it is loaded."""
        ...


async def hand_over(engine: AdapterEngine, export: Callable[[Path], None], root: Path, version: int) -> None:
    """Write the newest adapter below `root`, let `engine` sample from it, unload and remove those before it."""
    directory = write(export, root, version)
    await engine.use_adapter(version, directory)
    others = (one for one in root.glob("version-*") if one != directory)
    older = sorted(others, key=lambda one: (one.stat().st_mtime_ns, one.name))
    for one in older:
        await engine.drop_adapter(one)
    for one in older[: len(older) + 1 - KEPT]:
        shutil.rmtree(one, ignore_errors=True)  # in the way of nothing


def write(export: Callable[[Path], None], root: Path, version: int) -> Path:
    """Write an adapter with `export`; returns its directory `version-N-DIGEST`, which is whole or not there."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Below `root`, so that the rename stays on one disk; a kill leaves it behind, and the next export clears it.
        for left in root.glob("unfinished-*"):
            shutil.rmtree(left)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=root))
        unfinished.chmod(0o755)  # the server may run as another user
        export(unfinished)
        directory = root / f"version-{version}-{_digest(unfinished)}"
        if directory.exists():
            shutil.rmtree(unfinished)
            os.utime(directory)
        else:
            unfinished.rename(directory)
    except OSError as failure:
        raise StorageError(
            f"the adapter could not be written below {root}: {failure}",
            cause="the disk is full, or the directory cannot be written",
            fix="make room, then resume the run",
        ) from failure
    return directory


def name_of(path: Path) -> str:
    """The adapter's name on the server: its directory's, and a digest of where that is, for runs that share one."""
    return f"midstream-{path.name}-{blake2b(str(path.parent).encode(), digest_size=4).hexdigest()}"


def _digest(directory: Path) -> str:
    """Of the weights alone: peft writes its settings in another order each time."""
    digest = blake2b(digest_size=8)
    for file in sorted(directory.glob("adapter_model*")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterCalls:
    """Loads and unloads by name, tried again as requests are.

    `send` posts a JSON object to a path below `address` and returns status and text, or raises `TransientError`;
    `model` is what is served there.
    """

    send: Callable[[str, dict[str, str]], Awaitable[tuple[int, str]]]
    address: str
    model: str
    max_attempts: int
    first_pause_s: float

    async def load(self, path: Path) -> str:
        """Load the adapter at `path`; returns its name. One that is loaded already is the same: names tell content."""
        name = name_of(path)
        status, said = await self._sent("load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        if status != 200 and not (status == 400 and "already" in said):
            raise self._refused("load_lora_adapter", status, said)
        return name

    async def unload(self, path: Path) -> None:
        """Unload the adapter at `path`; one that is not loaded is none the worse."""
        status, said = await self._sent("unload_lora_adapter", {"lora_name": name_of(path)})
        if status not in (200, 404):
            raise self._refused("unload_lora_adapter", status, said)

    async def _sent(self, action: str, body: dict[str, str]) -> tuple[int, str]:
        pause_s, seen = self.first_pause_s, ""
        for attempt in range(1, self.max_attempts + 1):
            try:
                status, said = await self.send(action, body)
            except TransientError as failure:
                seen = str(failure)
            else:
                # What vLLM's worker says of the adapter itself is final, though its status is 500.
                if not may_pass(status) or "add_lora" in said:
                    return status, said
                seen = f"{status}: {said[:300]}"
            if attempt < self.max_attempts:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise EngineError(
            f"{self.address}/{action} failed {self.max_attempts} times, at last: {seen}",
            cause="the server is overloaded or broken",
            fix="look at the server's log, then resume the run",
        )

    def _refused(self, action: str, status: int, said: str) -> EngineError:
        cause = "the server does not load adapters at run time"
        fix = f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {self.model} --enable-lora"
        if "rank" in said:
            cause = "the server was started for adapters of a lower rank"
            fix = f"vllm serve {self.model} --enable-lora --max-lora-rank RANK, at least learner.lora's rank"
        elif "No adapter found" in said:
            cause = "the server does not see the run directory: it has another disk, or may not read it"
            fix = "run both on one machine or on a shared disk, under the same path"
        return EngineError(f"{self.address}/{action} answered {status}: {said[:300]}", cause=cause, fix=fix)
