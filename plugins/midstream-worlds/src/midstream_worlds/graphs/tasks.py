"""Questions on made-up graphs, graded in depth, whose answers NetworkX computes.

A graph is connected, has 8 to 40 numbered nodes and a name; its 2-core has a name of its own. Graphs are split into
train, validation and test with everything asked about them.

Families and the turns of a sound plan, one operation a turn:

    measure  1   How wide is Amberbank ?
    degree   1   How many neighbors has node 12 in Amberbank ?
    distance 1   How far is node 12 from node 31 in Amberbank ?   (2 where the cheap query is tried and fails)
    core     2   What is the radius of the core of Amberbank ?
    scale    2   What is the radius of Amberbank times 3 ?
    sum, diff, compare 3   Has Amberbank more nodes than Oakfell ?
    depth4 to depth8   What is the total radius of the core of Amberbank and Oakfell ?
             Is the total number of edges of Amberbank and Oakfell and Mistvale more than 64 ?
    reworded 1   Count the nodes of Amberbank ?   (evaluation only: its frames are never trained on)

"The core of" goes with one name: "the core of Amberbank and Oakfell" is a core and a graph. Tools differ in cost,
reach and error (`tools.py`). `metadata["best_cost"]` is the cost of the best plan: the cheapest that asks exact tools
alone and calculates one operation a call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from midstream.components.component import Context
from midstream.core.seeds import Seed, derive_seed
from midstream.core.task import Task
from midstream_worlds.graphs.questions import (
    COMPARE,
    CORE,
    DEGREE,
    DIFF,
    DISTANCE,
    MEASURE,
    MORE_THAN,
    NOUNS,
    REWORDED,
    SCALE,
    TOTAL,
    question_words,
)
from midstream_worlds.planning.words import GRAPHS
from midstream_worlds.planning.world import PlannedConfig, PlannedWorld

if TYPE_CHECKING:
    import networkx

STANDARD = ("measure", "degree", "distance", "core", "scale", "sum", "diff", "compare")
DEPTHS = {f"depth{turns}": turns for turns in range(4, 9)}
DIFFICULTIES = {"standard": STANDARD, "deep": (*STANDARD, "depth4", "depth5", "depth6")}
COSTS = {"graph": 5, "path": 2, "neighbors": 1, "oracle": 1, "python": 1}
REACH = 2  # links that the path query looks ahead
SMALLEST, LARGEST = 8, 40  # nodes
LABELS = range(1, 200)


class GraphsConfig(PlannedConfig):
    """Endless questions about made-up graphs, whose plans take one to eight turns.

    Attributes:
        difficulty: `standard`: eight families of one to three turns; `deep`: also depth4 to depth6, of so many turns
        families: replaces the families of `difficulty`
        graphs: how many; the splits take 67, 13 and 20 %
        seed: the world's seed: the same world for every run seed
    """

    difficulty: Literal["standard", "deep"] = "standard"
    families: tuple[str, ...] = ()
    graphs: int = 300
    seed: Seed = 0

    def build(self, context: Context) -> Graphs:
        """Build it."""
        return Graphs(self)


class Graphs(PlannedWorld):
    """Graphs by name and endless questions on them. Immutable after construction."""

    def __init__(self, config: GraphsConfig) -> None:
        super().__init__(
            "the graphs",
            topics=(GRAPHS,),
            known=(*STANDARD, *DEPTHS, "reworded"),
            families=config.families or DIFFICULTIES[config.difficulty],
            sampled=("graph tasks",),
            fixed=("fixed graph tasks",),
        )
        self.seed = config.seed
        self.draw_names(random.Random(derive_seed("graphs", config.seed)), config.graphs, 2, "graphs")
        self.named, self.cores = self.lists
        self._values: dict[tuple[str, str], int] = {}  # computed once: every run asks for them

    @cached_property
    def graphs(self) -> dict[str, networkx.Graph[int]]:
        """Every graph and every core by its name."""
        import networkx as nx

        found = {}
        for name, core in zip(self.named, self.cores, strict=True):
            rng = random.Random(derive_seed("graph", self.seed, name))
            found[name] = _drawn(rng)
            found[core] = nx.k_core(found[name], 2)
        return found

    def core_of(self, name: str) -> str:
        """The name of a graph's core; a core is its own."""
        return self.cores[self.named.index(name)] if name in self.named else name

    def documents(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text) of every graph: its name and edges."""
        for name, graph in self.graphs.items():
            yield f"graph-{name}", f"{name} edges {' '.join(f'{a}-{b}' for a, b in graph.edges)}"

    def words(self) -> set[str]:
        """Every word of questions and results."""
        return question_words()

    def make(self, split: str, family: str, draws: random.Random, task_id: str) -> Task:
        """Draw one question, with an answer that NetworkX computes."""
        question, answer, cost = self._question(split, family, draws)
        return Task(
            id=task_id, question=f"{question} ?", answer=str(answer), family=family, metadata={"best_cost": cost}
        )

    def value(self, name: str, algorithm: str) -> int:
        """A measure of a graph, by NetworkX's function of that name."""
        import networkx as nx

        if (name, algorithm) not in self._values:
            self._values[name, algorithm] = int(getattr(nx, algorithm)(self.graphs[name]))
        return self._values[name, algorithm]

    def _question(self, split: str, family: str, rng: random.Random) -> tuple[str, int | str, int]:
        """Draw a question of a family; return its text, its answer and the cost of the best plan."""
        indices = self.indices(split)
        names = [self.named[i] for i in rng.sample(indices, min(4, len(indices)))]
        first, second = names[:2]
        asked = rng.choice(tuple(MEASURE))
        a, b = self.value(first, asked), self.value(second, asked)
        look, sum_ = COSTS["graph"], COSTS["python"]
        if family in DEPTHS:
            return self._deep(DEPTHS[family], names, asked, rng)
        if family in ("measure", "reworded"):
            frames = MEASURE if family == "measure" else REWORDED
            return rng.choice(frames[asked]).format(first), a, look
        if family == "degree":
            node = rng.choice(sorted(self.graphs[first]))
            return DEGREE.format(node, first), self.graphs[first].degree[node], COSTS["neighbors"]
        if family == "distance":
            return self._distance(first, rng)
        if family == "core":
            core = self.core_of(first)
            return rng.choice(MEASURE[asked]).format(CORE.format(first)), self.value(core, asked), 2 * look
        if family == "scale":
            k = rng.randint(2, 9)
            return SCALE.format(NOUNS[asked], first, k), a * k, look + sum_
        if family == "sum":
            return TOTAL.format(NOUNS[asked], f"{first} and {second}"), a + b, 2 * look + sum_
        if family == "diff":
            larger, smaller = (first, second) if a >= b else (second, first)
            return DIFF[asked].format(larger, smaller), abs(a - b), 2 * look + sum_
        return COMPARE[asked].format(first, second), "yes" if a > b else "no", 2 * look + sum_

    def _distance(self, name: str, rng: random.Random) -> tuple[str, int, int]:
        """Two nodes, half of the time within reach of the path query and half of the time beyond it."""
        import networkx as nx

        near = rng.random() < 0.5
        graph = self.graphs[name]
        while True:
            a, b = rng.sample(sorted(graph), 2)
            length = int(nx.shortest_path_length(graph, a, b))
            if (length <= REACH) == near:
                return DISTANCE.format(a, b, name), length, COSTS["path" if near else "graph"]

    def _deep(self, turns: int, names: list[str], asked: str, rng: random.Random) -> tuple[str, int | str, int]:
        """A total over graphs and cores, perhaps compared with a number, whose plan takes so many turns."""
        # A graph takes one look-up, a core two; a sum for each but the first; one comparison.
        shapes = [
            (terms, cores, compares)
            for terms in range(2, len(names) + 1)
            for compares in (0, 1)
            if 0 <= (cores := turns - compares - (2 * terms - 1)) <= terms
        ]
        terms, cores, compares = rng.choice(shapes)
        in_core = {*rng.sample(range(terms), cores)}
        spoken = [CORE.format(name) if place in in_core else name for place, name in enumerate(names[:terms])]
        graphs = [self.core_of(name) if place in in_core else name for place, name in enumerate(names[:terms])]
        total = sum(self.value(graph, asked) for graph in graphs)
        cost = (terms + cores) * COSTS["graph"] + (terms - 1 + compares) * COSTS["python"]
        if not compares:
            return TOTAL.format(NOUNS[asked], " and ".join(spoken)), total, cost
        limit = max(2, total + rng.choice((-1, 1)) * rng.randint(1, 3))
        return MORE_THAN.format(NOUNS[asked], " and ".join(spoken), limit), "yes" if total > limit else "no", cost


def _drawn(rng: random.Random) -> networkx.Graph[int]:
    """A connected graph: a tree whose nodes hang on one of the few before them, and some more edges."""
    import networkx as nx

    nodes = rng.sample(LABELS, rng.randint(SMALLEST, LARGEST))
    graph = nx.Graph([(nodes[i], nodes[rng.randrange(max(0, i - 4), i)]) for i in range(1, len(nodes))])
    missing = rng.randint(2, max(2, len(nodes) // 3))
    while missing:
        i = rng.randrange(len(nodes))
        j = rng.randrange(max(0, i - 8), min(len(nodes), i + 9))
        if i != j and not graph.has_edge(nodes[i], nodes[j]):
            graph.add_edge(nodes[i], nodes[j])
            missing -= 1
    return graph
