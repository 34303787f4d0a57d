"""The gazetteer's questions: templates by family and attribute."""

from __future__ import annotations

from midstream_worlds.planning.words import PLACES

PLACE_ATTRIBUTES = ("population", "area", "height")

ASK = {
    "population": ("How many people live in {}", "What is the population of {}"),
    "area": ("How large is {}", "What is the area of {}"),
    "height": ("How high is {}", "What is the height of {}"),
    "length": ("How long is {}", "What is the length of {}"),
}
SUM = {
    "population": ("How many people live in {} and {} together", "What is the total population of {} and {}"),
    "area": ("How large are {} and {} together", "What is the total area of {} and {}"),
    "height": ("What is the total height of {} and {}",),
}
DIFF = {
    "population": ("How many more people live in {} than in {}",),
    "area": ("How much larger is {} than {}",),
    "height": ("How much higher is {} than {}",),
}
COMPARE = {
    "population": ("Do more people live in {} than in {}",),
    "area": ("Is {} larger than {}",),
    "height": ("Is {} higher than {}",),
}
OPERATORS = {"plus": "+", "minus": "-", "times": "*"}


def question_words() -> set[str]:
    """Every word of questions and facts, except names and numbers."""
    templates = [text for group in (ASK, SUM, DIFF, COMPARE) for texts in group.values() for text in texts]
    text = " ".join([*templates, *OPERATORS, "? total the capital river of is and"])
    return {*text.replace("{}", "").split(), *PLACES.found}
