"""The atlas: names apart, true answers, every fact found by name and attribute, the same tasks in every process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from midstream.core.errors import RecipeError, TrainingError
from midstream.core.task import Task
from midstream.core.trajectory import Command, Trajectory, Turn
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rollout import Environment
from midstream.tools.local_search import Document, LocalSearch
from midstream_worlds.atlas.names import PREFIXES, held_out, real_places, search_words
from midstream_worlds.atlas.tasks import FAMILIES, Atlas, AtlasConfig
from support.errors import coded
from support.rollouts import StubReward

WORLD = Atlas(AtlasConfig(regions=4))
NAMES = {split: [name for region in regions for name in region.names] for split, regions in WORLD.splits.items()}
EVALUATED = ("validation", "test", "unseen", "real")


def test_no_name_of_an_evaluation_split_occurs_in_training():
    assert all(held_out(name) for split in ("validation", "test", "unseen") for name in NAMES[split])
    assert not any(held_out(name) for name in NAMES["train"])
    words = {split: search_words(" ".join(names)) - search_words(" ".join(PREFIXES)) for split, names in NAMES.items()}
    for split in EVALUATED:
        assert not words[split] & words["train"]
    asked = {place for task in WORLD.sample("train", 1000, 1) for place in WORLD.asked[task.question].places}
    assert asked <= set(NAMES["train"])


def test_names_have_accents_hyphens_and_prefixes():
    for names in (NAMES["train"], real_places()):
        assert any("-" in name for name in names)
        assert any(" " in name for name in names)
        assert any(not name.isascii() for name in names)
    assert len(set(real_places())) == len(real_places()) >= 180


def test_no_name_is_found_by_the_words_of_another():
    found: dict[str, list[set[str]]] = {}
    everything = [search_words(name) for names in NAMES.values() for name in names]
    for words in everything:
        for word in words:
            found.setdefault(word, []).append(words)
    for words in everything:
        rarest = min((found[word] for word in words), key=len)
        assert sum(words <= other for other in rarest) == 1, words


def test_documents_about_places_of_your_own_change_no_other():
    own = Atlas(AtlasConfig(regions=4, places=("Zorbania", "Île du Nord")))
    before, after = [*WORLD.documents()], [*own.documents()]
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2 * 9
    for place in ("Zorbania", "Île du Nord"):
        assert (own.facts[place, "capital"], "height") in own.facts
    assert own.fixed("test", seed=1, per_family=2) == WORLD.fixed("test", seed=1, per_family=2)


@pytest.mark.parametrize("place", ["New", "height", "Republic of Zembla", NAMES["test"][0].lower(), NAMES["real"][0]])
def test_a_place_of_your_own_needs_words_of_its_own(place: str):
    with pytest.raises(RecipeError, check=coded("setting-conflict", repr(place))):
        Atlas(AtlasConfig(regions=4, places=(place,)))


@pytest.mark.parametrize(
    "place", ["", " Zembla", "<|end|>", "Zem\nbla", 'Zem"bla', "\u202eZembla", "Zone 51", "Москва", "😀", "Z" * 23]
)
def test_a_place_of_your_own_has_letters_that_the_model_copies(place: str):
    with pytest.raises(ValidationError, match="places"):
        AtlasConfig(places=(place,))


@pytest.mark.parametrize("rule", ["times 1", "times 10", "minus 10", "plus 100", "plus 02", "times 3 "])
def test_a_rule_that_no_lesson_states_is_refused(rule: str):
    with pytest.raises(ValidationError, match="rules"):
        AtlasConfig(rules={"height": rule})


def test_the_index_finds_every_fact():
    search = LocalSearch.from_documents(Document(id=name, text=text) for name, text in WORLD.documents())

    async def ask():
        return [(await search.call({"query": f"{place} {attribute}"})).text for place, attribute in WORLD.facts]

    answers = asyncio.run(ask())
    assert [WORLD.stated[text] for text in answers] == list(WORLD.facts.values())
    asyncio.run(search.close())


@pytest.mark.parametrize("split", WORLD.splits)
def test_sets_are_fixed_and_hold_every_family(split):
    tasks = WORLD.fixed(split, seed=5, per_family=20)
    assert tasks == Atlas(AtlasConfig(regions=4)).fixed(split, seed=5, per_family=20)
    assert [task.family for task in tasks] == [family for family in FAMILIES for _ in range(20)]
    assert len({task.question for task in tasks}) == len(tasks)
    for task in tasks:
        asked = WORLD.asked[task.question]
        assert all(place in task.question for place in asked.places)
        assert task.answer in ("yes", "no") or task.answer.isdigit()


def test_a_question_has_the_answer_of_the_facts():
    for task in WORLD.sample("train", 500, 3):
        asked = WORLD.asked[task.question]
        if task.family == "compare":
            first, second = (int(WORLD.facts[place, asked.attribute]) for place in asked.places)
            assert task.answer == ("yes" if first > second else "no")
        elif task.family == "hop":
            assert task.answer == WORLD.facts[WORLD.facts[asked.places[0], asked.relation], asked.attribute]
        elif task.family == "diff":
            first, second = (int(WORLD.facts[place, asked.attribute]) for place in asked.places)
            assert task.answer == str(first - second)


def test_another_process_makes_the_same_tasks():
    code = (
        "from midstream_worlds.atlas.tasks import Atlas, AtlasConfig;"
        "print([t.question for t in Atlas(AtlasConfig(regions=4)).sample('train', 50, 9)])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert printed.stdout.strip() == str([task.question for task in WORLD.sample("train", 50, 9)])


def test_unknown_splits_and_families_are_refused():
    with pytest.raises(RecipeError) as caught:
        WORLD.fixed("tset", seed=1)
    assert coded(caught.value, "unknown-split", "tset")
    with pytest.raises(RecipeError) as caught:
        Atlas(AtlasConfig(regions=1, families=("look",)))
    assert coded(caught.value, "unknown-family", "look")


class Searching:
    """An agent whose only turn searches for what `queries` says about the question."""

    name = "searching"

    def __init__(self, queries):
        self.queries = queries

    async def run(self, task, context):
        command = Command(tool="local_search", arguments={"query": self.queries[task.question]})
        return Trajectory(id=task.id, task_id=task.id, question=task.question, turns=(Turn(index=1, command=command),))


def test_the_gate_counts_first_searches_with_an_exact_name():
    tasks = WORLD.fixed("validation", seed=1, families=["lookup"], count=4)
    names = [WORLD.asked[task.question].places[0] for task in tasks]
    queries = [f"{names[0]} height", f"{names[1]}e height", f"area {names[2]}", names[3].lower()]
    environment = Environment(
        agent=Searching({task.question: query for task, query in zip(tasks, queries, strict=True)}),
        tools=[],
        engines={},
        reward=StubReward(),
    )
    foreign = Task(id="t", question="What is 1 plus 1?", answer="2")
    rate, _ = asyncio.run(WORLD.warm_rate(environment, [*tasks, foreign], 1))
    assert rate == 0.5
    with pytest.raises(TrainingError) as caught:
        asyncio.run(WORLD.check_warm_start(environment, tasks, 0.51, 1))
    assert coded(caught.value, "warm-start-failed", "0.50")
    WORLD.check_validation([foreign], 0.0)
    with pytest.raises(RecipeError) as refused:
        WORLD.check_validation([foreign], 0.5)
    assert coded(refused.value, "setting-conflict", "evaluation.validation")


def test_the_model_of_a_closed_vocabulary_is_refused():
    settings = ["agent.policy={type='model',engine='policy'}", "engines.policy.type=tiny", "tasks.regions=1"]
    with pytest.raises(RecipeError) as caught:
        Build(load_recipe("atlas-teacher", settings)).engine("policy")
    assert coded(caught.value, "world-missing", "engines.policy")
