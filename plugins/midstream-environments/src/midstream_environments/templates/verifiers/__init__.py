"""An environment of verifiers, exported from a recipe of midstream: for verifiers 0.4, and for 0.1."""

from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from midstream_environments.exported import World


@cache
def world() -> World:
    """The tasks, tools and reward."""
    return World(Path(__file__).parent / "world")


def load_environment(split: str = "", eval_split: str = "", max_turns: int = 0) -> Any:
    """The environment for verifiers 0.1: `split` is for training, `eval_split` for evaluations."""
    from .classic import load

    return load(split=split, eval_split=eval_split, max_turns=max_turns)


__all__ = ["load_environment"]

if int(version("verifiers").split(".")[1]) >= 4:
    from .taskset import WorldEnv, WorldTaskset

    __all__ = ["WorldEnv", "WorldTaskset"]
