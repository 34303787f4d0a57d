"""The answer chooses the right one of the task's options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from midstream.components.component import RewardConfig
from midstream.core.answers import words
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.rewards.rule import Rule
from midstream.rewards.statement import conclusion, plain

# A clause states an option where every word in it is known: from these lists, or from the question. Words that deny,
# doubt or set aside are in none, so a denial in new words states nothing. A clause that names an answer goes before one
# that chooses or concludes, and this before others.
_ANSWER = frozenset("answer answers ans solution correct right true antwort richtige".split())
_CHOICE = frozenset(
    "choose chose choosing choice pick picked select selected selection go opt settle lock submit mark so thus hence "
    "therefore consequently accordingly conclude conclusion final finally best better must guess say think believe "
    "verdict result leaves leaving leave left remains remaining most only points corresponds supported vote".split()
)
_KNOWN = (_ANSWER | _CHOICE).union(
    "a am an the this that these it is are was be do does would could should will has have i i'd i'll i'm i've me my "
    "we we'll we're let let's to of on in with at by for as and yet still then too up option options letter statement "
    "explanation response one more single what here there question because since although though likely probably "
    "plausible accurate appropriate suitable consistent obvious safe certain sure confident yes ok okay overall short "
    "summary course all things both above given based reasoning analysis evidence considered elimination process "
    "inclined lean towards toward favors money like can answering seems looks appears fit fits match matches make "
    "makes sense hold holds stand lead come comes end get gets find found predicts describes satisfies winner "
    "survives take stick give clear definitely certainly clearly surely obviously simply fairly exactly ultimately "
    "just again everything need gives giving making meaning got happens good gut actual every die ist".split()
)
# Known too; a capital letter next to them may be an article: "A patient".
_NOUNS = (
    "description theory definition form condition conditions criteria requirements facts data findings patient passage "
    "text problem scenario"
).split()
# Even where the question has them.
_DENIALS = frozenset("not no never nor neither but except wrong incorrect false than if unless".split())
# Next to these too, a capital letter is an option.
_NEAR = _KNOWN.union("or either rather over reject between vs unlike like might may cannot can".split(), _DENIALS)
_BARE = re.compile(r"(?:(?<![\w'])([\w']{2,})[ ])?(?<![\w⟦+-])(?<!\w')([A-Z])(?![\w+-]|'\w)(?=[ ]([\w']+)|)")
_NAMED = re.compile(
    r"(?:\b(?i:option|choice|letter)s?\s)?[(\[]\s?([A-Za-z])\s?[)\]]"  # "(b)", "option [B]"
    r"|(?:\A\W*|\b(?i:option|choice|letter|answer|answer\sis|answer:)\s)([a-z])"
    r"(?=\W*(?:\Z|\n)|[.,;:)]\s|\s(?:is|because)\b)"
)
# Mentions next to each other are one: "A, C and D", "B. Oral ulcers", "Ulcers (B)"; not in "I choose B, A is wrong".
_JOINED = re.compile(
    r"⟦(\w+)⟧ ?(?:[,;]? ?(?:and/or|and|or|nor|as well as) (?:(?:also|possibly|maybe|perhaps) )?"
    r"|(?:(?<=[A-Z]⟧)[.):;=-]{0,3}(?= ?\(?⟦[a-z])|[),/&|+-]{0,2}) ?)\(?(?:the |option )?⟦(\w+)⟧"
    r"(?! (?:is|was|isn't|wasn't|would|could|can|cannot|can't|may|might|must|should|does|do|has|\w+s)\b)"
)
_BEFORE = re.compile(
    r"\A.*\n(?=\W*(?:(?:my|the|final|correct|best) ){0,3}answer\W{0,3}[:=])", re.DOTALL | re.IGNORECASE
)
_LABEL = re.compile(r"\A(\W*⟦\w+⟧)[.):\s]*(?=[A-Z])")  # "B. Oral ulcers"
_SENTENCE = re.compile(r"[;!\n]|(?<=\?)|\.(?!\d)|, (?=but\b)|\b(?:so|thus|hence|therefore|yet|however)\b", re.I)
# What a sentence says besides its claim: what it begins with, the other side of a comparison, and the reason after it.
_ASIDE = re.compile(
    r"\A\W*(?:(?:as|since|while|although|given|based on|after|looking|considering|of|among|between)\b[^,]*,|but\b)"
    r"|(?<=⟧),? ?\(?(?:and )?\b(?:not|rather than|instead of|over) (?:the )?⟦\w+⟧\)?"
    r"|(?:,\s)?\b(?:because|since|as (?!⟦)|while|whereas|given|which|based on)\b.*\Z",
    re.IGNORECASE,
)


class MultipleChoice(Rule):
    """1 if the answer chooses the right one of `metadata["options"]` (letter -> text), else 0.

    The gold answer is a letter or an option's text. Read: a letter as in "B", "(b)", "B. Oral ulcers", "The best answer
    is B", "B is correct", "I'd go with B", "option b"; or an option's text, alone as in exact match or in a sentence
    that states it. See `chosen` for which of several mentions decides.

    Wrong: no choice; two; a letter with another option's text; one that is denied ("not B", "B is wrong"), asked or
    only compared ("C is better than B"); one in a clause with a word that is neither usual there nor in the question
    ("B is a red herring"). A letter next to a word may be part of it: "A patient", "hepatitis B". Paraphrases are not
    recognized.
    """

    name = "multiple choice"

    def check(self, task: Task) -> None:
        """Refuse a task without options, or with an answer that is not an option."""
        _right(task, _options(task))

    async def value(self, task: Task, answer: str) -> float:
        """Whether what the answer chooses is the gold option."""
        options = _options(task)
        right, choice = _right(task, options), chosen(answer, options, task.question)
        return float(bool(choice) and choice <= right)


class MultipleChoiceConfig(RewardConfig):
    """1 if the answer chooses the right one of the task's options, else 0."""

    rule_based = True
    component = MultipleChoice


