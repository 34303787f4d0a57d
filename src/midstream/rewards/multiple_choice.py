"""The answer chooses the right one of the task's options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from midstream.components.component import RewardConfig
from midstream.core.answers import words
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.rewards.rule import Rule, unfit_task
from midstream.rewards.statement import plain

# Words that may stand before a choice. None of them denies or doubts.
_BEFORE = (
    "so|thus|hence|therefore|consequently|then|overall|finally|in conclusion|in summary|conclusion|verdict|result|"
    "i(?:'d| would| will|'ll)? (?:think|believe|say|guess|choose|pick|select|answer|go with)|let's go with|we choose|"
    "my|the|final|best|correct|right|actual|most likely|most|likely|probably|definitely|clearly|surely|only|guess|pick|"
    "answers?|ans|choice|options?|letter|solution|statement|one|to (?:the|this) question|here|"
    "is|are|it's|it|that's|this|that|its|must|should|would|has to|be|seems|appears|to be"
)
_LEAD = re.compile(rf"(?:\W*\b(?:{_BEFORE})\b)*[^\w+-]*", re.IGNORECASE)
_NAMED = re.compile(
    r"\b(?:answers?|ans|option|choice)\b(?:[^\w\n]{0,3}[:=\n]|[^.\n?]{0,40}?\b(?:is|be)\b)"
    r"|\b(?:so|thus|hence|therefore)\b",
    re.IGNORECASE,
)
_CONFIRMED = re.compile(
    r" ?(?:(?:is|must be|seems|looks) (?:(?:the|my|clearly|definitely|final|best|only|most likely) )*"
    r"(?:correct|right|answer|choice|option|one)(?: (?:answer|choice|option|one))?|fits(?: best)?|it is|makes sense)\b",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"\W*(?:because|since|as (?:the|it|this)|(?:and )?(?:not|rather than|instead of) (?:option )?\(?[A-Z]\b\W*\Z)"
)
_DENIAL = re.compile(
    r"\b(?:not|never|no|neither|nor|wrong|incorrect|false|unless|wait|mistaken|doubt)\b|n't\b", re.IGNORECASE
)


class MultipleChoice(Rule):
    """1 if the answer chooses the right one of `metadata["options"]` (letter -> text), else 0.

    The gold answer is a letter or an option's text. Read: "B", "(b)", "B. Oral ulcers", "Oral ulcers", in a box, in
    answer tags, after "the answer is" or "so", or in the last sentence; "is correct" or a reason may follow.

    Wrong: no choice; two; a letter with another option's text; one that is denied ("not B", "B is wrong"), asked or
    only compared ("C is better than B"); one in other prose ("we are left with B", "A patient"), which a judge reads.
    """

    name = "multiple choice"

    def check(self, task: Task) -> None:
        """Refuse a task without options, or with an answer that is not an option."""
        _right(task, _options(task))

    async def value(self, task: Task, answer: str) -> float:
        """Whether what the answer chooses is the gold option."""
        options = _options(task)
        right, choice = _right(task, options), find_choice(answer, options)
        return float(bool(choice) and choice <= right)


class MultipleChoiceConfig(RewardConfig):
    """1 if the answer chooses the right one of the task's options, else 0."""

    rule_based = True
    component = MultipleChoice


def find_choice(answer: str, options: Mapping[str, str]) -> set[str]:
    """The letters that a reply chooses: one, or several for options of the same text.

    Read is what follows the last "the answer is", "Answer:" or "so", else the whole reply, else its last sentence.
    There an option's letter, its text or both come first, and then nothing, "is correct", a reason or a new sentence.
    """
    text = plain(re.sub("[✗✘❌❎]", " is wrong ", answer))
    named = list(_NAMED.finditer(text))
    start = named[-1].start() if named else 0
    clause = re.split(r"[.,:!?;\n]", text[:start])[-1]
    if _DENIAL.search(clause) or not _LEAD.fullmatch(" ".join(clause.split()[-1:])):
        # "the wrong answer is", "the most dangerous choice is"
        return set()
    last = [sentence for sentence in re.split(r"(?<=[.!?;])\s|\n", text) if sentence.strip(" .")][-1:]
    claims = [text[start:]] if named else [text, *last]
    return next((letters for claim in claims if (letters := _first_option(claim, options)) is not None), set())


def _first_option(claim: str, options: Mapping[str, str]) -> set[str] | None:
    """The option that a claim begins with, and those of the same text; none if what follows makes it another claim.

    None if it begins with no option.
    """
    texts = {letter: plain(option).rstrip(".") for letter, option in options.items()}
    by_letter, by_text = [], []
    for letter, text in sorted(texts.items(), key=lambda option: -len(option[1])):
        whole = rf"(?i:{re.escape(text)})(?!\w)"
        mark = rf"[(\[]*(?:{letter}|(?i:{letter})(?=[)\].:]|\W*\Z))(?![\w'/&+])[)\]]*"
        by_letter.append((letter, rf"{mark}(?:(?: - |[^\w\n+-]){{1,3}}{whole})?"))
        by_text.append((letter, rf"{whole}(?:\W{{1,3}}(?:option )?{mark})?"))
    for start in (claim.strip(" \"'([{$"), _LEAD.sub("", claim, count=1)):
        for letter, pattern in (*by_letter, *by_text):
            found = re.match(pattern, start)
            if found is None:
                continue
            rest = start[found.end() :].lstrip("\"'$)]*")
            confirmed = _CONFIRMED.match(rest)
            rest = rest[confirmed.end() :] if confirmed else rest
            if _REASON.match(rest) or not rest.strip(" .!,;:\"'"):
                pass
            elif not re.match(r"[.;,!]?\n|[.;]\s", rest) or _DENIAL.search(rest) or _mentions(rest, texts, letter):
                return set()
            same = words(texts[letter])
            return {letter} | {other for other, option in texts.items() if same and words(option) == same}
    return None


def _mentions(text: str, texts: Mapping[str, str], letter: str) -> bool:
    """Whether a text mentions another option than the one of `letter`."""
    others = [rf"{other}|(?i:{re.escape(option)})" for other, option in texts.items() if other != letter]
    return bool(others) and re.search(rf"(?<!\w)(?:{'|'.join(others)})(?![\w'])", text) is not None


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
    fix = 'give it metadata["options"] = {"A": ..., "B": ...} and one of them as answer, or use another reward'
    return unfit_task(task, f"is not a multiple-choice question: {reason}", fix)
