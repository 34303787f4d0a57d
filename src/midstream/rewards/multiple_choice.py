"""The answer chooses the right one of the task's options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from midstream.core.answers import words
from midstream.core.component import Context, RewardConfig
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.rewards.rule import Rule

# A capital on its own. One that a word follows belongs to it ("A patient", "B cells"), unless that word goes on.
_GOES_ON = r"and|as|based|because|but|by|due|for|given|is|or|since|which"
_LETTER = rf"(?<![\w'’-])[A-Z](?![\w'’-]| (?!(?:{_GOES_ON})\b)\w\w)"
_GROUP = rf"[(\[]?{_LETTER}[)\]]?(?:(?:\s?(?:[,;/&]|\band\b|\bor\b)\s?|\s?)[(\[]?{_LETTER}[)\]]?){{0,25}}"
_ANSWER = re.compile(rf"(?i:\banswer(?:\sis)?)\s?:?\s?({_GROUP})")
_CHOICE = re.compile(rf"(?i:\b(?:option|choice|choose|pick|select)(?:\sis)?)\s?:?\s?({_GROUP})")
_FIRST = re.compile(rf"\s?({_GROUP}(?:(?<=[)\]])|\s?[.,:–—-]|\)|(?=\n)))(?=\s|$)")
_BRACKETED = re.compile(r"\(([A-Z])\)")
_NEGATION = re.compile(
    r"(?i)\b(?:not|never|cannot|neither|nor|except|incorrect|wrong|(?:rule|rules|ruled|ruling)\sout"
    r"|(?:eliminat|exclud|reject)\w*)\b|n['’]t\b"
)
_CLAUSE = re.compile(r"[.,;:!?\n]|\bbut\b")
_DENIED = re.compile(
    r"(?i)\s?(?:is|was|can|could|would)(?:n['’]t|not)?\b"
)  # what may stand between a choice and its "not"
_LEAD_IN = re.compile(r"(?i)(?:(?:so|thus|therefore),?\s)?(?:the\s)?(?:\w+\s)?answer\s?(?:is\b|:)\s?:?")
_MARK_UP = re.compile(r"\\(?:boxed|text|mathrm|mathbf|textbf)\b|[*_`${}]")


class Config(RewardConfig):
    """No settings."""

    rule_based = True

    def build(self, context: Context) -> MultipleChoice:
        """Build it."""
        return MultipleChoice()


class MultipleChoice(Rule):
    """1 if the answer chooses the right one of `metadata["options"]` (letter -> text), else 0.

    The gold answer is a letter or an option's text. A choice is a letter on its own ("B", "(b)"), one at the beginning
    ("B. Oral ulcers"), one after "answer", "option" or "choice" ("The answer is B because ..."), one in brackets
    anywhere, or an option's text and nothing else, compared as in exact match. Where several of these stand in an
    answer, "answer ..." decides, then "option ...", the beginning, the brackets.

    Wrong: no choice; two letters; a letter with another option's text; a choice taken back in its own clause ("not
    option B"); a bracketed letter beside a "not". A letter that a word follows is part of it: "A patient" and "B cells"
    choose nothing. Option texts inside longer sentences, and paraphrases, are not recognised.
    """

    name = "multiple choice"

    def check(self, task: Task) -> None:
        """Refuse a task without options, or whose answer is none of them."""
        _right(task, _options(task))

    async def value(self, task: Task, answer: str) -> float:
        """Whether what the answer chooses is the gold option."""
        options = _options(task)
        right, choice = _right(task, options), chosen(answer, options)
        return float(bool(choice) and choice <= right)


def chosen(answer: str, options: Mapping[str, str]) -> set[str]:
    """The letters that an answer names: one, where it is a choice; several for options of the same text."""
    lines = _MARK_UP.sub(" ", answer).splitlines()
    text = "\n".join(" ".join(line.split()) for line in lines if line.strip())
    lead_in = _LEAD_IN.match(text)
    body = text[lead_in.end() :] if lead_in else text
    if (letters := _nothing_but_letters(body)) & options.keys():
        return letters
    first = _FIRST.match(body)
    said = words(body[first.end() :] if first else body)
    told = {letter for letter, option in options.items() if said in (words(option), words(f"{letter} {option}"))}
    if said and told:
        return told & _letters([first[1]]) if first else told
    return _named(_without(options, text))


def _named(text: str) -> set[str]:
    """The letters that a text names in the strongest of the ways in which it names some."""
    for pattern in (_ANSWER, _CHOICE):
        if found := [one[1] for one in pattern.finditer(text) if not _denied(text[: one.start()])]:
            return _letters(found)
    first = _FIRST.match(text)
    if first and not (_DENIED.match(rest := text[first.end() :]) and _NEGATION.search(_CLAUSE.split(rest)[0])):
        return _letters([first[1]])
    return set() if _NEGATION.search(text) else set(_BRACKETED.findall(text))


def _denied(before: str) -> bool:
    """Whether the clause that leads to a choice takes it back: "I would not choose", "so I ruled out option"."""
    return bool(_NEGATION.search(_CLAUSE.split(before)[-1]))


def _nothing_but_letters(text: str) -> set[str]:
    """The letters of "b", "(B)", "A or B"; none of a text that has anything else, such as "B. x"."""
    tokens = {token for token in re.findall(r"\w+", text) if token not in ("and", "or")}
    if len(tokens) == 1:
        tokens = {one.upper() for one in tokens}
    return tokens if all(re.fullmatch("[A-Z]", one) for one in tokens) else set()


def _letters(groups: list[str]) -> set[str]:
    return {letter for group in groups for letter in re.findall(r"\b[A-Z]\b", group)}


def _without(options: Mapping[str, str], text: str) -> str:
    """The text with the options' texts, the longest first, taken out: their letters name nothing."""
    for option in sorted(filter(lambda one: len(one) > 1, options.values()), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(option)}(?!\w)", "…", text, flags=re.IGNORECASE)
    return text


def _right(task: Task, options: Mapping[str, str]) -> set[str]:
    right = {letter for accepted in task.answers for letter in _gold(accepted, options)}
    if not right:
        raise _unfit(task, f"its answer {task.answer[:80]!r} is none of its options {', '.join(options)}")
    return right


def _gold(accepted: str, options: Mapping[str, str]) -> set[str]:
    letter = accepted.strip()
    if letter in options:
        same = words(options[letter])
        return {letter} | {other for other, option in options.items() if same and words(option) == same}
    return {one for one, option in options.items() if words(option) and words(option) == words(accepted)}


def _options(task: Task) -> dict[str, str]:
    options = task.metadata.get("options")
    if not isinstance(options, dict) or not options:
        raise _unfit(task, 'it has no metadata["options"]')
    for letter, text in options.items():
        if not (len(letter) == 1 and "A" <= letter <= "Z" and isinstance(text, str)):
            raise _unfit(task, f"its option {letter!r} is no capital letter with a text")
    return {letter: str(text) for letter, text in options.items()}


def _unfit(task: Task, cause: str) -> RecipeError:
    return RecipeError(
        f"task {task.id!r} is no multiple-choice question",
        cause=cause,
        fix='give it metadata["options"] = {"A": ..., "B": ...} and one of them as answer, or use another reward',
    )
