"""One algorithm of NetworkX on a graph, its arguments checked, its result in words.

    answer(graph, "diameter", {}).text                                        # "diameter of the graph: 5"
    answer(graph, "shortest_path", {"source": "a", "target": "d"}).value      # ["a", "b", "d"]

`ALGORITHMS` is the one table of what there is. Results depend on the graph alone: nodes are numbered in the order in
which they were read, so no order of texts in a set can decide between equal results, and seeds are fixed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import Any, Literal

from .reading import Mistake, is_name, name_of, read_graph, turned
from .words import MAX_RESULTS, Names, in_words, shown

_LARGEST = 1e300  # of a weight
_BOUNDS = {"refused": " of 0 or more", "zero too": " above 0"}
_SEEDED = {"seed": 0}


@dataclass(frozen=True)
class Algorithm:
    """How to call one algorithm, and how to say its result.

    `takes` are the names of its arguments: "source", optional "weight?", or "capacity=capacity" with a default.
    `function` is its place in NetworkX, by default its name; `fixed` are arguments that no caller chooses. `negative`
    says what becomes of negative weights; "zero too" refuses weights of 0 with them.
    """

    form: str  # of its result, a form of `words.py`
    takes: tuple[str, ...]
    meaning: str
    function: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    negative: Literal["refused", "zero too", "allowed", "bellman-ford"] = "refused"


def _of(form: str, takes: str, meaning: str, function: str = "", **more: Any) -> Algorithm:
    return Algorithm(form, tuple(takes.split()), meaning, function, **more)


_FLOW = "source target capacity=capacity"
_PATHS = {"negative": "bellman-ford"}
_PAGERANK = "algorithms.link_analysis.pagerank_alg._pagerank_python"  # `networkx.pagerank` is the same with SciPy

ALGORITHMS: Mapping[str, Algorithm] = {
    "describe": _of("description", "", "size, direction and attributes of the graph"),
    "number_of_nodes": _of("number", "", "how many nodes"),
    "number_of_edges": _of("number", "", "how many edges"),
    "density": _of("number", "", "edges as a share of the possible ones"),
    "degree": _of("scores", "node?", "edges at each node, a self-loop twice"),
    "in_degree": _of("scores", "node?", "edges into each node (directed)"),
    "out_degree": _of("scores", "node?", "edges out of each node (directed)"),
    "neighbors": _of("nodes", "node", "nodes that an edge leads to"),
    "has_path": _of("yes", "source target", "whether target can be reached from source"),
    "shortest_path": _of(
        "path", "source target weight?", "a path with the fewest edges, or the least weight", **_PATHS
    ),
    "shortest_path_length": _of("number", "source target weight?", "edges, or weight, of a shortest path", **_PATHS),
    "all_shortest_paths": _of("paths", "source target weight?", "every shortest path", **_PATHS),
    "average_shortest_path_length": _of("number", "weight?", "mean distance of all pairs of nodes"),
    "diameter": _of("number", "weight?", "the longest distance between two nodes"),
    "radius": _of("number", "weight?", "the smallest eccentricity"),
    "center": _of("nodes", "weight?", "nodes whose eccentricity is the radius"),
    "periphery": _of("nodes", "weight?", "nodes whose eccentricity is the diameter"),
    "eccentricity": _of("scores", "node? weight?", "the longest distance from each node"),
    "is_connected": _of("yes", "", "whether every node reaches every other (undirected)"),
    "number_connected_components": _of("number", "", "how many connected parts (undirected)"),
    "connected_components": _of("groups", "", "the connected parts (undirected)"),
    "is_strongly_connected": _of("yes", "", "whether every node reaches every other (directed)"),
    "number_strongly_connected_components": _of("number", "", "how many strongly connected parts (directed)"),
    "strongly_connected_components": _of("groups", "", "the parts whose nodes reach one another (directed)"),
    "weakly_connected_components": _of("groups", "", "the connected parts, without directions (directed)"),
    "is_tree": _of("yes", "", "whether the graph is connected and has no cycle"),
    "is_bipartite": _of("yes", "", "whether two colors are enough"),
    "is_eulerian": _of("yes", "", "whether a closed walk uses every edge once"),
    "is_directed_acyclic_graph": _of("yes", "", "whether the graph is directed and has no cycle"),
    "topological_sort": _of("order", "", "nodes in an order in which every edge leads on (directed, no cycle)"),
    "dag_longest_path": _of("longest path", "weight=weight", "heaviest path (directed, no cycle)", negative="allowed"),
    "check_planarity": _of("yes", "", "whether the graph can be drawn without crossings"),
    "is_isomorphic": _of("yes", "other", "whether two graphs are the same but for names"),
    "could_be_isomorphic": _of("yes", "other", "whether degrees, triangles and cliques allow it; much faster"),
    "find_cycle": _of("cycle", "", "one cycle"),
    "cycle_basis": _of("basis", "", "cycles of which all others are made (undirected)"),
    "simple_cycles": _of("cycles", "", "every cycle"),
    "pagerank": _of("scores", "node? weight=weight alpha?", "PageRank, 0.85 of it by links", _PAGERANK),
    "degree_centrality": _of("scores", "node?", "degree as a share of the other nodes"),
    "betweenness_centrality": _of(
        "scores", "node? weight?", "share of shortest paths through each node", negative="zero too"
    ),
    "closeness_centrality": _of(
        "scores", "node? weight?", "nearness of all nodes that reach it", negative="zero too"
    ),
    "eigenvector_centrality": _of(
        "scores", "node? weight?", "centrality by that of neighbors", fixed={"max_iter": 1000}
    ),
    "core_number": _of("scores", "node?", "largest k of a k-core with the node"),
    "k_core": _of("nodes", "k", "largest part in which every node has k neighbors"),
    "triangles": _of("scores", "node?", "triangles at each node (undirected)"),
    "clustering": _of("scores", "node?", "share of each node's pairs of neighbors that are neighbors"),
    "average_clustering": _of("number", "", "mean of the nodes' clustering"),
    "transitivity": _of("number", "", "share of connected triples that are triangles"),
    "greedy_color": _of("colors", "", "a coloring, largest degree first; not always the fewest colors"),
    "max_weight_matching": _of(
        "edges", "weight=weight", "a heaviest set of edges that share no node", negative="allowed"
    ),
    "minimum_spanning_tree": _of(
        "edges", "weight=weight", "the lightest edges that keep the parts connected", negative="allowed"
    ),
    "maximum_flow_value": _of("number", _FLOW, "the largest flow"),
    "minimum_cut_value": _of("number", _FLOW, "the least capacity whose removal separates source from target"),
    "minimum_edge_cut": _of("edges", "source? target?", "fewest edges that separate source from target, or any nodes"),
    "minimum_node_cut": _of("nodes", "source? target?", "fewest nodes that separate source from target, or any nodes"),
    "node_connectivity": _of("number", "source? target?", "size of such a cut; of neighbors, paths that share no node"),
    "edge_connectivity": _of("number", "source? target?", "how many edges such a cut has"),
    "bridges": _of("edges", "", "edges whose removal separates nodes (undirected)"),
    "articulation_points": _of("nodes", "", "nodes whose removal separates others (undirected)"),
    "louvain_communities": _of(
        "groups", "weight=weight", "communities by Louvain", "community.louvain_communities", fixed=_SEEDED
    ),
    "greedy_modularity_communities": _of(
        "groups", "weight?", "communities by greedy modularity", "community.greedy_modularity_communities"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The result of one call: `text` for a model, `value` for a program.

    Without a result, `ok` is false and `code` says why, as in docs/errors.md. In `value` a node is its name: a number,
    true or false, a list, or {node: score} with the highest score first.
    """

    text: str
    ok: bool = True
    code: str = ""
    value: Any = None


