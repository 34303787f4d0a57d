"""TextArena: single-player games. A case is a game and its seed.

The observation of a turn is what the game says since the one before, in the words of `LLMObservationWrapper`, which
repeats the whole game in each turn: an agent of midstream has what was said before in its conversation.
"""

from __future__ import annotations

import random
import re
from typing import Any

import textarena
from textarena.core import GAME_ID, ObservationType

try:
    import numpy
except ImportError:
    # Only some games need it.
    numpy = None

DISTRIBUTION = "textarena"

# Of ten seeds.
SPLITS = ("train",) * 8 + ("validation", "test")


class Adapter:
    """The games of one recipe."""

    def __init__(self, games: list[str], episodes: int, max_turns: int, unfinished: float | None) -> None:
        self._games, self._episodes = games, episodes
        self._max_turns, self._unfinished = max_turns, unfinished or 0.0
        self._open: dict[str, list[Any]] = {}
        for game in games:
            made(game, 0)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each game and seed. The ids of a game with other wrappers ("-raw", "-train") have its splits."""
        return [
            {
                "case": f"{seed} {game}",
                "question": f"{plain_id(game)}, seed {seed}",
                "split": SPLITS[seed % 10],
                "family": game,
            }
            for game in self._games
            for seed in range(self._episodes)
        ]

    def open(self, episode: str, case: str) -> dict[str, Any]:
        """Reset the game of a case. Its seed decides what it holds, so that all attempts have the same."""
        number, game = case.split(" ", 1)
        self._open[episode] = [made(game, int(number)), 0]
        return self._turn(episode, over=False)

    def reply(self, episode: str, text: str) -> dict[str, Any]:
        """Make a move."""
        opened = self._open[episode]
        opened[1] += 1
        done, _ = opened[0].step(text)
        return self._turn(episode, over=bool(done))

    def close(self, episode: str) -> None:
        """Forget the game."""
        self._open.pop(episode, None)

    def _turn(self, episode: str, over: bool) -> dict[str, Any]:
        env, turns = self._open[episode]
        _, said = base_of(env).get_observation()
        # The agent's own moves are in its conversation.
        lines = [text for sender, text, kind in said if sender == GAME_ID and kind != ObservationType.PLAYER_ACTION]
        return {
            "text": "\n".join(f"[GAME] {text}" for text in lines) or "(no message)",
            "over": over or turns >= self._max_turns,
            "outcome": outcome_of(env, turns, self._unfinished),
        }


def plain_id(game: str) -> str:
    """The id of a game with its default wrappers."""
    return game.removesuffix("-raw").removesuffix("-train")


def made(game: str, seed: int) -> Any:
    """A game, reset with a seed. Raises what explains why it cannot be played here."""
    # Not every game draws from the generator that the library seeds.
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)
    try:
        env = textarena.make(game)
    except Exception as error:
        # NLTK's data, a key of a provider, a package: whatever it is, the game does not run here.
        raise ValueError(f"the game {game!r} cannot be made: {words_of(error)}") from error
    players = f"the game {game!r} is for more than one player; midstream plays games for one"
    try:
        env.reset(num_players=1, seed=seed)
    except (AssertionError, ValueError) as error:
        raise ValueError(f"{players} ({words_of(error)})") from error
    if not isinstance(env.state, textarena.SinglePlayerState):
        raise ValueError(players)
    return env


def base_of(env: Any) -> Any:
    """The game inside its wrappers."""
    while isinstance(env, textarena.core.Wrapper):
        env = env.env
    return env


def outcome_of(env: Any, turns: int, unfinished: float) -> dict[str, Any]:
    """The player's reward and why; a game that is not over has none yet."""
    rewards, info = env.close()
    if rewards is None:
        return {"reward": unfinished, "feedback": "the game was not finished", "turns": turns}
    # Some games pay -1 for an invalid move, and 0 for a lost game.
    reward = max(0.0, rewards[0]) if info[0].get("invalid_move") else rewards[0]
    return {"reward": reward, "feedback": info[0].get("reason") or "", "turns": turns}


def words_of(error: Exception) -> str:
    """An error in one line, without what NLTK says of where it looked."""
    text = re.sub(r"[\s*]+", " ", str(error)).partition("For more information")[0].strip()
    return f"{type(error).__name__}: {text[:300]}"
