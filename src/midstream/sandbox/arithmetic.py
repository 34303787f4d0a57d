"""Arithmetic instead of Python: what a machine without a sandbox offers.

Expressions are evaluated in this process. That is safe without a time-out: the length of the text and the size of every
intermediate integer are bounded, and no text takes longer than some milliseconds.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any, Literal

MAX_CHARACTERS = 500
MAX_BITS = 10_000
MAX_DIGITS = 100

Number = int | float

_OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "round": round, "sum": sum}


class NotArithmetic(ValueError):
    """The text is not an expression that `evaluate` allows."""


def evaluate(expression: str) -> Number:
    """Evaluate `expression` as Python does, for a closed list of constructs.

    Allowed: int and float literals, + - * / // % **, unary + and -, comparisons (chained too), and min, max, abs, round
    and sum over numbers or one list of them. Text over 500 characters and integers over 10,000 bits are refused. Raises
    `NotArithmetic` for anything else, also where Python could run it, and `ArithmeticError` for division by zero or
    overflow, as Python does.
    """
    if len(expression) > MAX_CHARACTERS:
        raise NotArithmetic(f"longer than {MAX_CHARACTERS} characters")
    try:
        # The parser warns of text such as `1if`.
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(expression.strip(), mode="eval")
        return _value(tree.body)
    except NotArithmetic:
        raise
    except SyntaxError as error:
        raise NotArithmetic(f"{error.msg}: only one arithmetic expression can be evaluated here") from error
    except (RecursionError, MemoryError, TypeError, ValueError) as error:
        raise NotArithmetic(f"{type(error).__name__}: {error}") from error


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _check_size(value)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _check_size(_OPERATIONS[type(op)](_value(left), _value(right)))
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATIONS for op in ops):
            # As in Python, a chain ends at the first comparison that is false.
            pairs = pairwise(chain([_value(left)], map(_value, others)))
            return all(_OPERATIONS[type(op)](*pair) for op, pair in zip(ops, pairs, strict=False))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _call(name, args)
    raise NotArithmetic(f"{type(node).__name__} is not allowed")


def _check_size(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise NotArithmetic(f"an integer of more than {MAX_BITS} bits")
    return value


def _power(base: Number, exponent: Number) -> Number:
    """`base ** exponent`, refused before it is computed if it could be too long."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise NotArithmetic(f"a power of more than {MAX_BITS} bits")
    value = base**exponent
    if isinstance(value, complex):
        raise NotArithmetic("a complex number")
    return value


def _call(name: str, nodes: list[ast.expr]) -> Number:
    """A call of a listed function, on numbers or on one list or tuple of numbers."""
    match nodes:
        case [ast.List(elts=elements) | ast.Tuple(elts=elements)]:
            return _check_size(_FUNCTIONS[name]([_value(element) for element in elements]))
    values = [_value(node) for node in nodes]
    if name == "round" and len(values) > 1 and abs(values[1]) > MAX_DIGITS:
        raise NotArithmetic(f"rounding to more than {MAX_DIGITS} digits")
    return _check_size(_FUNCTIONS[name](*values))


def answer(expression: str, output_limit: int) -> tuple[Literal["ok", "raised", "output_limit"], str]:
    """How the evaluation ended, and the value or the error as text."""
    try:
        text = repr(evaluate(expression))
    except (NotArithmetic, ArithmeticError) as error:
        return "raised", f"{type(error).__name__}: {error}"
    return ("ok", text) if len(text) <= output_limit else ("output_limit", text[:output_limit])
