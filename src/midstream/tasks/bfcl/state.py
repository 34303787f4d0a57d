"""The state of one BFCL rollout: fresh objects of the classes that its task involves, and calls on them.

Upstream keeps the objects of a model and a task in the module's globals, so that the second of two rollouts starts
where the first has ended, and it makes a call by evaluating what the model wrote. Here every rollout has objects of its
own, and a call is a function's name looked up among the documented ones and arguments that are values already.
"""

from __future__ import annotations

import copy
import decimal
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from midstream.core.protocols import ToolResult
from midstream.tasks.bfcl.package import Document, Entry, Package, parse_call
from midstream.tasks.functions import Invocation

MOST_DIGITS = 10_000  # of a result: what would take longer to compute than anybody waits is refused
_BITS_PER_DIGIT = 3.33


class State:
    """The objects of one rollout of a task, at its start."""

    def __init__(self, package: Package, entry: Entry) -> None:
        self._objects = {name: _started(package, entry, name) for name in entry.classes}
        self.documents: dict[str, Document] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        for of_class, one in self._objects.items():
            self.documents |= package.documents(of_class)
            self._methods |= {name: getattr(one, name) for name in package.documents(of_class)}

    def call(self, invocation: Invocation) -> ToolResult:
        """Make a call. Its text is upstream's; `ok` is False where the function raises or answers with an error.

        Defaults are handed over as copies: a list among them would go into the state of every rollout.
        """
        method = self._methods[invocation.name]
        try:
            _refuse_endless(invocation)
            with _precision_kept():
                result = method(**copy.deepcopy(dict(self.complete(invocation).arguments)))
                return ToolResult(text=_text(result), ok=not (isinstance(result, dict) and "error" in result))
        except Exception as error:  # noqa: BLE001 - upstream's functions raise anything, and so answer wrong arguments
            return ToolResult(text=f"Error during execution: {error}", ok=False)

    def invocation(self, expected: str) -> Invocation:
        """An expected call as written in the data, its arguments by name."""
        name, placed, named = parse_call(expected)
        bound = inspect.signature(self._methods[name]).bind(*placed, **named)
        return Invocation(name=name, arguments=bound.arguments)

    def complete(self, invocation: Invocation) -> Invocation:
        """The call with the function's own defaults for what it leaves out: two ways to say the same are then equal."""
        try:
            bound = inspect.signature(self._methods[invocation.name]).bind(**invocation.arguments)
        except TypeError:
            return invocation
        bound.apply_defaults()
        return Invocation(name=invocation.name, arguments=bound.arguments)

    def public(self) -> dict[str, Any]:
        """The public attributes of all objects, by class and name: what is compared."""
        return {
            f"{of_class}.{name}": value
            for of_class, one in self._objects.items()
            for name, value in vars(one).items()
            if not name.startswith("_")
        }


def same(left: object, right: object) -> bool:
    """Whether two attributes are equal; a directory that a model has copied into itself is equal to nothing."""
    try:
        return bool(left == right)
    except RecursionError:
        return False


def _started(package: Package, entry: Entry, of_class: str) -> Any:
    one = package.make(of_class)
    if of_class in package.stateless:
        return one
    one._load_scenario(copy.deepcopy(entry.initial.get(of_class, {})), long_context=entry.long_context)
    # For a long context some classes take in dictionaries of their module, and a booking would change them for all.
    return copy.deepcopy(one)


def _text(result: object) -> str:
    """A result as upstream shows and compares it."""
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def _refuse_endless(invocation: Invocation) -> None:
    """Raise `ValueError` for the ways in which one call of the calculator could run for hours."""
    given: Mapping[str, Any] = invocation.arguments
    base, exponent = given.get("base"), given.get("exponent")
    for digits in (given.get("precision"), given.get("decimal_places")):
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
    """The calculator sets the precision of `decimal` and mpmath for the whole process: put both back."""
    mpmath = sys.modules.get("mpmath")
    kept = mpmath.mp.dps if mpmath else 0
    try:
        with decimal.localcontext():
            yield
    finally:
        if mpmath:
            mpmath.mp.dps = kept
