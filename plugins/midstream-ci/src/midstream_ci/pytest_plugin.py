"""The pytest fixture `midstream` (`guard.py`, `Guard`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from midstream_ci.guard import Guard


@pytest.fixture
def midstream(tmp_path: Path) -> Guard:
    """Requirements on agents; evaluations are kept in the test's temporary directory."""
    # pytest imports this file in every project of the environment, which must not wait for midstream.
    from midstream_ci.guard import Guard

    return Guard(tmp_path / "midstream")
