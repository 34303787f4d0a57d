"""Real `kill -9` of a real training process, and the run continues as if nothing had happened."""

from __future__ import annotations

import random
import sys

import pytest

from support.killed_training import differences, train_with_kills


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signal 9")
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(ten_steps, finished_run, tmp_path):
    """Killed while a checkpoint is written, after a step's record, and at a random moment; tools are unsteady too."""
    root = tmp_path / "killed"
    kills = train_with_kills(ten_steps, root, iter(("save", "record", "any")), random.Random(1))
    assert [kill.moment for kill in kills][:2] == ["save", "record"]  # a fast machine may be done before the third
    assert kills[1].steps > 0
    assert differences(finished_run, root) == []
