"""What the documents say exists: functions, tests, files, links, commands, recipes, settings and their defaults."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scripts import commands as commands_page
from scripts import settings

import midstream
from midstream.cli import main as cli
from midstream.core.data import Frozen
from midstream.recipe import check as recipe_check
from midstream.recipe import files
from midstream.recipe import schema as config

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "midstream"
PATTERNS = ("*.md", "docs/*.md", "studies/*.md", "benchmarks/README.md", "plugins/*/README.md")
DOCUMENTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
PATH = re.compile(r"[\w./-]+\.py")
IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fenced(text: str, language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for named, block in blocks if named == language]


# --- functions and tests ----------------------------------------------------------------------------------------------


def find(path: str) -> Path | None:
    """The file that a document means: from the root, from a package, or one of training's tests."""
    places = [ROOT / path, SOURCE / path, ROOT / "tests" / "training" / path]
    places += [place / path for pattern in ("", "src", "src/*", "tests") for place in ROOT.glob(f"plugins/*/{pattern}")]
    return next((place for place in places if place.is_file()), None)


@cache
def defined(path: Path) -> set[str]:
    """Names of functions, classes, methods and constants, methods with their class."""
    names: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.Assign):
                names.update(prefix + target.id for target in child.targets if isinstance(target, ast.Name))
            elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
                names.add(prefix + child.target.id)

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return names


def references(text: str) -> Iterator[tuple[str, str]]:
    """(path, name) of every "`path.py`, `name`, `name` and `name`"."""
    path, end = "", 0
    for match in re.finditer(r"`([^`\n]+)`", text):
        between, token, end = " ".join(text[end : match.start()].split()), match[1], match.end()
        if PATH.fullmatch(token):
            path = token
        elif path and between in (",", "and", ", and") and IDENTIFIER.fullmatch(token):
            yield path, token
        else:
            path = ""


@pytest.mark.parametrize(("document", "least"), [("docs/flow-grpo.md", 50), ("docs/architecture.md", 20)])
def test_functions_exist(document, least):
    found = list(references(text_of(document)))
    assert len(found) >= least, "the way references are written changed"
    missing = [f"{path}, {name}" for path, name in found if (file := find(path)) is None or name not in defined(file)]
    assert not missing


def test_tests_exist():
    file, missing, count = "", [], 0
    for path, name in re.findall(r"`([\w/]*\.py)?::(\w+)`", text_of("docs/flow-grpo.md")):
        file = path or file
        found = find(file)
        count += 1
        if found is None or name not in defined(found):
            missing.append(f"{file}::{name}")
    assert count > 70
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_exist(document):
    """Every path in backticks that names a file of the repository."""
    mentioned = re.findall(r"`([\w./-]+\.(?:py|md|toml|json|svg|html))`", document.read_text(encoding="utf-8"))
    written_by_runs = {
        "run.json",
        "status.json",
        "recipe.toml",
        "study.json",
        "study.svg",
        "study-curves.svg",
        "group-size.toml",
        "report.html",
        "timings.jsonl",
    }
    written_by_runs |= {"planner.json", "planner-NAME.svg"}
    own = {"convert_length.py", "my_tools.py", "my_rewards.py", "my_tasks.py", "my_model.py", "mine.toml"}
    own |= {"task.toml", "instruction.md", "reward.json"}  # of tasks of Harbor
    unknown = [
        path
        for path in mentioned
        if Path(path).name not in written_by_runs | own
        and find(path) is None
        and not list(SOURCE.rglob(f"*/{path}"))
        and not list(ROOT.glob(f"plugins/*/src/**/{path}"))
        and not (ROOT / "docs" / path).is_file()
    ]
    assert not unknown


def outside_blocks(text: str) -> str:
    return re.sub(r"^(````?)\w*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site (mkdocs.yml, `slugify`) make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", outside_blocks(path.read_text(encoding="utf-8")), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "", heading).lower()).replace(" ", "-")
        found.add(anchor)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_resolve(document):
    """Their files and anchors exist; a page of the site links to its pages alone."""
    links = re.findall(r"\]\(([^)\s]+)\)", outside_blocks(document.read_text(encoding="utf-8")))
    broken = []
    for link in (link for link in links if "://" not in link):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        outside = document.parent.name == "docs" and ".." in path
        if outside or not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


# --- site -------------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation_once():
    navigation = text_of("mkdocs.yml").partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in ROOT.glob("docs/*.md"))
    parts = re.findall(r"^  - (.+):$", navigation, re.MULTILINE)
    assert parts == ["Start", "Do", "Understand", "Look up"]
    assert len(listed) <= 24


def test_the_reference_has_every_public_name_once():
    listed = re.findall(r"^::: midstream\.(\w+)$", text_of("docs/python.md"), re.MULTILINE)
    awaited = {"asolve", "aevaluate", "alearn_lessons", "atrain", "aresume"}  # docs/python.md: the same functions
    assert sorted(listed) == sorted({*midstream._MODULES, "api"} - awaited)


def test_the_commands_page_follows_the_commands():
    document = text_of("docs/commands.md")
    assert commands_page.page(document) == document