def answer(graph: Any, algorithm: str, arguments: Mapping[str, Any], *, name: str = "the graph") -> Answer:
    """Run one algorithm on a `networkx.Graph`; never raises for what is wrong with graph or arguments.

        answer(networkx.path_graph(4), "shortest_path_length", {"source": 0, "target": 3}).value  # 3

    Args:
        graph: the graph; nodes are found by their names as text.
        algorithm: a name of `ALGORITHMS`.
        arguments: those of the algorithm; `other` is a graph too. `directed` may always be given, as in `read_graph`.
        name: what the text calls the graph.
    """
    try:
        spec = _spec(algorithm)
        arguments = {key: value for key, value in arguments.items() if value is not None}
        _check_arguments(spec, algorithm, arguments)
        graph = turned(graph, arguments.get("directed"))
        if "other" in arguments:
            arguments["other"] = turned(arguments["other"], arguments.get("directed"))
        return _answer(_Numbered(graph), spec, algorithm, arguments, name)
    except Mistake as mistake:
        return Answer(str(mistake), ok=False, code=mistake.code)


def work(request: Mapping[str, Any]) -> Answer:
    """Read the graph of a request, and the other one, and answer: what runs inside the sandbox (`tool.py`)."""
    arguments = dict(request["arguments"])
    directed = arguments.get("directed")
    reading = {**request["limits"], "directed": directed if isinstance(directed, bool) else None}
    try:
        graph = read_graph(request["text"], **reading)
        if isinstance(arguments.get("other"), str):
            arguments["other"] = read_graph(arguments["other"], **reading)
    except Mistake as mistake:
        return Answer(str(mistake), ok=False, code=mistake.code)
    return answer(graph, request["algorithm"], arguments, name=request["name"])


