"""The offline world: true answers, disjoint splits, the same tasks in every process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import combinations
from typing import Any

import pytest

from midstream.core.errors import RecipeError, UsageError
from midstream.core.task import Task
from midstream_worlds.gazetteer.questions import question_words
from midstream_worlds.gazetteer.tasks import DIFFICULTIES, TOTALS, Gazetteer, GazetteerConfig
from support.errors import coded

SPLITS = ("train", "validation", "test")
FAMILIES = (*DIFFICULTIES["standard"], *TOTALS)
WORLD = Gazetteer(GazetteerConfig(families=FAMILIES))
FACTS = {(entity, attribute): value for _, text in WORLD.documents() for entity, attribute, value in [text.split()]}


@cache
def sample(split: str) -> list[Task]:
    return WORLD.sample(split, 4000, seed=1)


# --- gold answers, worked out again from the documents ------------------------------------------------------------

MEASURE = {"people": "population", "large": "area", "larger": "area", "high": "height", "higher": "height"}
MEASURE |= {"long": "length"} | {name: name for name in ("population", "area", "height", "length")}
CALCULATE = {"plus": lambda x, y: x + y, "minus": lambda x, y: x - y, "times": lambda x, y: x * y}
FORMS = (
    (r"What is (?P<x>\d+) (?P<sign>\w+) (?P<y>\d+)", "arith"),
    (r"What is the (?P<m>\w+) of (?P<a>\w+) (?P<sign>\w+) (?P<y>\d+)", "scale"),
    (r"What is the total (?P<m>\w+) of (?P<places>.+)", "sum"),
    (r"How many (?P<m>people) live in (?P<places>.+) together", "sum"),
    (r"How (?P<m>large) are (?P<places>.+) together", "sum"),
    (r"How many more (?P<m>people) live in (?P<a>\w+) than in (?P<b>\w+)", "diff"),
    (r"How much (?P<m>larger|higher) is (?P<a>\w+) than (?P<b>\w+)", "diff"),
    (r"Do more (?P<m>people) live in (?P<a>\w+) than in (?P<b>\w+)", "compare"),
    (r"Is (?P<a>\w+) (?P<m>larger|higher) than (?P<b>\w+)", "compare"),
    (r"How many (?P<m>people) live in (?P<a>.+)", "lookup"),
    (r"How (?P<m>large|high|long) is (?P<a>.+)", "lookup"),
    (r"What is the (?P<m>\w+) of (?P<a>.+)", "lookup"),
)


def read(question: str) -> tuple[str, int | str]:
    """(family, answer) of a question, from its text and the documents."""
    text = question.removesuffix(" ?")
    found, form = next((match, form) for pattern, form in FORMS if (match := re.fullmatch(pattern, text)))
    part: dict[str, str] = found.groupdict()

    def value(place: str) -> int:
        relation = re.fullmatch(r"the (capital|river) of (\w+)", place)
        return int(FACTS[FACTS[relation[2], relation[1]] if relation else place, MEASURE[part["m"]]])

    if form == "arith":
        return form, CALCULATE[part["sign"]](int(part["x"]), int(part["y"]))
    if form == "scale":
        return form, CALCULATE[part["sign"]](value(part["a"]), int(part["y"]))
    if form == "sum":
        places = part["places"].split(" and ")
        return "sum" if len(places) == 2 else f"total{len(places)}", sum(map(value, places))
    if form == "lookup":
        return "hop" if " of " in part["a"] else form, value(part["a"])
    a, b = value(part["a"]), value(part["b"])
    return form, a - b if form == "diff" else "yes" if a > b else "no"


@pytest.mark.parametrize("split", SPLITS)
def test_family_and_gold_answer_follow_from_question_and_documents(split):
    for task in [*sample(split), *WORLD.fixed(split, per_family=60, seed=99)]:
        family, answer = read(task.question)
        assert (task.family, task.answer) == (family, str(answer)), task.question


def test_answers_are_spread():
    """No constant answer gets far, and differences are never negative."""
    for family in FAMILIES:
        answers = Counter(task.answer for task in sample("train") if task.family == family)
        share = answers.most_common(1)[0][1] / answers.total()
        assert share < (0.6 if family == "compare" else 0.05), family
    assert all(int(task.answer) >= 0 for task in sample("train") if task.family == "diff")


def test_difficulties_nest_and_leave_the_deepest_totals_to_evaluation():
    assert set(DIFFICULTIES["easy"]) < set(DIFFICULTIES["standard"]) < set(DIFFICULTIES["deep"])
    assert {"total6", "total7"}.isdisjoint(DIFFICULTIES["deep"])
    assert Gazetteer(GazetteerConfig(difficulty="easy")).families == DIFFICULTIES["easy"]


# --- facts --------------------------------------------------------------------------------------------------------


def test_thousands_of_facts_one_document_each():
    documents = list(WORLD.documents())
    assert len(documents) == len(FACTS) == 9 * 300
    assert len({name for name, _ in documents}) == len({text for _, text in documents}) == len(documents)
    assert Counter(attribute for _, attribute in FACTS) == {
        "population": 600,
        "area": 600,
        "height": 600,
        "length": 300,
        "capital": 300,
        "river": 300,
    }


def test_names_are_unique_and_no_words_of_the_language():
    names = WORLD.names()
    assert len({name.lower() for name in names}) == len(names) == 900
    assert {name.lower() for name in names}.isdisjoint(word.lower() for word in question_words())


def test_question_words_are_all_words_but_names_and_numbers():
    used = {word for tasks in map(sample, SPLITS) for task in tasks for word in task.question.split()}
    used |= {attribute for _, attribute in FACTS}
    assert {word for word in used - set(WORLD.names()) if not word.isdigit()} <= question_words()


# --- splits -------------------------------------------------------------------------------------------------------


def test_every_name_and_document_belongs_to_one_split():
    homes: dict[str, str] = {}
    for split in SPLITS:
        for name in WORLD.names(split):
            assert homes.setdefault(name, split) == split, name
    assert set(homes) == set(WORLD.names())
    for (entity, _), value in FACTS.items():
        assert homes.get(value, homes[entity]) == homes[entity]  # a capital or river lies in its country's split


@pytest.mark.parametrize("split", SPLITS)
def test_questions_name_places_of_their_own_split_only(split):
    allowed, names = set(WORLD.names(split)), set(WORLD.names())
    for task in sample(split):
        assert {word for word in task.question.split() if word in names} <= allowed


@pytest.mark.matrix(1)
@pytest.mark.parametrize(("one", "other"), list(combinations(SPLITS, 2)))
def test_no_question_of_one_split_is_in_another(one, other):
    questions = {split: {task.question for task in sample(split)} for split in (one, other)}
    assert questions[one].isdisjoint(questions[other])
    only_arithmetic = Gazetteer(GazetteerConfig(families=("arith",)))
    operands = {
        split: {
            frozenset(int(word) for word in task.question.split() if word.isdigit())
            for task in only_arithmetic.sample(split, 5000, seed=3)
        }
        for split in (one, other)
    }
    assert operands[one].isdisjoint(operands[other])  # in either order, under any operator
    assert all(len(pairs) > 1000 for pairs in operands.values())


# --- drawing ------------------------------------------------------------------------------------------------------


def test_sample_draws_families_evenly_or_by_weight():
    even = Counter(task.family for task in sample("train"))
    assert set(even) == set(FAMILIES)
    assert all(count / 4000 == pytest.approx(1 / len(FAMILIES), abs=0.03) for count in even.values())
    weights = {family: 0.0 for family in FAMILIES} | {"hop": 3.0, "arith": 1.0}
    drawn = Counter(task.family for task in WORLD.sample("train", 2000, 5, weights))
    assert set(drawn) == {"hop", "arith"}
    assert drawn["hop"] / 2000 == pytest.approx(0.75, abs=0.04)


def test_sample_depends_on_split_and_seed_alone():
    def questions(split: str, seed: int) -> list[str]:
        return [task.question for task in WORLD.sample(split, 30, seed)]

    assert questions("train", 1) == questions("train", 1)
    assert questions("train", 1) != questions("train", 2)
    tasks = WORLD.sample("train", 50, 1)
    assert len({task.id for task in tasks}) == 50
    assert {task.id for task in tasks}.isdisjoint(task.id for task in WORLD.sample("train", 50, 2))


@pytest.mark.parametrize("split", SPLITS)
def test_fixed_sets_are_complete_and_without_repeats(split):
    tasks = WORLD.fixed(split, per_family=60, seed=99)
    assert Counter(task.family for task in tasks) == dict.fromkeys(FAMILIES, 60)
    assert len({task.question for task in tasks}) == len({task.id for task in tasks}) == 60 * len(FAMILIES)
    assert tasks == WORLD.fixed(split, per_family=60, seed=99)
    assert tasks != WORLD.fixed(split, per_family=60, seed=98)


def test_fixed_may_ask_for_some_families():
    easy = Gazetteer(GazetteerConfig(difficulty="easy"))
    assert Counter(task.family for task in easy.fixed("test", per_family=3, seed=0, families=["total6", "hop"])) == {
        "total6": 3,
        "hop": 3,
    }


def test_tasks_carry_nothing_but_question_answer_and_family():
    task = sample("test")[0]
    assert task == Task(id=task.id, question=task.question, answer=task.answer, family=task.family)
    assert re.fullmatch(r"test-1-\d+", task.id)


DIGEST = """
import hashlib
from midstream_worlds.gazetteer.tasks import GazetteerConfig, Gazetteer
world = Gazetteer(GazetteerConfig(seed=4))
fixed = world.fixed("test", per_family=20, seed=2)
made = [*world.documents(), *world.sample("train", 200, 1), *fixed, sorted(world.names("train"))]
print(hashlib.sha256(repr(made).encode()).hexdigest())
"""


@pytest.mark.slow
def test_every_process_makes_the_same_world():
    def digest(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, check=True, capture_output=True, text=True
        )
        return run.stdout

    first, second = digest("1"), digest("2")
    assert len(first.strip()) == 64
    assert first == second


def test_another_seed_is_another_world():
    one, two = (list(Gazetteer(GazetteerConfig(countries=22, seed=seed)).documents()) for seed in (0, 1))
    assert not {text for _, text in one} & {text for _, text in two}


# --- what a user gets wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "code", "value"),
    [
        ({"families": ("hop", "hopp")}, "unknown-family", "'hopp'"),
        ({"countries": 21}, "setting-range", "countries = 21"),
        ({"countries": 10**6}, "setting-range", "countries = 1000000"),
    ],
)
def test_bad_settings(settings: dict[str, Any], code, value):
    with pytest.raises(RecipeError, check=coded(code, value)):
        Gazetteer(GazetteerConfig(**settings))


def test_bad_requests():
    with pytest.raises(RecipeError, check=coded("unknown-split", "'tests'")):
        WORLD.fixed("tests", per_family=1, seed=0)
    with pytest.raises(RecipeError, check=coded("unknown-split", "'tests'")):
        WORLD.names("tests")
    with pytest.raises(RecipeError, check=coded("unknown-family", "'hopp'")):
        WORLD.fixed("test", per_family=1, seed=0, families=["hop", "hopp"])
    with pytest.raises(RecipeError, check=coded("too-few-tasks", "different 'hop' tasks")):
        Gazetteer(GazetteerConfig(countries=22)).fixed("validation", per_family=500, seed=0, families=["hop"])


def test_a_set_without_numbers_has_sixty_tasks_of_each_family():
    tasks = WORLD.fixed("test", seed=0, families=["hop", "sum"])
    assert [task.family for task in tasks] == ["hop"] * 60 + ["sum"] * 60


def test_the_smallest_world_serves_every_family():
    smallest = Gazetteer(GazetteerConfig(countries=22))
    for world in (smallest, Gazetteer(GazetteerConfig(countries=56, families=FAMILIES))):
        for split in SPLITS:
            assert {task.family for task in world.sample(split, 500, seed=0)} == set(world.families)
    with pytest.raises(RecipeError, check=coded("setting-range", "total4")):
        smallest.fixed("validation", seed=0, families=["total4"])


@pytest.mark.slow
def test_every_question_of_the_world_is_readable():
    for task in sample("test"):
        assert WORLD.readable(task.question) == task.question
        assert WORLD.readable(task.question.replace(" ?", "?")) == task.question


@pytest.mark.parametrize(
    "question", ["How high is Mount Everest ?", "What is the capital of France?", "[bold]", "¿Qué?"]
)
def test_a_question_of_another_world_is_refused_with_one_that_it_knows(question):
    with pytest.raises(UsageError, check=coded("question-unknown")) as caught:
        WORLD.readable(question)
    examples = re.findall(r'"([^"]+ \?)"', caught.value.fix)[:2]
    assert len(examples) == 2
    assert all(WORLD.readable(example) == example for example in examples)
