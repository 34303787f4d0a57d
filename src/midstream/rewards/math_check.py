"""Whether an answer equals a gold one, by Math-Verify: runs inside the sandbox alone, where it is sent as text.

It does what Math-Verify's own tests do (look for LaTeX and plain numbers, boxed ones first), with three exceptions:

- A formula that stands by itself without dollars is put between them: of a bare `3\\sqrt{13}`, `2x` or `6 - 5i`
  Math-Verify reads the first or the last number alone, such as the 3. Words are read as words.
- An inline formula over several lines is left out, number and all: Math-Verify's inline formulas are of one line.
- Of a formula that Math-Verify finds and cannot read ("12²", `2 \\oplus 5`) it would take a number that stands in it.
  In an answer such a formula is text.
"""

import contextlib
import io
import json
import re
from typing import Any

import math_verify

# Boxed first, as in Math-Verify's own tests.
_LATEX = (math_verify.LatexExtractionConfig(boxed_match_priority=0),)
_WANTED = (*_LATEX, math_verify.ExprExtractionConfig())
_OVER_LINES = re.compile(r"(?<![\\\d$])\$[ \t]*\n[^$]*\n[ \t]*\$(?!\$)")
_DELIMITED = re.compile(r"\$.+\$|\\\(.+\\\)|\\\[.+\\\]|\\boxed", re.DOTALL)
_NUMBER = re.compile(r"[$€£]?-?(\d{1,3}([ ,]\d{3})+|\d*)([.,]?\d+)?\s*%?[.$€£]?")
_FUNCTIONS = r"sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|theta|infty"
_ROOT = re.compile(r"(?<![\\a-zA-Z])sqrt\(([^()]*)\)")
_NAMED = re.compile(rf"(?<![\\a-zA-Z])({_FUNCTIONS})(?![a-zA-Z])")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}")
_TEXT = re.compile(r"\\(text|textbf|mathrm|operatorname|begin|end)\s*\{[^{}]*\}")


def report(asked: str, mark: str) -> None:
    """Call `check` with the arguments in `asked` (JSON) and print one line: `mark` and its result as JSON.

    Output of the parsers is dropped: text from the answer must not use up the space for the verdict.
    """
    with contextlib.redirect_stdout(_Silence()), contextlib.redirect_stderr(_Silence()):
        found = check(**json.loads(asked))
    print(mark, json.dumps(found))  # noqa: T201 - to the sandbox, for the host


class _Silence(io.TextIOBase):
    """Drops all text."""

    def write(self, text: str) -> int:
        """Drop it."""
        return len(text)


def check(golds: list[str], answer: str, precision: int, strict: bool, allow_set_relation_comp: bool) -> dict[str, Any]:
    """{"right": whether the answer equals one of `golds`}, or {"unreadable": the gold with nothing to compare}.

    Without Math-Verify's time-out, which takes signals: the sandbox ends this process.
    """
    found = read(answer, whole=True)
    for gold in golds:
        wanted = read(gold)
        if not wanted:
            return {"unreadable": gold}
        if math_verify.verify(
            wanted,
            found,
            float_rounding=precision,
            strict=strict,
            allow_set_relation_comp=allow_set_relation_comp,
            timeout_seconds=None,
        ):
            return {"right": True}
    return {"right": False}


def read(text: str, *, whole: bool = False) -> list[Any]:
    """What Math-Verify finds in a text to compare; `whole`: no part of a formula that it cannot read."""
    text = _OVER_LINES.sub(" ", text).strip()
    if _DELIMITED.search(text) or _NUMBER.fullmatch(text):
        return _parse(text, whole)
    formula = _NAMED.sub(r"\\\1", _ROOT.sub(r"\\sqrt{\1}", re.sub(r"\\?\$", "", text).replace("**", "^")))
    if not _WORD.search(_TEXT.sub("", formula)):
        return _parse(f"${' '.join(formula.split())}$", whole)
    return _parse(text, whole) or _parse(rf"$\text{{{' '.join(text.split())}}}$", whole)


def _parse(text: str, whole: bool) -> list[Any]:
    """An expression and the text that it was read from, that text alone, or nothing."""
    found = math_verify.parse(text, _WANTED, parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    if not whole or len(found) < 2:
        return found
    formula = math_verify.parse(text, _LATEX, parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    return formula if formula == found[1:] else found
