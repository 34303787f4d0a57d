"""What the tests of the in-process engine and of its loading share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def saved_model(tmp_path: Path) -> Callable[..., str]:
    """`saved_model(family)` writes a random chat model; gives its directory."""
    from support.hf_models import save_chat_model  # imported where used: the tests of HTTP engines need no torch

    def save(family: str, **more: Any) -> str:
        return str(save_chat_model(tmp_path / family, family, **more))

    return save
