"""A batch's proposals before and after they are merged: equal ones made one, and where each result came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from midstream.core.prompt_text import to_json
from midstream.practice.library import Origin
from midstream.practice.operations import Operation, Outcome
from midstream.practice.replies import Change


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """The batch's operations, and the proposals that are not among them as they were, each with what became of it."""

    operations: tuple[Operation, ...]
    left_out: tuple[Outcome, ...] = ()


class Proposals:
    """The groups' operations, numbered from 1; those that say the same are one, with all the origins behind it."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        alike: dict[tuple[str, ...], list[Operation]] = {}
        for one in operations:
            alike.setdefault(_content(one), []).append(one)
        self.operations = tuple(
            same[0].model_copy(update={"origin": _joined([one.origin for one in same])}) for same in alike.values()
        )

    def shown(self) -> str:
        """One line of JSON a proposal, with the number of groups behind it."""
        lines = []
        for number, one in enumerate(self.operations, 1):
            asked = {"kind": one.kind, "id": one.id, "text": one.text, "module": one.module, "why": one.origin.why}
            said = {key: value for key, value in asked.items() if value}
            lines.append(to_json({"proposal": number, "groups": len(one.origin.tasks), **said}))
        return "\n".join(lines)

    def merged(self, changes: Sequence[Change], modules: Sequence[str], model: str) -> Merged:
        """The merger's list, each operation with the origins of the proposals that it was made of.

        Those are the ones that it names; if none, those on the same lesson or with the same text; if there are none
        either, the whole batch, which is what the merger had before it. What is left as it was keeps its model.
        """
        operations: list[Operation] = []
        taken: dict[int, Operation] = {}
        for change in changes:
            made = change.operation(Origin(), modules)
            sources = self._sources(made, change.sources)
            behind = [self.operations[place] for place in sources] or list(self.operations)
            origin = _joined([one.origin for one in behind])
            new = all(_content(one) != _content(made) for one in behind)
            written = {"why": change.why or origin.why, "model": model if new else origin.model}
            made = made.model_copy(update={"origin": origin.model_copy(update=written)})
            operations.append(made)
            for place in sources:
                taken.setdefault(place, made)
        return Merged(operations=tuple(operations), left_out=tuple(self._left_out(operations, taken)))

    def _sources(self, made: Operation, named: Sequence[int]) -> list[int]:
        """Places of the proposals that an operation was made of."""
        places = [number - 1 for number in dict.fromkeys(named) if 0 < number <= len(self.operations)]
        if places:
            return places
        if made.kind == "add":
            return [place for place, one in enumerate(self.operations) if _content(one) == _content(made)]
        return [place for place, one in enumerate(self.operations) if one.kind != "add" and one.id == made.id]

    def _left_out(self, operations: Sequence[Operation], taken: dict[int, Operation]) -> Iterable[Outcome]:
        kept = {_content(one) for one in operations}
        for place, one in enumerate(self.operations):
            if _content(one) in kept:
                continue
            into = taken.get(place)
            words = "left out by the merger" if into is None else f"merged into: {_named(into)}"
            yield Outcome(operation=one, refused=words)


def _content(one: Operation) -> tuple[str, ...]:
    """What an operation asks for, whoever asks. A lesson's text is for the module that it is in."""
    return one.kind, one.id, one.text, one.module if one.kind == "add" else ""


def _named(one: Operation) -> str:
    return " ".join(word for word in (one.kind, one.id, one.text) if word)


def _joined(origins: Sequence[Origin]) -> Origin:
    """One origin of several: all their tasks and trajectories, each once, and the first reason that was given."""
    return origins[0].model_copy(
        update={
            "tasks": tuple(dict.fromkeys(task for one in origins for task in one.tasks)),
            "trajectories": tuple(dict.fromkeys(name for one in origins for name in one.trajectories)),
            "why": next((one.why for one in origins if one.why), ""),
        }
    )