def signature(algorithm: str) -> str:
    """An algorithm as a model reads it: "eccentricity(node?, weight?): the longest distance from each node"."""
    spec = ALGORITHMS[algorithm]
    return f"{algorithm}({', '.join(spec.takes)}): {spec.meaning}"


# --- arguments --------------------------------------------------------------------------------------------------------


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The beginning of a fix for a misspelt name, "" if no known name is close."""
    close = get_close_matches(str(name)[:100], list(islice(known, 1000)), n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def _spec(algorithm: str) -> Algorithm:
    if algorithm not in ALGORITHMS:
        fix = did_you_mean(algorithm, ALGORITHMS) + f"name one of: {', '.join(ALGORITHMS)}"
        raise Mistake(f"there is no algorithm {algorithm!r:.100}", code="unknown-algorithm", fix=fix)
    return ALGORITHMS[algorithm]


def _check_arguments(spec: Algorithm, algorithm: str, arguments: Mapping[str, Any]) -> None:
    """Check names and kinds of all arguments, before any work."""
    known = {word.partition("=")[0].rstrip("?"): word for word in (*spec.takes, "directed?")}
    problem = ""
    missing = [name for name, word in known.items() if word == name and name not in arguments]
    if missing:
        problem = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    elif len({"source", "target"} & {*arguments} & {*known}) == 1:
        problem = "source and target belong together"
    for key, value in arguments.items():
        if key not in known:
            problem = f"{did_you_mean(key, known)}it takes no {key!r:.100}"
        elif key in ("source", "target", "node") and not is_name(value):
            problem = f"{key} = {value!r:.100} is no name of a node"
        elif key in ("weight", "capacity") and not isinstance(value, str):
            problem = f"{key} = {value!r:.100} is not the name of an attribute of edges"
        elif key == "directed" and not isinstance(value, bool):
            problem = f"directed = {value!r:.100} is neither true nor false"
        elif key == "k" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            problem = f"k = {value!r:.100} is not a whole number of 0 or more"
        elif key == "alpha" and (not isinstance(value, int | float) or not 0 < value < 1):
            problem = f"alpha = {value!r:.100} is not between 0 and 1"
        elif key == "other" and not hasattr(value, "is_directed"):
            problem = f"other = {value!r:.100} is not a graph"
    if problem:
        raise Mistake(
            f"{algorithm} cannot be called with that: {problem}",
            code="invalid-arguments",
            cause=f"its arguments are {', '.join(known.values())} (? may be left out, = has that default)",
            fix='e.g. {"source": "a", "target": "b"}' if "source" in known else f"see {signature(algorithm)}",
        )


class _Numbered:
    """A graph whose nodes are numbers from 0, in their order, and the nodes' names."""

    def __init__(self, graph: Any) -> None:
        import networkx

        self.names = [name_of(node) for node in graph]
        self.graph = networkx.convert_node_labels_to_integers(graph)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        if len(self.numbers) < len(self.names):
            raise Mistake("two nodes have one name as text", code="graph-invalid", fix="rename one of them")

    def number(self, key: str, value: Any) -> int:
        """The node that an argument names."""
        name = name_of(value)
        if name not in self.numbers:
            some = ", ".join(map(shown, self.names[:10])) + (", ..." if len(self.names) > 10 else "")
            raise Mistake(
                f"{key} = {shown(name[:100])} is no node of the graph",
                code="unknown-node",
                fix=f"{did_you_mean(name, self.names)}its {len(self.names):,} nodes are {some}",
            )
        return self.numbers[name]

    def check_weights(self, key: str, attribute: str, *, given: bool, spec: Algorithm) -> bool:
        """Whether an edge has a negative weight. Raises `Mistake` for what the algorithm cannot count with."""
        edges = list(self.graph.edges(data=True))
        missing, negative = sum(attribute not in data for _, _, data in edges), False
        for source, target, data in edges:
            value = data.get(attribute, 0)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            negative |= number and value < 0
            least = {"refused": 0, "zero too": 5e-324}.get(spec.negative, -_LARGEST)
            if not number or not least <= value < _LARGEST:
                edge = f"{shown(self.names[source])} - {shown(self.names[target])}"
                raise Mistake(
                    f"the edge {edge} has {attribute} = {value!r:.50}",
                    code="weights-invalid",
                    cause=f"the algorithm takes finite numbers{_BOUNDS.get(spec.negative, '')}",
                    fix="correct the graph, or name another attribute",
                )
        if missing and (given or missing < len(edges)):
            there = sorted({other for _, _, data in edges for other in data if isinstance(other, str)})
            raise Mistake(
                f"{missing:,} of {len(edges):,} edges have no attribute {attribute!r:.100}",
                code="weights-invalid",
                cause=f"the edges have: {', '.join(map(shown, there[:10])) or 'no attributes'}",
                fix=f"{did_you_mean(attribute, there)}name one that every edge has as {key}"
                + ", or leave it out" * (given and key == "weight"),
            )
        return negative


