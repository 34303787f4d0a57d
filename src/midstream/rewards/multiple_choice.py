"""The answer chooses the right one of the task's options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from midstream.core.answers import words
from midstream.core.component import RewardConfig
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.rewards.rule import Rule
from midstream.rewards.statement import DENIAL, conclusion, plain

# A clause states an option where every word in it is known: from these lists, or from the question. Words that deny,
# doubt or set aside are in none, so a denial in new words states nothing. A clause that names an answer goes before one
# that chooses or concludes, and this before others.
_ANSWER = frozenset(
    "answer answers ans solution correct right true antwort richtige respuesta réponse risposta".split()
)
_CHOICE = frozenset(
    "choose chose choosing choice pick picked picking select selected selecting selection go going opt opting settle "
    "lock submit mark so thus hence therefore consequently accordingly conclude conclusion final finally best better "
    "must guess say think believe verdict result leaves leaving leave left remains remaining most only vote "
    "matching matches match points corresponds corresponding".split()
)
_KNOWN = (_ANSWER | _CHOICE).union(
    "a am an the this that these it is are was be been do does would could should will shall has have had i i'd i'll "
    "i'm i've me my we we'd we'll we're our us you let let's to of on in with at by for as and but if yet still now "
    "then too down up out option options letter statement explanation item response one ones more single which what "
    "who whose where here there why question because since while whereas although though likely probable probably "
    "presumably plausible accurate appropriate suitable reasonable sensible logical consistent supported valid sound "
    "ideal obvious evident safe strongest closest certain sure confident convinced quite very indeed pretty yes ok "
    "okay overall short summary course all things both each above below given based reasoning analysis evidence "
    "considered elimination process perhaps maybe inclined lean leaning towards toward favor favors recommend money "
    "like can answering respond seem seems looks appears fit fits match matches make makes sense hold holds stand "
    "stands correspond corresponds follow follows point points lead leads bring brings come comes end ends get gets "
    "find found see means predicts supports suggests implies indicates shows confirms identifies describes satisfies "
    "applies works wins winner survives qualifies meets aligns agrees captures addresses completes take put stick "
    "enter write circle report give clear definitely certainly clearly surely obviously simply fairly actually really "
    "exactly precisely evidently naturally undoubtedly unquestionably absolutely directly logically ultimately "
    "essentially plainly strongly perfectly closely unambiguously firmly fully completely highly reasonably easily "
    "truly just alone again namely personally everything need needs want wants ask asks asked yield yields "
    "gives giving matching making meaning leading pointing resulting corresponding sticking standing determine "
    "determined decide decided deduce infer obtain obtained argue prefer bet put got turns happens proves ought boils "
    "remain stays alternative good proper listed labeled shown gut instinct actual every la le el die ist "
    "est es è correcta correcte".split()
)
# Known too; a capital letter next to them may be an article: "A patient".
_NOUNS = (
    "description theory definition form condition conditions criteria requirements facts data findings patient passage "
    "text problem scenario"
).split()
_DENIED = re.compile(
    rf"{DENIAL}|\b(?:hardly|except|untrue|inaccurate|implausible|unlikely|less|least|worst|"
    r"rul(?:e[sd]?|ing) .{0,9}out|(?:is|are|was|be) out|(?:eliminat|exclud|discard|dismiss|avoid|mis)\w+|"
    r"distractors?|traps?|decoys?|tempting|doubt\w*|against|opposite|fails?|almost|(?:was|were) going|disagree\w*|"
    r"refuse\w*|people|students|many|some|others)\b",
    re.IGNORECASE,
)
# Next to these too, a capital letter is an option.
_NEAR = _KNOWN.union(
    "or nor neither either than rather over reject except between vs unlike like might may cannot can".split()
)
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
# What one pattern reads in place of another, in this order.
_READ_AS: Sequence[tuple[str, str]] = (
    (r"\b(?:there is |have )?(?:no|without|beyond)(?: an?)?(?: reasonable)? (?:doubt|question)(?: that)?\b", " "),
    (rf"\A(\W*⟦\w+⟧)(?:[.):\s]*(?-i:(?=[A-Z]))|\s?[:-]\s(?![^.!?;\n]*(?:{_DENIED.pattern})))", r"\1. "),  # a label
    # The last "Answer:" goes before all that precedes it.
    (r"(?s)\A.*(?:\A|\n|[.!?:] )\W*(?:(?:so|thus|therefore),? )?(?:(?:the|my|final|correct|best) ){0,3}"
     r"(?:answer|ans)\W{0,3}[:=](?=[^\n]*⟦)", "answer is "),
    (r"\beven (?:if|when|though)\b", "although"),
    # Taken back, asked or supposed.
    (r"(?s)\A.*\b(?:no|wait|nope|scratch that|scrap that|on second thoughts?|on reflection|correction|actually|hmm)"
     r"[,.:!]\s", ""),
    (r"(?:\A|(?<=[.!?\n]))\s?(?:is|are|could|would|can|does|do|which|what|why|how|should|might)\b[^.!?\n]*\?", " "),
    (r"[^.!?,;:()\n-]{0,100}\bwould be [^.!?,;\n]* if\b[^.!?\n]*|(?:\A|(?<=[.!?\n] ))(?:had|were) [^.!?\n]*", " "),
    # The other side of a comparison: "B, not A", "B is better than A".
    (r",? ?\(?\b(?:and |but )?(?:not|rather than|instead of|over|than|unlike|as opposed to|neither|nor|except|"
     r"versus|vs|(?:any|every)(?:thing|one)? (?:but|except)|all (?:but|except)|none of|other than|apart from|"
     r"contrary to|as good as)(?: either)?(?: the| an?| with| for| on| to)? ⟦\w+⟧\)?", ""),
)  # fmt: skip
_SENTENCE = re.compile(r"[;!?\n]|\.(?!\d)|(?=\b(?:but|so|thus|hence|therefore|yet|however)\b)", re.IGNORECASE)
_CLAUSE = re.compile(
    r"[,:()]|\s-\s|(?=\b(?:because|since|while|whereas|although|though|which|and|leav(?:es|ing)|given|if|unless|whether|"
    r"as(?= (?:it|the(?! (?:correct|right|best)? ?answer)|this|that|he|she|they|there|we|⟦)))\b)",
    re.IGNORECASE,
)
# Clauses that give a reason or a circumstance may have any words; those with the first of these state nothing.
_ASIDE = re.compile(
    r"\W*(?:(because|since|as|while|whereas|although|though|if|unless|whether)|given|for|based|due|when|in|after|by|"
    r"according|from|looking|considering|among|of|out|at)\b",
    re.IGNORECASE,
)
# A sentence states nothing with a condition in other words than "if I had to choose", or an aside with another answer.
_CONDITION = re.compile(
    r"\W*(?:only |but )?(?:if|unless|provided|providing|assuming|else|otherwise|had|were)\b", re.IGNORECASE
)
_OTHER_ANSWER = re.compile(
    r"⟦\w+⟧ (?:is|was) the (?:\w+ )?(?:answer|solution|choice|option|one)\b|\b(?:answer|solution) (?:is|was) ⟦",
    re.IGNORECASE,
)
# An option's text may also end a sentence with unknown words or begin one: "The capital of England is London".
_STATED = re.compile(
    r"(?:\A\W*(?:(?:the|an?|but|and|so)\s)?|\b(?:is|are|was|were|be|it's|that's|[a-z]+s)\b.{0,200})⟦\w*[a-z]\w*⟧"
    r"(?=\W*\Z|\s(?:is|are|was|were) (?:likely|more|most|consistent|supported|the|my)\b)",
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

    known = _KNOWN.union(_NOUNS, re.findall(r"[\w']+", question.lower())) - {"not", "no"}
    text = re.sub(r"((?i:answer|choice|option)\b[^\w\n]{0,9})\n+", r"\1: ", text)  # "Answer:" is above its letter
    text = re.sub("(?:正确)?答案(?:是|为|应该是)?|(?:应该?)?选择?", " answer is ", text)  # as Chinese models write
    text = _marked(re.sub(r"(?<=\w)'s (?=\W*[A-Za-z]\b|[a-z])", " is ", text), options)
    for pattern, replacement in _READ_AS:
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    stated: list[list[str]] = [[], [], [], []]  # by how clearly
    for sentence in _SENTENCE.split(text):
        found = _stated(sentence, known)
        # "A looks right, but B is the answer" takes A back.
        if any(found) and re.match(r"(?i)\W*(?:but|yet|however)\b(?!.*\b(?:also|too|equally)\b)", sentence):
            stated = found
        else:
            stated = [[*before, *here] for before, here in zip(stated, found, strict=True)]
    marks = next(filter(None, stated), [])
    return set("".join([mark for mark in marks if not mark.islower()] or marks).upper())


def _stated(sentence: str, known: frozenset[str]) -> list[list[str]]:
    """The marks that a sentence states, by how clearly: an answer, a choice, the mark alone, a sentence about it."""
    stated: list[list[str]] = [[], [], [], []]
    clauses = [(clause, _is_known(clause, known)) for clause in _CLAUSE.split(sentence)]
    for clause, _ in clauses:
        aside = _ASIDE.match(clause)
        if _CONDITION.match(clause) and ("⟦" in clause or not _is_known(clause, _KNOWN)):
            return stated
        if aside and aside[1] and _OTHER_ANSWER.search(clause) and not _DENIED.search(clause):
            return stated
    understood = all(is_known or _ASIDE.match(clause) for clause, is_known in clauses)
    for clause, is_known in clauses:
        marks = re.findall(r"⟦(\w+)⟧", clause)
        aside = _ASIDE.match(clause)
        if not marks or (aside and aside[1]):
            continue
        said = set(re.findall(r"[a-zé]+", clause.lower()))
        if is_known and (understood or said & (_ANSWER | _CHOICE)):
            stated[0 if said & _ANSWER else 1 if said & _CHOICE else 2] += marks
        elif _STATED.search(clause) and not _DENIED.search(clause):
            stated[3] += [mark for mark in marks if mark != mark.upper()]
    return stated


def _is_known(clause: str, known: frozenset[str]) -> bool:
    """Whether every word of a clause is known, and none denies."""
    if any(found[0].lower() not in known for found in _DENIED.finditer(clause)):
        return False
    rest = re.sub(r"⟦\w+⟧", " ", clause)
    return known.issuperset(re.findall(r"\w[\w']*", rest.lower()))


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
    return word.lower() in _NEAR or word.endswith(("ly", "ing", "n't")) or bool(_DENIED.fullmatch(word))


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
