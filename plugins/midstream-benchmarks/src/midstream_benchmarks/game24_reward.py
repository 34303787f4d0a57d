"""Game of 24: an expression of the given numbers, each once, that makes 24. Exact, and nothing is ever evaluated."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from midstream.components.component import RewardConfig
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.rewards.rule import Rule
from midstream.rewards.statement import in_latex

Side = tuple[Fraction, list[int]]  # value and numbers

TARGET = 24
MAX_TOKENS = 100  # four numbers with every bracket that helps take fewer than 30
ROUNDED = -1  # in place of a number with decimals, which is never a given one

_BULLET = re.compile(r"^ ?(?:[-*•]|[0-9]{1,2}[.)]) +", re.MULTILINE)
# A sentence ends where no number does; a line that ends in a colon belongs to the next.
_SENTENCE = re.compile(r"[.;](?!\w)|(?<!:)\n|(?<=[a-z])!|\b(?:but|so|then)\b", re.IGNORECASE)
# What takes a solution back: a word, a question, or a sign that makes it another expression ("√", "!", "≠").
_DENIAL = re.compile(
    r"\b(?:not|never|no|false|wrong|incorrect|invalid|cannot|fails?|almost|close|rejected|mistake|unacceptable|abs|sqrt|floor|ceil|round)\b|n't\b"
    r"|[^\w\s\-+*/=()\[\]{}.,:;→\"'\\]|\\(?!frac)",
    re.IGNORECASE,
)
_DROPPED = re.compile(r"\\(?:begin|end) ?\{\w+\*?\}|\\\\")
_SIGNS = ((r"\\(?:times|cdot)(?![a-z])", "*"), (r"\\div(?![a-z])", "/"), (r"\\implies", "→"))
_TIMES = re.compile(r"(?<=[0-9)\]]) ?[xX] ?(?=[0-9(\[])")
_SAID = re.compile(
    r"(?<=[0-9)\]]) ?(?:==+|[(\[] ?=|(?:is|equals|gives|makes|evaluates to)\b) ?(?=[0-9.]+(?![0-9 ]*[-+*/(\\]))"
)
_RUN = re.compile(r"(?:\\frac|[0-9]+\.[0-9]+|[0-9+\-*/()\[\]{}= ])+")
_OPERATION = re.compile(r"[0-9)\]}] ?[-+*/=] ?[(\[0-9\\]|\\frac")
_TOKEN = re.compile(r" ?([0-9]+(?:\.[0-9]+)?|\\frac|.)")
_FRACTION = re.compile(r"\\frac \{([^{}\\]*)\} \{([^{}\\]*)\}")
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Game24(Rule):
    """1 if the answer is an expression of `metadata["numbers"]`, each exactly once, that makes 24, else 0.

    Read: whole numbers, + - * / × ÷ −, "x" between numbers, brackets, LaTeX's \\frac, \\times, \\div, \\cdot, \\left(;
    "= 24" after it, "24 =" before it, or more steps ("= 3 * 8 = 24"), every one of which must make 24. The last
    sentence with an expression of all numbers counts, with all that follows (see `solves`); of several solutions all
    must be right. Values are fractions: 8/(3-8/3) is 24.

    Wrong: a bare 24, steps without an expression of all numbers, other numbers than the given ones, two digits joined
    to one number, other operators (powers, factorials, //), signs before a number (-1), multiplication without a sign
    (2(3+9)), digits other than 0 to 9, more than `MAX_TOKENS` tokens.
    """

    name = "Game of 24"

    def check(self, task: Task) -> None:
        """Refuse a task without its numbers."""
        _given_numbers(task)

    async def value(self, task: Task, answer: str) -> float:
        """Whether the answer's one expression is a solution."""
        return float(solves(answer, _given_numbers(task)))


class Game24RewardConfig(RewardConfig):
    """1 if the answer makes 24 from the task's numbers, each used once, else 0."""

    rule_based = True
    component = Game24


def solves(answer: str, given: Sequence[int]) -> bool:
    """Whether a text ends in solutions: from the last sentence with an expression of as many numbers as are given.

    From there on nothing is denied or asked, and every expression uses the given numbers, each once, and makes 24.
    Equations of fewer numbers are steps, and claim nothing.
    """
    sentences = _sentences(answer)
    read = [list(map(_sides, _runs(sentence))) for sentence in sentences]
    whole = [place for place, found in enumerate(read) if any(_size(sides) >= len(given) for sides in found)]
    if not whole or any(map(_DENIAL.search, sentences[whole[-1] :])):
        return False
    claims = [sides for found in read[whole[-1] :] for sides in found if len(sides) < 2 or _size(sides) >= len(given)]
    return all(
        {value for value, _ in sides} == {TARGET} and any(sorted(numbers) == sorted(given) for _, numbers in sides)
        for sides in claims
    )


def _size(sides: Sequence[Side]) -> int:
    return max((len(numbers) for _, numbers in sides), default=0)


def _sentences(answer: str) -> list[str]:
    """The sentences of a text, its expressions in plain signs."""
    text = in_latex(answer)
    for pattern, sign in _SIGNS:
        text = re.sub(pattern, sign, text)
    text = "\n".join(" ".join(line.split()) for line in _DROPPED.sub(" ", text).splitlines() if line.strip())
    text = _BULLET.sub("", _TIMES.sub("*", text).replace("\n=", " ="))
    text = re.sub(r"(?<![0-9.])24(?:\.0+)?(?![0-9.])!?", "24", _SAID.sub(" = ", text))
    return [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]


def _runs(sentence: str) -> Iterator[str]:
    """The parts of a sentence that look like expressions; "" for one that continues in other signs: "1,000", "8a"."""
    for run in _RUN.finditer(sentence):
        if not _OPERATION.search(run[0]):
            continue
        before, after = sentence[max(0, run.start() - 1) : run.start()], sentence[run.end() : run.end() + 2]
        cut = (re.match(r"[\w.,]", before) and not run[0].startswith(" ")) or (
            re.match(r"\w|[.,:]\w", after) and not run[0].endswith((" ", " (", " ["))
        )
        yield "" if cut else run[0].lstrip("= ").rstrip("= ([")


def _sides(run: str) -> list[Side]:
    """The sides of an equation, without rounded ones; none if one is no expression."""
    if "=" in run:  # a bracket around the whole equation: "(10 - 4 = 6)"
        run = re.sub(r"(=[ 0-9]*)[)\]]\Z", r"\1", run)
        run = run[1:] if run.count("(") > run.count(")") else run
    try:
        sides = [_side(side) for side in run.split("=")]
        return [(value, numbers) for value, numbers in sides if numbers == [ROUNDED] or ROUNDED not in numbers]
    except (SyntaxError, ZeroDivisionError):
        return []


def _side(text: str) -> Side:
    """One side of a sign of equality: value and numbers. Raises `SyntaxError`, or `ZeroDivisionError` for a / 0."""
    tokens = _TOKEN.findall(text.strip())
    numerals = [token for token in tokens if token[0].isdigit()]
    if len(tokens) > MAX_TOKENS or any(len(token) > 6 or re.match("0[0-9]", token) for token in numerals):
        raise SyntaxError
    # The spaces keep two signs from being one of Python's, such as // and **.
    expression = " ".join(tokens)
    while "\\frac" in expression:
        expression, replaced = _FRACTION.subn(_divide, expression)
        if not replaced:
            raise SyntaxError
    numbers: list[int] = []
    return _value(ast.parse(expression, mode="eval").body, numbers), numbers


def _divide(fraction: re.Match[str]) -> str:
    above, below = fraction[1].strip(), fraction[2].strip()
    for part in (above, below):
        ast.parse(part, mode="eval")  # each is an expression by itself
    return f"(({above}) / ({below}))"


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    """The value of an expression; appends its numbers to `numbers`."""
    match node:
        case ast.Constant(value=int(number)):
            numbers.append(number)
            return Fraction(number)
        case ast.Constant(value=float(number)):
            numbers.append(ROUNDED)
            return Fraction(str(number))
        case ast.List(elts=[inner]) | ast.Set(elts=[inner]):  # square brackets, braces
            return _value(inner, numbers)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left, numbers), _value(right, numbers))
    raise SyntaxError


def _given_numbers(task: Task) -> list[int]:
    numbers = task.metadata.get("numbers")
    given = [number for number in numbers if type(number) is int] if isinstance(numbers, list) else []
    if not given or not isinstance(numbers, list) or len(given) < len(numbers):
        raise RecipeError(
            f"task {task.id!r} is not a Game of 24: its numbers are {numbers!r}",
            code="task-unfit",
            fix='give the task metadata["numbers"] = [1, 1, 1, 8], or use another reward',
        )
    return given
