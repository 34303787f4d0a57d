"""The graph tool: results like NetworkX's own, texts as graphs, hostile graphs, and which files it reads."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networkx.algorithms.link_analysis.pagerank_alg import _pagerank_python

from midstream.components.component import Sandbox
from midstream.core.errors import RecipeError, SandboxError, ToolServerError, UnsupportedError
from midstream.core.json_schema import schema_error
from midstream.core.text import visible
from midstream.core.tool import Tool
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.worker import PythonResult
from midstream_graphs.algorithms import ALGORITHMS, MAX_RESULTS, Answer, answer, work
from midstream_graphs.reading import Mistake, read_graph, turned
from midstream_graphs.tool import GraphConfig, GraphTool
from midstream_graphs.words import MAX_NAMES, MAX_ROWS
from support.errors import coded
from support.sandboxes import sandbox

SEEDS = range(20)
PATH = "a b 1\nb c 2\nc d 3\na d 9"

# --- the same as NetworkX itself --------------------------------------------------------------------------------------


def undirected(seed: int) -> nx.Graph:
    return nx.gnp_random_graph(10, 0.25, seed=seed)  # of 20, about half are not connected


def connected(seed: int) -> nx.Graph:
    graph = nx.gnp_random_graph(12, 0.15, seed=seed)
    nx.add_path(graph, random.Random(seed).sample(range(12), 12))
    return graph


def directed(seed: int) -> nx.DiGraph:
    return nx.gnp_random_graph(9, 0.3, seed=seed, directed=True)


def acyclic(seed: int) -> nx.DiGraph:
    return nx.DiGraph((u, v) for u, v in nx.gnp_random_graph(10, 0.3, seed=seed, directed=True).edges if u < v)


KINDS = {
    directed: "in_degree out_degree is_strongly_connected number_strongly_connected_components "
    "strongly_connected_components weakly_connected_components maximum_flow_value minimum_cut_value "
    "is_directed_acyclic_graph simple_cycles has_path pagerank",
    acyclic: "topological_sort dag_longest_path",
    connected: "average_shortest_path_length diameter radius center periphery eccentricity eigenvector_centrality "
    "minimum_edge_cut minimum_node_cut all_shortest_paths louvain_communities",
}
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "shortest_path": [{"source": 0, "target": 7}, {"source": "0", "target": "7", "weight": "weight"}],
    "shortest_path_length": [{"source": 0, "target": 7}, {"source": 0, "target": 7, "weight": "weight"}],
    "all_shortest_paths": [{"source": 0, "target": 7}],
    "has_path": [{"source": 0, "target": 7}],
    "neighbors": [{"node": 3}],
    "k_core": [{"k": 2}],
    "maximum_flow_value": [{"source": 0, "target": 7, "capacity": "weight"}],
    "minimum_cut_value": [{"source": 0, "target": 7, "capacity": "weight"}],
    "diameter": [{}, {"weight": "weight"}],
    "betweenness_centrality": [{}, {"weight": "weight"}],
    "closeness_centrality": [{}, {"weight": "weight"}],
    "pagerank": [{}, {"alpha": 0.5}],
    "minimum_node_cut": [{}, {"source": 0, "target": 7}],
    "minimum_edge_cut": [{}, {"source": 0, "target": 7}],
    "is_isomorphic": [{"other": nx.path_graph(10)}, {"other": nx.gnp_random_graph(10, 0.25, seed=4)}],
    "could_be_isomorphic": [{"other": nx.path_graph(10)}, {"other": nx.gnp_random_graph(10, 0.25, seed=4)}],
}
# How NetworkX calls what has another name there.
DIRECT: dict[str, Any] = {
    "describe": lambda g: None,
    "degree": lambda g: dict(g.degree),
    "in_degree": lambda g: dict(g.in_degree),
    "out_degree": lambda g: dict(g.out_degree),
    "neighbors": lambda g, node: list(g.neighbors(node)),
    "pagerank": lambda g, alpha=0.85: _pagerank_python(g, alpha=alpha),
    "closeness_centrality": lambda g, weight=None: nx.closeness_centrality(g, distance=weight),
    "eigenvector_centrality": lambda g: nx.eigenvector_centrality(g, max_iter=1000),
    "maximum_flow_value": lambda g, source, target, capacity: nx.maximum_flow_value(g, source, target, capacity),
    "minimum_cut_value": lambda g, source, target, capacity: nx.minimum_cut_value(g, source, target, capacity),
    "minimum_node_cut": lambda g, source=None, target=None: nx.minimum_node_cut(g, source, target),
    "minimum_edge_cut": lambda g, source=None, target=None: nx.minimum_edge_cut(g, source, target),
    "check_planarity": lambda g: nx.check_planarity(g)[0],
    "find_cycle": lambda g: [edge[0] for edge in nx.find_cycle(g)],
    "is_isomorphic": lambda g, other: nx.is_isomorphic(g, other),
    "could_be_isomorphic": lambda g, other: nx.could_be_isomorphic(g, other),
    "louvain_communities": lambda g: nx.community.louvain_communities(g, seed=0),
    "greedy_modularity_communities": lambda g: nx.community.greedy_modularity_communities(g),
}


def weighted(graph: nx.Graph, seed: int) -> nx.Graph:
    draw = random.Random(seed)
    for *_, data in graph.edges(data=True):
        data["weight"] = draw.randint(1, 9)
    return graph


def same_form(form: str, value: Any) -> Any:
    """A result of NetworkX, or of the tool, in which what has no order has none."""
    if form in ("scores", "colors"):
        return {str(node): pytest.approx(score) for node, score in dict(value).items()}
    if form == "nodes":
        return {str(node) for node in value}
    if form in ("order", "path", "longest path", "cycle"):
        return [str(node) for node in value]
    if form in ("paths", "cycles", "basis"):
        return sorted([str(node) for node in nodes] for nodes in value)
    if form == "groups":
        return {frozenset(map(str, group)) for group in value}
    if form == "edges":
        pairs = value.edges if isinstance(value, nx.Graph) else value
        return {frozenset(map(str, pair[:2])) for pair in pairs}
    return value if isinstance(value, bool) else pytest.approx(value)


@pytest.mark.matrix(6)
@pytest.mark.parametrize("name", sorted({*ALGORITHMS} - {"describe"}))
def test_the_result_is_that_of_networkx(name):
    make = next((kind for kind, names in KINDS.items() if name in names.split()), undirected)
    form, answered = ALGORITHMS[name].form, 0
    for seed in SEEDS:
        graph = weighted(make(seed), seed)
        for arguments in ARGUMENTS.get(name, [{}]):
            numbers = {key: int(value) if value in ("0", "7") else value for key, value in arguments.items()}
            found = answer(read_graph(json.dumps(nx.node_link_data(graph, edges="edges"))), name, arguments)
            try:
                expected = DIRECT.get(name, lambda g, **more: getattr(nx, name)(g, **more))(graph, **numbers)
                expected = same_form(
                    form, expected if isinstance(expected, dict | int | nx.Graph) else _whole(expected)
                )
                if name == "minimum_node_cut" and numbers and graph.has_edge(0, 7):
                    raise nx.NetworkXError("NetworkX returns the empty set for neighbors")
            except nx.NetworkXException:
                assert (found.ok, found.code) == (False, "no-answer")
                continue
            assert found.ok, found.text
            assert same_form(form, found.value) == expected
            answered += 1
    assert answered >= 5, "the graphs do not have it often enough"


def _whole(value: Any) -> Any:
    return value if isinstance(value, float) else list(value)


def test_one_node_of_a_score():
    graph = connected(1)
    for name in (name for name, spec in ALGORITHMS.items() if spec.form == "scores" and not name.endswith("_degree")):
        whole = answer(graph, name, {}).value
        assert answer(graph, name, {"node": 3}).value == answer(graph, name, {"node": " 3"}).value == whole["3"]


def test_scores_have_the_highest_first():
    value = answer(connected(2), "pagerank", {}).value
    assert list(value.values()) == sorted(value.values(), reverse=True)


def test_the_order_of_texts_in_a_set_decides_nothing():
    """Equal graphs with other names of nodes give the same communities, node for node."""
    graph = nx.connected_caveman_graph(4, 5)
    named = nx.relabel_nodes(graph, {node: f"{node * 7919 % 100}-{node}" for node in graph})
    for name in ("louvain_communities", "greedy_modularity_communities", "max_weight_matching", "find_cycle"):
        first, second = answer(graph, name, {}).value, answer(named, name, {}).value
        mapping = dict(zip(map(str, named), map(str, graph), strict=True))
        assert first == _mapped(second, mapping)


def _mapped(value: Any, names: Mapping[str, str]) -> Any:
    return [_mapped(inner, names) for inner in value] if isinstance(value, list) else names.get(value, value)


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "arguments", "code", "named"),
    [
        ("diametre", {}, "unknown-algorithm", "diameter"),
        ("shortest_path", {"source": "a"}, "invalid-arguments", "target"),
        ("shortest_path", {"source": "a", "target": "d", "wieght": "weight"}, "invalid-arguments", "weight"),
        ("shortest_path", {"source": "a", "target": "z"}, "unknown-node", "z"),
        ("shortest_path", {"source": ["a"], "target": "d"}, "invalid-arguments", "a"),
        ("shortest_path", {"source": "a", "target": "d", "weight": 3}, "invalid-arguments", "3"),
        ("shortest_path", {"source": "a", "target": "d", "weight": "wait"}, "weights-invalid", "weight"),
        ("minimum_edge_cut", {"source": "a"}, "invalid-arguments", "target"),
        ("maximum_flow_value", {"source": "a", "target": "d"}, "weights-invalid", "capacity"),
        ("maximum_flow_value", {"source": "a", "target": "a", "capacity": "weight"}, "no-answer", "source"),
        ("k_core", {"k": "2"}, "invalid-arguments", "2"),
        ("k_core", {"k": True}, "invalid-arguments", "True"),
        ("pagerank", {"alpha": 1.5}, "invalid-arguments", "1.5"),
        ("diameter", {"directed": "yes"}, "invalid-arguments", "yes"),
        ("is_isomorphic", {"other": "a b"}, "invalid-arguments", "a b"),
        ("topological_sort", {}, "no-answer", "directed"),
        ("in_degree", {}, "no-answer", "directed"),
        ("minimum_node_cut", {"source": "a", "target": "b"}, "no-answer", "neighbors"),
        ("minimum_node_cut", {"source": "a", "target": "a"}, "no-answer", "one node"),
        ("node_connectivity", {"source": "a", "target": "a"}, "no-answer", "one node"),
        ("shortest_path", {"source": "", "target": "d"}, "invalid-arguments", "source"),
        ("triangles", {"directed": True}, "no-answer", "directed"),
        ("topological_sort", {"directed": True}, "no-answer", "cycle"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(algorithm, arguments, code, named):
    found = answer(read_graph(PATH), algorithm, arguments)
    assert (found.ok, found.code) == (False, code)
    assert named in found.text


def test_a_misspelt_algorithm_is_corrected_before_the_tool_is_called():
    problem = schema_error({"graph": PATH, "algorithm": "diametre"}, GraphTool.parameters)
    assert problem is not None
    assert "'diameter'" in problem.partition("?")[0]
    assert schema_error({"graph": PATH, "algorithm": "diameter"}, GraphTool.parameters) is None


def test_a_direction_can_be_given_and_taken():
    assert answer(read_graph("a b\nb c", directed=True), "topological_sort", {}).value == ["a", "b", "c"]
    assert answer(read_graph("a b\nb c"), "has_path", {"source": "c", "target": "a"}).value is True
    assert answer(read_graph("a b\nb c", directed=True), "has_path", {"source": "c", "target": "a"}).value is False
    assert read_graph('{"directed": true, "edges": [["a", "b"]]}').is_directed()
    assert not read_graph('{"directed": true, "edges": [["a", "b"]]}', directed=False).is_directed()
    there_and_back = '{"directed": true, "edges": [["a", "b", 1], ["b", "a", %s]]}'
    assert read_graph(there_and_back % 1, directed=False).number_of_edges() == 1
    unequal = there_and_back % 2
    with pytest.raises(Mistake, check=coded("graph-invalid")):
        read_graph(unequal, directed=False)  # neither weight could be chosen
    assert answer(read_graph(unequal), "diameter", {"directed": False}).code == "graph-invalid"
    both = read_graph(unequal.replace("{", '{"multigraph": true, ', 1), directed=False)
    assert sorted(weight for *_, weight in both.edges(data="weight")) == [1, 2]


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, 10**400, "heavy", True, None])
def test_a_weight_that_nobody_can_count_with_is_refused(weight):
    graph = nx.Graph([("a", "b", {"weight": 1}), ("b", "c", {"weight": weight})])
    for name in ("shortest_path_length", "minimum_spanning_tree", "pagerank", "louvain_communities"):
        arguments = {"source": "a", "target": "c", "weight": "weight"} if name.startswith("short") else {}
        assert answer(graph, name, arguments).code == "weights-invalid"


def test_negative_weights_are_counted_where_they_can_be():
    graph = read_graph("a b 4\na c 2\nb d -3\nc d 1", directed=True)
    path = {"source": "a", "target": "d", "weight": "weight"}
    assert answer(graph, "shortest_path", path).value == ["a", "b", "d"]
    assert answer(graph, "shortest_path_length", path).value == 1
    assert answer(graph, "dag_longest_path", {}).value == ["a", "b"]
    assert answer(graph, "diameter", {"weight": "weight"}).code == "weights-invalid"
    circle = answer(read_graph("a b -1\nb d 1"), "shortest_path", path)  # to and fro, ever less
    assert circle.code == "no-answer"


def test_weights_of_zero_are_refused_where_they_make_endless_ties():
    graph = read_graph("a b 0\nb c 1")
    for name in ("betweenness_centrality", "closeness_centrality"):
        assert answer(graph, name, {"weight": "weight"}).code == "weights-invalid"
        assert answer(graph, name, {"weight": None}).ok
    assert answer(graph, "diameter", {"weight": "weight"}).value == 1
    triangle = read_graph("a b 0\nb c 0\na c 0")
    paths = answer(triangle, "all_shortest_paths", {"source": "a", "target": "c", "weight": "weight"})
    assert sorted(paths.value) == [["a", "b", "c"], ["a", "c"]]


def test_a_default_weight_that_no_edge_has_is_said():
    graph = read_graph("source,target,length\na,b,5\nb,c,1")
    assert "none has a weight" in answer(graph, "minimum_spanning_tree", {}).text
    assert "none has" not in answer(read_graph("a b\nb c"), "minimum_spanning_tree", {}).text


def test_weights_are_said_exactly():
    path = {"source": "a", "target": "c", "weight": "weight"}
    assert answer(read_graph("a b 12345.67\nb c 20000.08"), "shortest_path_length", path).text.endswith(": 32345.75")
    assert answer(read_graph("a b 0.1\nb c 0.2"), "shortest_path_length", path).text.endswith(": 0.3")


@pytest.mark.parametrize(
    ("algorithm", "text", "fix"),
    [
        ("max_weight_matching", '{"multigraph": true, "edges": [["a", "b"]]}', "one edge for each pair"),
        ("core_number", "a a\na b", "from a node to itself"),
        ("max_weight_matching", "a b 1\nb c", "name one that every edge has"),
        ("in_degree", "a b", '"directed": true'),
    ],
)
def test_a_fix_can_be_followed(algorithm, text, fix):
    found = answer(read_graph(text), algorithm, {})
    assert not found.ok
    assert fix in found.text
    assert "leave it out" not in found.text  # nothing was given


def test_weights_that_some_edges_lack_are_not_guessed():
    graph = nx.Graph([("a", "b", {"weight": 5}), ("b", "c", {})])
    assert answer(graph, "minimum_spanning_tree", {}).code == "weights-invalid"
    assert (
        answer(graph, "shortest_path_length", {"source": "a", "target": "c", "weight": "weight"}).code
        == "weights-invalid"
    )
    assert answer(graph, "shortest_path_length", {"source": "a", "target": "c"}).value == 2


# --- texts as graphs --------------------------------------------------------------------------------------------------

NAMES = st.text(min_size=1, max_size=8).map(str.strip).filter(bool)
TOKENS = st.text(st.characters(categories=("L", "N"), exclude_characters="{#%,"), min_size=1, max_size=6)
WEIGHTS = st.integers(-5, 99) | st.floats(-5, 99)


def edges_of(graph: Any) -> set[Any]:
    return {(frozenset((source, target)), data.get("weight")) for source, target, data in graph.edges(data=True)}


def graphs(names: st.SearchStrategy[str]) -> st.SearchStrategy[dict[frozenset[str], Any]]:
    pairs = st.tuples(names, names).map(frozenset)
    return st.dictionaries(pairs, WEIGHTS, min_size=1, max_size=8)


def ends(pair: frozenset[str]) -> tuple[str, str]:
    first, *second = sorted(pair)
    return first, (second or [first])[0]


@given(graphs(NAMES))
def test_json_keeps_every_name(edges):
    lists = [[*ends(pair), weight] for pair, weight in edges.items()]
    tables = [dict(zip(("source", "target", "weight"), edge, strict=True)) for edge in lists]
    for text in (lists, {"edges": lists}, {"edges": tables}, {"links": tables, "nodes": [lists[0][0]]}):
        assert edges_of(read_graph(json.dumps(text))) == {*edges.items()}


@given(graphs(NAMES))
def test_csv_keeps_every_name(edges):
    file = io.StringIO()
    rows = [[*ends(pair), weight] for pair, weight in edges.items()]
    csv.writer(file).writerows([["source", "target", "weight"], *rows])
    found = read_graph(file.getvalue())
    assert {pair for pair, _ in edges_of(found)} == {*edges}


@given(graphs(TOKENS))
def test_an_edge_list_keeps_every_name(edges):
    for between in (" ", ",", "\t", ", "):
        text = "\n".join(between.join([*ends(pair), str(weight)]) for pair, weight in edges.items())
        assert edges_of(read_graph(f"# edges\n{text}\n")) == {*edges.items()}


def test_a_table_of_gephi_says_its_direction_and_weight():
    table = "Source,Target,Type,Id,Weight\n1,2,Directed,0,5\n2,3,Directed,1,1"
    graph = read_graph(table)
    assert graph.is_directed()
    assert list(graph.edges(data="weight")) == [("1", "2", 5), ("2", "3", 1)]
    assert not read_graph(table.replace("Directed", "Undirected")).is_directed()
    with pytest.raises(Mistake, check=coded("graph-invalid")):
        read_graph(table.replace("Directed", "Undirected", 1))
    both_ways = read_graph(f"{table}\n2,1,Directed,2,5", directed=False)
    assert both_ways.number_of_edges() == 2, "ids of edges are not compared"


def test_one_sign_separates_all_cells():
    assert [*read_graph("Smith, J\tDoe\nDoe\tRoe, A").edges] == [("Smith, J", "Doe"), ("Doe", "Roe, A")]
    assert [*read_graph('"a", "b"\n"b", "c"').edges] == [("a", "b"), ("b", "c")]
    assert [*read_graph('source, target\n"a", "b"\n"b", "c"').edges] == [("a", "b"), ("b", "c")]
    assert [*read_graph("source,target,5\nsource,a,3").edges(data="weight")] == [
        ("source", "target", 5), ("source", "a", 3)]  # fmt: skip


def test_tables_as_programs_write_them():
    pandas = read_graph(",source,target,weight\n0,a,b,1\n1,b,c,2\n")
    assert list(pandas.edges(data=True)) == [("a", "b", {"weight": 1}), ("b", "c", {"weight": 2})]
    for text in ("source,target,\na,b,\n  \nb,c,", "# c\n\nsource target\na b\nb c ", '[["a", "b", {}], ["b", "c"]]'):
        assert [*read_graph(text).edges] == [("a", "b"), ("b", "c")]
    assert [*read_graph("source,target,Id\na,b,0\nb,a,1").edges(data=True)] == [("a", "b", {})]
    assert [*read_graph('[["a", "b", {"weight": 3}]]').edges(data="weight")] == [("a", "b", 3)]
    assert len(read_graph('{"vertices": ["a", "b", "c"], "edges": [["a", "b"]]}')) == 3
    assert [*read_graph('{"nodes": [{"name": "A"}, {"name": "B"}], "edges": [["A", "B"]]}')] == ["A", "B"]


def test_what_says_that_it_is_undirected_gets_both_directions():
    back = {"source": "b", "target": "a", "directed": True}
    for text in ('{"directed": false, "edges": [["a", "b"]]}', "Source,Target,Type\na,b,Undirected"):
        assert answer(read_graph(text), "has_path", back).value is True
        assert answer(read_graph(text, directed=True), "has_path", back).value is True
    assert answer(read_graph("a b", directed=True), "has_path", back).value is False


def test_edges_of_json_end_at_the_ids_of_nodes():
    nodes = [{"id": "a", "name": "Ann"}, {"id": "b", "name": "Bob"}]
    assert [*read_graph(json.dumps({"nodes": nodes, "edges": [["a", "b"]]}))] == ["Ann", "Bob"]
    for edges in ([["Ann", "Bob"]], [{"source": 0, "target": 1}]):
        with pytest.raises(Mistake, check=coded("graph-invalid")):
            read_graph(json.dumps({"nodes": nodes, "edges": edges}))
    nodes[1]["name"] = None  # type: ignore[assignment]
    assert [*read_graph(json.dumps({"nodes": nodes, "edges": [["a", "b"]]}))] == ["a", "b"]


def test_defaults_versions_and_comments_of_xml():
    default = '<key id="w" for="edge" attr.name="weight" attr.type="double"><default>2.0</default></key><graph'
    graph = GRAPHML.format('<!-- <edge> --><node name="a>b" id="a"/><edge source="a" target="b"/>')
    assert [*read_graph(graph.replace("<graph", default, 2).replace(default, "<graph", 1)).edges(data="weight")] == [
        ("a", "b", 2.0)]  # fmt: skip
    gexf = written(weighted(connected(3), 3))["gexf"]
    for other in (' xmlns="http://gexf.net/1.3"', ' lang="en" xmlns="https://www.gexf.net/1.2"', ""):
        newer = gexf.replace(' xmlns="http://www.gexf.net/1.2draft"', other)
        assert newer != gexf
        assert edges_of(read_graph(f"\n{newer}")) == edges_of(read_graph(gexf))
    with pytest.raises(Mistake, check=coded("graph-invalid")):
        read_graph(GRAPHML.format('<node id="a"><graph edgedefault="undirected"><node id="b"/></graph></node>'))


@given(st.text(max_size=200))
def test_any_text_is_a_graph_or_a_mistake(text):
    with suppress(Mistake):
        assert isinstance(read_graph(text), nx.Graph)


def written(graph: nx.Graph) -> dict[str, str]:
    """A graph in every form that NetworkX writes."""
    return {
        "graphml": "\n".join(nx.generate_graphml(graph)),
        "gexf": "\n".join(nx.generate_gexf(graph)),
        "json": json.dumps(nx.node_link_data(graph, edges="links")),
        "edges": "\n".join(nx.generate_edgelist(graph)),
    }


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_what_networkx_writes_is_read(kind):
    graph = kind()
    graph.add_edges_from([("a", "b", {"weight": 2}), ("b", "c", {"weight": 0.5}), ("c", "c", {"weight": 1})])
    if graph.is_multigraph():
        graph.add_edge("a", "b", weight=7)
    for form, text in written(graph).items():
        if form == "edges" and graph.is_multigraph():
            with pytest.raises(Mistake, check=coded("graph-invalid")):
                read_graph(text)
            continue
        found = read_graph(text, directed=graph.is_directed())
        assert sorted(found.edges(data="weight")) == sorted(graph.edges(data="weight")), form
        assert (found.is_directed(), found.is_multigraph()) == (graph.is_directed(), graph.is_multigraph()), form


@given(st.sampled_from(["graphml", "gexf", "json"]), st.integers(1, 10**6))
def test_a_file_that_is_cut_off_is_a_mistake(form, cut):
    text = written(weighted(connected(3), 3))[form]
    with pytest.raises(Mistake, check=coded("graph-invalid")):
        read_graph(text[: cut % (len(text) - 12)])


def test_labels_are_the_names_where_each_node_has_its_own():
    nodes = [{"id": 0, "label": "Oslo"}, {"id": 1, "label": "Bergen"}]
    assert [*read_graph(json.dumps({"nodes": nodes, "edges": [[0, 1]]}))] == ["Oslo", "Bergen"]
    nodes[1]["label"] = "Oslo"
    assert [*read_graph(json.dumps({"nodes": nodes, "edges": [[0, 1]]}))] == ["0", "1"]


def test_numbers_and_their_texts_are_the_same_node():
    assert [*read_graph('[[1, "2"], [2.0, 3], ["3", 1]]')] == ["1", "2", "3"]
    assert [*read_graph('{"edges": [{"from": 1, "to": "2"}]}')] == ["1", "2"]


@pytest.mark.parametrize(
    "header",
    [
        '"source","target"', "Source;Target", "from\tto", "from to", "# of roads\n\n% and ways\nfrom,to",
        '"from"  "to"', "src, dst", "FromNodeId\tToNodeId", "source_id,target_id", "from_node;to_node",
    ],
)  # fmt: skip
@pytest.mark.parametrize("weight", ["", "weight"])
def test_a_header_is_never_an_edge(header, weight):
    between = next((sign for sign in ",;\t" if sign in header.splitlines()[-1]), " ")
    rows = [[header, weight], ["1", "2", "3.5" * bool(weight)], ["2", "3", "4" * bool(weight)]]
    graph = read_graph("\n".join(between.join(filter(None, row)) for row in rows))
    assert list(graph.edges(data="weight")) == [("1", "2", 3.5 if weight else None), ("2", "3", 4 if weight else None)]


LAUGHS = (
    '<?xml version="1.0"?>\n<!DOCTYPE graphml [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    + ']>\n<graphml><graph edgedefault="undirected"><node id="&j;"/></graph></graphml>'
)
GRAPHML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected">{}</graph></graphml>'


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t",
        LAUGHS,
        '<!DOCTYPE graphml [<!ENTITY x SYSTEM "file:///etc/passwd">]><graphml>&x;</graphml>',
        "<?xml version='1.0'?><!doctype x><graphml/>",
        "<graphml>",
        "<html><body>not found</body></html>",
        GRAPHML.format('<edge source="a"/>'),
        GRAPHML.format("<node/>"),
        "a b c d e",
        "What is the diameter of this graph?",
        "a b heavy",
        "a b 1_0",
        "a",
        "a b\na b 3",
        "a b {'weight': __import__('os')}",
        "a b {'weight'",
        "source,target,target\na,b,c",
        "source,target,\na,b,c",
        "source,target,weight\na,b",
        'source,target\n"a,b',
        "source,target\n,b",
        "{}",
        '{"edges": 3}',
        '{"edges": [["a"]]}',
        '{"edges": [{"source": "a"}]}',
        '{"edges": [[null, "b"]]}',
        '{"edges": [[["a"], "b"]]}',
        '{"edges": [["", "b"]]}',
        '{"edges": [[NaN, "b"]]}',
        '{"edges": [[1e999, "b"]]}',
        '{"nodes": [""], "edges": []}',
        '{"nodes": [1, "1"], "edges": []}',
        '{"nodes": [{"id": "a"}, {"id": "a", "label": "b"}], "edges": []}',
        '{"directed": "true", "edges": [["a", "b"]]}',
        '{"multigraph": 1, "edges": [["a", "b"]]}',
        "from to\na b c",
        "a b 1,5",
        "a;b;1,5",
        "a\tb\t1,5",
        "a,,3",
        "a: b, c\nb: d, e",
        "(a, b)\n(b, c)",
        "(a, b),\n(b, c)",
        "1 -> 2\n2 -> 3",
        "A->B 3",
        "A B: 5",
        "A,B: 5",
        "- a, b",
        "1 Alice\n2 Bob\n#\n1 2",
        "# nothing\n# at all",
        '{"edges": [], "links": [["a", "b"]]}',
        r"1 2\n2 3",
        "id,label\n1,Ann",
        "%%MatrixMarket matrix coordinate\n3 3 1\n2 1 1",
        "graph [\n node [ id 1 ]\n]",
        "digraph G { a -> b }",
        "*Vertices 3\n1 2",
        '{"edges": [["a", "b"]',
        "[" * 100_000,
        '{"edges": [["a", "b", 1], ["b", "a", 2]]}',
        "\x00\x01\x02",
    ],
)
def test_what_is_no_graph_is_a_mistake(text):
    with pytest.raises(Mistake, check=coded("graph-invalid")):
        read_graph(text)


def test_the_limits_of_size_hold_for_every_form():
    edges = [[n, n + 1] for n in range(30)]
    texts = [json.dumps(edges), "\n".join(f"{u} {v}" for u, v in edges), *written(nx.path_graph(31)).values()]
    for text in texts:
        for limits in ({"max_nodes": 20}, {"max_edges": 20}):
            with pytest.raises(Mistake, check=coded("graph-too-large")):
                read_graph(text, **limits)
        assert len(read_graph(text)) == 31


# --- words ------------------------------------------------------------------------------------------------------------


def test_the_first_line_is_the_answer():
    graph = read_graph(PATH)
    for name in ALGORITHMS:
        arguments = {"source": "a", "target": "d", "node": "a", "k": 1, "capacity": "weight", "other": graph}
        takes = {word.partition("=")[0] for word in ALGORITHMS[name].takes}
        found = answer(graph, name, {key: arguments[key] for key in takes & {*arguments}}, name="g.csv")
        if found.ok:
            assert found.text.startswith(f"{name} of g.csv")
            assert ": " in found.text.partition("\n")[0]
        else:
            assert found.code == "no-answer"  # it is for directed graphs alone


def test_long_results_are_cut_and_say_by_how_much():
    graph = nx.path_graph(MAX_ROWS + 7)
    rows = answer(graph, "pagerank", {}).text.splitlines()
    assert len(rows) == 1 + 1 + MAX_ROWS + 1  # sentence, head, rows, what is left out
    assert " 7 " in rows[-1].replace("[", " ")
    long = answer(nx.star_graph(MAX_NAMES + 9), "neighbors", {"node": 0})
    assert len(long.value) == MAX_NAMES + 9
    assert f"{MAX_NAMES - 1}, {MAX_NAMES}, [9 " in long.text
    assert len(answer(nx.complete_graph(50), "cycle_basis", {}).value) == 49 * 48 // 2, "they are few enough"
    many = answer(nx.complete_graph(9), "simple_cycles", {})
    assert len(many.value) == MAX_RESULTS
    assert f"more than {MAX_RESULTS:,} cycles" in many.text


@pytest.mark.parametrize(
    "name", ["\x1b[2J\x1b[31m", "[red]x[/red]", "<|im_start|>system", "a\nb, c: 1", "\u202egnp", "x" * 5000]
)
def test_a_name_cannot_pass_for_anything_else(name):
    graph = nx.Graph([(name, "b"), ("b", "c")])
    for algorithm, arguments in (("degree", {}), ("shortest_path", {"source": name, "target": "c"})):
        found = answer(graph, algorithm, arguments)
        assert found.ok
        assert visible(found.text) == found.text, "nothing steers a terminal"
        assert len(found.text) < 1000
        lines = found.text.splitlines()
        assert len(lines) == (5 if algorithm == "degree" else 1), "no line is forged"


def test_a_name_of_any_script_is_shown_as_it_is():
    graph = nx.Graph([("São Paulo (SP)", "北京/大兴")])
    found = answer(graph, "shortest_path", {"source": "São Paulo (SP)", "target": "北京/大兴"}).text
    assert '"São Paulo (SP)" -> "北京/大兴"' in found


def test_both_graphs_are_read_with_or_without_directions():
    both = (nx.DiGraph([("a", "b")]), nx.DiGraph([("d", "c")]))
    assert answer(both[0], "is_isomorphic", {"other": both[1], "directed": False}).value is True


def test_two_nodes_with_one_name_are_refused():
    assert answer(nx.Graph([(1, "1"), ("1", 2)]), "degree", {}).code == "graph-invalid"


def test_graphs_without_nodes_edges_or_connection():
    empty = nx.Graph()
    for name in ALGORITHMS:
        if not {"source", "node", "k", "other"} & {*ALGORITHMS[name].takes}:
            assert answer(empty, name, {}).ok == (name in ("describe", "number_of_nodes", "number_of_edges"))
    apart = read_graph('{"nodes": ["a", "b"], "edges": []}')
    assert answer(apart, "diameter", {}).code == "no-answer"
    assert answer(apart, "has_path", {"source": "a", "target": "b"}).value is False
    assert answer(apart, "shortest_path", {"source": "a", "target": "b"}).code == "no-answer"
    assert answer(apart, "number_connected_components", {}).value == 2
    loop = read_graph('[["a", "a"], ["a", "b"]]')
    assert answer(loop, "degree", {}).value == {"a": 3, "b": 1}
    assert answer(loop, "core_number", {}).code == "no-answer"


def test_parallel_edges_are_counted_or_refused():
    graph = read_graph('{"multigraph": true, "edges": [["a", "b", 3], ["a", "b", 1], ["b", "c", 2]]}')
    assert answer(graph, "degree", {}).value == {"b": 3, "a": 2, "c": 1}
    assert answer(graph, "shortest_path_length", {"source": "a", "target": "c", "weight": "weight"}).value == 3
    assert answer(graph, "minimum_spanning_tree", {}).value == [["a", "b", 1], ["b", "c", 2]]
    assert answer(graph, "max_weight_matching", {}).code == "no-answer"
    heaviest = answer(turned(graph, True), "dag_longest_path", {})
    assert heaviest.code == "no-answer"  # both ways are a cycle
    for name in ("edge_connectivity", "minimum_edge_cut"):
        assert answer(graph, name, {}).code == "no-answer", "NetworkX counts parallel edges once"
    one_way = read_graph('{"multigraph": true, "directed": true, "edges": [["a", "b", 3], ["a", "b", 1]]}')
    assert answer(one_way, "dag_longest_path", {}).text.endswith("(1 edge, weight 3)")


# --- in the sandbox ---------------------------------------------------------------------------------------------------


def calls(*arguments: dict[str, Any], **settings: Any) -> list[Answer]:
    async def go() -> list[Answer]:
        tool = GraphTool(GraphConfig(**settings), sandbox("standard"))
        try:
            return [await tool.answer(given) for given in arguments]
        finally:
            await tool.close()

    return asyncio.run(go())


@pytest.mark.slow
def test_the_sandbox_says_the_same():
    graph = weighted(connected(5), 5)
    text = json.dumps(nx.node_link_data(graph, edges="edges"))
    cases = [
        (name, {key: value for key, value in ARGUMENTS.get(name, [{}])[0].items() if key != "other"})
        for name in ALGORITHMS
    ]
    found = calls(*({"graph": text, "algorithm": name, "arguments": more} for name, more in cases))
    for (name, more), result in zip(cases, found, strict=True):
        here = answer(read_graph(text), name, more)
        assert (result.ok, result.code, result.text) == (here.ok, here.code, here.text)
    assert sum(result.ok for result in found) > 40


def test_another_graph_may_be_text_or_a_file(tmp_path):
    (tmp_path / "ring.csv").write_text("source,target\n1,2\n2,3\n3,1")
    text = {"graph": "a b\nb c\nc a", "algorithm": "is_isomorphic"}
    found = calls(*({**text, "arguments": {"other": other}} for other in ("ring.csv", "x y\ny z")), files=(tmp_path,))
    assert [result.text.rpartition(": ")[2] for result in found] == ["yes", "no"]


def test_too_much_time_is_an_answer():
    complete = json.dumps([[u, v] for u in range(300) for v in range(u)])
    [result] = calls({"graph": complete, "algorithm": "betweenness_centrality"}, timeout_s=0.1)
    assert (result.ok, result.code) == (False, "too-much-work")


@pytest.mark.slow
def test_too_much_memory_is_an_answer():
    many = "\n".join(f"{n} {n + 1}" for n in range(150_000))
    [large] = calls({"graph": many, "algorithm": "diameter"}, memory_mb=64, max_nodes=10**6)
    assert (large.ok, large.code) == (False, "too-much-work")


@pytest.mark.slow
def test_a_million_nodes_are_too_many():
    million = "\n".join(f"{n} {n + 1}" for n in range(1_000_000))
    assert calls({"graph": million, "algorithm": "number_of_nodes"})[0].code == "graph-too-large"


def test_the_tool_is_one_for_agents(tmp_path):
    (tmp_path / "g.edges").write_text(PATH)

    async def go() -> Any:
        tool: Tool = GraphTool(GraphConfig(files=(tmp_path / "g.edges",)), sandbox("standard"))
        try:
            assert "g.edges" in tool.description
            return [
                await tool.call({"graph": "g.edges", "algorithm": name}) for name in ("diameter", "topological_sort")
            ]
        finally:
            await tool.close()

    first, second = asyncio.run(go())
    assert (first.ok, first.text) == (True, "diameter of g.edges: 2")
    assert not second.ok


def test_a_sandbox_without_programs_or_without_networkx_is_refused(monkeypatch):
    with pytest.raises(UnsupportedError, check=coded("no-sandbox")):
        GraphTool(GraphConfig(), Sandbox(tier="arithmetic"))
    monkeypatch.setattr(GraphConfig, "packages", ("a_package_that_nobody_has",))
    with pytest.raises(UnsupportedError, check=coded("missing-extra")):
        GraphTool(GraphConfig(), sandbox("standard"))


def test_an_image_without_networkx_is_infrastructure(monkeypatch):
    async def without(self: PythonPool, code: str) -> PythonResult:
        return PythonResult("missing-extra\nNo module named 'networkx'", "ok")

    monkeypatch.setattr(PythonPool, "run", without)
    with pytest.raises(SandboxError, check=coded("missing-extra")):
        calls({"graph": PATH, "algorithm": "diameter"})


# --- files ------------------------------------------------------------------------------------------------------------


def test_only_named_files_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named.edges").write_text("a b")
    for secret in ("secret.csv", "secret"):
        (tmp_path / secret).write_text("source,target\npassword,1234")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "inner.csv").write_text("source,target\nc,d")
    asked = [
        "secret.csv",
        "secret",
        "./secret.csv",
        str(tmp_path / "secret.csv"),
        "../secret.csv",
        "/etc/passwd",
        "named edges",
        "karate club.gml",
        "named.edge",
    ]
    found = calls(
        *({"graph": name, "algorithm": "describe"} for name in (*asked, "named.edges", "more/inner.csv", "inner.csv")),
        files=(Path("named.edges"), Path("more")),
    )
    assert [result.code for result in found] == ["unknown-graph"] * len(asked) + [""] * 3
    assert not [result for result in found if "password" in result.text]
    assert "'named.edges'" in found[len(asked) - 1].text


def test_text_of_one_line_is_a_graph_if_it_has_a_separator():
    found = calls(
        *({"graph": text, "algorithm": "number_of_edges"} for text in ("a;b", "a,b", "a\tb", "a b", "", "ab"))
    )
    assert [result.code for result in found] == ["", "", "", "", "graph-invalid", "unknown-graph"]


def test_files_that_cannot_be_used(tmp_path):
    first, second = tmp_path / "a" / "g.csv", tmp_path / "b" / "g.csv"
    for path in (first, second):
        path.parent.mkdir()
        path.write_text("source,target\na,b")
    with pytest.raises(RecipeError, check=coded("name-clash")):
        calls(files=(first, second))
    with pytest.raises(RecipeError, check=coded("file-not-found")):
        calls(files=(tmp_path / "none.csv",))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".DS_Store").write_bytes(b"\xff")
    with pytest.raises(RecipeError, check=coded("file-not-found")):
        calls(files=(tmp_path / "empty",))
    assert calls({"graph": "g.csv", "algorithm": "describe"}, files=(first, first.parent))[0].ok


@pytest.mark.parametrize("wrong", [["source"], "source", 3])
def test_arguments_that_are_no_table(wrong):
    assert calls({"graph": PATH, "algorithm": "diameter", "arguments": wrong})[0].code == "invalid-arguments"


@pytest.mark.parametrize("data", ["a ö".encode("utf-16"), b"\xff\xfe\x00", b"a b\n" * 300_000])
def test_a_file_that_is_not_utf8_or_too_large(tmp_path, data):
    (tmp_path / "g.edges").write_bytes(data)
    with pytest.raises(ToolServerError, check=coded("file-unreadable")):
        calls({"graph": "g.edges", "algorithm": "describe"}, files=(tmp_path,), max_mb=1)


def test_a_request_is_read_with_its_limits_and_the_other_graph():
    def asked(text="a b\nb c", algorithm="is_isomorphic", nodes=9, **arguments):
        limits = {"max_nodes": nodes, "max_edges": 9}
        return work({"name": "g", "text": text, "algorithm": algorithm, "arguments": arguments, "limits": limits})

    assert asked(other="x y\ny z").value is True
    assert asked(other="x y\ny z\nz x").value is False
    assert asked(algorithm="number_of_nodes").value == 3
    assert (asked(nodes=2, algorithm="number_of_nodes").ok, asked(nodes=2, other="x y").ok) == (False, False)
    assert asked("[", algorithm="number_of_nodes").code
