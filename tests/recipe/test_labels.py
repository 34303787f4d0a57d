"""Every value of every recipe is labeled "paper", "released" or "ours", and the label is true.

A label begins the comment behind a value: `steps = 100  # paper`. It holds for every value on its line; where the parts
of an inline table have different sources, they stand on lines of their own (`sampling.temperature = 0.7  # paper`).
`published.toml` is the one table of what papers and released code name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from midstream.recipe.files import shipped_recipes

PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
FILES = [*shipped_recipes().values()]
LABEL = re.compile(r"(paper|released|ours)\b")
PAPER = re.compile(r'^#.*"paper" is arXiv (\d{4}\.\d{5}(?: \([a-z ]+\))?)', re.MULTILINE)
QUOTED = re.compile(r"\b(paper|released):? ((?>\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?))(?=[,;]|$)")  # "ours; paper: 2,048"
# Keys that name a part or connect parts, and the seed: they need no label, and none is compared.
CONNECTING = {"extends", "name", "description", "engine", "weights", "provider", "base_url", "api_key_env", "split"}
CONNECTING |= {"function", "plays", "seed"}


class Value(NamedTuple):
    """One value of a recipe's line; `table` and `key` make its path."""

    number: int
    path: str
    value: Any
    comment: str

    @property
    def label(self) -> str:
        found = LABEL.match(self.comment)
        return found[1] if found else ""

    @property
    def connects(self) -> bool:
        name = self.path.rpartition(".")[2]
        return name in CONNECTING and not re.search(r"\btasks(\.parts\.[^.]+)?\.name$", self.path)


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}".lstrip("."))
    else:
        yield path, value


def values_of(text: str) -> Iterator[Value]:
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        code, comment = line, ""
        for mark in re.finditer("#", line):  # the first that is not inside a string
            try:
                tomllib.loads(line[: mark.start()])
            except tomllib.TOMLDecodeError:
                continue
            code, comment = line[: mark.start()], line[mark.end() :].strip()
            break
        if code.startswith("["):
            table = code.strip().strip("[]")
        else:
            for path, value in leaves(tomllib.loads(code), table):
                yield Value(number, path, value, comment)


def published(papers: Mapping[str, Any], label: str, found: Value) -> list[Any]:
    """What the source names for this value; empty if it names none."""
    entries = papers.get(label, {})
    for key in sorted(entries, key=lambda key: " " not in key):  # those with a condition first
        path, _, condition = key.partition(" ")
        if fnmatchcase(found.path, path) and condition in found.comment:
            return entries[key] if isinstance(entries[key], list) else [entries[key]]
    return []


def problem_of(found: Value, paper: str) -> str:
    """What is wrong with the label of a value; "" if nothing is. `paper` is the recipe's, "" without one."""
    papers = PUBLISHED.get(paper, {})
    if found.connects:
        return ""
    is_type = found.path.rpartition(".")[2] == "type"  # needs no label, and is compared where the table has one
    if not found.label:
        if is_type:
            return ""
        return "has no label: begin its comment with paper, released or ours (or give it a line of its own)"
    if found.label == "ours":
        for label in ("paper", "released"):
            if found.value in published(papers, label, found):
                return f'is labeled "ours", and published.toml has it as what is {label}'
    elif not paper:
        return 'names a source, but no comment of the recipe says `"paper" is arXiv NNNN.NNNNN`'
    elif not (known := published(papers, found.label, found)):
        if is_type:
            return ""
        return f'has no entry in [{paper}.{found.label}] of published.toml: add it if it is there, or label it "ours"'
    elif found.value not in known:
        return f"is not what [{paper}.{found.label}] of published.toml has: {known}"
    for label, number in QUOTED.findall(found.comment):
        known = published(papers, label, found)
        quoted = float(number.replace(",", ""))
        if known and quoted not in known and [quoted] not in known:
            return f"quotes {number}, and [{paper}.{label}] of published.toml has {known}"
    return ""


def problems(text: str) -> list[str]:
    paper = next(iter(PAPER.findall(text)), "")
    return [
        f"line {found.number}: {found.path} = {found.value!r} {problem}"
        for found in values_of(text)
        if (problem := problem_of(found, paper))
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_value_has_a_true_label(path: Path):
    found = problems(path.read_text(encoding="utf-8"))
    assert not found, f"{path.name}:\n" + "\n".join(found)


# -- the test itself ---------------------------------------------------------------------------------------------------

HEAD = '# "paper" is arXiv 2510.05592, "released" its code.\n'
WRONG = {
    "no label": ("[training]\nsteps = 5", "has no label"),
    "a comment without a label": ("[training]\nsteps = 5  # small", "has no label"),
    "not the paper's value": ("[training]\ngroup_size = 4  # paper", "is not what"),
    "not the released value": ("[training.loss]\nclip_high = 0.2  # released", "is not what"),
    "the paper names none": ("[training]\nwarmup_steps = 1  # paper", "has no entry"),
    "a part of an inline table": ("[training]\nloss = { kl_coefficient = 0.001, clip_low = 0.2 }  # paper", "clip_low"),
    "the paper's value as ours": ("[training]\ngroup_size = 8  # ours", "is labeled"),
    "another number quoted": ("[training]\ngroup_size = 4  # ours; paper: 6", "quotes 6"),
    "a condition that does not hold": ("[agent]\nmax_turns = 10  # paper", "is not what"),
    "a benchmark without a label": ('[[evaluation.sets]]\ntasks = { type = "benchmark", name = "hle" }', "hle"),
    "a type of another paper": ('[reward]\ntype = "math"  # paper', "is not what"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_label_is_found(case: str):
    text, expected = WRONG[case]
    [found] = problems(HEAD + text)
    assert expected in found


def test_a_label_needs_the_name_of_its_paper():
    [found] = problems("[training]\ngroup_size = 8  # paper")
    assert "no comment" in found


def test_right_labels_pass():
    text = """
    name = "mine"
    [agent]
    max_turns = 10  # paper, at inference
    [agent.planner]
    type = "prompted"
    sampling.temperature = 0.5  # paper, in training
    sampling.max_tokens = 512  # ours; paper: 2,048
    [training]
    group_size = 8  # paper
    """
    assert not problems(HEAD + "\n".join(line.strip() for line in text.splitlines()))
