"""The last versions of the weights, for rollouts that sample from older ones than those that train.

A served model has them as adapters that stay loaded. For a model in this process, another process samples
(`sampler.py`), so that rollouts and updates each have a processor.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from midstream.core.errors import UnsupportedError
from midstream.engines.openai.engine import OpenAICompatibleEngine
from midstream_async.client import SamplerClient
from midstream_async.sampler import REFERENCE, asks_reference

_VERSION = re.compile(r"(?:version|weights)-(\d+)\b.*")
_KEPT = "versions"


class Versions(Protocol):
    """The newest versions of the weights."""

    async def restore(self) -> None:
        """Make the versions of the checkpoint that was loaded available, once."""
        ...

    async def publish(self, version: int) -> None:
        """Make the learner's weights available as a version; the oldest are dropped."""
        ...

    def save(self, directory: Path, versions: Sequence[int]) -> None:
        """Add versions to a checkpoint."""
        ...

    def load(self, directory: Path) -> None:
        """Remember a checkpoint for `restore`."""
        ...


def versions_of(build: Any, staleness: int) -> Versions:
    """The versions of the weights that a build trains."""
    engine = build.policy.engine()
    if getattr(build.policy.learner, "ranks", 1) > 1:
        raise UnsupportedError(
            "training.asynchrony with several processes that learn",
            code="option-without-effect",
            fix="leave out --nproc, or the table",
        )
    if isinstance(engine, OpenAICompatibleEngine):
        return ServedVersions(engine, build.adapters.absolute(), staleness)
    sampled = LocalVersions(build, engine, staleness)
    build.opened.append(sampled.sampler)
    return sampled


class ServedVersions:
    """Adapters of a server, which gets each before the first request that needs it."""

    def __init__(self, engine: OpenAICompatibleEngine, directory: Path, staleness: int) -> None:
        self._engine, self._directory = engine, directory
        engine.kept = staleness + 1
        self._from: Path | None = None

    async def restore(self) -> None:
        """Hand the server the adapters of the checkpoint again, the oldest first."""
        if self._from is None:
            return
        for version, kept in _found(self._from):
            _link(kept, self._directory / kept.name)
            await self._engine.use_adapter(version, self._directory / kept.name)
        self._from = None

    async def publish(self, version: int) -> None:
        """Nothing: the engine has loaded the adapter."""

    def save(self, directory: Path, versions: Sequence[int]) -> None:
        """Add the adapters."""
        for version in versions:
            path = self._engine.versions[version]
            _link(path, directory / _KEPT / path.name)

    def load(self, directory: Path) -> None:
        """Remember the checkpoint."""
        self._from = directory


class LocalVersions:
    """Files of weights, from which another process samples in place of an engine of this one."""

    def __init__(self, build: Any, engine: Any, staleness: int) -> None:
        self._learner, self._directory, self._staleness = build.policy.learner, build.adapters.absolute(), staleness
        self._lora = build.recipe.learner.lora is not None
        self._asked = asks_reference(build.recipe) and self._learner.reference is not None
        self.sampler = engine.sampler = SamplerClient(build.resolved, engine.name)
        self._paths: dict[int, Path] = {}
        self._from: Path | None = None

    async def restore(self) -> None:
        """Give the sampler the weights of the checkpoint again."""
        if self._from is None:
            return
        for version, kept in _found(self._from):
            self._give(version, _link(kept, self._directory / kept.name))
        self._from = None

    async def publish(self, version: int) -> None:
        """Write what is trained for the sampler."""
        model, reference = self._learner.model, self._learner.reference
        state = {name: one for name, one in model.state_dict().items() if "lora_" in name or not self._lora}
        states = {"model": state}
        if self._asked and hasattr(model, "before_step"):
            # It is drawn again for each step, with the model.
            states["reference"] = reference.state_dict()
        elif self._asked:
            self.sampler.use(REFERENCE, self._write("reference.pt", {"reference": reference.state_dict()}))
            self._asked = False
        self._give(version, self._write(f"weights-{version:06}.pt", states))

    def save(self, directory: Path, versions: Sequence[int]) -> None:
        """Add the files. Where no batch is open, the next version is the next that is needed."""
        for version in versions:
            _link(self._paths[version], directory / _KEPT / self._paths[version].name)
        if not versions:
            for path in self._paths.values():
                path.unlink(missing_ok=True)
            self._paths.clear()

    def load(self, directory: Path) -> None:
        """Remember the checkpoint."""
        self._from = directory

    def _write(self, name: str, states: Any) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        path, partial = self._directory / name, self._directory / f"{name}.partial"
        with partial.open("wb") as file:
            torch.save(states, file)
        os.replace(partial, path)
        return path

    def _give(self, version: int, path: Path) -> None:
        self.sampler.use(version, path)
        self._paths[version] = path
        for old in [*self._paths][: -self._staleness - 1]:
            # The sampler may still read it, and then has it open.
            self._paths.pop(old).unlink(missing_ok=True)


def _found(directory: Path) -> list[tuple[int, Path]]:
    """The versions in a checkpoint, the oldest first."""
    paths = (directory / _KEPT).iterdir() if (directory / _KEPT).is_dir() else ()
    return sorted((int(match[1]), path) for path in paths if (match := _VERSION.fullmatch(path.name)))


def _link(source: Path, target: Path) -> Path:
    """Have a file or directory at another place, too; nothing changes it later, so its files may be the same ones."""

    def same(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except FileExistsError:
            pass
        except OSError:
            shutil.copy2(one, other)

    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=same, dirs_exist_ok=True)
    else:
        same(str(source), str(target))
    return target
