r"""What a reply states as its answer, without decoration: its words, and the one formula or number among them.

The grammar of a reply, which `state` reads from the outside to the inside:

    reply       the last \boxed{...} (several where "and", "or" or a comma joins them), or
                ... "answer is" conclusion, or ... "so" conclusion, or a conclusion alone
    conclusion  words and values: of several values, those after the last "is" or the like count
    value       what stands between words and has a digit or a constant: `7`, `x = 7`, `(1, 2)`, `70\sqrt{2}`
    guard       words at a value that make it another: "half of 5", "not 5", "5 squared"

Markdown, dollars, fonts and spacing of LaTeX are decoration. Unicode's mathematical characters become LaTeX.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ"
_FRACTIONS = ("¼14", "½12", "¾34", "⅓13", "⅔23", "⅕15", "⅖25", "⅗35", "⅘45", "⅙16", "⅚56", "⅛18", "⅜38", "⅝58", "⅞78")
_LATEX = {
    "×": "times", "·": "cdot", "⋅": "cdot", "∙": "cdot", "≤": "le", "⩽": "le", "≥": "ge", "⩾": "ge",
    "≠": "ne", "±": "pm", "≈": "approx",
    "≡": "equiv", "π": "pi", "∞": "infty", "∪": "cup", "∩": "cap", "∈": "in", "θ": "theta", "→": "implies",
    "⇒": "implies", "⟹": "implies", "√": "sqrt", "∅": "emptyset",
}  # fmt: skip
_CHARACTERS = str.maketrans(
    dict.fromkeys("−–‒﹣", "-")
    | dict.fromkeys("\u00a0\u2002\u2003\u2009\u202f", " ")
    | {character: f"\\{name} " for character, name in _LATEX.items()}
    | {character: rf" \frac{{{above}}}{{{below}}}" for character, above, below in _FRACTIONS}
    | {"÷": "/", "°": "^\\circ ", "∴": " therefore ", "“": '"', "”": '"', "‘": "'", "’": "'"}
)
_BOX = re.compile(r"\\f?box(?:ed)?\s*(?=[{\w])")
_BETWEEN_BOXES = re.compile(r"[^.!?]{0,9}|[^.!?\n]{0,60}(?:\b(?:and|or)\b|[,;])[^.!?\n]{0,60}")
_TEXT = re.compile(r"\\(?:text\w*|math(?:rm|bf|it|sf|tt)|mbox|hbox|operatorname)\s*\{([^{}]*)\}")
_REPEATING = re.compile(r"(\d{1,9})\.(\d{0,9})\\overline\s*\{(\d{1,9})\}")
# In the order in which they apply.
_DECORATION = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=[\w)])( ?)\*\*(?=\1[\w(])", "^"),  # a power, not bold
        (r"\*\*|```(?:[a-z]+\n)?|`|(?<![\w}])__(?=\S)|(?<=\S)__(?![\w{])|</?(?:b|i|u|em|strong|p|br|code)\s*/?>", " "),
        (r"(?<![\w)*\\])[*_](?=[^\s*_])([^*_\n]{1,200})(?<=\S)[*_](?![\w(*])", r"\1"),
        (r"\\\\(?=[a-zA-Z])(?!.*(?:matrix|array|cases))", r"\\"),
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![a-zA-Z])\.?|\\!|(?<!\\)\\(?=\s|$)", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\geq(?:slant)?(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\leq(?:slant)?(?![a-zA-Z])|<=", r"\\le "),
        (r"\\neq(?![a-zA-Z])|!=", r"\\ne "),
        (r"\\(?:gt|lt)(?![a-zA-Z])", lambda found: ">" if found[0] == "\\gt" else "<"),
        (r"\\(?:Rightarrow|Longrightarrow|longrightarrow|rightarrow|to)(?![a-zA-Z])|[-=]>", r"\\implies "),
        (r"\\therefore(?![a-zA-Z])", " therefore "),
        (r"\\frac\s*(?:\{(\w+)\}|(\w|\\[a-z]+))\s*(?:\{(\w+)\}|(\w|\\[a-z]+))", r"\\frac{\1\2}{\3\4}"),
        (r"(?<=\d)(?:\s*\{,\s*\}|\\[, ]|,\\?!)(?=\d{3}(?!\d))", ","),
        (r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|~(?!\s*=)|\\\(|\\\)|\\\[|\\\]|\"", " "),
        (r"\\infty|\binfinity\b|\boo\b", r"\\infty "),
        (r"(?<=[)\]])\s*U\s*(?=[(\[])", r"\\cup "),
        (r"\\(?:text)?color\s*\{\w+\}|\b(?:i\.e|e\.g)\.,?", ""),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?:\\|(?<![a-zA-Z]))sqrt\s*(?:\(([^()]*)\)|(\d+|[a-zA-Z](?![a-zA-Z])))", r"\\sqrt{\1\2}"),
        (r"(?<=\d)\s+(?=i\b)", ""),
        (r"(?<=[-+])\s*\\?[$€£¥₹]|(?<=[$€£¥₹])\s*(?=-)", ""),
        (r"\\?[$€£¥₹]", " "),
        (r"\\%|\s*\b(?:percent|per cent|pct|percentage)\b(?! points)", "%"),
        (r"\\pmod\s*\{?\d+\}?|\((?:\\b?|b?)mod\s*\d+\s*\)|(?<=\d)_\{?10\}?(?!\d)", " "),
    )
)
_ANSWER, _RESULT = (
    re.compile(rf"(?:\b{noun}s?\b[^\n.:=]{{0,80}}?(?::|=|\n|\\implies|\b(?:is|are)\b:?)|####)", re.IGNORECASE)
    for noun in ("answer", "(?:result|solution)")
)
_SO = re.compile(r"\b(?:so|thus|therefore|hence)\b|\\implies", re.IGNORECASE)
_SENTENCE = re.compile(r"\n+|[.!?](?=\s+(?![-\d\s])|$)")
_YEAR = re.compile(r"\b(?:in|by|since|until|during|after|before|year) (?:1[5-9]|20)\d\d\b,?", re.IGNORECASE)
_FUNCTIONS = r"(?:sin|cos|tan|cot|sec|csc|log|exp|max|min|gcd|lcm|det|lim)\b"
_SHORT = "is|it|so|no|to|of|in|at|by|we|he|me|an|as|be|if|my|on|up|us|do|go|or"
_SHORT += "|cm|dm|km|mm|kg|mg|ml|ft|lb|oz|hr|am|pm|mi|th|st|nd|rd|ad|ce"
_WORD = re.compile(
    rf"(?:(?<![\\A-Za-z])[A-Za-z]{{2,}}[-_]?\d\w*"
    rf"|(?<![\\A-Za-z_^{{])(?!{_FUNCTIONS})(?:[A-Za-z]{{3,}}|(?i:{_SHORT})(?![A-Za-z(])))"
    r"(?:'[a-z]+)?(?:\s*\^\s*\{?[23]\}?)?"  # "cm^2" is one word
)
_VALUE = re.compile(r"\d|\\(?:pi|infty|sqrt|emptyset|varnothing)")
_GLUED = re.compile(rf"(?:{_SHORT}|[A-Za-z]?meters?|miles?|inch|feet|sec|mins?|hours?|days?|USD|EUR|mph|ppm|deg)\b")
_COPULA = re.compile(
    r"\b(?:is|are|was|were|be|equals?|gives?|get|makes?|becomes?|yields?|leaves?|total of)\b|=", re.IGNORECASE
)
_NEGATED = re.compile(
    r"(?:\bnot|n't|\bnever|\bno|\brather than|\binstead of|\bexcept|\banything but|\bother than)"
    r"(?: equal to| in| at| on)?\W*$",
    re.IGNORECASE,
)
_MADE_ANOTHER = re.compile(
    r"\b(?:half|twice|double|triple|thrice|thirds?|quarters?|fifths?|tenths?|root|squares?|cubes?|power|multiples?|factors?"
    r"|divisors?|divisible|logarithm|reciprocal|inverse|divided|multiplied|between|within|up|base|factorial|times)\b"
    r"(?:\W+(?:of|by|the|a|an|to))*\W*$",
    re.IGNORECASE,
)
_MAKES_ANOTHER = re.compile(
    r"\W*(?:squared|cubed|factorial|dozens?|score|halves|thirds|quarters|fifths|point|base|and up)\b", re.IGNORECASE
)
_BOUNDS = tuple(
    (re.compile(pattern, re.IGNORECASE), sign)
    for pattern, sign in (
        (r"\b(?:at least|no (?:less|fewer) than|(?:greater|more) than or equal to)\s+(?=[-\d\\(x])", r"\\ge "),
        (r"\b(?:at most|no more than|(?:less|fewer) than or equal to)\s+(?=[-\d\\(x])", r"\\le "),
        (r"\b(?:(?:more|greater) than|over|above|exceeds|exceeding)\s+(?=[-\d\\(x])", "> "),
        (r"\b(?:(?:less|fewer) than|under|below)\s+(?=[-\d\\(x])", "< "),
        (r"(?<!\d)(-?\d+)(?:\s*\+(?=\s*$)| or (?:more|greater|above|higher)\b)", r"\\ge \1"),
        (r"(?<!\d)(-?\d+) or (?:less|fewer|below|lower)\b", r"\\le \1"),
    )
)
_SCALES = {
    "hundred": 2,
    "thousand": 3,
    "million": 6,
    "mn": 6,
    "billion": 9,
    "bn": 9,
    "trillion": 12,
    "k": 3,
    "m": 6,
    "b": 9,
}
_SCALE = re.compile(
    r"(?<=[\d}])(?:\s*(hundred|thousand|million|mn|billion|bn|trillion)s?\b|([kK])(?![\w^*/+-])|\s?([MB])(?![\w^*/+-]))"
)
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_NUMERALS = {word: number for number, word in enumerate(_UNITS)} | {word: 10 * ten for ten, word in enumerate(_TENS, 2)}
_PARTS = {
    "half": 2,
    "halves": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "eighth": 8,
    "tenth": 10,
}
_COUNTED = "|".join([*_NUMERALS, *(f"{part}s?" for part in _PARTS), "hundred", "thousand"])
_NUMERAL = re.compile(
    rf"\b(?:an? (?=hundred|thousand|{'|'.join(_PARTS)}))?"
    rf"(?:{_COUNTED})\b(?:[\s-]+(?:and )?(?:an? )?(?:{_COUNTED})\b)*",
    re.IGNORECASE,
)
LONGEST = 20_000  # characters, the last of a reply, in which a box is looked for; other answers in a tenth of them


@dataclass(frozen=True)
class Statement:
    """What a reply states."""

    words: str  # all of it
    formula: str  # the value in it, in LaTeX without dollars; "" for none, or one that a guard makes another
    bare: bool  # nothing but the formula


def state(text: str) -> Statement:
    """Read what a reply states."""
    conclusion = _conclusion(plain(_boxed(text[-LONGEST:])[-LONGEST // 10 :]))
    formula, bare = _value(conclusion)
    return Statement(" ".join(conclusion.split()), formula, bare)


def plain(text: str) -> str:
    """A text without decoration, its mathematical characters as LaTeX."""
    text = re.sub(
        f"[{_RAISED}]+", lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}".replace("−", "-"), text
    )
    text = text.translate(_CHARACTERS)
    text = "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
    for pattern, replacement in _DECORATION[:3]:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_as_fraction, text)
    while (unwrapped := _TEXT.sub(r" \1 ", text)) != text:  # fonts in fonts
        text = unwrapped
    for pattern, replacement in _DECORATION[3:]:
        text = pattern.sub(replacement, text)
    return text


def _as_fraction(found: re.Match[str]) -> str:
    """A repeating decimal, such as 0.1\\overline{6}."""
    whole, once, again = found.groups()
    nines = 10 ** len(again) - 1
    return rf"\frac{{{int(whole + once + again) - int(whole + once)}}}{{{nines * 10 ** len(once)}}}"


def _boxed(text: str) -> str:
    """The content of the last boxes, with the percent sign after them; the text itself without a box."""
    contents: list[str] = []
    end = 0
    for box in _BOX.finditer(text):
        if box.start() < end:  # in the box before
            continue
        between, start, end = text[end : box.start()], box.end(), _closing(text, box.end())
        if not _BETWEEN_BOXES.fullmatch(between):
            contents = []
        content = text[start:end].strip("{} ") if text[start] != "{" else text[start + 1 : end - 1]
        contents += [content] if content not in contents else []
    rest = text[end:]
    if not contents or any(
        _VALUE.search(found[0]) for found in re.finditer(_ANSWER.pattern + r"[^.\n]*", rest, re.IGNORECASE)
    ):
        return text
    return ", ".join(contents) + ("%" if re.match(r"\s*\$?\s*(?:\\?%|percent\b)", rest) else "")


def _closing(text: str, start: int) -> int:
    """The end of the group in braces, or of the word, that starts here; the end of the text if it is not closed."""
    if text[start] != "{":
        return start + len(text[start:].split(maxsplit=1)[0].rstrip("$.,"))
    depth = 0
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + brace.end()
    return len(text) + 1


def _conclusion(text: str) -> str:
    """What follows the last "answer is", and in it the last "so": one sentence; all of the text without them.

    One with a value goes before one without ("The answer is 7. My answer is correct.").
    """
    said = [sentence for sentence in re.split(r"(?<=[.!?\n])\s+", text) if not sentence.endswith("?")]
    text = "\n".join(said) or text  # without questions, if that leaves anything
    for mark in (_ANSWER, _RESULT, _SO):
        rests = [text[found.end() : found.end() + 300].lstrip(" :*#.,\n") for found in mark.finditer(text)]
        sentences = [sentence for rest in reversed(rests) if (sentence := _SENTENCE.split(rest, maxsplit=1)[0])]
        with_value = [sentence for sentence in sentences if _VALUE.search(sentence) or _NUMERAL.search(sentence)]
        text = (with_value or (sentences if mark is not _SO else []) or [text])[0]
    return text.lstrip(" \n\t:,;#'").rstrip(" \n\t:,;.#'\\")


def _value(text: str) -> tuple[str, bool]:
    """The one value of a conclusion, or "", and whether the conclusion is nothing else."""
    if not _VALUE.search(text):
        text = _NUMERAL.sub(_in_digits, text)
    text = re.sub(r"(\d)\s+and\s+(?:(\d+/\d+)|a half\b)", lambda found: f"{found[1]} {found[2] or '1/2'}", text)
    text = re.sub(r"^\s*\(?[A-E][).]\s+(?=[-\\\d(\[])", "", text)  # the letter of an option before its value
    text = re.sub(r"(?<=[\d}%])\s+\((?:or |=|\\approx)?\s*[-\d.,/]+\s*%?\)", "", text)  # the value once more
    text = re.sub(r"\b(\d+) (?:in|out of) (?!\d{4})(\d+)\b", r"\1/\2", text)
    text = re.sub(r"(?<![\w)}] )\b(?:minus|negative)\s+(?=\d)", "-", text, flags=re.IGNORECASE)
    for _ in range(2):
        text = _SCALE.sub(
            lambda found: rf"\times 10^{{{_SCALES[''.join(filter(None, found.groups())).lower()]}}}", text
        )
    for pattern, sign in _BOUNDS:
        text = pattern.sub(sign, text)
    text = re.sub(
        r"(?:(?<=[\w)}\]])\s*,?\s+|(?<=[\d)}\]]))(?:and|or)\s*(?=[-+(\[\\\d{]|\b[A-Za-z]\b|[A-Z]\()", ", ", text
    )
    undated = _YEAR.sub(" ", text)
    text = undated if _VALUE.search(undated) else text
    words = list(_WORD.finditer(text))
    if not words:
        return _trim(text), True
    values = _values(text, words)
    if len(values) != 1 and (copulas := list(_COPULA.finditer(text))):
        tail = text[copulas[-1].end() :]
        words = list(_WORD.finditer(tail))
        values = _values(tail, words) if values or words else {_trim(tail)}
    return (values.pop() if len(values) == 1 else ""), False


def _values(text: str, words: list[re.Match[str]]) -> set[str]:
    """The different values between the words; "" for one that is not what it looks like."""
    found: set[str] = set()
    edges = [0, *(edge for word in words for edge in word.span()), len(text)]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if not _VALUE.search(text, start, end):
            continue
        before, after = text[max(0, start - 60) : start], text[end : end + 60]
        run = re.sub(r"^\s*[aAI]\s+(?=[\d\\])|(?<=[\d}%])\s+an?\s*$|/\s*$", "", text[start:end])
        if _NEGATED.search(before):
            continue
        glued = run[-1:].isdigit() and after and not _GLUED.match(after)
        found.add("" if glued or _MADE_ANOTHER.search(before) or _MAKES_ANOTHER.match(after) else _trim(run))
    return found


def _trim(value: str) -> str:
    value = re.sub(r"^(?:[\s=:;,]|\.(?!\d)|\\approx(?![a-z])|~)+|[\s:;,.=?]+$", "", value)
    # "7 (seven)" leaves "7 (": a half-open interval such as [0, 1) is closed.
    missing = sum(map(value.count, "([")) - sum(map(value.count, ")]"))
    value = value[:-1] if (missing > 0 and value[-1] in "([") or (missing < 0 and value[-1] in ")]") else value
    return " ".join(value.split())


def _in_digits(found: re.Match[str]) -> str:
    """A number in words ("two hundred and five", "two thirds", "five and a half") in digits."""
    total, part, below = 0, 0, 0
    tokens = re.split(r"[\s-]+", found[0].lower())
    for token in tokens:
        if token in _NUMERALS:
            part += _NUMERALS[token]
        elif token == "hundred":
            part = max(part, 1) * 100
        elif token == "thousand":
            total, part = total + max(part, 1) * 1000, 0
        elif token not in ("a", "an", "and"):
            below = _PARTS.get(token) or _PARTS[token.removesuffix("s")]
    if not below:
        return str(total + part)
    return f"{total + part} 1/{below}" if "and" in tokens else f"{max(total + part, 1)}/{below}"
