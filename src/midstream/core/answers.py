"""Answers as text: find one in a reply, normalize it for comparison, extract its numbers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Hashable, Iterable

_TAG = re.compile(r"<\s?([/\\]?)\s?answer\s?/?>", re.IGNORECASE)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MINUS = str.maketrans("−", "-")
_SPACED_SIGN = re.compile(r"(?<!\S)([-+])\s+(?=[$€£]?\.?[0-9])")
# A sign without a letter or digit before it, digits joined by punctuation ("1,000.5", "1/2", "12:30"), an exponent.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)])[-+])?[$€£]?(?P<digits>(?:(?<![\w.])\.)?[0-9]+(?:[^\w\s()]+[0-9]+)*(?:e[-+]?[0-9]+\b)?)"
)
_PLAIN = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+")
_BARE = re.compile(rf"[-+−]?(?:{_PLAIN.pattern})(?:e[-+]?[0-9]{{1,3}})?", re.IGNORECASE)
_LONGEST_NUMBER = 100
LONGEST = 3_000
"""Characters of a reply that are scored, its last ones: they bound the time of every rule."""


def extract(text: str) -> str:
    """The answer in a reply, trimmed: the one place that reads answer tags. Twice gives the same as once.

    Of a text with answer tags, in any case, it is what the last pair holds that is not blank. A second opening tag
    closes as well, and what no tag closes counts only where nothing else does.
    """
    parts = _TAG.split(text)
    marks = parts[1::2]
    # The text before the first tag is an answer without any tag, or where the prompt ends in the opening tag.
    before = ["/" if "" in marks else "", *marks]
    opened = [part.strip() for mark, part in zip(before, parts[::2], strict=True) if not mark]
    closed = opened if marks and marks[-1] else opened[:-1]
    return next(filter(None, reversed([*opened[-1:], *closed])), "")


def normalize(text: str) -> str:
    """SQuAD's normal form: lower case, then without ASCII punctuation, articles and surplus white space.

    Not normalized: other punctuation (’ “ –), accents, the forms of numbers and dates ("1,000.0" becomes "10000"),
    singular and plural. Punctuation is removed without leaving a space, so "well-known" differs from "well known".
    Signs and decimal points are removed too: compare `numbers` with the normal forms, or compare `words`.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def numbers(text: str) -> tuple[str, ...]:
    """Every number of a text, in order and in one form, so that equal numbers are equal texts.

    "$1,000.50" and "1000.5" give "1000.5", "-007" and "− 7" give "-7". Other combinations of digits and punctuation are
    unchanged: "1/2", "12:30", "3,14" (no decimal comma is guessed), "3.5e4". Digits may be next to letters ("covid-19"
    has a "19"); only the digits 0 to 9 count.
    """
    text = _SPACED_SIGN.sub(r"\1", text.translate(_MINUS).lower())
    found = []
    for match in _NUMBER.finditer(text):
        digits = match["digits"]
        if _PLAIN.fullmatch(digits):
            whole, _, fraction = digits.replace(",", "").partition(".")
            whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
            digits = f"{whole}.{fraction}" if fraction else whole
        found.append(f"-{digits}" if match["sign"] == "-" and digits != "0" else digits)
    return tuple(found)


def is_number(text: str) -> bool:
    """Return whether a text is a plain number and nothing else: "-1,000.5", "3e4"."""
    return len(text) <= _LONGEST_NUMBER and _BARE.fullmatch(text.strip()) is not None


def most_frequent(answers: Iterable[Hashable | None]) -> list[Hashable]:
    """The values that occur most often, in the order in which they first occur; None is no vote."""
    votes = Counter(answer for answer in answers if answer is not None)
    most = max(votes.values(), default=0)
    return [answer for answer, count in votes.items() if count == most]


def words(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """The words of the normal form, each with the numbers in the text that it was made from.

    This distinguishes "-5" from "5", "3.14" from "314" and "1990-1995" from "19901995", which SQuAD's normal form does
    not. The minus sign (−) counts as a hyphen.
    """
    raw = _SPACED_SIGN.sub(r"\1", text.translate(_MINUS)).split()
    return [(word, own) for part in raw for own in [numbers(part)] for word in normalize(part).split()]
