"""LoRA adapters of roles on disk and in a model: `policy/` has one, or one below it for each role. Needs no torch."""

from __future__ import annotations

import re
from pathlib import Path

ADAPTER_CONFIG = "adapter_config.json"


def adapter_of(role: str) -> str:
    """The name of a role's adapter, which peft and file systems take: a role may be the name of a model."""
    return re.sub(r"[^\w-]", "_", role)


def adapters_in(directory: Path) -> dict[str, Path]:
    """The adapters in a directory, by name: the one of all roles is "default", as in peft. Empty if it has none."""
    if (directory / ADAPTER_CONFIG).is_file():
        return {"default": directory}
    # A model may have adapters of others below it.
    found = [] if (directory / "config.json").exists() else sorted(directory.glob(f"*/{ADAPTER_CONFIG}"))
    return {path.parent.name: path.parent for path in found}
