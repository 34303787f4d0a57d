"""The tools of the world of graphs: they all work, and differ in cost, reach and error.

| tool | asked | cost | reach and error |
|---|---|---|---|
| `graph` | `Amberbank diameter`, `Amberbank degree 12`, `Amberbank k_core` | 5 | everything, exact |
| `path` | `Amberbank 12 31` | 2 | exact, for nodes at most two links apart; else it fails |
| `neighbors` | `Amberbank 12` | 1 | exact, one node |
| `oracle` | as `graph` | 1 | everything; its numbers are right six times out of ten, its cores always |

A result repeats what was asked and ends in the name of the algorithm and its value: `Amberbank diameter 5`. The core of
a graph is a graph with a name of its own: `Amberbank k_core Mistvale`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, JsonValue

from midstream.components.component import Context, ToolConfig
from midstream.core.errors import RecipeError
from midstream.core.tool import ToolResult
from midstream.core.tool_calls import text_arguments
from midstream_worlds.both import Both
from midstream_worlds.graphs.questions import NOUNS
from midstream_worlds.graphs.tasks import REACH, Graphs

if TYPE_CHECKING:
    import networkx

    from midstream.core.tool import Tool


class _WorldTool:
    """Base: reads a query of a graph's name and more words; whatever cannot be answered is `ok=False`."""

    timeout_s = 30.0
    output_tokens = 100
    name: str
    description: str
    parameters: Mapping[str, Any]

    def __init__(self, world: Graphs, config: Any = None) -> None:
        self._world, self._config = world, config

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Answer `arguments["query"]`."""
        name, *words = str(arguments["query"]).split() or [""]
        if name not in self._world.graphs:
            return ToolResult(text=f"no graph is called {name[:50]}", ok=False)
        try:
            return ToolResult(text=f"{name} {self.answer(name, words)}")
        except ValueError as failure:
            return ToolResult(text=str(failure), ok=False)

    def answer(self, name: str, words: list[str]) -> str:
        """The result after the graph's name. Raises `ValueError` with a message for the agent."""
        raise NotImplementedError

    def nodes(self, name: str, words: list[str], count: int) -> list[int]:
        """So many nodes of a graph, by number. Raises `ValueError` for others."""
        graph = self._world.graphs[name]
        nodes = [int(word) for word in words if word.isdecimal() and len(word) < 10]
        if len(nodes) != count or len(words) != count or not all(node in graph for node in nodes):
            raise ValueError(f"{' '.join(words)[:50]} are not {count} nodes of {name}")
        return nodes

    async def close(self) -> None:
        """There is nothing to close."""


class GraphQuery(_WorldTool):
    """Runs one algorithm of NetworkX on a graph of the world."""

    name = "graph"
    description = (
        "Runs an algorithm on a whole graph: number_of_nodes, number_of_edges, diameter, radius, k_core (its core, a "
        "graph of its own), degree NODE, shortest_path_length NODE NODE. Exact, and slow: it costs five."
    )
    parameters: Mapping[str, Any] = text_arguments(query="graph, algorithm, nodes: Amberbank degree 12")

    def answer(self, name: str, words: list[str]) -> str:
        """The value of the algorithm that the first word names."""
        import networkx as nx

        algorithm, *rest = words or [""]
        graph: networkx.Graph[int] = self._world.graphs[name]
        if algorithm == "degree":
            [node] = self.nodes(name, rest, 1)
            return f"{node} degree {graph.degree[node]}"
        if algorithm == "shortest_path_length":
            a, b = self.nodes(name, rest, 2)
            if not nx.has_path(graph, a, b):
                raise ValueError(f"no path from {a} to {b} in {name}")
            return f"{a} {b} shortest_path_length {nx.shortest_path_length(graph, a, b)}"
        if rest or algorithm not in (*NOUNS, "k_core"):
            raise ValueError(f"no algorithm {' '.join(words)[:50]}")
        value = self._world.core_of(name) if algorithm == "k_core" else self._world.value(name, algorithm)
        return f"{algorithm} {value}"


class PathQuery(_WorldTool):
    """Looks a few links ahead of one node for another."""

    name = "path"
    description = f"The distance of two nodes of a graph, if they are at most {REACH} links apart. It costs two."
    parameters: Mapping[str, Any] = text_arguments(query="graph and two nodes: Amberbank 12 31")

    def answer(self, name: str, words: list[str]) -> str:
        """The distance of two nodes."""
        import networkx as nx

        a, b = self.nodes(name, words, 2)
        near = nx.single_source_shortest_path_length(self._world.graphs[name], a, REACH)
        if b not in near:
            raise ValueError(f"no path of {REACH} links from {a} to {b} in {name}")
        return f"{a} {b} shortest_path_length {near[b]}"


class NeighborQuery(_WorldTool):
    """Counts the neighbors of one node."""

    name = "neighbors"
    description = "How many neighbors a node of a graph has. It costs one."
    parameters: Mapping[str, Any] = text_arguments(query="graph and node: Amberbank 12")

    def answer(self, name: str, words: list[str]) -> str:
        """The degree of a node."""
        [node] = self.nodes(name, words, 1)
        return f"{node} degree {self._world.graphs[name].degree[node]}"


class NoisyOracle(GraphQuery):
    """Answers as `graph` does, at once, and its numbers are wrong now and then: a hash of the query decides."""

    name = "oracle"
    description = "An expert who answers any question about a graph at once. It costs one."

    def answer(self, name: str, words: list[str]) -> str:
        """The true value, or one that is off by up to three."""
        *said, value = super().answer(name, words).split()
        draw = hashlib.blake2b(" ".join([name, *words]).encode(), digest_size=8).digest()
        if value.isdecimal() and int.from_bytes(draw[:4], "big") >= self._config.right * 2**32:
            value = str(int(value) + 1 + draw[4] % 3)
        return " ".join([*said, value])


class WorldToolConfig(ToolConfig):
    """The settings of a tool of the world of graphs."""

    @property
    def needs_world(self) -> bool:
        """It answers about the world's graphs."""
        return True

    def build(self, context: Context) -> Tool:
        """Build it. Raises `RecipeError` for tasks of another world."""
        world = context.source.worlds["graphs"] if isinstance(context.source, Both) else context.source
        if not isinstance(world, Graphs):
            raise RecipeError(
                f"tools.{context.name} answers about graphs, and the tasks have none",
                code="world-missing",
                fix='set tasks.type = "graphs" or "both", or leave it out',
            )
        return type(self).component(world, self)


class GraphQueryConfig(WorldToolConfig):
    """Algorithms on the graphs of the offline world."""

    component = GraphQuery


class PathQueryConfig(WorldToolConfig):
    """Short distances in the graphs of the offline world: it fails for longer ones."""

    component = PathQuery


class NeighborQueryConfig(WorldToolConfig):
    """The neighbors of a node of a graph of the offline world."""

    component = NeighborQuery


class NoisyOracleConfig(WorldToolConfig):
    """An oracle on the graphs of the offline world, wrong now and then.

    Attributes:
        right: the share of queries for a number that it answers rightly
    """

    component = NoisyOracle

    right: float = Field(default=0.6, ge=0, le=1)
