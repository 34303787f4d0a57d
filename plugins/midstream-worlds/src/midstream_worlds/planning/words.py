"""The words of questions, and the next step of a plan by them: the sound one, and the one that a bad lesson asks for.

The programs that plan and judge read questions here, and so does the reflector that looks for lessons in rollouts. All
they see is the text and the results so far.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

FIRST = """Amber Ash Birch Black Blue Bright Cedar Clay Cold Copper Coral Crown Dark Deep Dry Dusk East Elder Ember
Fair Far Fern Frost Gold Granite Gray Green High Hollow Iron Ivory Jade Kings Lone Long Lower Maple Marble Mist Moon
Moss North Oak Old Olive Pearl Pine Quartz Red River Rose Royal Ruby Salt Sand Shade Silver Sky Snow South Star Stone
Storm Sun Swan Thorn Upper West White Wild Willow Winter Wolf""".split()
SECOND = """Bank Barrow Bay Bluff Bridge Brook Castle Cliff Coast Cove Creek Crest Cross Dale Delta Den Down Falls Fell
Field Ford Forge Fort Garden Gate Glade Glen Grove Harbor Haven Heath Hill Hold Hollow Island Keep Lake Land Marsh
Meadow Mill Moor Mount Pass Peak Plain Point Port Quay Reach Ridge Rock Shore Spring Strand Summit Tower Town Vale
Valley View Ward Watch Water Well Wick Wood Yard""".split()


@dataclass(frozen=True, kw_only=True, slots=True)
class Topic:
    """What a world's questions are about.

    `search` is the tool that finds every attribute of a thing by name. A relation leads to another thing, which has
    the attributes. `guess` is a tool that answers at once and cannot be trusted. `meanings` are other words for
    attributes and relations. Of an attribute in `cheaper`, that tool finds the value too, for less, now and then.
    """

    search: str
    guess: str
    attributes: tuple[str, ...]
    relations: tuple[str, ...]
    meanings: Mapping[str, str]
    cheaper: Mapping[str, str] = field(default_factory=dict)

    @property
    def found(self) -> tuple[str, ...]:
        """All that `search` finds."""
        return (*self.attributes, *self.relations)


PLACES = Topic(
    search="local_search",
    guess="guess",
    attributes=("population", "area", "height", "length"),
    relations=("capital", "river"),
    meanings={
        "people": "population",
        "large": "area",
        "larger": "area",
        "high": "height",
        "higher": "height",
        "long": "length",
    },
)
GRAPHS = Topic(
    search="graph",
    guess="oracle",
    attributes=("number_of_nodes", "number_of_edges", "diameter", "radius", "degree", "shortest_path_length"),
    relations=("k_core",),
    meanings={
        "nodes": "number_of_nodes",
        "edges": "number_of_edges",
        "wide": "diameter",
        "wider": "diameter",
        "neighbors": "degree",
        "far": "shortest_path_length",
        "core": "k_core",
    },
    cheaper={"degree": "neighbors", "shortest_path_length": "path"},
)
TOPICS = (PLACES, GRAPHS)
MEANINGS = {name: name for topic in TOPICS for name in topic.found}
MEANINGS |= {word: meaning for topic in TOPICS for word, meaning in topic.meanings.items()}
CALCULATION_WORDS = {"plus", "minus", "times", "total", "together", "than", "more"}
SIGNS = {"plus": "+", "total": "+", "together": "+", "times": "*", "minus": "-", "Is": ">", "Do": ">", "Has": ">"}
YES_OR_NO = ("Is", "Do", "Has")  # how a question begins whose answer is yes or no
MOST_BACK = 3  # results that a scripted plan refers back to


def names(question: str) -> list[str]:
    """The things that a question names: its capitalized words except the first."""
    return [word for word in question.split()[1:] if word[0].isupper()]


def names_left(question: str, results: Sequence[str]) -> list[str]:
    """The things of a question that no result names, in its order."""
    seen = {word for result in results for word in result.split()}
    return [name for name in names(question) if name not in seen]


def is_name(word: str) -> bool:
    """Whether the last word of a result names a thing; else it is a value."""
    return word[0].isupper() and word not in ("True", "False")


def references(results: Sequence[Sequence[str]]) -> list[str]:
    """How an argument refers to each result: r1 is the newest value, r2 the one before, n1 the newest name."""
    found: list[str] = []
    for words in reversed(results):
        kind = "n" if is_name(words[-1]) else "r"
        found.append(f"{kind}{1 + sum(name[0] == kind for name in found)}")
    return found[::-1]


def read_question(question: str) -> tuple[str | None, bool]:
    """The attribute that a question asks for (None: arithmetic), and whether it asks for a calculation."""
    words = question.split()
    relations = {relation for topic in TOPICS for relation in topic.relations}
    attribute = next((MEANINGS[word] for word in words if MEANINGS.get(word, "capital") not in relations), None)
    return attribute, not CALCULATION_WORDS.isdisjoint(words)


class Situation:
    """State of a plan: a question, the (tool, result) of each turn so far that had a result, and the tools that failed.

    Each decision about the next step can be made soundly, or as the bad lesson about it says (`lessons.py`). A sound
    plan keeps a running total: it calculates as soon as it has two values, so each step needs only the newest results.
    """

    def __init__(self, question: str, steps: Sequence[tuple[str, str]], failed: Collection[str] = ()) -> None:
        self.words = question.split()
        self.asked, _ = read_question(question)
        self.topic = next((topic for topic in TOPICS if self.asked in topic.attributes), PLACES)
        self.names = names(question)
        self.left = names_left(question, [result for _, result in steps])
        self.numbers = [word for word in self.words if word.isdigit()]
        self.found = [words for _, result in steps if (words := result.split())]  # words of each result, newest last
        self.slots = references(self.found)
        self.failed = failed
        self.calculated = bool(steps) and steps[-1][0] == "python"

    @property
    def things(self) -> list[str]:
        """What can be looked up: things of the question, and names that were found."""
        return [*self.names, *self._found(True)]

    @property
    def terms(self) -> list[str]:
        """Operands of a calculation."""
        return [*self._found(False), *self.numbers] or ["r1"]

    def _found(self, names: bool) -> list[str]:
        """References to the newest names that were found, or to the newest values."""
        every = zip(self.slots, self.found, strict=True)
        return [slot for slot, words in every if is_name(words[-1]) == names][-MOST_BACK:]

    @property
    def led(self) -> bool:
        """Whether the newest result names another thing, whose attribute is not looked up yet."""
        return bool(self.found) and len(self.found[-1]) > 1 and self.found[-1][-2] in self.topic.relations

    @property
    def values(self) -> list[str]:
        """References to the values that a sound plan trusts: facts, and what was calculated."""
        found = zip(self.slots, self.found, strict=True)
        return [slot for slot, words in found if len(words) == 1 or words[-2] in self.topic.attributes]

    @property
    def two_values(self) -> bool:
        """Whether the newest result is a value that was looked up, and another one waits to be calculated with it."""
        return len(self.values) > 1 and not self.led and not self.calculated

    @property
    def all_found(self) -> bool:
        """Whether there is nothing left to look up."""
        return not self.left and not self.led

    def tool(self, sound: bool) -> str:
        """Look up what is needed, where it costs least, and calculate as soon as there are two values."""
        if not sound or self.two_values or self.all_found:
            return "python"
        cheaper = self.topic.cheaper.get(self.asked or "")
        return cheaper if cheaper and cheaper not in self.failed else self.topic.search

    def attribute(self, sound: bool) -> str:
        """Attribute to search for; of a thing that the question names as "the capital of ...", the capital first."""
        asked = self.asked or self.topic.attributes[0]
        if not sound:
            return self.topic.attributes[1]
        if not self.left or self.led:
            return asked
        before = self.words[self.words.index(self.left[0]) - 2]  # "the capital of Amberbank"
        relation = MEANINGS.get(before)
        return relation if relation in self.topic.relations else asked

    def place(self, sound: bool) -> str:
        """Thing to look up; call it only if there are `things`."""
        wanted = self.things[-1:] if self.led or not self.left else self.left
        return wanted[0] if sound else self.things[0]

    def query(self, tool: str, thing: str, attribute: str) -> str:
        """The argument of a look-up; a question about single nodes of a graph names them by number."""
        words = [thing] if tool in self.topic.cheaper.values() else [thing, attribute]
        return " ".join([*words, *self.numbers] if attribute in self.topic.cheaper else words)

    def operator(self, sound: bool) -> str:
        """Operator of the calculation; a comparison of a total with a number is made when the total is complete."""
        signs = [SIGNS[word] for word in self.words if word in SIGNS]
        if not sound or not signs:
            return "-"
        return "+" if self.two_values and "+" in signs else signs[0]

    def operands(self, sound: bool) -> tuple[str, str]:
        """Both operands of the calculation: the two newest values, or the newest and a number of the question."""
        terms = self.values if sound and self.two_values else self.terms
        return terms[-2 if sound else -1 :][0], terms[-1]
