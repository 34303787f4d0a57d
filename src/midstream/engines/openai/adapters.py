"""LoRA adapters on a vLLM server: the newest version is loaded, older ones of the same run are unloaded.

An adapter's directory is named after its content, and its name on the server after that directory. New weights
therefore never meet the server's prefix cache of old ones, also after a resume, equal weights find theirs again, and
adapters that a killed run left on the server are known from its run directory. The server must read the same disk, run
with `--enable-lora`, and have VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.core.errors import EngineError, StorageError, TransientError
from midstream.core.http import retry
from midstream.engines.openai.reply import may_pass
from midstream.engines.openai.settings import OpenAIConfig

if TYPE_CHECKING:
    from midstream.engines.openai.engine import OpenAICompatibleEngine

KEPT = 2  # directories: the adapter in use, and the one before


async def hand_over(engine: OpenAICompatibleEngine, export: Callable[[Path], None], root: Path, version: int) -> None:
    """Write the newest adapter below `root`, switch `engine` to it, then unload and remove older ones."""
    directory = write(export, root, version)
    await engine.use_adapter(version, directory)
    others = (path for path in root.glob("version-*") if path != directory)
    older = sorted(others, key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in older:
        await engine.drop_adapter(path)
    for path in older[: len(older) + 1 - KEPT]:
        shutil.rmtree(path, ignore_errors=True)  # a leftover does no harm


def write(export: Callable[[Path], None], root: Path, version: int) -> Path:
    """Write an adapter with `export`; returns its directory `version-N-DIGEST`, which is complete or does not exist."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Below `root`, so that the rename stays on one disk. A killed run leaves it; the next export clears it.
        for leftover in root.glob("unfinished-*"):
            shutil.rmtree(leftover)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=root))
        unfinished.chmod(0o755)  # the server may run as another user
        export(unfinished)
        digest = blake2b(digest_size=8)
        for file in sorted(unfinished.glob("adapter_model*")):  # weights alone: peft's settings vary in their order
            digest.update(file.read_bytes())
        directory = root / f"version-{version}-{digest.hexdigest()}"
        if directory.exists():
            shutil.rmtree(unfinished)
            os.utime(directory)
        else:
            unfinished.rename(directory)
    except OSError as failure:
        raise StorageError(
            f"the adapter could not be written below {root}: {failure}",
            code="write-failed",
            fix="make room on the disk, then resume the run",
        ) from failure
    return directory


def name_of(path: Path) -> str:
    """The adapter's name on the server: its directory's name, and a digest of its parent (runs may share a server)."""
    return f"midstream-{path.name}-{blake2b(str(path.parent).encode(), digest_size=4).hexdigest()}"


@dataclass(frozen=True, slots=True)
class AdapterCalls:
    """Load and unload adapters by name, with the retries of other requests.

    `send` posts a JSON object to a path below the server's address and returns status and text, or raises
    `TransientError`.
    """

    config: OpenAIConfig
    send: Callable[[str, dict[str, str]], Awaitable[tuple[int, str]]]

    async def load(self, path: Path) -> str:
        """Load the adapter at `path` unless it is loaded already; returns its name."""
        name = name_of(path)
        status, text = await self._post("load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        if status != 200 and not (status == 400 and "already" in text):
            raise self._refusal("load_lora_adapter", status, text)
        return name

    async def unload(self, path: Path) -> None:
        """Unload the adapter at `path` if it is loaded."""
        status, text = await self._post("unload_lora_adapter", {"lora_name": name_of(path)})
        if status not in (200, 404):
            raise self._refusal("unload_lora_adapter", status, text)

    async def _post(self, action: str, body: dict[str, str]) -> tuple[int, str]:
        async def attempt() -> tuple[int, str]:
            status, text = await self.send(action, body)
            # What vLLM's worker reports about the adapter itself is final, though its status is 500.
            if may_pass(status) and "add_lora" not in text:
                raise TransientError(f"{status}: {text[:300]}")
            return status, text

        first_pause_s, attempts = self.config.first_pause_s, self.config.max_attempts
        try:
            return await retry(attempt, max_attempts=attempts, pause_s=lambda failed: first_pause_s * 2 ** (failed - 1))
        except TransientError as failure:
            raise EngineError(
                f"{self.config.base_url}/{action} failed {attempts} times, last: {failure}",
                code="endpoint-failed",
                fix="look at the server's log, then resume the run",
            ) from failure

    def _refusal(self, action: str, status: int, text: str) -> EngineError:
        cause = "the server does not load adapters at run time"
        fix = f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {self.config.model} --enable-lora"
        if "rank" in text:
            cause = "the server was started for adapters of a lower rank"
            fix = f"vllm serve {self.config.model} --enable-lora --max-lora-rank RANK, at least learner.lora's rank"
        elif "No adapter found" in text:
            cause = "the server does not see the run directory: it has another disk, or may not read it"
            fix = "run both on one machine or on a shared disk, under the same path"
        what = f"{self.config.base_url}/{action} answered {status}: {text[:300]}"
        return EngineError(what, code="adapter-refused", cause=cause, fix=fix)