# --- the call ---------------------------------------------------------------------------------------------------------


def _answer(graph: _Numbered, spec: Algorithm, algorithm: str, arguments: Mapping[str, Any], name: str) -> Answer:
    """Check what depends on the graph, call the function, and say the result."""
    positional: list[Any] = []
    keywords: dict[str, Any] = dict(spec.fixed)
    about: list[str] = []
    for word in spec.takes:
        key, _, default = word.rstrip("?").partition("=")
        value = arguments.get(key, default or None)
        if value is None:
            continue
        if key in ("source", "target", "node"):
            number = graph.number(key, value)
            if spec.form != "scores":
                positional.append(number)
        elif key == "other":
            positional.append(_Numbered(value).graph)
            continue
        elif key in ("weight", "capacity"):
            negative = graph.check_weights(key, value, given=key in arguments or key == "capacity", spec=spec)
            keywords["distance" if algorithm == "closeness_centrality" else key] = value
            if negative and spec.negative == "bellman-ford":
                keywords["method"] = "bellman-ford"
            datas = [data for *_, data in graph.graph.edges(data=True)]
            if key not in arguments and any(datas) and not any(value in data for data in datas):
                about.append(f"each edge counts 1: none has a {value}")
        else:
            keywords[key] = value
        if key in arguments:
            about.append(f"{key} {shown(value)}")
    if not graph.names and algorithm not in ("describe", "number_of_nodes", "number_of_edges"):
        raise Mistake(f"{algorithm} has no answer: the graph has no nodes", code="no-answer", fix="give another graph")
    if problem := _no_cut(graph.graph, algorithm, positional):
        fix = "ask for another algorithm, or give other nodes or another graph"
        raise Mistake(f"{algorithm} has no answer: {problem}", code="no-answer", fix=fix)
    form, result = spec.form, _called(graph.graph, spec, algorithm, positional, keywords)
    if form == "scores" and "node" in arguments:
        form, result = "number", dict(result)[graph.number("node", arguments["node"])]
    title = f"{algorithm} of {shown(name)}" + (f" ({', '.join(about)})" if about else "")
    text, value = in_words(form, title, result, Names(graph.graph, graph.names, keywords.get("weight")))
    return Answer(text, value=value)