def chosen(answer: str, options: Mapping[str, str], question: str = "") -> set[str]:
    """The letters that an answer names: one, where it is a choice; several for options of the same text.

    Every mention of an option becomes a mark, ⟦B⟧ for its letter and ⟦b⟧ for its text. Of the clauses that state one,
    those decide that name an answer, else those that choose or conclude, else the others; and among them letters before
    texts.
    """
    text = re.sub("[⟦⟧${}]", " ", answer)  # a cross and an arrow are words, before `plain` drops them
    text = plain(re.sub("[✗✘❌❎]", " is wrong ", re.sub("[→⇒]|[-=]>", " so ", text)))
    said = words(conclusion(text) or text)
    named = {letter for letter, option in options.items() if said == words(option)}
    lettered = re.match(r"\W*([A-Za-z])(?:[.):,\]-]|\W*\Z)", text)
    if said and named and not (lettered and lettered[1].upper() in options):
        return named

    known = _KNOWN.union(_NOUNS, re.findall(r"[\w']+", question.lower())) - _DENIALS
    text = re.sub(r"((?i:answer|choice|option)\b[^\w\n]{0,9})\n+", r"\1: ", text)  # "Answer:" is above its letter
    text = _BEFORE.sub("", text)
    text = re.sub("(?:正确)?答案(?:是|为|应该是)?|(?:应该?)?选择?", " answer is ", text)  # as Chinese models write
    text = _LABEL.sub(r"\1. ", _marked(re.sub(r"(?<=\w)'s (?=\W*[A-Za-z]\b|[a-z])", " is ", text), options))
    stated: dict[bool, list[str]] = {True: [], False: []}  # by whether the sentence names an answer or a choice
    for sentence in _SENTENCE.split(text):
        claim = _ASIDE.sub("", sentence)
        marks, said = re.findall(r"⟦(\w+)⟧", claim), re.findall(r"\w[\w']*", re.sub(r"⟦\w+⟧", " ", claim).lower())
        if marks and "?" not in claim and known.issuperset(said):
            stated[not (_ANSWER | _CHOICE).isdisjoint(said)] += marks
        elif any(mark.isupper() or mark.upper() in map(str.upper, stated[True] + stated[False]) for mark in marks):
            stated = {True: [], False: []}  # it may take back what was stated before
    marks = stated[True] or stated[False]
    return set("".join([mark for mark in marks if not mark.islower()] or marks).upper())


def _marked(text: str, options: Mapping[str, str]) -> str:
    """A text with its mentions of options as marks, those next to each other joined."""
    texts = {letter: plain(option).rstrip(".") for letter, option in options.items()}
    for option in sorted(set(texts.values()), key=len, reverse=True):
        if len(option) > 1 or option.isdecimal():
            letters = "".join(letter.lower() for letter, other in texts.items() if other.lower() == option.lower())
            whole = rf"(?<![\w.,/^+⟦-])(?<!\d ){re.escape(option)}(?![\w%⟧]|[.,/^-]\w| \d)"
            text = re.sub(whole, f"⟦{letters}⟧", text, flags=re.IGNORECASE)
    text = _NAMED.sub(lambda found: f"⟦{(found[1] or found[2]).upper()}⟧", text)

    def bare(found: re.Match[str]) -> str:
        """A capital letter as a mark, unless a word next to it makes it another thing: "hepatitis B", "A patient"."""
        before, letter, after = found[1] or "", found[2], found[3] or ""
        follows = not before or _is_near(before)
        word = letter in "AI" and after and not _is_near(after) and not re.fullmatch("[A-Z]", after)
        pronoun = letter == "I" and (letter not in options or after)
        return f"{before} ⟦{letter}⟧".lstrip() if follows and not word and not pronoun else found[0]

    text = re.sub(r"\b(?:option|choice|letter|statement)s? ⟦", "⟦", _BARE.sub(bare, text), flags=re.IGNORECASE)
    while (joined := _JOINED.sub(r"⟦\1\2⟧", text)) != text:
        text = joined
    return text


def _is_near(word: str) -> bool:
    return word.lower() in _NEAR or word.endswith(("ly", "ing", "n't"))


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
