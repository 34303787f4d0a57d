r"""What a reply states as its answer: the reading that every rule of rewards begins with.

    reply       the last \boxed{...} (several where "and", "or" or a comma joins them), or what follows the last
                "answer is", "Answer:" or "####", or the last line
    value       what has a digit or a constant, after the last "is" or "=": `7`, `x = 7`, `(1, 2)`, `70\sqrt{2}`
    words       around a value: only units, small words, and words of the question and of the gold answers. With any
                other word ("wrong", "before", "can't", "I ruled out") a reply states no value

    reply                                      read by       result
    `It is $\boxed{\text{Paris}}$.`            unboxed       `\text{Paris}`
    `**L’Aquila**, I’m sure`                   plain         `L'Aquila, I'm sure`
    `So the answer is: Paris`                  conclusion    `Paris`
    `**5½ × 2**`                               in_latex      `5 \frac{1}{2} \times 2`
    `2 of 5 are gone.⏎So 3 km are left.`       state         words `So 3 km are left`, formula `3`
    `The answer is half of 5.`                 state         words `half of 5`, formula ``

Exact match and multiple choice read `plain` words, Game of 24 what stands `in_latex`, numeric and math a `Statement`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from midstream.core.answers import LONGEST, extract, words

Form = tuple[str, str | Callable[[re.Match[str]], str]]  # a pattern, and what replaces it

# The end of answers to Minerva's prompt, which many models know.
_HOPE = re.compile(r"\s(?:I|We) hope (?:it|this) is correct\.?\Z")
_INSIDE = r"[^{}]*+"
for _ in range(9):  # groups in groups
    _INSIDE = rf"(?:[^{{}}]|\{{{_INSIDE}\}})*+"
_BOX = re.compile(rf"\\f?box(?:ed)?+\s*(?:\{{(?P<group>{_INSIDE})\}}|(?P<word>\w[^\s\\]*?)(?=[$.,]*(?:[\s\\]|\Z)))")
_BETWEEN_BOXES = re.compile(r"[^.!?]{0,9}|[^.!?\n]{0,60}(?:\b(?:and|or)\b|[,;])[^.!?\n]{0,60}")
_DENIED = re.compile(r"\b(?:not|never)\b|n['’]t\b", re.IGNORECASE)
_TYPOGRAPHY = str.maketrans(
    "‘’‚‛′‹›´“”„‟″«»「」『』《》‐‑‒–—―−﹣。，：…→•",
    8 * "'" + 13 * '"' + 8 * "-" + ".,:." + 2 * " ",
    "`\u200b\u200c\u200d\u200e\u2060\ufeff\u00ad",
)
_SPACING = re.compile(r"[\u2600-\u27bf\ufe0f\U0001f000-\U0001faff]|\\[,;:!> ]|\\q?quad\b|~")
_COMMAND = re.compile(r"\\(?:(?:text|math)(?:bf|it|rm|sf|tt|normal)?|operatorname|boxed|fbox|emph)\b|\\[()\[\]]")
_HTML = re.compile(r"```(?:[a-z]+\n)?|</?(?:b|i|u|em|strong|p|br|code|span)\s*/?>")
_MARK_UP = re.compile(r"(?<!\w)[*_]+|[*_]+(?!\w)|^[#>]+\s", re.MULTILINE)
_LEAD_IN = re.compile(
    r"(?:\A|(?<=[.!?\n]))[\W_]{0,6}(?:(?:so|thus|therefore|hence|in conclusion|overall)\b,?\s)?(?:(?:the|my|our)\s)?"
    r"(?:(?:final|correct|best|right|short)\s){0,2}answer\s?(?:is\b\s?:?|[:=\n]|-\s)\s?"
    r"(?:the final answer is\b\s?:?\s?)?",
    re.IGNORECASE,
)
_LATEX = {
    "times": "×∗", "cdot": "·⋅∙", "le": "≤⩽", "ge": "≥⩾", "ne": "≠", "pm": "±", "approx": "≈", "equiv": "≡", "pi": "π",
    "infty": "∞", "cup": "∪", "cap": "∩", "in": "∈", "theta": "θ", "implies": "→⇒⟹", "sqrt": "√", "emptyset": "∅",
}  # fmt: skip
_COMPARED = {r"\gt": ">", r"\lt": "<", "<=": r"\le ", ">=": r"\ge ", "!=": r"\ne "}
_CHARACTERS = str.maketrans(
    {character: f"\\{name} " for name, characters in _LATEX.items() for character in characters}
    | {"÷": "/", "∕": "/", "°": "^\\circ ", "∴": " therefore "}
)


def _compatible(found: re.Match[str]) -> str:
    """Raised digits as a power, "½" as a fraction."""
    above, bar, below = unicodedata.normalize("NFKC", found[0]).replace("−", "-").partition("⁄")
    return rf" \frac{{{above}}}{{{below}}}" if bar else f"^{{{above}}}"


# Decoration, and what takes its place, in the order in which it applies.
_DECORATION: Sequence[Form] = (
    ("[⁰¹²³⁴-⁹⁻⁺ⁿ]+|[¼-¾⅓-⅞]", _compatible),
    (r"[✅✓✔☑∎□■\ufe0f]|[^\S\n]+", " "),
    (r"(?<!\$)\$\{([^{}]*)\}\$", r" \1 "),  # braces that LaTeX does not show
    (r"(?<=[\w)])( ?)\*\*(?=\1[\w(])", "^"),  # a power, not bold
    (r"\*\*|(?<![\w}])__(?=\S)|(?<=\S)__(?![\w{])", " "),
    (r"(?<![\w)*\\])[*_](?=[^\s*_])([^*_\n]{1,200})(?<=\S)[*_](?![\w(*])", r"\1"),
    *2 * [(rf"\\(?:text\w*|math(?:rm|bf|it|sf|tt)|[mhf]box|boxed|operatorname)\s*\{{({_INSIDE})\}}", r" \1 ")],
    (r"\\\\(?=[a-zA-Z])(?!.*(?:matrix|array|cases))", r"\\"),
    (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![a-zA-Z])\.?|\\!\s*|(?<!\\)\\(?=\s|$)", ""),
    (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    (r"\\([gln]e)q(?:slant)?(?![a-zA-Z])", r"\\\1 "),
    (r"\\[gl]t(?![a-zA-Z])|[<>!]=", lambda found: _COMPARED[found[0]]),
    (r"\\(?:[Rr]ightarrow|[Ll]ongrightarrow|to)(?![a-zA-Z])|[-=]>", r"\\implies "),
    (r"\\frac\s*(?:\{(\w+)\}|(\w|\\[a-z]+))\s*(?:\{(\w+)\}|(\w|\\[a-z]+))", r"\\frac{\1\2}{\3\4}"),
    (r"(?<=\d)(?:\s*\{,\s*\}|\\[, ]|,\\?!)(?=\d{3}(?!\d))", ","),
    (r"(?<!\\)\\[,;: ]|\\q?quad(?![a-zA-Z])|~(?!\s*=)|\\[()\[\]]|[\"]", " "),
    (r"\\infty|\binfinity\b|\boo\b", r"\\infty "),
    (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
    (r"(?:\\|(?<![a-zA-Z]))sqrt\s*(?:\(([^()]*)\)|(\d+|[a-zA-Z](?![a-zA-Z])))", r"\\sqrt{\1\2}"),
    (r"(?<=\d) (?=i\b)|(?<=[-+]) ?\\?[$€£¥₹]|(?<=[$€£¥₹]) ?(?=-)", ""),
    (r"\\?[$€£¥₹]", " "),
    (" +", " "),
    (r"\\%| ?\b(?:percent|per cent|pct|percentage)\b(?! points)", "%"),
)
_ANSWER = re.compile(r"\banswers?\b[^\n.:=]{0,80}?(?::|=|\n|\\implies|\b(?:is|are)\b:?)|####", re.IGNORECASE)
_TAKEN_BACK = re.compile(rf"\A[^.!?\n]*\b(?:not|wrong|incorrect|no)\b|{_ANSWER.pattern}[^.\n]*\d", re.IGNORECASE)
_EARLIER = re.compile(r"\A.*(?:\n|[.!?]\s)(?=.*\S)", re.DOTALL)  # sentences before the last one
_FUNCTIONS = r"(?:sin|cos|tan|cot|sec|csc|log|exp|max|min|gcd|lcm|det|lim)\b"
# Words of two letters; any other two letters are variables.
_SHORT = "is|it|so|no|to|of|in|at|by|we|he|me|an|as|be|if|my|on|up|us|do|go|or"
_SHORT += "|cm|dm|km|mm|kg|mg|ml|ft|lb|oz|hr|am|pm|mi|th|st|nd|rd|ad|ce"
_WORD = re.compile(
    rf"(?:(?<![\\A-Za-z])[A-Za-z]{{2,}}[-_]?\d\w*"
    rf"|(?<![\\A-Za-z_^{{])(?!{_FUNCTIONS})(?:[A-Za-z]{{3,}}|(?i:{_SHORT})(?![A-Za-z(]))|[^\W\d_A-Za-z\u0370-\u03ff]+)"
    r"(?:'[a-z]+)?(?:\s*\^\s*\{?[23]\}?)?"  # "cm^2" is one word
)
_VALUE = re.compile(r"\d|\\(?:pi|infty|sqrt|emptyset|varnothing)")
_COPULA = re.compile(r"\b(?:is|are|was|were|be|equals?|gives?|get|makes?|leaves?)\b|=", re.IGNORECASE)
_SMALL = frozenset(
    "the an so thus therefore hence and or to of in at by for as it it's this that there is are was were be we he she "
    "they you his her their our my has have had get gets got gives give makes make leaves equals equal answer answers "
    "final correct result solution value total sum altogether number per each every exactly about approximately "
    "roughly only just left remaining unit units square cubic cm dm km mm kg mg ml ft lb oz hr sec min mph ppm deg "
    "inch inches foot feet yard mile meter metre kilometer kilometre centimeter millimeter liter litre gram kilogram "
    "pound second minute hour day week month year dollar cent euro usd eur degree radian way ways real sum together "
    "overall conclusion takes take needs need".split()
)
# Next to a value these make it another one, even where the question has them.
_CHANGES = frozenset(
    "not no never neither nor half twice double triple third quarter before after until since than less more fewer "
    "least most under over above below between within up root squared cubed factorial times plus minus divided "
    "multiplied multiple power hundred dozen wrong incorrect false except without".split()
)
_NO_PRODUCT = r"(?![\w^*/+-])"
_SCALES = {
    3: rf"\s*thousands?\b|[kK]{_NO_PRODUCT}",
    6: rf"\s*(?:millions?|mn)\b|\s?M{_NO_PRODUCT}",
    9: rf"\s*(?:billions?|bn)\b|\s?B{_NO_PRODUCT}",
}
# Values in words, as formulas.
_IN_WORDS: Sequence[Form] = (
    (r"^\s*\(?[A-E][).]\s+(?=[-\\\d(\[])", ""),  # the letter of an option before its value
    (r"(?i)(?<![\d)}] )(?<!\b[a-z] )\b(?:minus|negative)\s+(?=\d)", "-"),
    *((rf"(?<=[\d}}])(?:{names})", rf"\\times 10^{{{power}}}") for power, names in _SCALES.items()),
    (r"([<>]|\\[lg]e )([^<>]*)\s(?:and|\\land|\\wedge)\s+(?=[^<>]*(?:[<>]|\\[lg]e ))", r"\1\2 \\land "),
    (r"(?:(?<=[\w)}\]])\s*,?\s+|(?<=[\d)}\]]))(?:and|or|\\lor|\\vee)\s*(?=[-+(\[\\\d{]|\b[A-Za-z]\b|[A-Z]\()", ", "),
)
_NUMERALS = {
    word: str(number)
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty".split()
    )
}
_NUMERAL = re.compile(rf"\b(?:{'|'.join(_NUMERALS)})\b(?![\s-]*(?:{'|'.join(_NUMERALS)}|hundred)\b)", re.IGNORECASE)


@dataclass(frozen=True)
class Statement:
    """What a reply states."""

    words: str  # all of it
    formula: str  # the value in it, in LaTeX without dollars; "" for none, or one that a guard makes another
    bare: bool  # nothing but the formula


def state(text: str, known: str = "") -> Statement:
    """Read what a reply states; the words of `known` may stand around its value.

    A box is looked for in the last `LONGEST` characters, anything else in half of them.
    """
    before, conclusion = _conclusion(in_latex(unbox(text[-LONGEST:])[-LONGEST // 2 :]))
    formula, bare = _value(before, conclusion, known)
    return Statement(" ".join(conclusion.split()), formula, bare)


def answer_text(reply: str) -> str:
    """What a reply answers, out of tags and box; only its last `LONGEST` characters are read."""
    return unbox(extract(reply[-LONGEST:]))


def unbox(text: str) -> str:
    """The content of the last \\boxed{}, or of the last ones that "and", "or" or a comma joins; else the text.

    None counts that is denied, or where "the answer is" comes after it.
    """
    text = _HOPE.sub("", text)
    contents: list[str] = []
    begin = end = 0
    for box in _BOX.finditer(text):
        if not contents or not _BETWEEN_BOXES.fullmatch(text[end : box.start()]):
            contents, begin = [], box.start()
        end, content = box.end(), (box["group"] or box["word"] or "").strip()
        contents += [content] if content and content not in contents else []
    rest = text[end:]
    clause = re.split(r"[.,;:\n]", text[:begin])[-1]
    if not contents or _DENIED.search(clause) or _TAKEN_BACK.search(rest):
        return text
    percent = "%" if re.match(r"\s*\$?\s*(?:\\?%|(?:per ?cent|pct)\b)", rest) else ""
    return unbox(", ".join(contents) + percent)  # boxes in boxes


def plain(text: str) -> str:
    """A text without mark-up (Markdown's stars and ticks, LaTeX's text commands and delimiters, simple HTML).

    Characters of one meaning become one: typographic quotation marks and dashes are those of ASCII, an accent is part
    of its letter, white space is a space or a line break, invisible characters go.
    """
    text = _COMMAND.sub("", _SPACING.sub(" ", _keyboard_text(text))).replace("{", "").replace("}", "")
    return "\n".join(" ".join(line.split()) for line in _MARK_UP.sub("", text).splitlines() if line.strip())


def conclusion(text: str) -> str:
    """What follows the one "the answer is" or "Answer:" that begins a sentence of a plain text; "" without it."""
    found = list(_LEAD_IN.finditer(text))
    return text[found[0].end() :] if len(found) == 1 else ""


def answer_value(text: str) -> object:
    """An answer as a value: equal for answers with equal `words`, whatever tags and box are around them."""
    answer = answer_text(text)
    return tuple(words(answer)) or answer


def _keyboard_text(text: str) -> str:
    """A text in the characters of a keyboard, without HTML and fences of code."""
    return _HTML.sub(" ", unicodedata.normalize("NFC", text)).translate(_TYPOGRAPHY)


def in_latex(text: str) -> str:
    """A text without decoration, its mathematical characters as LaTeX."""
    return _replace(_keyboard_text(text.translate(_CHARACTERS)), _DECORATION)


def _replace(text: str, forms: Sequence[Form]) -> str:
    for pattern, replacement in forms:
        text = re.sub(pattern, replacement, text)
    return text


def _conclusion(text: str) -> tuple[str, str]:
    """What a reply concludes: the rest after its last "answer is", else its last line; and the sentence before that."""
    text = text.strip()
    named = [mark.end() for mark in _ANSWER.finditer(text) if text[mark.end() :].strip(" :*")]
    if named:
        before, text = _EARLIER.sub("", text[: named[-1]]), text[named[-1] :]
    else:
        before, text = "", text if "\\begin" in text else text[text.rfind("\n") + 1 :]
    return before, re.sub(r"^[ \n\t:,;#'*]+(?:\.(?!\d))?", "", text).rstrip(" \n\t:,;.#'\\")


def _value(before: str, text: str, known: str) -> tuple[str, bool]:
    """The one value of a conclusion, or "", and whether the conclusion is nothing else."""
    if not _VALUE.search(text):
        text = _NUMERAL.sub(lambda found: _NUMERALS[found[0].lower()], text)
    text = _replace(text, _IN_WORDS)
    words = list(_WORD.finditer(text))
    usual = _SMALL.union(map(_singular, re.findall(r"[^\W\d_]+(?:'[a-z]+)?", known.lower())))
    for word in (found[0].lower() for found in (*_WORD.finditer(before), *words)):
        if word in _CHANGES or (word not in _SMALL and _singular(word) not in usual):
            return "", False
    if not words:
        return _trim(text), True
    copulas = list(_COPULA.finditer(text))
    if copulas and _VALUE.search(text, copulas[-1].end()):
        text = text[copulas[-1].end() :]
    values = {_trim(part) for part in _WORD.split(text) if _VALUE.search(part)}
    return (values.pop() if len(values) == 1 else ""), False


def _singular(word: str) -> str:
    return re.sub(r"(?:\s*\^.*)|'s$", "", word).removesuffix("s")


def _trim(value: str) -> str:
    value = re.sub(r"^\s*[aAI]\s+(?=[\d\\])|(?<=[\d}%])\s+an?\s*$", "", value)  # articles
    value = re.sub(r"^(?:[\s=:;,]|\.(?!\d)|\\approx(?![a-z])|~)+", "", value).rstrip(" \n:;,.=?/")
    # "7 (seven)" leaves "7 (": a half-open interval such as [0, 1) is closed.
    missing = sum(map(value.count, "([")) - sum(map(value.count, ")]"))
    value = value[:-1] if (missing > 0 and value[-1] in "([") or (missing < 0 and value[-1] in ")]") else value
    return " ".join(value.split())
