"""The gazetteer's words, and the next step of a plan by them: the sound one, and the one that a bad lesson asks for.

The scripted programs that plan and judge read questions here, and so does the reflector that looks for lessons in
rollouts. All they see is the text and the tools of the turns so far.
"""

from __future__ import annotations

from collections.abc import Sequence

from midstream.worlds.gazetteer.compact import places, places_left

FIRST = """Amber Ash Birch Black Blue Bright Cedar Clay Cold Copper Coral Crown Dark Deep Dry Dusk East Elder Ember
Fair Far Fern Frost Gold Granite Gray Green High Hollow Iron Ivory Jade Kings Lone Long Lower Maple Marble Mist Moon
Moss North Oak Old Olive Pearl Pine Quartz Red River Rose Royal Ruby Salt Sand Shade Silver Sky Snow South Star Stone
Storm Sun Swan Thorn Upper West White Wild Willow Winter Wolf""".split()
SECOND = """Bank Barrow Bay Bluff Bridge Brook Castle Cliff Coast Cove Creek Crest Cross Dale Delta Den Down Falls Fell
Field Ford Forge Fort Garden Gate Glade Glen Grove Harbor Haven Heath Hill Hold Hollow Island Keep Lake Land Marsh
Meadow Mill Moor Mount Pass Peak Plain Point Port Quay Reach Ridge Rock Shore Spring Strand Summit Tower Town Vale
Valley View Ward Watch Water Well Wick Wood Yard""".split()

PLACE_ATTRIBUTES = ("population", "area", "height")
ATTRIBUTES = (*PLACE_ATTRIBUTES, "length", "capital", "river")

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
MOST_BACK = 3  # results that a scripted plan refers back to
OPERATORS = {"plus": "+", "minus": "-", "times": "*"}


def question_words() -> set[str]:
    """Every word of questions and facts, except names and numbers."""
    templates = [text for group in (ASK, SUM, DIFF, COMPARE) for texts in group.values() for text in texts]
    text = " ".join([*templates, *OPERATORS, "? total the capital river of is and"])
    return {*text.replace("{}", "").split(), *ATTRIBUTES}


ADJECTIVES = {
    "people": "population",
    "large": "area",
    "larger": "area",
    "high": "height",
    "higher": "height",
    "long": "length",
}
CALCULATION_WORDS = {"plus", "minus", "times", "total", "together", "than"}
SIGNS = {"plus": "+", "total": "+", "together": "+", "times": "*", "Is": ">", "Do": ">"}


def read_question(question: str) -> tuple[str | None, bool]:
    """The attribute that a question asks for (None: arithmetic), and whether it asks for a calculation."""
    words = question.split()
    noun = next((word for word in words if word in (*PLACE_ATTRIBUTES, "length")), None)
    attribute = noun or next((ADJECTIVES[word] for word in words if word in ADJECTIVES), None)
    return attribute, not CALCULATION_WORDS.isdisjoint(words)


class Situation:
    """State of a plan: a question, and the (tool, result) of each turn so far that had a result.

    Each decision about the next step can be made soundly, or as the bad lesson about it says (`lessons.py`). A sound
    plan keeps a running total: it calculates as soon as it has two values, so each step needs only the newest results.
    """

    def __init__(self, question: str, steps: Sequence[tuple[str, str]]) -> None:
        self.words = question.split()
        self.asked, _ = read_question(question)
        self.names = places(question)
        self.left = places_left(question, [result for _, result in steps])
        self.numbers = [word for word in self.words if word.isdigit()]
        self.tools = [tool for tool, _ in steps]
        self.slots = [f"r{back}" for back in range(min(len(steps), MOST_BACK), 0, -1)]  # newest last
        self.relation = next((word for word in ("capital", "river") if word in self.words), None)

    @property
    def things(self) -> list[str]:
        """What can be looked up: places, and results, which may name a place."""
        return [*self.names, *self.slots]

    @property
    def terms(self) -> list[str]:
        """Operands of a calculation."""
        return [*self.slots, *self.numbers] or ["r1"]

    @property
    def all_found(self) -> bool:
        """Whether there is nothing left to look up."""
        return not self.left and (self.relation is None or self.tools.count("local_search") > 1)

    def tool(self, sound: bool) -> str:
        """Look up what is needed, and calculate as soon as there are two values."""
        two = self.relation is None and len(self.tools) > 1 and self.tools[-1] == "local_search"
        return "python" if not sound or two or self.all_found else "local_search"

    def attribute(self, sound: bool) -> str:
        """Attribute to search for: the capital or river first, where the question refers to one."""
        if not sound:
            return "area"
        return self.relation if self.relation and self.left else self.asked or "area"

    def place(self, sound: bool) -> str:
        """Place to search for; call it only if there are `things`."""
        wanted = self.left or self.slots[-1:] or self.things
        return wanted[0] if sound else self.things[0]

    def operator(self, sound: bool) -> str:
        """Operator of the calculation."""
        return next((SIGNS[word] for word in self.words if word in SIGNS), "-") if sound else "-"

    def operands(self, sound: bool) -> tuple[str, str]:
        """Both operands of the calculation: the two newest values, or the newest and a number of the question."""
        return self.terms[-2 if sound else -1 :][0], self.terms[-1]
