"""The answer chooses the right one of the task's options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from midstream.core.answers import words
from midstream.core.component import RewardConfig
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.rewards.rule import Rule

# A capital on its own. Before another word it belongs to that ("A patient", "B cells"), unless the word continues.
_CONTINUES = r"and|as|based|because|but|by|due|for|given|is|or|since|which"
_LETTER = rf"(?<![\w'’-])[A-Z](?![\w'’-]| (?!(?:{_CONTINUES})\b)\w\w)"
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
# What may stand between a choice and its "not".
_DENIED = re.compile(r"(?i)\s?(?:is|was|can|could|would)(?:n['’]t|not)?\b")
_LEAD_IN = re.compile(r"(?i)(?:(?:so|thus|therefore),?\s)?(?:the\s)?(?:\w+\s)?answer\s?(?:is\b|:)\s?:?")
_MARK_UP = re.compile(r"\\(?:boxed|text|mathrm|mathbf|textbf)\b|[*_`${}]")


class MultipleChoice(Rule):
    """1 if the answer chooses the right one of `metadata["options"]` (letter -> text), else 0.

    The gold answer is a letter or an option's text. A choice is a letter on its own ("B", "(b)"), one at the beginning
    ("B. Oral ulcers"), one after "answer", "option" or "choice" ("The answer is B because ..."), one in brackets
    anywhere, or an option's text and nothing else, compared as in exact match. Where several of these stand in an
    answer, "answer ..." decides, then "option ...", the beginning, the brackets.

    Wrong: no choice; two letters; a letter with another option's text; a choice taken back in its own clause ("not
    option B"); a bracketed letter next to a "not". A letter before a word is part of it: "A patient" and "B cells" are
    no choice. Option texts inside longer sentences, and paraphrases, are not recognized.
    """

    name = "multiple choice"

    def check(self, task: Task) -> None:
        """Refuse a task without options, or with an answer that is not an option."""
        _right(task, _options(task))

    async def value(self, task: Task, answer: str) -> float:
        """Whether what the answer chooses is the gold option."""
        options = _options(task)
        right, choice = _right(task, options), chosen(answer, options)
        return float(bool(choice) and choice <= right)


class MultipleChoiceConfig(RewardConfig):
    """No settings."""

    rule_based = True
    component = MultipleChoice


def chosen(answer: str, options: Mapping[str, str]) -> set[str]:
    """The letters that an answer names: one, where it is a choice; several for options of the same text."""
    lines = _MARK_UP.sub(" ", answer).splitlines()
    text = "\n".join(" ".join(line.split()) for line in lines if line.strip())
    lead_in = _LEAD_IN.match(text)
    body = text[lead_in.end() :] if lead_in else text

    # Nothing but letters: "b", "(B)", "A or B".
    letters = {token for token in re.findall(r"\w+", body) if token not in ("and", "or")}
    if len(letters) == 1:
        letters = {letter.upper() for letter in letters}
    if letters & options.keys() and all(re.fullmatch("[A-Z]", letter) for letter in letters):
        return letters

    # An option's text, after its letter or alone.
    first = _FIRST.match(body)
    said = words(body[first.end() :] if first else body)
    named = {letter for letter, option in options.items() if said in (words(option), words(f"{letter} {option}"))}
    if said and named:
        return named & _letters([first[1]]) if first else named

    # Letters named in a sentence, by the strongest form that occurs. Option texts are taken out, the longest first:
    # letters in them name nothing.
    for option in sorted((text for text in options.values() if len(text) > 1), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(option)}(?!\w)", "…", text, flags=re.IGNORECASE)
    for pattern in (_ANSWER, _CHOICE):
        # A clause may take a choice back before it is named: "I would not choose", "so I ruled out option".
        matches = [match for match in pattern.finditer(text) if not _NEGATION.search(_last_clause(text, match.start()))]
        if matches:
            return _letters([match[1] for match in matches])
    first = _FIRST.match(text)
    if first:
        rest = text[first.end() :]
        if not (_DENIED.match(rest) and _NEGATION.search(_CLAUSE.split(rest)[0])):
            return _letters([first[1]])
    return set() if _NEGATION.search(text) else set(_BRACKETED.findall(text))


def _last_clause(text: str, end: int) -> str:
    return _CLAUSE.split(text[:end])[-1]


def _letters(groups: list[str]) -> set[str]:
    return {letter for group in groups for letter in re.findall(r"\b[A-Z]\b", group)}


def _right(task: Task, options: Mapping[str, str]) -> set[str]:
    """The letters of the accepted answers, with those of options of the same words."""
    right: set[str] = set()
    for accepted in task.answers:
        letter = accepted.strip()
        wanted = words(options.get(letter, accepted))
        right |= {other for other, option in options.items() if wanted and words(option) == wanted}
        right |= {letter} & options.keys()
    if not right:
        raise _unfit(task, f"its answer {task.answer[:80]!r} is not among its options {', '.join(options)}")
    return right


def _options(task: Task) -> dict[str, str]:
    options = task.metadata.get("options")
    if not isinstance(options, dict) or not options:
        raise _unfit(task, 'it has no metadata["options"]')
    for letter, text in options.items():
        if not (len(letter) == 1 and "A" <= letter <= "Z" and isinstance(text, str)):
            raise _unfit(task, f"its option {letter!r} is not a capital letter with a text")
    return {letter: str(text) for letter, text in options.items()}


def _unfit(task: Task, reason: str) -> RecipeError:
    return RecipeError(
        f"task {task.id!r} is not a multiple-choice question: {reason}",
        code="task-unfit",
        fix='give it metadata["options"] = {"A": ..., "B": ...} and one of them as answer, or use another reward',
    )
