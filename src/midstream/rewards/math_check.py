r"""Whether a formula equals a gold one, by Math-Verify: runs inside the sandbox alone, where it is sent as text.

Both are formulas without dollars, as `rewards/statement.py` reads them. Of a formula that Math-Verify cannot read
(`2 \oplus 5`) it would take a number that stands in it; here it equals itself alone.
"""

import contextlib
import io
import json
import re
from functools import partial
from itertools import permutations
from typing import Any

import math_verify

_FUNCTIONS = r"sin|cos|tan|cot|sec|csc|log|ln|exp|theta"
_NAMED = re.compile(rf"(?<![\\a-zA-Z])({_FUNCTIONS})(?![a-zA-Z])")
_PLAIN_SET = re.compile(r"^\{([^{}\\]*)\}$")
_MEMBER = re.compile(r"^\s*[a-zA-Z]\s*\\in(?![a-z])")
_FUNCTION_OF = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]\([a-z]\)\s*=")
_DESCENDING = re.compile(r"^([^<>=]+)>([^<>=]+)>([^<>=]+)$")
_RELATION = re.compile(r"\s*(?:[<>]|\\(?:le|ge|ne)(?![a-z]))")
_FLIPPED = re.compile(r"^\s*([^<>\\a-z]+|-?\\[a-z]+ )(<|>|\\[lg]e)\s*([a-zA-Z])\s*$")
_FLIP = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_BOUND = re.compile(r"\s*(?:([^<>\\]+?)(<|\\le)\s*)?([a-zA-Z])\s*(<|>|\\[lg]e)(?![a-z])([^<>]+)")
_TENS = re.compile(r"(?<=\d)_\{?10\}?(?!\d)")
_BRACES, _TUPLE = re.compile(r"\s*\\?\{.*\}\s*"), re.compile(r"\s*[(\[][^()\[\]]*[)\]]\s*")
_BASE = re.compile(r"\d_\{?\s*(\d+)")
_RATIO = re.compile(r"\d\s*:\s*\d")
_TWO_NUMBERS = re.compile(r"(?<![_^\d])\d+ \d")
_CHAIN = re.compile(r"^(?:(?:\([^()]*\)|[^()=,;<>])+=){2,}")
_DEGREES = re.compile(r"(\\(?:sin|cos|tan)(?:\s*\^\s*\{?\d\}?)?)\s*[({]?\s*(\d+)\s*\^\s*\{?\\circ\s*\}?\s*[)}]?")
_JOINED_DIGITS = re.compile(r"(?<=\d),(?=-?\d)(?!\d{3}(?!\d))")


def report(asked: str, mark: str) -> None:
    """Call `check` with the arguments in `asked` (JSON) and print one line: `mark` and its result as JSON.

    Output of the parsers is dropped: text from the answer must not use up the space for the verdict.
    """
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found = check(**json.loads(asked))
    print(mark, json.dumps(found))  # noqa: T201 - to the sandbox, for the host


def check(
    golds: list[str], answer: str, precision: int, strict: bool, allow_set_relation_comp: bool
) -> dict[str, object]:
    """{"right": whether the answer equals one of `golds`}, or {"unreadable": the gold with nothing to compare}.

    Without Math-Verify's time-out, which takes signals: the sandbox ends this process.
    """
    answer = _TENS.sub("", answer)
    for gold in map(partial(_TENS.sub, ""), golds):
        if not (wanted := parse(gold, answer)):
            return {"unreadable": gold}
        if (
            _BASE.findall(gold) != _BASE.findall(answer)
            or _TWO_NUMBERS.search(answer)
            or bool(_RATIO.search(gold)) != bool(_RATIO.search(answer))
            or any(_BRACES.fullmatch(set_) and _TUPLE.fullmatch(other) for set_, other in permutations((gold, answer)))
        ):
            continue
        if math_verify.verify(
            wanted,
            parse(answer, gold),
            float_rounding=precision,
            strict=strict,
            allow_set_relation_comp=allow_set_relation_comp,
            timeout_seconds=None,
        ):
            return {"right": True}
    return {"right": False}


def parse(formula: str, other: str = "") -> list[Any]:
    """An expression and the text that it was read from, that text alone, or nothing."""
    formula = _PLAIN_SET.sub(r"\\{\1\\}", _FUNCTION_OF.sub("", _MEMBER.sub("", formula.replace("%", r"\%"))))
    formula = _JOINED_DIGITS.sub(", ", _NAMED.sub(r"\\\1", formula))
    formula = _DEGREES.sub(r"\1(\\frac{\2\\pi}{180})", formula)
    if "=" not in other:
        formula = _CHAIN.sub("", formula)  # "v = (4 - 1, 0 - 2) = (3, -2)"
    formula = _DESCENDING.sub(r"\3<\2<\1", formula)
    # "x < -2, x > 4", which Math-Verify does not compare with a union; with "and" between them they are not a union.
    formula = formula if r"\cup" in other else formula.replace(r"\land", ",")
    # "4 < x" is "x > 4", the form that `_BOUND` reads.
    parts = [
        _FLIPPED.sub(lambda found: f"{found[3]} {_FLIP[found[2]]} {found[1]}", part) for part in formula.split(",")
    ]
    bounds = [bound for part in parts if (bound := _BOUND.fullmatch(part))]
    if r"\cup" in other and len(bounds) == len(parts) and len({bound[3] for bound in bounds}) == 1:
        formula = r"\cup ".join(map(_interval, bounds))
    if _RELATION.match(formula):
        # "> 3" holds of what the other formula names.
        named = re.search(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])", other)
        formula = f"{named[0] if named else 'x'} {formula}"
    # Its default settings: the sandbox compiled their patterns before the fork.
    wanted = [math_verify.LatexExtractionConfig()]
    return math_verify.parse(f"${formula}$", wanted, parsing_timeout=None)  # pyright: ignore[reportArgumentType]


def _interval(bound: re.Match[str]) -> str:
    """The interval of `low < x < high`, `x < high` or `x > high`."""
    low, left, _, right, high = bound.groups()
    if right in (">", r"\ge"):
        low, left, right, high = high, right, "<", r"\infty"
    first, last = "[" if left in (r"\le", r"\ge") else "(", ")" if right == "<" else "]"
    return first + (low or r"-\infty") + "," + high + last
