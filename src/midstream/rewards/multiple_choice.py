"""The answer chooses the right one of the task's options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from midstream.core.answers import words
from midstream.core.component import RewardConfig
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.rewards.rule import Rule
from midstream.rewards.statement import DENIAL, conclusion, plain

MAX_CHARACTERS = 20_000  # of an answer; the last ones are read
# A capital letter is a choice unless a word next to it makes it something else: "hepatitis B", "A patient", "B cells".
_BEFORE = frozenset(
    "answer answers option options choice choices letter choose chose pick select selected exclude eliminate "
    "reject is it's that's be was were are with say for to as than of but and or nor not neither either both so "
    "thus therefore hence maybe perhaps only just out over except leaves since because if think believe that "
    "between considered final still vs from unlike on like against towards toward predicts supports suggests "
    "implies means gives".split()
)
_AFTER = frozenset(
    "and as based because but by due for given is isn't are aren't was wasn't were or since which nor rather "
    "instead over if while whereas though although would wouldn't must can can't cannot could does doesn't do "
    "should has have may might will looks seems fits makes matches appears remains sounds describes states says "
    "follows leaves fails works gives explains best not with in on the it that only alone too also than here to "
    "from despite unless out vs so therefore".split()
)
_BARE = re.compile(r"(?:(?<![\w'])([\w']{2,20})[ ])?(?<![\w⟦+-])(?<!\w')([A-Z])(?![\w+-]|'\w)(?=[ ]([\w'⟦]+)|)")
_NAMED = re.compile(
    r"(?:\b(?i:option|choice|letter)s?\s)?[(\[]\s?([A-Za-z])\s?[)\]]"  # "(b)", "option [B]"
    r"|(?:\A\W*|\b(?i:option|choice|letter|answer|answer\sis|answer:)\s)([a-z])"
    r"(?=\W*(?:\Z|\n)|[.,;:)]\s|\s(?:is|because)\b)"
)
_ALONE = r"(?=\W*(?:\Z|\n)|[.,;:!)]|\s(?:is|because|since|as|and|or)\b)"  # of "no", which other sentences have too
# Choices next to each other are one: "A, C and D", "B. Oral ulcers", "Ulcers (B)"; not in "I choose B, A is wrong".
_VERBS = (
    r"is|was|isn't|wasn't|has|does|doesn't|seems|looks|remains|fits|makes|matches|appears|sounds|works|fails|gives|"
    r"explains"
)
_MODALS = r"would|could|can|cannot|can't|may|might|must|should"
_JOINED = re.compile(
    rf"⟦(\w+)⟧[ ]?[.):,/&=;-]{{0,3}}[ ]?(?:(?:and|or|nor|and/or|as well as)[ ]"
    rf"(?:(?:also|possibly|maybe|perhaps)[ ])?\(?(?=⟦\w+⟧(?![ ](?:{_VERBS})\b))"
    rf"|\(?(?=⟦\w+⟧(?![ ](?:{_VERBS}|{_MODALS}|[a-z]+s)\b)))⟦(\w+)⟧"
)
# Asked, supposed, or taken back: "Is it B?", "B? No, C", "if it were B".
_NOT_SAID = re.compile(
    r"(?:\A|(?<=[.!?\n]))\s?(?:is|are|could|would|can|does|do|which|what|why|how|should|might)\b[^.!?\n]*\?"
    r"|\bif\b[^.!?\n]{0,200}\b(?:were|was)\b[^.!?\n]*|\A.*\b(?:no|wait)[,.:]\s|⟦\w+⟧\?(?=.*⟦)",
    re.IGNORECASE | re.DOTALL,
)
_CLAUSE = re.compile(
    r"[;!?()\n]|[.,](?!\d)|\s-\s(?=⟦)|(?=\b(?:(?<!thing )(?<!all )but|because|since|as|while|whereas|although|"
    r"though|so|thus|hence|therefore|yet|which|who|and|leav(?:es|ing)|left with|rather than|instead of|other than|than|"
    r"unlike|as opposed to|versus|vs|if|whether|unless|over(?= ⟦)|not(?= (?:the |an? )?⟦))\b)",
    re.IGNORECASE,
)
_DENIED = re.compile(
    rf"{DENIAL}|\b(?:hardly|none of|except|(?:any|every)thing but|all but|untrue|inaccurate|implausible|unlikely|"
    r"less likely|rul(?:e|es|ed|ing) (?:⟦\w+⟧ )?out|ruled|cross out|(?:eliminat|exclud|discard|dismiss)\w*|distractor|"
    r"tempting|doubt|refuse|against|disagree|rather than|instead of|other than|than|unlike|as opposed to|versus|vs|if|"
    r"whether|unless|over|so (?:is|are|does|do)|as(?= ⟦)|"
    r"(?:one|many|some|students|people)(?: \w+)? (?:think|pick|choose|say|guess|assume))\b",
    re.IGNORECASE,
)
# Clauses that decide, the strongest first: those that name an answer, and those that choose or conclude.
_CUES = (
    re.compile(r"\b(?:answer|solution|correct|true|right(?!\s\w|-\w)|right (?:choice|option|one))\b", re.IGNORECASE),
    re.compile(
        r"\b(?:choose|chose|choice|pick|select(?:ed)?|go(?:ing)? with|opt|settle|so|thus|hence|therefore|conclude|"
        r"final|conclusion|finally|best|better|must be|most \w+|say|think|believe)\b",
        re.IGNORECASE,
    ),
)
# Then a letter at the very beginning, as a label; then what states an option at the end of its clause or before words
# that affirm. An option's text counts only in a sentence: "New London" is not London.
_LABEL = re.compile(r"\W*⟦\w*[A-Z]\w*⟧(?=\W*\Z|[.,:;!\n]|\s[(A-Z-]|\s(?:because|since|as|and|but|for)\b)")
_ENDS = (
    r"(?=\W*\Z|\s?[:=-]|\s(?:it is|for sure|then|here|does|fits|matches|makes|seems|appears|holds|follows|describes|"
    r"remains|explains|(?:is|are|was|were) (?:likely|more|most|consistent|supported|the|my|what|where|who|when|one))\b"
    r"|\s(?:is|was)\W*\Z)"
)
_STATED = re.compile(
    rf"⟦\w*[A-Z]\w*⟧{_ENDS}|(?:\A\W*(?:(?:the|an?|but|and|so)\s)?"
    rf"|\b(?:is|are|was|were|be|[Ii]t's|[Tt]hat's|[a-z]+s)\b.{{0,200}})⟦\w+⟧{_ENDS}"
)


class MultipleChoice(Rule):
    """1 if the answer chooses the right one of `metadata["options"]` (letter -> text), else 0.

    The gold answer is a letter or an option's text. Read: a letter as in "B", "(b)", "B. Oral ulcers", "The best answer
    is B", "B is correct", "I'd go with B", "option b"; or an option's text, alone as in exact match or in a sentence
    that states it. See `chosen` for which of several mentions decides.

    Wrong: no choice; two; a letter with another option's text; one that is denied ("not B", "B is wrong"), asked or
    only compared ("C is better than B"). A letter next to a word may be part of it: "A patient", "hepatitis B".
    Paraphrases are not recognized.
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
    """The letters that an answer names: one, where it is a choice; several for options of the same text.

    Every mention of an option becomes a mark, ⟦B⟧ for its letter and ⟦b⟧ for its text. Clauses that deny are left out.
    Of the others those decide that name an answer, else those that choose or conclude, else a letter at the very
    beginning, else those that state an option; and among them letters before texts.
    """
    text = re.sub("[⟦⟧${}]", " ", plain(answer)[-MAX_CHARACTERS:])
    said = words(conclusion(text) or text)
    named = {letter for letter, option in options.items() if said == words(option)}
    lettered = re.match(r"\W*([A-Za-z])(?:[.):,\]-]|\W*\Z)", text)
    if said and named and not (lettered and lettered[1].upper() in options):
        return named

    text = re.sub(r"((?i:answer|choice|option)\b[^\w\n]{0,9})\n+", r"\1: ", text)  # "Answer:" is above its letter
    text = _NOT_SAID.sub(" ", _marked(text, options))
    clauses = [clause for clause in _CLAUSE.split(text) if "⟦" in clause and not _DENIED.search(clause)]
    named_by = [[clause for clause in clauses if cue.search(clause)] for cue in _CUES]
    if any(" also " in clause for clause in named_by[0]):  # "A, but B is also right"
        named_by = [clauses]
    label = _LABEL.match(text)
    deciding = [
        *named_by,
        [label[0]] if label and clauses and clauses[0].startswith(label[0]) else [],
        [clause for clause in clauses if _STATED.search(clause)],
    ]
    marks = re.findall(r"⟦(\w+)⟧", " ".join(next(filter(None, deciding), [])))
    return set("".join([mark for mark in marks if not mark.islower()] or marks).upper())


