"""Questions in words about graph files: the real loop, prompts and tool, with a program in the place of the model.

The program reads what a model would be sent, over HTTP: it finds the algorithm by words of the question, writes the
call from the planner's context alone, and takes the answer from the memory.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from midstream.api import answering
from midstream.core.task import Task
from midstream.rollout import rollout
from support.llm_server import Body, LLMServer, prompt_of

FILES, QUESTIONS = 10, 200

# --- questions --------------------------------------------------------------------------------------------------------

# By algorithm: wordings, and the answer by NetworkX itself. {u} and {v} are nodes, {g} is the file.
ASKED: dict[str, tuple[list[str], Any]] = {
    "number_of_nodes": (["How many nodes has {g}?", "Count the vertices of {g}."], lambda g, u, v: len(g)),
    "number_of_edges": (
        ["How many edges are in {g}?", "What is the number of links of {g}?"],
        lambda g, u, v: g.number_of_edges(),
    ),
    "density": (
        ["How dense is {g}?", "What share of all possible pairs of {g} is joined?"],
        lambda g, u, v: nx.density(g),
    ),
    "degree": (
        ["How many neighbors does {u} have in {g}?", "To how many others is node {u} of {g} joined directly?"],
        lambda g, u, v: g.degree[u],
    ),
    "shortest_path_length": (
        ["In {g}, how many hops is it from {u} to {v}?", "What is the distance between {u} and {v} in {g}?"],
        lambda g, u, v: nx.shortest_path_length(g, u, v),
    ),
    "has_path": (
        ["Can one get from {u} to {v} in {g}?", "Is {v} reachable from {u} in {g}?"],
        lambda g, u, v: nx.has_path(g, u, v),
    ),
    "diameter": (
        ["What is the longest of all shortest ways in {g}?", "How far apart are the two farthest nodes of {g}?"],
        lambda g, u, v: nx.diameter(g),
    ),
    "radius": (
        ["What is the radius of {g}?", "What is the smallest eccentricity in {g}?"],
        lambda g, u, v: nx.radius(g),
    ),
    "eccentricity": (
        ["How far is it from {u} to whatever is farthest from it in {g}?", "What is the eccentricity of {u} in {g}?"],
        lambda g, u, v: nx.eccentricity(g, u),
    ),
    "is_connected": (
        ["Is {g} in one piece?", "Does {g} hang together as a whole?"],
        lambda g, u, v: nx.is_connected(g),
    ),
    "number_connected_components": (
        ["Into how many pieces does {g} fall?", "How many separate parts has {g}?"],
        lambda g, u, v: nx.number_connected_components(g),
    ),
    "is_bipartite": (
        ["Can the nodes of {g} be split in two camps without an edge inside a camp?", "Are two colors enough for {g}?"],
        lambda g, u, v: nx.is_bipartite(g),
    ),
    "check_planarity": (
        ["Can {g} be drawn without crossings?", "Is {g} planar?"],
        lambda g, u, v: nx.check_planarity(g)[0],
    ),
    "pagerank": (
        ["Which node of {g} does PageRank put first?", "Who has the highest PageRank in {g}?"],
        lambda g, u, v: _first(nx.algorithms.link_analysis.pagerank_alg._pagerank_python(g)),
    ),
    "betweenness_centrality": (
        ["Which node of {g} lies on most shortest ways?", "Who is the main go-between of {g}?"],
        lambda g, u, v: _first(nx.betweenness_centrality(g)),
    ),
    "closeness_centrality": (
        ["Which node of {g} is nearest to all others?", "Who in {g} reaches everybody the fastest?"],
        lambda g, u, v: _first(nx.closeness_centrality(g)),
    ),
    "triangles": (
        ["In how many triangles of {g} is {u}?", "How many trios of mutual neighbors does {u} belong to in {g}?"],
        lambda g, u, v: nx.triangles(g, u),
    ),
    "greedy_color": (
        ["How many colors does a greedy coloring of {g} use?", "Color {g} greedily; how many colors is that?"],
        lambda g, u, v: len({*nx.greedy_color(g).values()}),
    ),
    "minimum_spanning_tree": (
        [
            "What does the cheapest network that joins all of {g} weigh?",
            "What is the weight of the lightest tree of {g}?",
        ],
        lambda g, u, v: nx.minimum_spanning_tree(g).size("weight"),
    ),
    "maximum_flow_value": (
        ["How much can flow from {u} to {v} in {g}, by weight?", "What is the greatest flow from {u} to {v} in {g}?"],
        lambda g, u, v: nx.maximum_flow_value(g, u, v, "weight"),
    ),
}


def _first(scores: dict[Any, float]) -> Any:
    return max(scores, key=lambda node: scores[node])


def in_words(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else f"{value:.12g}"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[Path, nx.Graph]:
    """Graphs in several forms, by their files; three are in more than one piece."""
    place = tmp_path_factory.mktemp("graphs")
    made: dict[Path, nx.Graph] = {}
    for seed in range(FILES):
        graph, draw = nx.gnp_random_graph(12, 0.28, seed=seed), random.Random(seed)
        if seed > 2:
            nx.add_path(graph, draw.sample(range(12), 12))
        else:
            graph.remove_edges_from([*graph.edges(seed)])
        for *_, data in graph.edges(data=True):
            data["weight"] = draw.randint(1, 9)
        path = place / f"net{seed}.{('graphml', 'gexf', 'json')[seed % 3]}"
        if path.suffix == ".json":
            path.write_text(json.dumps(nx.node_link_data(graph, edges="links")))
        else:
            {".graphml": nx.write_graphml, ".gexf": nx.write_gexf}[path.suffix](graph, path)
        made[path] = graph
    return made


def questions(files: dict[Path, nx.Graph]) -> list[tuple[str, str, str]]:
    """(question, algorithm, answer), ten of each algorithm."""
    draw, asked, made = random.Random(0), list(ASKED), []
    paths = list(files)
    for number in range(QUESTIONS):
        algorithm = asked[number % len(asked)]
        wordings, right = ASKED[algorithm]
        for path in draw.sample(paths, len(paths)):  # the first graph that has an answer
            u, v = draw.sample(range(12), 2)
            try:
                answer = in_words(right(files[path], u, v))
            except nx.NetworkXException:
                continue
            wording = wordings[number // len(asked) % len(wordings)]
            made.append((wording.format(g=path.name, u=u, v=v), algorithm, answer))
            break
    return made


# --- the model --------------------------------------------------------------------------------------------------------

# Words of a question, and what they ask for; the first that fits counts.
WORDS = {
    r"PageRank": "pagerank",
    r"most shortest ways|go-between": "betweenness_centrality",
    r"nearest to all|the fastest": "closeness_centrality",
    r"triangle|trio": "triangles",
    r"greed": "greedy_color",
    r"cheapest|lightest": "minimum_spanning_tree",
    r"flow": "maximum_flow_value",
    r"two camps|two colors": "is_bipartite",
    r"crossings|planar": "check_planarity",
    r"longest of all|two farthest": "diameter",
    r"radius|smallest eccentricity": "radius",
    r"eccentricity|farthest from it": "eccentricity",
    r"one piece|hang together": "is_connected",
    r"how many pieces|separate parts": "number_connected_components",
    r"Can one get|reachable": "has_path",
    r"hops|distance": "shortest_path_length",
    r"neighbors does|joined directly": "degree",
    r"dense|share": "density",
    r"nodes|vertices": "number_of_nodes",
    r"edges|links": "number_of_edges",
}
TAKES = {  # what each call of the model names
    **dict.fromkeys(("has_path", "shortest_path_length", "maximum_flow_value"), ("source", "target")),
    **dict.fromkeys(("degree", "eccentricity", "triangles"), ("node",)),
}


def model(body: Body) -> str:
    text = prompt_of(body)
    role = text.partition("\n")[0].lstrip("# ").lower()
    return {"planner": plan, "executor": call, "verifier": judge, "generator": conclude}[role](text)


def plan(text: str) -> str:
    question = text.partition("# Query\n\n")[2].partition("\n\n")[0]
    algorithm = next(name for words, name in WORDS.items() if re.search(words, question))
    [file] = re.findall(r"net\d\.\w+", question)
    nodes = re.findall(r"\b\d+\b", question.replace(file, ""))
    if "reachable" in question:
        nodes.reverse()
    return (
        f"Justification: {algorithm} answers it\nContext: file {file}, algorithm {algorithm}, nodes {' '.join(nodes)}\n"
        f"Sub-Goal: run {algorithm}\nTool Name: graph"
    )


def call(text: str) -> str:
    action = text.partition("# Action")[2]
    [(file, algorithm, listed)] = re.findall(r"file (\S+), algorithm (\w+), nodes ?([\d ]*)", action)
    arguments: dict[str, Any] = dict(zip(TAKES.get(algorithm, ()), listed.split(), strict=True))
    if algorithm == "maximum_flow_value":
        arguments["capacity"] = "weight"
    return json.dumps({"graph": file, "algorithm": algorithm, "arguments": arguments})


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"turn"')]


def judge(text: str) -> str:
    record = records(text)[-1]
    return json.dumps({"analysis": "", "result_valid": "error" not in record, "memory_sufficient": True})


def conclude(text: str) -> str:
    [record] = records(text)
    sentence = record["result"].partition("\n")[0]
    name, found = sentence.partition(" of ")[0], sentence.rpartition(": ")[2]
    short = re.search(r"highest at (\S+)", found) or re.search(r"weight (\S+)$", found) or re.match(r"(\S+)", found)
    assert short is not None
    return f"{name} gave it: {found}. <answer>{short[1]}</answer>"


# --- the test ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_hundred_questions_are_answered_by_the_right_algorithm(files):
    asked = questions(files)
    assert len({question for question, *_ in asked}) > QUESTIONS / 2
    assert {algorithm for _, algorithm, _ in asked} == {*ASKED}
    tasks = [Task(id=f"q{n}", question=question, answer="") for n, (question, *_) in enumerate(asked)]
    # An error of the program here is no hiccup.
    changes = ["engines.model.max_attempts=1", f"tools.graph.files={json.dumps([*map(str, files)])}"]
    with (
        LLMServer(model) as server,
        answering("graphqa-prompted", base_url=server.base_url, model="m", overrides=changes) as (
            environment,
            run,
            build,
        ),
    ):
        groups = run(rollout(environment, tasks, seed=build.recipe.seed))
    found = [group.trajectories[0] for group in groups]
    assert [trajectory.error for trajectory in found if trajectory.error] == []
    for (question, algorithm, answer), trajectory in zip(asked, found, strict=True):
        [turn] = trajectory.turns
        assert turn.command is not None
        assert turn.command.arguments["algorithm"] == algorithm, question
        assert trajectory.answer == answer, (question, turn.observation)
        assert algorithm in trajectory.final
    assert len(found) == QUESTIONS
