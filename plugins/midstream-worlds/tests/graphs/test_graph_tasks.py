"""The world of graphs: answers by NetworkX, worked out again from the text, disjoint splits, tools that compete."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from functools import cache
from itertools import combinations

import networkx as nx
import pytest

from midstream.core.errors import RecipeError, UsageError
from midstream.core.task import Task
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream_worlds.graphs.questions import question_words
from midstream_worlds.graphs.tasks import COSTS, DEPTHS, REACH, STANDARD, Graphs, GraphsConfig
from midstream_worlds.graphs.tools import GraphQuery, NeighborQuery, NoisyOracle, NoisyOracleConfig, PathQuery
from support.errors import coded

SPLITS = ("train", "validation", "test")
FAMILIES = (*STANDARD, *DEPTHS, "reworded")
WORLD = Graphs(GraphsConfig(families=FAMILIES))
DOCUMENTS = {text.split()[0]: nx.Graph([edge.split("-") for edge in text.split()[2:]]) for _, text in WORLD.documents()}
MEASURES = {"nodes": nx.number_of_nodes, "edges": nx.number_of_edges, "wide": nx.diameter, "wider": nx.diameter}
MEASURES |= {"diameter": nx.diameter, "radius": nx.radius}


@cache
def samples(split: str) -> list[Task]:
    return WORLD.sample(split, 1500, seed=1)


def answer_of(question: str) -> str:
    """The answer to a question, from its text and the documents alone."""
    words = question.removesuffix(" ?").split()
    numbers = [word for word in words if word.isdigit()]
    names = [word for word in words[1:] if word[0].isupper()]
    graphs = [nx.k_core(DOCUMENTS[name], 2) if f"core of {name}" in question else DOCUMENTS[name] for name in names]
    if "neighbors" in words:
        return str(graphs[0].degree[numbers[0]])
    if "far" in words:
        return str(nx.shortest_path_length(graphs[0], *numbers))
    values = [next(MEASURES[word] for word in words if word in MEASURES)(graph) for graph in graphs]
    if words[0] in ("Is", "Has"):
        left, right = (sum(values), int(numbers[0])) if numbers else values
        return "yes" if left > right else "no"
    if "times" in words:
        return str(values[0] * int(numbers[0]))
    difference = "more" in words or "wider" in words or "minus" in words
    return str(values[0] - values[1] if difference else sum(values))


@pytest.mark.matrix(1)
@pytest.mark.parametrize("split", SPLITS)
def test_gold_answers_follow_from_question_and_documents(split):
    for task in [*samples(split), *WORLD.fixed(split, per_family=20, seed=99)]:
        assert answer_of(task.question) == task.answer, task.question


def test_every_graph_is_connected_and_so_is_its_core():
    for name in WORLD.named:
        graph, core = WORLD.graphs[name], WORLD.graphs[WORLD.core_of(name)]
        assert nx.is_connected(graph)
        assert nx.is_connected(core)
        assert 8 <= len(graph) <= 40
        assert 3 <= len(core) <= len(graph)


def test_half_of_the_distances_are_beyond_the_path_query():
    costs = Counter(
        task.metadata["best_cost"] for tasks in map(samples, SPLITS) for task in tasks if task.family == "distance"
    )
    assert set(costs) == {COSTS["path"], COSTS["graph"]}
    assert costs[COSTS["path"]] / costs.total() == pytest.approx(0.5, abs=0.08)


def test_no_constant_answer_gets_far():
    for family in FAMILIES:
        answers = Counter(task.answer for task in samples("train") if task.family == family)
        most = answers.most_common(1)[0][1] / answers.total()
        assert most < (0.85 if {"yes", "no"} & set(answers) else 0.5), (family, answers.most_common(2))


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), list(combinations(SPLITS, 2)))
def test_splits_share_no_graph_and_no_question(one, other):
    assert {*WORLD.names(one)}.isdisjoint(WORLD.names(other))
    asked = {split: {task.question for task in samples(split)} for split in (one, other)}
    assert asked[one].isdisjoint(asked[other])
    for split in (one, other):
        named = {word for question in asked[split] for word in question.split() if word in WORLD.names()}
        assert named <= {*WORLD.names(split)}


def test_the_vocabulary_has_every_word():
    used = {word for tasks in map(samples, SPLITS) for task in tasks for word in task.question.split()}
    assert {word for word in used - {*WORLD.names()} if not word.isdigit()} <= question_words()


def test_another_seed_is_another_world_and_the_same_seed_the_same():
    first, again, other = (list(Graphs(GraphsConfig(graphs=22, seed=seed)).documents()) for seed in (0, 0, 1))
    assert first == again != other


def test_the_smallest_world_serves_every_depth():
    small = Graphs(GraphsConfig(graphs=22, families=(*STANDARD, *DEPTHS)))
    for split in SPLITS:
        assert {task.family for task in small.sample(split, 300, seed=0)} == {*small.families}


@pytest.mark.parametrize(
    ("settings", "code"), [({"families": ("hop",)}, "unknown-family"), ({"graphs": 3}, "setting-range")]
)
def test_bad_settings(settings, code):
    with pytest.raises(RecipeError, check=coded(code)):
        Graphs(GraphsConfig(**settings))


def test_a_question_of_another_world_is_refused():
    with pytest.raises(UsageError, check=coded("question-unknown")):
        WORLD.readable("How high is Mount Everest ?")


# --- tools ----------------------------------------------------------------------------------------------------------

NAME = WORLD.named[0]
GRAPH = WORLD.graphs[NAME]
NODE = min(GRAPH)
FAR = nx.single_source_shortest_path_length(GRAPH, NODE)
NEAR, BEYOND = (next(node for node, far in FAR.items() if (0 < far <= REACH) == near and far) for near in (True, False))


def ask(tool, query: str) -> tuple[bool, str]:
    result = asyncio.run(tool.call({"query": query}))
    return result.ok, result.text


@pytest.mark.parametrize(
    ("tool", "query", "result"),
    [
        (GraphQuery, f"{NAME} diameter", f"{NAME} diameter {nx.diameter(GRAPH)}"),
        (GraphQuery, f"{NAME} number_of_edges", f"{NAME} number_of_edges {GRAPH.number_of_edges()}"),
        (GraphQuery, f"{NAME} degree {NODE}", f"{NAME} {NODE} degree {GRAPH.degree[NODE]}"),
        (GraphQuery, f"{NAME} k_core", f"{NAME} k_core {WORLD.core_of(NAME)}"),
        (
            GraphQuery,
            f"{NAME} shortest_path_length {NODE} {BEYOND}",
            f"{NAME} {NODE} {BEYOND} shortest_path_length {FAR[BEYOND]}",
        ),
        (PathQuery, f"{NAME} {NODE} {NEAR}", f"{NAME} {NODE} {NEAR} shortest_path_length {FAR[NEAR]}"),
        (NeighborQuery, f"{NAME} {NODE}", f"{NAME} {NODE} degree {GRAPH.degree[NODE]}"),
    ],
)
def test_a_result_repeats_the_query_and_ends_in_algorithm_and_value(tool, query, result):
    assert ask(tool(WORLD), query) == (True, result)


@pytest.mark.parametrize(
    ("tool", "query"),
    [
        (GraphQuery, ""),
        (GraphQuery, NAME),
        (GraphQuery, f"{NAME} height"),
        (GraphQuery, f"{NAME} diameter 7"),
        (GraphQuery, "Nowhere diameter"),
        (GraphQuery, f"{NAME} degree"),
        (GraphQuery, f"{NAME} degree 0"),
        (GraphQuery, f"{NAME} shortest_path_length {NODE}"),
        (GraphQuery, f"{WORLD.core_of(NAME)} __class__"),
        (PathQuery, f"{NAME} {NODE} {BEYOND}"),
        (PathQuery, f"{NAME} {NODE}"),
        (NeighborQuery, f"{NAME} x"),
    ],
)
def test_what_cannot_be_answered_is_an_answer_that_is_not_ok(tool, query):
    assert ask(tool(WORLD), query)[0] is False


def test_the_oracle_is_right_as_often_as_configured_and_always_says_the_same():
    queries = [f"{name} {algorithm}" for name in WORLD.named for algorithm in ("diameter", "radius", "number_of_nodes")]

    def answers(tool):
        async def ask_all():
            return [(await tool.call({"query": query})).text for query in queries]

        return asyncio.run(ask_all())

    truth = answers(GraphQuery(WORLD))
    for right in (0.0, 0.6, 1.0):
        said = answers(NoisyOracle(WORLD, NoisyOracleConfig(right=right)))
        share = sum(one == other for one, other in zip(said, truth, strict=True)) / len(queries)
        assert share == pytest.approx(right, abs=0.05 if 0 < right < 1 else 0)
        assert said == answers(NoisyOracle(WORLD, NoisyOracleConfig(right=right)))


def test_both_worlds_have_the_graphs_of_the_tools_and_a_gazetteer_alone_has_none():
    build = Build(load_recipe("flow-grpo-both"))
    assert {"graph", "path", "neighbors"} <= {tool.name for tool in build.tools}
    both = build.source
    graphs = both.worlds["graphs"]
    assert {*graphs.names("test")} < {*both.names("test")} < {*both.names()}
    assert graphs.words() < both.words()
    assert [*both.documents()] == [*both.gazetteer.documents()]
    with pytest.raises(RecipeError, check=coded("world-missing", "tools.graph")):
        _ = Build(load_recipe("flow-grpo-tiny", ['tools.graph={type="graph_query"}'])).tools


def test_the_deepest_questions_name_as_many_graphs_as_their_turns_allow():
    for family, turns in DEPTHS.items():
        for task in (task for task in samples("test") if task.family == family):
            names = task.question.count(" and ") + 1
            cores = len(re.findall(r"the core of", task.question))
            assert 2 * names - 1 + cores + task.question.startswith("Is") == turns


def test_a_count_is_shared_out_over_all_families():
    world = Graphs(GraphsConfig(graphs=30))
    drawn = Counter(task.family for task in world.fixed("train", seed=0, count=42))
    assert list(drawn.values()) == [6, 6, 5, 5, 5, 5, 5, 5]


def test_a_family_named_twice_is_asked_once():
    tasks = Graphs(GraphsConfig(graphs=30)).fixed("test", seed=0, families=["measure", "measure"], per_family=3)
    assert [task.id for task in tasks] == ["test-measure-0", "test-measure-1", "test-measure-2"]
