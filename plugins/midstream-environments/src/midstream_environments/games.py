"""TextArena and Gymnasium: games as episodes, in which a reply is an action.

tasks = { type = "textarena", games = ["GuessTheNumber-v0", "Mastermind-v0"], episodes = 200 }
tasks = { type = "gymnasium", environment = "FrozenLake-v1", arguments = { is_slippery = false } }
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from midstream.components.component import Context
from midstream_environments.episodes import EpisodeCases
from midstream_environments.library import LibraryConfig, Scores


class EpisodesConfig(LibraryConfig):
    """Settings that every library of episodes has.

    Attributes:
        max_turns: the most replies in an episode
        unfinished: the reward of an episode that meets a limit before its end; by default what it has until then. Where
            each step costs, a low one: otherwise it is best to do nothing
        episodes: how many there are, each with its own seed: of ten, eight are for training, one for validation, and
            one for tests
    """

    dialogues = True
    scores: ClassVar[Scores] = "episodes"

    max_turns: int = Field(default=100, ge=1)
    unfinished: float | None = None
    episodes: int = Field(default=200, ge=1)

    def build(self, context: Context) -> EpisodeCases:
        """Build it."""
        return EpisodeCases(self.opened(context))


class TextArenaConfig(EpisodesConfig):
    """Games of TextArena for one player.

    Attributes:
        games: their ids; each has so many episodes
    """

    adapter: ClassVar[str] = "textarena"
    module: ClassVar[str] = "textarena"
    library: ClassVar[str] = "textarena"
    tested: ClassVar[tuple[str, ...]] = ("0.7.4",)

    games: tuple[str, ...] = Field(min_length=1)


class GymnasiumConfig(EpisodesConfig):
    """An environment of Gymnasium whose observations are text, or that can be drawn as text (`render_mode = "ansi"`).

    Attributes:
        environment: its id; "module:Id" imports the module that registers it
        arguments: of `gymnasium.make`
        actions: names for numbered actions, by which a reply may call them too
        instructions: the rules that the agent reads; by default from the environment's documentation
        reward: the sum of the steps' rewards, or the last
    """

    adapter: ClassVar[str] = "gymnasium"
    module: ClassVar[str] = "gymnasium"
    library: ClassVar[str] = "gymnasium"
    tested: ClassVar[tuple[str, ...]] = ("1.4.0",)

    environment: str
    arguments: dict[str, JsonValue] = {}
    actions: tuple[str, ...] = ()
    instructions: str = ""
    reward: Literal["sum", "last"] = "sum"
