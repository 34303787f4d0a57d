"""Game of 24: an expression of the given numbers, each once, that makes 24. Exact, and nothing is ever evaluated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from midstream.core.component import Context, RewardConfig
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.rewards.rule import Rule

TARGET = 24
MAX_TOKENS = 100  # four numbers with every bracket that helps take fewer than 30
MAX_CHARACTERS = 20_000

_DROPPED = re.compile(r"\\(?:left|right|displaystyle|[()\[\],;! ])|\$")
_BOXED = re.compile(r"\\boxed ?\{(.*)\}")
_BOLD = re.compile(r"(?<![0-9)\]])\*\*|\*\*(?!\s?[0-9(\[])")
_ITALIC = re.compile(r"\A\*([^ ].*[^ ])\*\Z")
_SIGNS = str.maketrans("×·⋅÷−–", "***/--")
_COMMANDS = {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\dfrac": r"\frac", r"\tfrac": r"\frac"}
_TIMES = re.compile(r"(?<=[0-9)\]]) ?[xX] ?(?=[0-9(\[])")
_RUN = re.compile(r"(?:\\frac|[0-9+\-*/()\[\]{}= ])+")
_OPERATION = re.compile(r"[0-9)\]}] ?[-+*/=] ?[(\[0-9\\]|\\frac")
# What would change the value of the expression next to it: powers, roots, factorials, functions, LaTeX not known here.
_FOREIGN = re.compile(
    r"[\^√∛|⌊⌈⁰¹²³⁴-⁹]|[0-9)\]] ?[!%]|[A-Za-z_][(\[]|\\(?!frac)[A-Za-z]"
    r"|\b(?:sqrt|root|log|ln|mod|floor|ceil|round|exp|abs|squared|cubed|factorial)\b"
)
_TOKEN = re.compile(r" ?([0-9]+|\\frac|.)")


class Config(RewardConfig):
    """No settings."""

    rule_based = True

    def build(self, context: Context) -> Game24:
        """Build it."""
        return Game24()


class Game24(Rule):
    """1 if the answer is one expression of `metadata["numbers"]`, each exactly once, that makes 24, else 0.

    Read: whole numbers, + - * / × ÷ −, "x" between numbers, brackets, LaTeX's \\frac, \\times, \\div, \\cdot, \\left(;
    "= 24" after it, or more steps ("= 3 * 8 = 24"), every one of which must make 24. Text around the one expression
    does not matter; two expressions are wrong. Values are fractions: 8/(3-8/3) is 24.

    Wrong: a bare 24, other numbers than the given ones, two digits joined to one number, other operators (powers,
    factorials, //), signs before a number (-1), multiplication without a sign (2(3+9)), digits other than 0 to 9, more
    than `MAX_TOKENS` tokens.
    """

    name = "Game of 24"

    def check(self, task: Task) -> None:
        """Refuse a task without its numbers."""
        _given(task)

    async def value(self, task: Task, answer: str) -> float:
        """Whether the answer's one expression is a solution."""
        return float(solves(answer, _given(task)))


class _NoExpression(Exception):
    """The text is not an expression."""


def solves(answer: str, given: Sequence[int]) -> bool:
    """Whether a text holds exactly one expression, of the given numbers, each once, and it makes 24."""
    try:
        read = [[_Side(side) for side in run.split("=")] for run in _runs(answer)]
    except _NoExpression:
        return False
    return (
        len({tuple(sides[0].tokens) for sides in read}) == 1
        and all(side.value == TARGET for sides in read for side in sides)
        and sorted(read[0][0].numbers) == sorted(given)
    )


def _runs(answer: str) -> list[str]:
    """The parts of a text that are expressions, in plain signs."""
    if len(answer) > MAX_CHARACTERS:
        raise _NoExpression
    text = _BOLD.sub("", answer.translate(_SIGNS))
    for command, sign in _COMMANDS.items():
        text = text.replace(command, sign)
    text = "\n".join(" ".join(line.split()) for line in _DROPPED.sub(" ", text).splitlines())
    text = _BOXED.sub(r"\1", _TIMES.sub("*", text).replace("\n=", " ="))
    text = re.sub(r"= ?24!", "= 24", text)
    if _FOREIGN.search(text):
        raise _NoExpression
    runs: list[str] = []
    for run in _RUN.finditer(text):
        if not _OPERATION.search(run[0]):
            continue
        # It must not continue in signs that are not read: "1.5", "1,000", "8a".
        before, after = text[max(0, run.start() - 1) : run.start()], text[run.end() : run.end() + 2]
        if re.match(r"[\w.,]", before) and not run[0].startswith(" "):
            raise _NoExpression
        if re.match(r"\w|[.,:]\w", after) and not run[0].endswith(" "):
            raise _NoExpression
        runs.append(_ITALIC.sub(r"\1", run[0].strip("= ")))
    return runs


class _Side:
    """One side of an expression's signs of equality: its `tokens`, its `value`, the `numbers` it is made of."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text.strip())
        if len(self.tokens) > MAX_TOKENS:
            raise _NoExpression
        self.numbers: list[int] = []
        self._place = 0
        self.value = self._sum()
        if self._place < len(self.tokens):
            raise _NoExpression

    def _sum(self) -> Fraction:
        value = self._product()
        while (sign := self._next("+-")) is not None:
            right = self._product()
            value = value + right if sign == "+" else value - right
        return value

    def _product(self) -> Fraction:
        value = self._atom()
        while (sign := self._next("*/")) is not None:
            right = self._atom()
            value = value * right if sign == "*" else _divide(value, right)
        return value

    def _atom(self) -> Fraction:
        """A number, a bracket, or a fraction in LaTeX."""
        if self._next(("\\frac",)):
            return _divide(self._enclosed("{", "}"), self._enclosed("{", "}"))
        token = self.tokens[self._place] if self._place < len(self.tokens) else ""
        if not token[:1].isdigit():
            return self._enclosed("[", "]") if token == "[" else self._enclosed("(", ")")
        if len(token) > 6 or token != str(int(token)):
            raise _NoExpression
        self._place += 1
        self.numbers.append(int(token))
        return Fraction(int(token))

    def _enclosed(self, opening: str, closing: str) -> Fraction:
        if not self._next(opening):
            raise _NoExpression
        value = self._sum()
        if not self._next(closing):
            raise _NoExpression
        return value

    def _next(self, accepted: Sequence[str]) -> str | None:
        """Take the next token if it is one of these."""
        if self._place == len(self.tokens) or self.tokens[self._place] not in accepted:
            return None
        self._place += 1
        return self.tokens[self._place - 1]


def _divide(above: Fraction, below: Fraction) -> Fraction:
    if below == 0:
        raise _NoExpression
    return above / below


def _given(task: Task) -> list[int]:
    numbers = task.metadata.get("numbers")
    given = [number for number in numbers if type(number) is int] if isinstance(numbers, list) else []
    if not given or not isinstance(numbers, list) or len(given) < len(numbers):
        raise RecipeError(
            f"task {task.id!r} is not a Game of 24: its numbers are {numbers!r}",
            code="task-unfit",
            fix='give the task metadata["numbers"] = [1, 1, 1, 8], or use another reward',
        )
    return given
