"""The words of questions about graphs: templates by family and algorithm. The algorithms have NetworkX's names."""

from __future__ import annotations

from midstream_worlds.planning.words import GRAPHS

NOUNS = {
    "number_of_nodes": "number of nodes",
    "number_of_edges": "number of edges",
    "diameter": "diameter",
    "radius": "radius",
}
MEASURE = {
    "number_of_nodes": ("How many nodes has {}", "What is the number of nodes of {}"),
    "number_of_edges": ("How many edges has {}", "What is the number of edges of {}"),
    "diameter": ("How wide is {}", "What is the diameter of {}"),
    "radius": ("What is the radius of {}",),
}
REWORDED = {  # never trained on: their frames are new, and the words that matter are known
    "number_of_nodes": ("Count the nodes of {}", "Give the number of nodes that {} has"),
    "number_of_edges": ("Count the edges of {}", "Give the number of edges that {} has"),
    "diameter": ("Say how wide {} is", "Give the diameter that {} has"),
    "radius": ("Give the radius that {} has", "Say what radius {} has"),
}
DEGREE = "How many neighbors has node {} in {}"
DISTANCE = "How far is node {} from node {} in {}"
DIFF = {
    "number_of_nodes": "How many more nodes has {} than {}",
    "number_of_edges": "How many more edges has {} than {}",
    "diameter": "How much wider is {} than {}",
    "radius": "What is the radius of {} minus that of {}",
}
COMPARE = {
    "number_of_nodes": "Has {} more nodes than {}",
    "number_of_edges": "Has {} more edges than {}",
    "diameter": "Is {} wider than {}",
    "radius": "Is the radius of {} more than that of {}",
}
SCALE = "What is the {} of {} times {}"
TOTAL = "What is the total {} of {}"
MORE_THAN = "Is the total {} of {} more than {}"
CORE = "the core of {}"


def question_words() -> set[str]:
    """Every word of questions and results, except names and numbers."""
    several = [text for group in (MEASURE, REWORDED) for texts in group.values() for text in texts]
    one = [DEGREE, DISTANCE, SCALE, TOTAL, MORE_THAN, CORE, *DIFF.values(), *COMPARE.values(), *NOUNS.values()]
    return {*" ".join([*several, *one, "and ?"]).replace("{}", "").split(), *GRAPHS.found}
