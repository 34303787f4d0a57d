"""The state of one BFCL rollout, calls on it, and BFCL's judgment of its turns.

Upstream keeps the objects of a model and a task in the module's globals, so that the second of two rollouts starts with
the state in which the first ended, and it makes a call by evaluating the model's text. Here every rollout has separate
objects, and a call is a documented function's name and arguments that are values already.

After every turn of the user, the rollout is compared with a replay of the ground truth. A turn with expected calls is
passed if a call was made in it, every public attribute of every object equals that of the ground truth's objects, and
every result of the turn's expected calls is among the results of all calls made so far, each as often as it is
expected, in any order. A turn without expected calls (a parameter or a function is missing, and the model should ask)
is not judged: its calls show in the state later. All judged turns must be passed. Source: `multi_turn_checker` of
bfcl-eval 2026.3.23.

Differences from upstream: it stops at the first turn that fails, and here all are judged, for rewards that count; it
runs calls of functions that do not exist or are held back, and here the agent answers them, so that they are no calls.
"""

from __future__ import annotations

import copy
import decimal
import inspect
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import JsonValue

from midstream.core.tool import ToolResult
from midstream_benchmarks.bfcl_package import Entry, Package, parse_call
from midstream_benchmarks.reading import matched_calls
from midstream_worlds.functions import FunctionSpec, Invocation

MOST_DIGITS = 10_000  # of a result: a longer computation is refused
_BITS_PER_DIGIT = 3.33
Match = tuple[int, int]  # how many match, of how many


class State:
    """The objects of one rollout of a task, in their first state."""

    def __init__(self, package: Package, entry: Entry) -> None:
        self._objects: dict[str, Any] = {}
        self.documents: dict[str, FunctionSpec] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        for of_class in entry.classes:
            instance = package.make(of_class)
            if of_class not in package.stateless:
                initial = copy.deepcopy(entry.initial.get(of_class, {}))
                instance._load_scenario(initial, long_context=entry.category == "long_context")
                # For a long context some classes use dictionaries of their module, which a booking would change.
                instance = copy.deepcopy(instance)
            self._objects[of_class] = instance
            self.documents |= package.documents(of_class)
            self._methods |= {name: getattr(instance, name) for name in package.documents(of_class)}

    def call(self, invocation: Invocation) -> ToolResult:
        """Make a call. Its text is upstream's; `ok` is False where the function raises or answers with an error.

        Defaults are passed as copies: a list among them would otherwise be shared by the states of all rollouts.
        """
        method = self._methods[invocation.name]
        try:
            _refuse_endless(invocation.arguments)
            with _precision_kept():
                result = method(**copy.deepcopy(dict(self.complete(invocation).arguments)))
                return ToolResult(text=_text(result), ok=not (isinstance(result, dict) and "error" in result))
        except Exception as error:  # noqa: BLE001 - upstream's functions raise anything on wrong arguments
            return ToolResult(text=f"Error during execution: {error}", ok=False)

    def invocation(self, expected: str) -> Invocation:
        """Convert an expected call of the data to one with all arguments by name."""
        name, positional, named = parse_call(expected)
        bound = inspect.signature(self._methods[name]).bind(*positional, **named)
        return Invocation(name=name, arguments=bound.arguments)

    def complete(self, invocation: Invocation) -> Invocation:
        """Add the function's own defaults to a call, so that equivalent calls are equal."""
        try:
            bound = inspect.signature(self._methods[invocation.name]).bind(**invocation.arguments)
        except TypeError:
            return invocation
        bound.apply_defaults()
        return Invocation(name=invocation.name, arguments=bound.arguments)

    def public(self) -> dict[str, Any]:
        """The public attributes of all objects, by class and name, for comparison."""
        return {
            f"{of_class}.{name}": value
            for of_class, instance in self._objects.items()
            for name, value in vars(instance).items()
            if not name.startswith("_")
        }


