"""The tool of these agents: arithmetic that Python's parser reads, and no code that runs."""

import ast
import operator
from collections.abc import Mapping

INSTRUCTION = "Use the tool to calculate. Then answer with the number alone."
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
MOST = 200  # characters of an expression


def calculate(expression: str) -> str:
    """Computes an expression of numbers, + - * / and brackets, such as "2 * (3 + 4)"."""
    try:
        value = _value(ast.parse(expression[:MOST].strip(), mode="eval").body)
        return f"{value:.12g}" if isinstance(value, float) else str(value)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError) as error:
        return f"error: {error}"


def used(name: str, arguments: Mapping[str, object]) -> str:
    """What a model gets for its call; it may name or fill the tool wrongly."""
    expression = arguments.get("expression")
    if name != "calculate" or not isinstance(expression, str):
        return 'error: the only tool is calculate, e.g. {"expression": "2 * 3"}'
    return calculate(expression)


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in SIGNS:
            return SIGNS[type(sign)](_value(left), _value(right))
    raise ValueError("only numbers, + - * / and brackets are known")
