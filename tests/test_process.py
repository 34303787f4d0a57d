"""CPU threads of a command's process."""

from __future__ import annotations

import pytest
import torch

from midstream import process
from midstream.process import use_threads
from midstream.recipe.schema import load_recipe


@pytest.mark.parametrize(
    ("recipe", "changes", "learns", "used"),
    [
        ("artist-tiny", [], True, [1]),
        ("artist-tiny", [], False, [1]),
        ("artist-tiny", ["learner.threads=3"], True, [3]),
        ("tool-use-135m", [], True, [8]),
        ("tool-use-135m", ["learner.threads=3"], True, [3]),
        ("tool-use-135m", ["learner.threads=3"], False, []),
    ],
)
def test_a_tiny_model_has_one_thread_and_others_pytorchs_own_number(monkeypatch, recipe, changes, learns, used):
    numbers = []
    monkeypatch.setattr(process, "_all_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    use_threads(load_recipe(recipe, changes), learns=learns)
    assert numbers == used


def test_the_processes_of_a_run_share_the_cores(monkeypatch):
    numbers = []
    monkeypatch.setattr(process, "_all_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    for size in ("4", "32"):
        monkeypatch.setenv("WORLD_SIZE", size)
        use_threads(load_recipe("tool-use-135m"), learns=True)
    assert numbers == [2, 1]
