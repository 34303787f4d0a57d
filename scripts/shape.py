"""Measure the shape of the source: `python scripts/shape.py [SRC] [--check]`.

Prints what a reader of src/midstream has to hold: lines, files, private functions that are used once, the word `Any`,
comments on lines of their own, class names that several files define, the longest functions and the largest classes.
And what a user has to: commands, options and settings. And what a Flow-GRPO run loads, and how often its recipe climbs
(`one_run.py`). With `--check` it exits with 1 where a bound is passed. Bounds are lowered as the source shrinks
(comments: raised), and never loosened.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

from settings import SHARED, TABLES

from midstream.cli.main import COMMANDS

FUNCTION_LINES, METHODS = 80, 20
LEAST = {"comments on lines of their own, a thousand lines": 22.0}
MOST = {
    "lines": 46_000,
    "files": 265,
    "private functions used once, a thousand lines": 5.0,
    "`Any`, a thousand lines": 8.0,
    "class names that two files define": 2,
    "commands": 16,
    "options": 52,
    "settings": 300,
    "percent of the lines that a Flow-GRPO run loads": 57.0,
    "climbs from recipe to objects": 2,
}


def main() -> int:
    """Print the numbers; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?", type=Path, default=Path("src/midstream"))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(options.source.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = sum(text.count("\n") for text in texts.values())
    functions = [
        (path, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    # Defined once and named once more in its file: a name for a piece of one other function.
    words = {path: Counter(re.findall(r"\b[A-Za-z_]\w*", text)) for path, text in texts.items()}
    once = [
        (path, node)
        for path, node in functions
        if node.name.startswith("_") and not node.name.startswith("__") and words[path][node.name] == 2
    ]
    long = [(path, node) for path, node in functions if _length(node) > FUNCTION_LINES]
    classes = [
        (path, node, sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body))
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    large = [one for one in classes if one[2] > METHODS]
    thousand = max(1, lines) / 1000
    names = Counter(node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    found: dict[str, float] = {
        "lines": lines,
        "files": len(texts),
        "private functions used once, a thousand lines": len(once) / thousand,
        "`Any`, a thousand lines": sum(words[path]["Any"] for path in texts) / thousand,
        "comments on lines of their own, a thousand lines": sum(
            len(re.findall(r"^\s*#", text, re.MULTILINE)) for text in texts.values()
        )
        / thousand,
        "class names that two files define": sum(count > 1 for count in names.values()),
        **_surface(),
        **_one_run(),
    }
    passed = not long and not large
    for name, value in found.items():
        bound = LEAST.get(name, MOST.get(name, 0.0))
        passed &= value >= bound if name in LEAST else value <= bound
        print(f"{name:50} {value:8,.{1 if value % 1 else 0}f}   (at {'least' if name in LEAST else 'most'} {bound:,g})")
    print(f"functions over {FUNCTION_LINES} lines: {', '.join(_name(*one) for one in long) or 'none'}")
    print(f"classes over {METHODS} methods: {', '.join(_name(*one[:2]) for one in large) or 'none'}")
    return 1 if options.check and not passed else 0


def _surface() -> dict[str, float]:
    """The commands of midstream, the long options of all of them, and the settings of its components."""
    options: set[str] = set()
    waiting: list[argparse.ArgumentParser] = []
    for name in COMMANDS:
        waiting.append(argparse.ArgumentParser())
        import_module(f"midstream.cli.{name}").add_arguments(waiting[-1])
    while waiting:
        for action in waiting.pop()._actions:
            options |= {option for option in action.option_strings if option.startswith("--")}
            waiting += action.choices.values() if isinstance(action, argparse._SubParsersAction) else ()
    # A shared base's settings are counted with each component that has them; a heading in backticks is a table itself.
    tables = [config for title, config in TABLES.items() if title not in SHARED or title.startswith("`")]
    settings = {(config, name) for config in tables for name in config.model_fields}
    return {"commands": len(COMMANDS), "options": len(options), "settings": len(settings)}


def _one_run() -> dict[str, float]:
    script = Path(__file__).with_name("one_run.py")
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if done.returncode:
        sys.exit(f"{script} failed: run it by itself")
    measured = json.loads(done.stdout.splitlines()[-1])
    return {
        "percent of the lines that a Flow-GRPO run loads": 100 * measured["share"],
        "climbs from recipe to objects": len(measured["climbs"]),
    }


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _name(path: Path, node: ast.AST) -> str:
    return f"{path}::{getattr(node, 'name', '')}"


if __name__ == "__main__":
    sys.exit(main())
