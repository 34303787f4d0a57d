"""An answer as text: where it stands in a reply, its normal form for comparing words, the numbers in it."""

from __future__ import annotations

import re
import string

OPEN, CLOSE = "<answer>", "</answer>"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MINUS = str.maketrans("−", "-")
_SPACED_SIGN = re.compile(r"(?<!\S)([-+])\s+(?=[$€£]?\.?[0-9])")
# A sign that no letter or digit stands before, digits joined by punctuation ("1,000.5", "1/2", "12:30"), an exponent.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)])[-+])?[$€£]?(?P<digits>(?:(?<![\w.])\.)?[0-9]+(?:[^\w\s()]+[0-9]+)*(?:e[-+]?[0-9]+\b)?)"
)
_PLAIN = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+")


def extract(text: str) -> str:
    """The last `<answer>...</answer>` of a text, trimmed; all of it where no tag is, "" where none is closed."""
    if OPEN not in text:
        return text.strip()
    found, end = "", 0
    while (start := text.find(OPEN, end)) >= 0 and (close := text.find(CLOSE, start)) >= 0:
        found, end = text[start + len(OPEN) : close], close + len(CLOSE)
    return found.strip()


def normalize(text: str) -> str:
    """SQuAD's normal form: lower case, without ASCII punctuation, articles and surplus white space, in this order.

    Not normalised: other punctuation (’ “ –), accents, the forms of numbers and dates ("1,000.0" becomes "10000"),
    singular and plural. Punctuation goes without leaving a space, so "well-known" is not "well known"; signs and
    decimal points go too, so whoever compares normal forms compares `numbers` with them, or `words`.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def numbers(text: str) -> tuple[str, ...]:
    """Every number of a text in order, written one way: as many texts as numbers, equal where the numbers are.

    "$1,000.50" and "1000.5" are "1000.5", "-007" and "− 7" are "-7". What digits and punctuation make else stays as it
    is: "1/2", "12:30", "3,14" (no decimal comma is guessed), "3.5e4". Letters may stand around digits ("covid-19" has
    a "19"); only the digits 0 to 9 count.
    """
    text = _SPACED_SIGN.sub(r"\1", text.translate(_MINUS).lower())
    return tuple(_one_way(found["sign"] or "", found["digits"]) for found in _NUMBER.finditer(text))


def words(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """The words of the normal form, each with the numbers of what it was made from.

    So "-5" is not "5", "3.14" not "314" and "1990-1995" not "19901995", which SQuAD's normal form cannot tell apart.
    The minus sign (−) is a hyphen here.
    """
    raw = _SPACED_SIGN.sub(r"\1", text.translate(_MINUS)).split()
    return [(word, numbers(one)) for one in raw for word in normalize(one).split()]


def meaning(text: str) -> object:
    """What an answer says, as a value: equal for answers whose `words` are, tags around them left out."""
    answer = extract(text)
    return tuple(words(answer)) or answer


def _one_way(sign: str, digits: str) -> str:
    if _PLAIN.fullmatch(digits):
        whole, _, part = digits.replace(",", "").partition(".")
        whole, part = whole.lstrip("0") or "0", part.rstrip("0")
        digits = f"{whole}.{part}" if part else whole
    return digits if sign != "-" or digits == "0" else f"-{digits}"
