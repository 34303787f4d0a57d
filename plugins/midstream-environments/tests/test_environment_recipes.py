"""Recipes whose tasks are an environment's, evaluated whole: its scorer, its own loop, its episodes."""

import toys  # noqa: F401
from midstream.recipe.schema import parse_recipe


def double(messages) -> str:
    """The right answer to "4 + 4?"; 4 where it is asked for a number up to 4."""
    text = [message["content"] for message in messages if message["role"] == "user"][-1]
    number = int("".join(character for character in text.split("+")[-1] if character.isdecimal()) or 0)
    return str(2 * number if "+" in text else number)


def recipe(**changes):
    table = {
        "name": "toy",
        "agent": {"type": "direct", "policy": {"type": "model", "engine": "model"}},
        "engines": {"model": {"type": "test_environment_recipes:double"}},
        "tools": {},
        "reward": {"type": "environment"},
        "tasks": {"type": "toy"},
        "rollout": {"max_attempts": 3},
        "evaluation": {"temperatures": [1.0], "sets": [{"name": "train", "split": "train"}]},
    }
    return parse_recipe(table | changes)


LOOP = {"type": "environment", "engine": "model"}
CHAT = {"type": "interleaved", "template": "native", "policy": {"type": "model", "engine": "model"}}