# --- README -----------------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Shell lines of all documents' plain blocks, of README's command table, and of `midstream --help`."""
    lines = [line for path in DOCUMENTS for block in fenced(path.read_text("utf-8"), "") for line in block.splitlines()]
    lines += re.findall(r"^\| `(midstream [^`]+)`", text_of("README.md"), re.MULTILINE)
    lines += cli.EXAMPLES.splitlines()
    words = ("midstream ", "make ", "python ", ".venv/bin/", "OPENAI_API_KEY=")
    starts = [line.strip() for line in lines if line.strip().startswith(words)]
    return [line for line in starts if not re.match(r"python\s{2,}[\d.]", line)]  # a row of the demo's table of tools


parser = cache(cli.parser)


@pytest.mark.parametrize("line", commands())
def test_commands_can_be_run(line):
    line = re.split(r"\s{2,}(?=\w)", line)[0]  # `midstream --help` explains on the same line
    words = [word for word in shlex.split(line, comments=True) if not re.fullmatch(r"[A-Z_]+=.*", word)]
    program = words[0].removeprefix(".venv/bin/")
    if program == "midstream":
        options = parser().parse_args(words[1:])
        page_own = re.fullmatch(r"\w+\.toml", options.recipe) if options.command == "train" else None
        if options.command == "train" and page_own is None and "my_agent.py:" not in line:
            config.load_recipe(options.recipe, options.overrides)
    elif program == "make":
        assert re.search(rf"^{words[1]}:", text_of("Makefile"), re.MULTILINE)
    elif program == "python" and words[1] != "-m":
        assert (ROOT / words[1]).is_file()
        options = [word for word in words[2:] if word.startswith("--")]
        script = text_of(words[1])
        imported = [f"benchmarks/{name}.py" for name in re.findall(r"^from (\w+) import", script, re.MULTILINE)]
        known = script + "".join(text_of(name) for name in imported if (ROOT / name).is_file())
        assert all(f'"{option}"' in known for option in options)


def test_there_are_commands_of_each_kind():
    assert {line.split()[0] for line in commands()} >= {"midstream", "make", ".venv/bin/python"}
    assert len(commands()) > 20


RECIPES = [
    "README.md",
    *(f"docs/{page}.md" for page in ("any-agent", "artist", "datasets", "lessons", "recipes", "scale", "tools")),
    *(
        f"plugins/midstream-{name}/README.md"
        for name in ("benchmarks", "credit", "environments", "graphs", "optimizers")
    ),
]


@pytest.mark.parametrize("document", RECIPES)
def test_recipes_are_valid(document, tmp_path, monkeypatch):
    blocks = fenced(text_of(document), "toml")
    assert blocks
    monkeypatch.chdir(tmp_path)
    for block in fenced(text_of(document), "python"):
        if name := re.match(r"# (\w+\.py)\n", block):
            Path(name[1]).write_text(block, encoding="utf-8")
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        # A block without an agent shows a table to add to any recipe.
        whole = "extends" in block or "[agent" in block
        path.write_text(block if whole else f'extends = "tool-calling"\n{block}', encoding="utf-8")
        recipe_check.resolve(config.load_recipe(str(path)))


def test_every_page_with_a_recipe_is_tried():
    pages = {str(page.relative_to(ROOT)) for page in DOCUMENTS if fenced(page.read_text(encoding="utf-8"), "toml")}
    # What extending.md adds to a project is run by test_extending_page.py; the extra plugin's block is a study's.
    assert pages - {"docs/extending.md", "plugins/midstream-extra/README.md"} == set(RECIPES)


def test_the_python_example_uses_what_there_is():
    [block] = fenced(text_of("README.md"), "python")
    used = {
        node.attr
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ms"
    }
    assert used
    assert used <= {*midstream.__all__}


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "tables"), settings.documents().items(), ids=str)
def test_the_tables_of_settings_follow_the_docstrings(path, tables):
    document = path.read_text(encoding="utf-8")
    assert settings.with_tables(document, tables) == (document, [])


def test_a_setting_without_a_meaning_and_one_that_is_not_there_are_found():
    class Sized(Frozen):
        """Sizes.

        Attributes:
            width: in pixels
            depth: not a field
        """

        __module__ = "midstream.example"
        width: int = 3
        height: int

    old = f"## `[size]`\n\n{settings.HEAD}| `old` | 1 | gone |\n\nMore.\n"
    document, problems = settings.with_tables(old, {"`[size]`": Sized})
    rows = "| `width` | `3` | in pixels |\n| `height` | required | None |\n"
    assert document == f"## `[size]`\n\n{settings.HEAD}{rows}\nMore.\n"
    assert problems == ["no meaning: Sized.height", "no field: Sized.depth"]


def test_every_recipe_is_listed():
    section = text_of("docs/recipes.md").partition("## The recipes that come with midstream")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w.-]+)` \|", section, re.MULTILINE)
    own = [name for name, path in files.shipped_recipes().items() if ROOT / "recipes" in path.parents]
    assert sorted(listed) == own
    for name in files.shipped_recipes().keys() - own:
        readme = files.shipped_recipes()[name].relative_to(ROOT).parents[-3] / "README.md"
        assert f"`{name}`" in text_of(str(readme))


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("docs/figures/*.svg"), *ROOT.glob("studies/figures/*.svg")]), ids=lambda path: path.name
)
def test_a_figure_is_whole_and_can_be_read_on_dark_pages(path):
    """An edit by hand can break a rule of its style without breaking the picture on a light page."""
    text = path.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("}svg")
    if "prefers-color-scheme" in text:
        assert "@media" in text.partition("prefers-color-scheme")[0][-10:]
