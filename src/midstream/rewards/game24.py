"""Game of 24: an expression of the given numbers, each once, that makes 24. Exact, and nothing is ever evaluated."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence
from fractions import Fraction

from midstream.core.component import RewardConfig
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
_FRACTION = re.compile(r"\\frac \{([^{}\\]*)\} \{([^{}\\]*)\}")
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


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


class Game24RewardConfig(RewardConfig):
    """No settings."""

    rule_based = True
    component = Game24


def solves(answer: str, given: Sequence[int]) -> bool:
    """Whether a text holds exactly one expression, of the given numbers, each once, and it makes 24."""
    try:
        read = [[_side(side) for side in run.split("=")] for run in _runs(answer)]
    except (SyntaxError, ZeroDivisionError):
        return False
    return (
        len({expression for (expression, _, _), *_ in read}) == 1
        and all(value == TARGET for sides in read for _, value, _ in sides)
        and sorted(read[0][0][2]) == sorted(given)
    )


def _runs(answer: str) -> list[str]:
    """The parts of a text that look like expressions, in plain signs. Raises `SyntaxError` if they stand in others."""
    if len(answer) > MAX_CHARACTERS:
        raise SyntaxError
    text = _BOLD.sub("", answer.translate(_SIGNS))
    for command, sign in _COMMANDS.items():
        text = text.replace(command, sign)
    text = "\n".join(" ".join(line.split()) for line in _DROPPED.sub(" ", text).splitlines())
    text = _BOXED.sub(r"\1", _TIMES.sub("*", text).replace("\n=", " ="))
    text = re.sub(r"= ?24!", "= 24", text)
    if _FOREIGN.search(text):
        raise SyntaxError
    runs: list[str] = []
    for run in _RUN.finditer(text):
        if not _OPERATION.search(run[0]):
            continue
        # It must not continue in signs that are not read: "1.5", "1,000", "8a".
        before, after = text[max(0, run.start() - 1) : run.start()], text[run.end() : run.end() + 2]
        if re.match(r"[\w.,]", before) and not run[0].startswith(" "):
            raise SyntaxError
        if re.match(r"\w|[.,:]\w", after) and not run[0].endswith(" "):
            raise SyntaxError
        runs.append(_ITALIC.sub(r"\1", run[0].strip("= ")))
    return runs


def _side(text: str) -> tuple[str, Fraction, list[int]]:
    """One side of a sign of equality: text, value, numbers. Raises `SyntaxError`, or `ZeroDivisionError` for a / 0."""
    tokens = _TOKEN.findall(text.strip())
    numerals = [token for token in tokens if token.isdigit()]
    if len(tokens) > MAX_TOKENS or any(len(token) > 6 or token != str(int(token)) for token in numerals):
        raise SyntaxError
    # The spaces keep two signs from being one of Python's, such as // and **.
    written = expression = " ".join(tokens)
    while "\\frac" in expression:
        expression, replaced = _FRACTION.subn(_divided, expression)
        if not replaced:
            raise SyntaxError
    numbers: list[int] = []
    return written, _value(ast.parse(expression, mode="eval").body, numbers), numbers


def _divided(fraction: re.Match[str]) -> str:
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
        case ast.List(elts=[inner]):  # square brackets
            return _value(inner, numbers)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left, numbers), _value(right, numbers))
    raise SyntaxError


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
