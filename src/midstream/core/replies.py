"""What a model's reply holds: what it said after thinking, and the program in it. Nothing here raises."""

from __future__ import annotations

import ast
import warnings

_FENCE = "```"
_PYTHON = ("python", "python3", "py")
_MAX_CODE = 50_000  # characters: more is no short program, and compiling it would hold up every other run


def spoken(text: str) -> str:
    """What a model said after thinking, as valid Unicode; nothing if it never stopped thinking."""
    text = text.encode("utf-8", "replace").decode()
    _, closed, rest = text.rpartition("</think>")
    if closed:
        return rest
    return "" if text.lstrip().startswith("<think>") else text


def find_program(text: str) -> tuple[str | None, str]:
    """(code, "") of the first fenced block that compiles, or of the whole text where nothing is fenced.

    Blocks marked as Python go before any others. A reply without a program that compiles gives (None, what is wrong
    with the first).
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
    """(language, text) of fenced blocks; one that is never closed reaches to the end."""
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
    """Why `code` is no program, or None."""
    if not code.strip():
        return "the reply holds no code"
    if len(code) > _MAX_CODE:
        return f"its {len(code)} characters are more than {_MAX_CODE}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string is not the library's user's concern
            ast.parse(code)  # not compile: nested `finally` blocks double its work, which only the sandbox may bear
    except SyntaxError as error:
        lines = code.split("\n")
        number = error.lineno or 0
        shown = f": {lines[number - 1].strip()[:200]}" if 0 < number <= len(lines) else ""
        return f"{type(error).__name__}: {error.msg} (line {number}{shown})"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:  # null bytes; nested too deeply
        return f"{type(error).__name__}: {error}"
    return None
