"""The toy library as task sources of a recipe: `toy` has questions, `toy_episodes` episodes."""

from pathlib import Path

from midstream_environments.cases import Cases
from midstream_environments.episodes import EpisodeCases
from midstream_environments.library import LibraryConfig


class ToyConfig(LibraryConfig):
    adapter = str(Path(__file__).with_name("toy"))
    library = "toy"
    module = "no_such_library"
    tested = ("9.0", "9.1", "9.2")

    wrong: str = ""
    count: int = 40
    file: str = ""

    def build(self, context):
        return Cases(self.opened(context))


class ToyLoopConfig(ToyConfig):
    scores = "own loop"


class ToyEpisodesConfig(ToyConfig):
    dialogues = True
    scores = "episodes"

    def build(self, context):
        return EpisodeCases(self.opened(context))


TOYS = {"toy": ToyConfig, "toy_loop": ToyLoopConfig, "toy_episodes": ToyEpisodesConfig}