class Judge:
    """Judges the turns of one rollout in order, replaying the ground truth on separate objects.

    `turns` has the facts of each: matched and all attributes, calls and results; `why` it failed, "" if it passed;
    whether the agent ended it (`finished`). Without expected calls there is nothing to match.
    """

    def __init__(self, package: Package, entry: Entry) -> None:
        self._truth = State(package, entry)
        self._expected = [[self._truth.invocation(call) for call in turn] for turn in entry.truth]
        self._results: list[str] = []
        self.turns: list[dict[str, JsonValue]] = []

    def turn(self, state: State, made: Sequence[tuple[Invocation, str]], *, finished: bool) -> None:
        """Judge the next turn by its calls with their results, and by the state after them."""
        expected = self._expected[len(self.turns)]
        wanted = [self._truth.call(call).text for call in expected]
        self._results += [result for _, result in made]
        if not expected:
            self._add((0, 0), (0, 0), (0, 0), "", finished=finished)
            return
        truth, found = self._truth.public(), state.public()
        differ = [name for name, value in truth.items() if not _same(found.get(name), value)]
        missing = (Counter(wanted) - Counter(self._results)).total()  # each result stands for one expected result
        if not finished:
            why = "the agent did not end its turn"
        elif not made:
            why = "nothing was called"
        elif differ:
            why = f"the state differs in {', '.join(differ)}"
        else:
            why = f"{missing} expected results are missing" if missing else ""
        complete = self._truth.complete
        calls = matched_calls([complete(call) for call, _ in made], [complete(call) for call in expected])
        self._add(
            (len(truth) - len(differ), len(truth)),
            (calls, len(expected)),
            (len(wanted) - missing, len(wanted)),
            why,
            finished=finished,
        )

    def outcome(self) -> dict[str, JsonValue]:
        """Return success and the facts of every turn; turns that were never reached matched nothing."""
        attributes = len(self._truth.public())
        for expected in self._expected[len(self.turns) :]:
            count = len(expected)
            self._add((0, attributes if count else 0), (0, count), (0, count), "never reached", finished=False)
        reasons = [f"turn {number}: {turn['why']}" for number, turn in enumerate(self.turns, 1) if turn["why"]]
        turns: list[JsonValue] = [*self.turns]
        return {"success": not reasons, "why": reasons[0] if reasons else "", "turns": turns}

    def _add(self, state: Match, calls: Match, results: Match, why: str, *, finished: bool) -> None:
        facts: dict[str, JsonValue] = {"state": [*state], "calls": [*calls], "results": [*results]}
        self.turns.append({**facts, "passed": not why, "why": why, "finished": finished})


def _same(left: object, right: object) -> bool:
    """Whether two attributes are equal; a directory that a model has copied into itself is equal to nothing."""
    try:
        return bool(left == right)
    except RecursionError:
        return False


def _text(result: object) -> str:
    """A result as upstream shows and compares it."""
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            pass
    return str(result)


def _refuse_endless(arguments: Mapping[str, Any]) -> None:
    """Raise `ValueError` for calls of the calculator that could run for hours."""
    base, exponent = arguments.get("base"), arguments.get("exponent")
    for digits in (arguments.get("precision"), arguments.get("decimal_places")):
        if isinstance(digits, int) and abs(digits) > MOST_DIGITS:
            raise ValueError(f"a precision of more than {MOST_DIGITS} digits")
    if (
        isinstance(base, int)
        and isinstance(exponent, int)
        and base.bit_length() * exponent > MOST_DIGITS * _BITS_PER_DIGIT
    ):
        raise ValueError(f"a power of more than {MOST_DIGITS} digits")


@contextmanager
def _precision_kept() -> Iterator[None]:
    """Restore the precision of `decimal` and mpmath, which the calculator sets for the whole process."""
    mpmath = sys.modules.get("mpmath")
    kept = mpmath.mp.dps if mpmath else 0
    try:
        with decimal.localcontext():
            yield
    finally:
        if mpmath:
            mpmath.mp.dps = kept
