"""Both offline worlds in one: questions about places and about graphs, for a planner that knows the words of both.

A planner can then be trained on one of them and asked about the other. Families have their world's name before them:
`gazetteer.sum`, `graphs.sum`. `local_search` finds the facts of the gazetteer alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from midstream.components.component import Context
from midstream.core.seeds import Seed
from midstream.core.task import Task
from midstream_worlds.gazetteer.tasks import Gazetteer, GazetteerConfig
from midstream_worlds.graphs.tasks import Graphs, GraphsConfig
from midstream_worlds.planning.words import TOPICS
from midstream_worlds.planning.world import PlannedConfig, PlannedWorld


class BothConfig(PlannedConfig):
    """Endless questions about the gazetteer and about graphs, each of one to three turns.

    Attributes:
        families: of `gazetteer.lookup` to `gazetteer.compare` and `graphs.measure` to `graphs.compare`; by default all
        countries: of the gazetteer
        graphs: how many
        seed: the seed of both worlds: the same worlds for every run seed
    """

    families: tuple[str, ...] = ()
    countries: int = 300
    graphs: int = 300
    seed: Seed = 0

    def build(self, context: Context) -> Both:
        """Build it."""
        return Both(self)


class Both(PlannedWorld):
    """The gazetteer and the graphs. Immutable after construction; a `training.protocols.TrainableWorld`."""

    def __init__(self, config: BothConfig) -> None:
        self.gazetteer = Gazetteer(GazetteerConfig(countries=config.countries, seed=config.seed))
        graphs = Graphs(GraphsConfig(graphs=config.graphs, seed=config.seed))
        self.worlds: dict[str, PlannedWorld] = {"gazetteer": self.gazetteer, "graphs": graphs}
        known = [f"{name}.{family}" for name, world in self.worlds.items() for family in world.families]
        super().__init__(
            "both worlds",
            topics=TOPICS,
            known=known,
            families=config.families or known,
            sampled=("tasks of both",),
            fixed=("fixed tasks of both",),
        )
        self.splits = self.gazetteer.splits  # by name; each world has indices of its own

    def documents(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text) of every fact of the gazetteer."""
        return self.gazetteer.documents()

    def words(self) -> set[str]:
        """Every word of questions and results of both."""
        return set().union(*(world.words() for world in self.worlds.values()))

    def names(self, split: str | None = None) -> list[str]:
        """All names of both, or those of one split."""
        return list(dict.fromkeys(name for world in self.worlds.values() for name in world.names(split)))

    def make(self, split: str, family: str, draws: random.Random, task_id: str) -> Task:
        """Draw one question of the world that the family names."""
        name, _, own = family.partition(".")
        return self.worlds[name].make(split, own, draws, task_id).model_copy(update={"family": family})