def _no_cut(graph: Any, algorithm: str, ends: Sequence[int]) -> str:
    """Why a cut has no size, where NetworkX returns one all the same; "" otherwise."""
    if algorithm in ("minimum_edge_cut", "edge_connectivity") and graph.is_multigraph():
        return "it is not for graphs with parallel edges"
    if algorithm in ("minimum_node_cut", "node_connectivity") and ends and ends[0] == ends[1]:
        return "source and target are one node"
    if algorithm == "minimum_node_cut" and ends and graph.has_edge(*ends):
        return "source and target are neighbors, and no nodes lie between them"
    return ""


def _once(paths: Iterable[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Each path once: with weights of 0, NetworkX may yield it several times."""
    seen: set[tuple[int, ...]] = set()
    for path in map(tuple, paths):
        if path not in seen:
            seen.add(path)
            yield path


def _called(graph: Any, spec: Algorithm, algorithm: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
    """What the algorithm returns, as a whole. Raises `Mistake` if the graph has no such thing."""
    import networkx

    if spec.form == "description":
        return graph
    function: Any = networkx
    for part in (spec.function or algorithm).split("."):
        function = getattr(function, part, None)
    try:
        if function is None:  # `in_degree` is no function, but a part of directed graphs
            function, positional = getattr(graph, algorithm), []
        else:
            positional = [graph, *positional]
        result = function(*positional, **keywords)
        if isinstance(result, dict | bool | int | float | networkx.Graph):
            return result
        if spec.form in ("paths", "cycles"):
            result = islice(_once(result) if spec.form == "paths" else result, MAX_RESULTS + 1)
        return list(result)
    except (MemoryError, ImportError):
        raise
    except Exception as error:  # an algorithm may raise anything on a graph that it was not made for
        raise _no_answer(error, algorithm, graph) from error


def _no_answer(error: Exception, algorithm: str, graph: Any) -> Mistake:
    """Why an algorithm has no answer. NetworkX's own text may name nodes by their numbers."""
    import networkx

    said = str(error)
    problem, fix = f"{type(error).__name__}: {error}"[:300], "ask for another algorithm, or give another graph"
    kind = "directed" if graph.is_directed() else "undirected"
    if isinstance(error, networkx.NetworkXNoPath):
        problem, fix = "no path leads from source to target", "has_path says what can be reached"
    elif "self loops" in said:
        problem, fix = "it is not for graphs with self-loops", "leave out the edges from a node to itself"
    elif isinstance(error, networkx.NetworkXNotImplemented | AttributeError) and "multigraph" not in said:
        problem = f"it is not for {kind} graphs"
        fix = f'"directed": {"false" if graph.is_directed() else "true"} reads it the other way; or another algorithm'
    elif isinstance(error, networkx.NetworkXNotImplemented):
        problem, fix = "it is not for graphs with parallel edges", "give the graph with one edge for each pair of nodes"
    elif isinstance(error, ZeroDivisionError):
        problem, fix = "it divides by a total of zero", "give a graph with edges, or one whose weights are not all 0"
    elif "connected" in said:
        fix = "connected_components and strongly_connected_components show the parts"
    many = f"{graph.number_of_nodes():,} nodes and {graph.number_of_edges():,} edges"
    cause = f"the graph is {kind}{' and has parallel edges' * graph.is_multigraph()}, with {many}"
    return Mistake(f"{algorithm} has no answer: {problem}", code="no-answer", cause=cause, fix=fix)
