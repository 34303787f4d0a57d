"""Every error of midstream and its plugins has a code, which docs/errors.md or the plugin's README.md lists once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.core import errors

ROOT = Path(__file__).parents[1]
PAGES = {path.parent.name: path for path in ROOT.glob("plugins/*/README.md")}
PAGES["midstream"] = ROOT / "docs" / "errors.md"
TYPES = [value for value in vars(errors).values() if isinstance(value, type)]
CLASSES = {kind.__name__ for kind in TYPES if issubclass(kind, errors.MidstreamError)}
# Words with hyphens. A check of `midstream doctor` has a code such as "MS401", and a process an exit code.
CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
Nodes = list[tuple[str, ast.AST]]


@pytest.fixture(scope="module", params=PAGES)
def package(request: pytest.FixtureRequest) -> str:
    """midstream, or one of the packages in plugins/."""
    return request.param


@pytest.fixture(scope="module")
def nodes(package: str) -> Nodes:
    """Every node of a package's source that may name a code, with its file."""
    paths = sorted(((ROOT if package == "midstream" else ROOT / "plugins" / package) / "src").rglob("*.py"))
    return [
        (str(path.relative_to(ROOT)), node)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.Assign | ast.Constant)
    ]


def name_of(expression: ast.expr) -> str:
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def strings(value: ast.expr) -> Iterator[str]:
    """The strings that an expression can be: a literal, or the sides of `a if condition else b` and of `a or b`."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    for part in [value.body, value.orelse] if isinstance(value, ast.IfExp) else getattr(value, "values", ()):
        yield from strings(part)


def given_codes(node: ast.AST) -> Iterator[str]:
    """`code="..."` in a call, and `code = "..."` or `code, cause = "...", ...` in a class or function."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == "code":
                yield from strings(keyword.value)
    if isinstance(node, ast.Assign):
        [target, *_], value = node.targets, node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            target, value = target.elts[0], value.elts[0]
        if name_of(target) == "code":
            yield from strings(value)


def codes_in(package: str) -> list[str]:
    """The codes of the tables in a package's page that have a column "when"."""
    tables = re.findall(r"^\| code \| when .*\n((?:\|.*\n)+)", PAGES[package].read_text(encoding="utf-8"), re.MULTILINE)
    return re.findall(r"^\| `([^`]+)` \|", "".join(tables), re.MULTILINE)


def test_every_code_is_in_the_page_once(package: str, nodes: Nodes):
    assert not [code for code, count in Counter(codes_in(package)).items() if count > 1]
    places = {code: path for path, node in nodes for code in given_codes(node) if CODE.fullmatch(code)}
    assert len(places) > (100 if package == "midstream" else 0)
    missing = {code: path for code, path in places.items() if code not in codes_in(package) + codes_in("midstream")}
    assert not missing


def test_the_page_has_no_other_code(package: str, nodes: Nodes):
    # All strings: a code may also come out of a table. "error[...]" is how the command line prints one.
    constants = {node.value for _, node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    printed = {match[1] for text in constants if (match := re.match(r"error\[([a-z-]+)\]", text))}
    assert not [code for code in codes_in(package) if code not in constants | printed]


def test_every_error_is_raised_with_a_code(nodes: Nodes):
    without = [
        f"{path}:{node.lineno} {name_of(node.func)}"
        for path, node in nodes
        if isinstance(node, ast.Call)
        and name_of(node.func) in CLASSES
        # None: `**settings`
        and not {"code", None} & {keyword.arg for keyword in node.keywords}
    ]
    assert not without
