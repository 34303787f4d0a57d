"""Gymnasium: environments that are text, or can be drawn as text, and whose actions are numbers or text."""

from __future__ import annotations

import inspect
import random
import re
from typing import Any

import gymnasium
import numpy
from gymnasium.spaces import Discrete, Text

DISTRIBUTION = "gymnasium"

# Of ten seeds.
SPLITS = ("train",) * 8 + ("validation", "test")
# A highlighted part of a drawing: "\x1b[41mS\x1b[0m".
COLORED = re.compile(r"((?:\x1b\[[\d;]*m)+)(.*?)\x1b\[0m", re.DOTALL)
COLORS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
# Of the documentation that Gymnasium asks of an environment, what a player needs.
SECTIONS = ("Description", "Action Space", "Rewards")


class Adapter:
    """The environment of one recipe."""

    def __init__(
        self,
        environment: str,
        arguments: dict[str, Any],
        actions: list[str],
        instructions: str,
        reward: str,
        episodes: int,
        max_turns: int,
        unfinished: float | None,
    ) -> None:
        self._id, self._arguments, self._reward = environment, arguments, reward
        self._episodes, self._max_turns, self._unfinished = episodes, max_turns, unfinished
        self._open: dict[str, Opened] = {}
        # Modules of environments register them when they are imported: "module:Id".
        first = gymnasium.make(environment, **arguments)
        observations, space = first.observation_space, first.action_space
        self._draws = not isinstance(observations, Text)
        if self._draws and "ansi" not in first.metadata.get("render_modes", ()):
            raise ValueError(
                f"{environment} has no text: its observations are {observations}, and it has no ansi rendering"
            )
        if not isinstance(space, Discrete | Text):
            raise ValueError(f"the actions of {environment} are {space}, neither numbers (Discrete) nor text")
        if actions and not (isinstance(space, Discrete) and len(actions) == space.n):
            raise ValueError(f"tasks.actions names {len(actions)} actions, but those of {environment} are {space}")
        self._actions = actions
        self._system = "\n\n".join(part for part in (instructions or rules_of(first), self._form(space)) if part)
        first.close()

    def rows(self) -> list[dict[str, Any]]:
        """A row for each seed."""
        return [
            {
                "case": str(seed),
                "question": f"{self._id}, seed {seed}",
                "split": SPLITS[seed % 10],
                "family": self._id.rpartition(":")[2],
            }
            for seed in range(self._episodes)
        ]

    def open(self, episode: str, case: str) -> dict[str, Any]:
        """Make the environment, and reset it with the seed of the case, so that all attempts have the same."""
        random.seed(int(case))
        numpy.random.seed(int(case))
        env = gymnasium.make(self._id, **self._arguments, **({"render_mode": "ansi"} if self._draws else {}))
        opened = self._open[episode] = Opened(env)
        observation, _ = env.reset(seed=int(case))
        return {"system": self._system, **self._turn(opened, self._text(env, observation))}

    def reply(self, episode: str, text: str) -> dict[str, Any]:
        """Take a step; a reply without an action takes no step, but counts as a turn."""
        opened = self._open[episode]
        opened.turns += 1
        space = opened.env.action_space
        action = text.strip() if isinstance(space, Text) else number_in(text, space, self._actions)
        if action is None or not space.contains(action):
            return self._turn(opened, f"That reply has no action. {self._form(space)}")
        observation, reward, terminated, truncated, _ = opened.env.step(action)
        opened.last = float(reward)
        opened.total += opened.last
        opened.ended = "terminated" if terminated else "truncated" if truncated else ""
        return self._turn(opened, self._text(opened.env, observation))

    def close(self, episode: str) -> None:
        """Close the environment."""
        if opened := self._open.pop(episode, None):
            opened.env.close()

    def _turn(self, opened: Opened, text: str) -> dict[str, Any]:
        reward, feedback = opened.total if self._reward == "sum" else opened.last, opened.ended
        if not opened.ended:
            reward, feedback = reward if self._unfinished is None else self._unfinished, "the episode was not finished"
        return {
            "text": text,
            "over": bool(opened.ended) or opened.turns >= self._max_turns,
            "outcome": {"reward": reward, "feedback": feedback, "turns": opened.turns},
        }

    def _text(self, env: Any, observation: Any) -> str:
        return plain(env.render()) if self._draws else str(observation)

    def _form(self, space: Any) -> str:
        """How to write an action."""
        if isinstance(space, Text):
            return "Each of your replies is one action, and nothing else."
        first, last = int(space.start), int(space.start + space.n - 1)
        named = ", ".join(f"{number} {name}" for number, name in enumerate(self._actions, first))
        return f"End each of your replies with one action: a number from {first} to {last}" + (
            f" ({named})." if named else "."
        )


class Opened:
    """An episode under way, and its rewards so far."""

    def __init__(self, env: Any) -> None:
        self.env, self.turns, self.total, self.last, self.ended = env, 0, 0.0, 0.0, ""


def number_in(text: str, space: Any, names: list[str]) -> int | None:
    """The last number or name of an action in a reply, None if it has no such thing."""
    numbers = {name.lower(): number for number, name in enumerate(names, int(space.start))}
    words = [r"-?\d+", *(re.escape(name) for name in sorted(numbers, key=len, reverse=True))]
    found = re.findall(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", text.lower())
    return None if not found else numbers[found[-1]] if found[-1] in numbers else int(found[-1])


def rules_of(env: Any) -> str:
    """What the documentation of an environment says to its players."""
    documented = inspect.cleandoc(type(env.unwrapped).__doc__ or "")
    sections = re.split(r"^ *## ", documented, flags=re.MULTILINE)[1:]
    return "\n\n".join(section.strip() for section in sections if section.startswith(SECTIONS))


def plain(drawing: str) -> str:
    """A drawing without codes for colors: what is highlighted as "red(S)"."""

    def named(match: re.Match[str]) -> str:
        codes = [int(code) for code in re.findall(r"\d+", match[1])]
        colors = [COLORS[code % 10] for code in codes if code // 10 in (3, 4) and code % 10 < len(COLORS)]
        return f"{colors[-1]}({match[2]})" if colors else match[2]

    return re.sub(r"\x1b\[[\d;]*m", "", COLORED.sub(named, drawing)).strip("\n")
