"""What a question's words tell of the next step of a plan: the sound one, and the one that a bad lesson asks for.

Read by the programs that plan and judge (`programs.py`) and by the one that looks for lessons in rollouts
(`reflector.py`). A question's text, and which tools were used so far, are all they see.
"""

from __future__ import annotations

from collections.abc import Sequence

from midstream.worlds.gazetteer.tasks import PLACE_ATTRIBUTES

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


def places(question: str) -> list[str]:
    """The places that a question names: its capitalised words but the first."""
    return [word for word in question.split()[1:] if word[0].isupper()]


def asked(question: str) -> tuple[str | None, bool]:
    """What a question wants, from its words alone: the attribute asked for, and whether a calculation is."""
    words = question.split()
    noun = next((word for word in words if word in (*PLACE_ATTRIBUTES, "length")), None)
    attribute = noun or next((ADJECTIVES[word] for word in words if word in ADJECTIVES), None)
    return attribute, not CALCULATION_WORDS.isdisjoint(words)


class Situation:
    """Where a plan stands: a question, and the tools of the turns so far ("" for an action that could not be read).

    Each decision about the next step can be taken soundly, or as the bad lesson about it says (`gazetteer_lessons.py`).
    """

    def __init__(self, question: str, used: Sequence[str]) -> None:
        self.words = question.split()
        self.asked, _ = asked(question)
        self.names = places(question)
        self.numbers = [word for word in self.words if word.isdigit()]
        self.slots = [f"r{turn}" for turn in range(1, len(used) + 1)]
        self.found = sum(tool == "local_search" for tool in used)
        self.relation = next((word for word in ("capital", "river") if word in self.words), None)

    @property
    def needed(self) -> int:
        """How many look-ups a sound plan makes."""
        return 2 if self.relation else len(self.names)

    @property
    def things(self) -> list[str]:
        """What can be looked up: places, and results, which may name one."""
        return [*self.names, *self.slots]

    @property
    def terms(self) -> list[str]:
        """What can be calculated with."""
        return [*self.slots, *self.numbers] or ["r1"]

    def tool(self, sound: bool) -> str:
        """Look up what is needed, then calculate."""
        return "local_search" if sound and self.found < self.needed else "python"

    def attribute(self, sound: bool) -> str:
        """What to search for: the capital or river first where the question goes by way of one."""
        if not sound:
            return "area"
        return self.relation if self.relation and not self.found else self.asked or "area"

    def place(self, sound: bool) -> str:
        """Where to search; only where there are `things`."""
        wanted = self.slots if self.relation and self.slots else self.names[self.found :]
        return (wanted or self.things)[0] if sound else self.things[0]

    def operator(self, sound: bool) -> str:
        """How to calculate."""
        return next((SIGNS[word] for word in self.words if word in SIGNS), "-") if sound else "-"

    def operands(self, sound: bool) -> tuple[str, str]:
        """What to calculate with."""
        return self.terms[0] if sound else self.terms[-1], self.terms[-1]