def _marked(text: str, options: Mapping[str, str]) -> str:
    """A text with its mentions of options as marks, those next to each other joined."""
    texts = {letter: plain(option).rstrip(".") for letter, option in options.items()}
    for option in sorted(set(texts.values()), key=len, reverse=True):
        if len(option) > 1 or option.isdecimal():
            letters = "".join(letter.lower() for letter, other in texts.items() if other.lower() == option.lower())
            short = _ALONE if re.fullmatch("[a-zA-Z]{2,3}", option) else ""
            whole = rf"(?<![\w.,/^+⟦-])(?<!\d ){re.escape(option)}(?![\w%⟧]|[.,/^-]\w| \d){short}"
            text = re.sub(whole, f"⟦{letters}⟧", text, flags=re.IGNORECASE)
    text = _NAMED.sub(lambda found: f"⟦{(found[1] or found[2]).upper()}⟧", text)

    def bare(found: re.Match[str]) -> str:
        before, letter, after = found[1] or "", found[2], found[3] or ""
        follows = not before or before.lower() in _BEFORE or before.endswith(("ly", "ing"))
        ends = not after or after.lower() in _AFTER or after[0] == "⟦" or re.fullmatch("[A-Z]", after)
        return (
            f"{before} ⟦{letter}⟧".lstrip() if follows and ends and (letter in options or letter != "I") else found[0]
        )

    text = re.sub(r"\b(?:[Oo]ption|[Cc]hoice|[Ll]etter)s? ⟦", "⟦", _BARE.sub(bare, text))
    while (joined := _JOINED.sub(r"⟦\1\2⟧", text)) != text:
        text = joined
    return text


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
