"""How BFCL judges a multi-turn dialogue: after every turn of the user, against the ground truth replayed beside it.

A turn with expected calls is passed if a call was made in it, every public attribute of every object equals that of the
ground truth's objects, and every result of the turn's expected calls is among the results of all calls made so far,
each as often as it is expected, in any order. A turn without expected calls (a parameter or a function is missing, and
the model should say so) is not judged: what is called there shows in the state later. All judged turns must be passed.
Source: `multi_turn_checker` of bfcl-eval 2026.3.23.

Departures: upstream stops at the first turn that fails, and here all are judged, for rewards that count; upstream runs
calls of functions that do not exist or are held back, and here the agent answers them, so that they are no calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from midstream.tasks.bfcl.package import Entry, Package
from midstream.tasks.bfcl.state import State, same
from midstream.tasks.functions import Invocation, matched_calls


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnFacts:
    """What was found of one turn: matched and all attributes, calls and results; `why` it failed, "" if it did not.

    `finished` says that the agent ended its turn. Without expected calls there is nothing to match.
    """

    state: tuple[int, int]
    calls: tuple[int, int]
    results: tuple[int, int]
    why: str
    finished: bool

    def as_json(self) -> dict[str, JsonValue]:
        """The turn as a part of a dialogue's outcome."""
        return {
            "state": list(self.state),
            "calls": list(self.calls),
            "results": list(self.results),
            "passed": not self.why,
            "why": self.why,
            "finished": self.finished,
        }


class Judge:
    """Judges the turns of one rollout in order, replaying the ground truth on objects of its own."""

    def __init__(self, package: Package, entry: Entry) -> None:
        self._truth = State(package, entry)
        self._expected = [[self._truth.invocation(call) for call in turn] for turn in entry.truth]
        self._results: list[str] = []
        self.turns: list[TurnFacts] = []

    def turn(self, state: State, made: Sequence[tuple[Invocation, str]], *, finished: bool) -> None:
        """Judge the next turn: the calls made in it with their results, and the state that they have led to."""
        expected = self._expected[len(self.turns)]
        wanted = [self._truth.call(one).text for one in expected]
        self._results += [result for _, result in made]
        if not expected:
            self.turns.append(TurnFacts(state=(0, 0), calls=(0, 0), results=(0, 0), why="", finished=finished))
            return
        truth, found = self._truth.public(), state.public()
        differ = [name for name, value in truth.items() if not same(found.get(name), value)]
        missing = _missing(wanted, self._results)
        self.turns.append(
            TurnFacts(
                state=(len(truth) - len(differ), len(truth)),
                calls=(self._matched([one for one, _ in made], expected), len(expected)),
                results=(len(wanted) - len(missing), len(wanted)),
                why=_why(bool(made), differ, missing, finished),
                finished=finished,
            )
        )

    def outcome(self) -> dict[str, JsonValue]:
        """Success and the facts of every turn; turns that were never reached matched nothing."""
        attributes = len(self._truth.public())
        never = [
            TurnFacts(
                state=(0, attributes if expected else 0),
                calls=(0, len(expected)),
                results=(0, len(expected)),
                why="never reached",
                finished=False,
            )
            for expected in self._expected[len(self.turns) :]
        ]
        turns = self.turns + never
        why = next((f"turn {number}: {one.why}" for number, one in enumerate(turns, 1) if one.why), "")
        return {"success": not why, "why": why, "turns": [one.as_json() for one in turns]}

    def _matched(self, made: Sequence[Invocation], expected: Sequence[Invocation]) -> int:
        """Expected calls that were made in the turn, by name and arguments."""
        complete = self._truth.complete
        return matched_calls([complete(one) for one in made], [complete(one) for one in expected])


def _missing(wanted: Sequence[str], results: Sequence[str]) -> list[str]:
    """Those of `wanted` that are not among `results`, each of which stands for one."""
    left, missing = list(results), []
    for one in wanted:
        if one in left:
            left.remove(one)
        else:
            missing.append(one)
    return missing


def _why(called: bool, differ: Sequence[str], missing: Sequence[str], finished: bool) -> str:
    if not finished:
        return "the agent did not end its turn"
    if not called:
        return "nothing was called"
    if differ:
        return f"the state differs in {', '.join(differ)}"
    return f"{len(missing)} expected results are missing" if missing else ""
