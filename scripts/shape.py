"""Measure the shape of the source: `python scripts/shape.py [SRC] [--check]`.

Prints lines, files, private functions that are used once, the longest functions and the largest classes. With
`--check` it exits with 1 where a bound of this project is passed.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from pathlib import Path

LINES, FILES, ONCE_PER_THOUSAND, FUNCTION_LINES, METHODS = 58_200, 320, 7.0, 80, 20


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
    rate = 1000 * len(once) / max(1, lines)
    print(f"lines                          {lines:7,}   (at most {LINES:,})")
    print(f"files                          {len(texts):7,}   (at most {FILES})")
    print(
        f"private functions used once    {len(once):7,}   {rate:.1f} a thousand lines (at most {ONCE_PER_THOUSAND:g})"
    )
    print(f"functions over {FUNCTION_LINES} lines         {len(long):7,}   {', '.join(_name(*one) for one in long)}")
    print(f"classes over {METHODS} methods         {len(large):7,}   {', '.join(_name(*one[:2]) for one in large)}")
    packages: Counter[str] = Counter()
    for path, _ in once:
        packages[path.relative_to(options.source).parts[0]] += 1
    print("used once, by package:         " + ", ".join(f"{name} {count}" for name, count in packages.most_common()))
    passed = lines <= LINES and len(texts) <= FILES and rate <= ONCE_PER_THOUSAND and not long and not large
    return 1 if options.check and not passed else 0


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _name(path: Path, node: ast.AST) -> str:
    return f"{path}::{getattr(node, 'name', '')}"


if __name__ == "__main__":
    sys.exit(main())
