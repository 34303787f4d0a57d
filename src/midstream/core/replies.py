"""Read a model's reply: the text after its thinking, and the program in it. Nothing here raises."""

from __future__ import annotations

import ast
import warnings

_FENCE = "```"
_PYTHON = ("python", "python3", "py")
_MAX_CODE = 50_000  # characters: parsing more would delay every other run


def spoken(text: str) -> str:
    """The text after a model's thinking, as valid Unicode; empty if it never stopped thinking."""
    text = text.encode("utf-8", "replace").decode()
    _, closed, rest = text.rpartition("</think>")
    if closed:
        return rest
    return "" if text.lstrip().startswith("<think>") else text


def find_program(text: str) -> tuple[str | None, str]:
    """Return (code, "") of the first fenced block that compiles, or of the whole text without fenced blocks.

    If any block is marked as Python, only these count. If nothing compiles, the result is (None, problem of the first).
    """
    reply = spoken(text)
    blocks = _fenced(reply)
    marked = [code for language, code in blocks if language in _PYTHON]
    candidates = marked or [code for _, code in blocks] or [reply]
    problems = []
    for code in candidates:
        problem = _compile_error(code)
        if problem is None:
            return code, ""
        problems.append(problem)
    return None, problems[0]


def _fenced(text: str) -> list[tuple[str, str]]:
    """(language, text) of each fenced block; a block that is never closed extends to the end."""
    blocks: list[tuple[str, str]] = []
    language, lines = "", None
    for line in text.split("\n"):
        mark = line.strip()
        if lines is None and mark.startswith(_FENCE):
            language, lines = mark.strip("`").strip().lower(), []
        elif lines is not None and mark == _FENCE:
            blocks.append((language, "\n".join(lines)))
            lines = None
        elif lines is not None:
            lines.append(line)
    return blocks if lines is None else [*blocks, (language, "\n".join(lines))]


def _compile_error(code: str) -> str | None:
    """Why `code` is not a program; None if it is."""
    if not code.strip():
        return "the reply holds no code"
    if len(code) > _MAX_CODE:
        return f"its {len(code)} characters are more than {_MAX_CODE}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as "\d" in a string of the model's code
            ast.parse(code)  # not compile(): nested `finally` blocks double its work each time
    except SyntaxError as error:
        lines = code.split("\n")
        number = error.lineno or 0
        shown = f": {lines[number - 1].strip()[:200]}" if 0 < number <= len(lines) else ""
        return f"{type(error).__name__}: {error.msg} (line {number}{shown})"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:  # null bytes; nested too deeply
        return f"{type(error).__name__}: {error}"
    return None
