"""The table of benchmarks, their rows, and files in the form of AgentFlow's repository. No row is a real one."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from midstream.components.component import Component
from midstream.components.kinds import registered
from midstream.core.errors import RecipeError, UsageError
from midstream.recipe import check as recipe_check
from midstream.recipe.check import task_source
from midstream.recipe.files import read_table
from midstream.recipe.schema import parse_recipe
from midstream.sources.benchmarks import BENCHMARKS, BenchmarkConfig
from midstream.sources.finite import SPLITS
from support.errors import coded

ROOT = Path(__file__).parents[2]
QUESTION = "Which tree is oldest?"
FLASHRAG = {"id": "dev_0", "question": QUESTION, "golden_answers": ["elm", "Elm tree", ""], "metadata": {}}
GAIA = {
    "task_id": "x",
    "Question": QUESTION,
    "Final answer": "elm",
    "Level": 2,
    "file_name": "",
    "Annotator Metadata": {},
}
GPQA = {"Record ID": "r", "Question": QUESTION, "Correct Answer": "elm", "High-level domain": "Biology"}
GPQA |= {f"Incorrect Answer {number}": name for number, name in enumerate(("oak", "ash", "fir"), 1)}
PROMPT = (
    f"Solve the following math problem well.\n\n{QUESTION}\n\n{QUESTION}\n\nRemember to put your answer at the end."
)
DAPO = {"prompt": [{"role": "user", "content": PROMPT}], "reward_model": {"ground_truth": "34", "style": "rule"}}
WALKER = {
    "question": QUESTION,
    "answer": "elm",
    "root_url": "https://trees.example",
    "info": {"Difficulty_Level": "hard"},
}
SIMPLE = {"problem": QUESTION, "answer": "elm", "metadata": "{'topic': 'Trees', 'urls': ['x']}"}

MATH = {"problem": QUESTION, "answer": "\\frac{1}{2}", "subject": "Algebra", "level": 2}
OLYMPIAD = {"question": QUESTION, "final_answer": ["$1$", "$2$"], "unit": None}

# name -> (a row in its owner's form, answers, family)
ROWS = {
    **dict.fromkeys(("bamboogle", "2wiki", "hotpotqa", "musique", "search-r1"), (FLASHRAG, ("elm", "Elm tree"), "")),
    "gaia": (GAIA, ("elm",), "level 2"),
    "webwalkerqa": (WALKER, ("elm",), "hard"),
    "simpleqa": (SIMPLE, ("elm",), "Trees"),
    "aime24": ({"ID": "2024-I-1", "Problem": QUESTION, "Solution": "...", "Answer": 33}, ("33",), ""),
    "aime25": ({"problem": QUESTION, "answer": "033", "id": "0"}, ("33",), ""),
    "aime-artist": ({"id": 0, "problem": QUESTION, "answer": "070", "url": ""}, ("70",), ""),
    "amc23": ({"id": 0, "question": QUESTION, "answer": 27.0, "url": ""}, ("27",), ""),
    "amc-artist": ({"id": 0, "problem": QUESTION, "answer": 142.0, "url": ""}, ("142",), ""),
    "math500": (MATH, ("\\frac{1}{2}",), "Algebra"),
    "olympiadbench": (OLYMPIAD, ("$1$, $2$",), ""),
    "deepmath-103k": ({"question": QUESTION, "final_answer": "0", "difficulty": 6.0}, ("0",), ""),
    "numinamath": ({"problem": QUESTION, "solution": "so \\boxed{x^2}."}, ("x^2",), ""),
    "dapo-math-17k": (DAPO, ("34",), ""),
    "afm-web": ({"prompt": [], "extra_info": {"question": QUESTION, "answer": ["elm"]}}, ("elm",), ""),
}


def make(config):
    return task_source(Component(kind="tasks", type="benchmark", config=config))


def tasks_of(directory, name, rows, **settings):
    path = directory / f"{name}.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    source = make(BenchmarkConfig(name=name, file=path, **settings))
    return source, source.fixed(BENCHMARKS[name].main_split, seed=0)


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_sets_that_the_papers_name_are_there():
    ten = {"bamboogle", "2wiki", "hotpotqa", "musique", "gaia", "aime24", "amc23", "gameof24", "gpqa", "medqa"}
    more = {"aime25", "amc-artist", "aime-artist", "math500", "olympiadbench", "webwalkerqa", "simpleqa", "gazetteer"}
    assert set(BENCHMARKS) == ten | more | {"search-r1", "deepmath-103k", "numinamath", "dapo-math-17k", "afm-web"}


@pytest.mark.parametrize("one", BENCHMARKS.values(), ids=lambda one: one.name)
def test_every_entry_is_complete(one):
    assert one.reward in registered("reward")
    assert set(one.splits) <= {"train", "validation", "test"}
    if one.repository:
        assert {one.main_split} <= set(one.splits)
        assert set(one.sizes) == set(one.splits) or one.unverified.startswith("its size")
        assert all((one.convert, one.columns, one.licence))
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", one.repository)
        assert one.name in {**ROWS, "gpqa": 0, "medqa": 0}
    if one.gated:
        assert one.republish == "no"


def test_the_documents_show_this_table():
    text = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    shown = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `") and line.count("|") == 7}
    assert list(shown) == list(BENCHMARKS)
    for one in BENCHMARKS.values():
        size = one.sizes.get(one.main_split)
        where = f"[{one.repository}]({one.address})" if one.repository else "made here"
        asked = ", on request" if one.gated else ""
        cells = (f"`{one.name}`", f"{one.title}: {one.asks}", "-" if size is None else f"{size:,}", f"`{one.reward}`")
        assert shown[one.name] == f"| {' | '.join((*cells, one.licence or '-', where + asked))} |"


def test_the_documents_recipes_are_valid():
    text = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    import tomllib

    for block in blocks:
        table = {key: value for key, value in read_table("gazetteer-prompted").items() if key != "evaluation"}
        del table["tools"]["local_search"]  # the offline world's
        recipe_check.resolve(parse_recipe(table | tomllib.loads(block)))


# --- rows in their owners' form ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_a_row_becomes_a_task(tmp_path, name):
    row, answers, family = ROWS[name]
    question = f"{QUESTION}\n\n{QUESTION}" if name == "dapo-math-17k" else QUESTION
    _, [task] = tasks_of(tmp_path, name, [row])
    asked = question + f"\n{BENCHMARKS[name].instruction}" * (name == "gaia")
    assert (task.question, task.answers, task.family) == (asked, answers, family or name)
    assert task.reward == BENCHMARKS[name].reward
    assert task.id.startswith(f"{name}-")


@pytest.mark.parametrize("name", [*ROWS, "gpqa", "medqa"])
def test_rows_of_something_else_are_refused_with_what_is_missing(tmp_path, name):
    with pytest.raises(
        UsageError, match=r"entry 1: (.* is missing or null|'(prompt|extra_info)' must be|'options')"
    ) as caught:
        tasks_of(tmp_path, name, [{"text": "x"}])
    assert caught.value.code == "bad-rows"
    assert f"{name} has the fields " in caught.value.cause


def test_what_is_kept_with_a_question(tmp_path):
    assert tasks_of(tmp_path, "webwalkerqa", [WALKER])[1][0].metadata == {"root_url": "https://trees.example"}
    assert tasks_of(tmp_path, "math500", [ROWS["math500"][0]])[1][0].metadata == {"level": 2}


def test_gaia_leaves_out_what_comes_with_a_file_and_counts_it(tmp_path):
    rows = [
        GAIA,
        GAIA | {"Question": "What is in it?", "file_name": "a.png"},
        GAIA | {"Question": "?", "Final answer": "?"},
    ]
    source, tasks = tasks_of(tmp_path, "gaia", rows)
    assert len(tasks) == 1
    assert source.left_out["test"] == {"it comes with a file": 1, "its answer is kept secret": 1}


def test_gpqa_has_its_options_in_an_order_that_the_question_decides(tmp_path):
    rows = [GPQA | {"Question": f"Which tree is {number}?"} for number in range(200)]
    _, tasks = tasks_of(tmp_path, "gpqa", rows)
    again = tasks_of(tmp_path, "gpqa", rows[::-1])[1][::-1]
    assert [task.question for task in again] == [task.question for task in tasks]
    assert all(task.metadata["options"][task.answer] == "elm" for task in tasks)
    assert min(Counter(task.answer for task in tasks).values()) > 30
    assert tasks[0].question.splitlines()[1][:3] == "A. "
    assert tasks[0].question.endswith("\nAnswer with the letter of the right option.")
    bare = tasks_of(tmp_path, "gpqa", rows, instruction="")[1][0]
    assert bare.question == tasks[0].question.removesuffix("\nAnswer with the letter of the right option.")
    assert bare.id == tasks[0].id


def test_medqa(tmp_path):
    row = {
        "question": QUESTION,
        "options": {"A": "oak", "B": "elm"},
        "answer_idx": "B",
        "answer": "elm",
        "meta_info": "x",
    }
    _, [task] = tasks_of(tmp_path, "medqa", [row])
    assert task.answers == ("B", "elm")
    assert task.metadata == {"options": {"A": "oak", "B": "elm"}}


def test_numinamath_counts_solutions_without_an_answer(tmp_path):
    rows = [{"problem": str(number), "solution": solution} for number, solution in enumerate(("\\boxed{1}", "QED"))]
    source, tasks = tasks_of(tmp_path, "numinamath", rows)
    assert len(tasks) == 1
    assert source.left_out["train"] == {"its solution has no boxed answer": 1}


def test_dapo_takes_each_question_once_and_counts_the_others(tmp_path):
    source, tasks = tasks_of(tmp_path, "dapo-math-17k", [DAPO] * 100)
    assert len(tasks) == 1
    assert source.left_out["train"] == {"it repeats an earlier question": 99}


def test_afm_web_leaves_out_questions_of_several_answers(tmp_path):
    rows = [{"extra_info": {"question": f"{answers}?", "answer": answers}} for answers in (["elm"], ["elm", "oak"])]
    for form in (rows, [{"extra_info": json.dumps(row["extra_info"])} for row in rows]):
        source, tasks = tasks_of(tmp_path, "afm-web", form)
        assert [(task.question, task.answers) for task in tasks] == [("['elm']?", ("elm",))]
        assert source.left_out["train"] == {"it has several answers": 1}
    with pytest.raises(UsageError, check=coded("bad-rows", "entry 1")):
        tasks_of(tmp_path, "afm-web", [{"extra_info": "{'question': 'q'}"}])


def test_elsewhere_a_question_that_comes_twice_is_two_tasks(tmp_path):
    _, tasks = tasks_of(tmp_path, "hotpotqa", [FLASHRAG, FLASHRAG])
    assert tasks[1].id == f"{tasks[0].id}-2"


def test_a_few_bad_rows_stop_no_training_but_an_evaluation(tmp_path):
    rows = [FLASHRAG | {"question": str(number)} for number in range(200)] + [
        {"question": "x", "golden_answers": []}
    ] * 2
    source, tasks = tasks_of(tmp_path, "search-r1", rows)
    assert len(tasks) == 200
    assert list(source.left_out["train"].values()) == [2]
    with pytest.raises(UsageError, check=coded("bad-rows", "2 bad rows")):
        tasks_of(tmp_path, "hotpotqa", rows)
    with pytest.raises(UsageError, check=coded("bad-rows", "3 bad rows")):
        tasks_of(tmp_path, "search-r1", [*rows, {}])


# --- the form of AgentFlow's repository -------------------------------------------------------------------------------

ON_TAGS = "When ready, output the final answer enclosed in <answer> and </answer> tags. Do not continue after it."
LISTED = ["A. oak \t", "B. elm"]


@pytest.mark.parametrize(
    ("name", "row", "answers"),
    [
        ("2wiki", {"query": QUESTION, "answer": "elm"}, ("elm",)),
        ("bamboogle", {"question": QUESTION + ON_TAGS, "answer": ["elm", "Elm"], "idx": 0}, ("elm", "Elm")),
        ("aime24", {"question": f"{QUESTION}\n\n{ON_TAGS}", "answer": 33}, ("33",)),
        ("gaia", {"question": QUESTION, "Question": "", "answer": "elm", "Level": "2", "file_name": ""}, ("elm",)),
    ],
)
def test_released_questions_lose_what_belongs_to_the_prompt(tmp_path, name, row, answers):
    _, [task] = tasks_of(tmp_path, name, [{"pid": "0", "query": QUESTION + ON_TAGS} | row], instruction="")
    assert (task.question, task.answers) == (QUESTION, answers)
    assert task.family == ("level 2" if name == "gaia" else name)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("medqa", {"question": f"{QUESTION}\nA. oak \nB. elm\n\nA. oak\nB. elm", "options": LISTED, "answer": "elm"}),
        ("gpqa", {"question": QUESTION, "choices": LISTED, "answer_idx": 1, "answer": "B. elm"}),
        ("gpqa", {"question": f"{QUESTION}\nChoices:\nA. oak\nB. elm", "choices": LISTED, "answer": "B"}),
    ],
)
def test_released_choices_are_listed_once(tmp_path, name, row):
    _, [task] = tasks_of(tmp_path, name, [row | {"pid": "0", "query": "..."}])
    assert task.question == f"{QUESTION}\nA. oak\nB. elm\nAnswer with the letter of the right option."
    assert task.answers == ("B", "elm")
    assert task.metadata["options"] == {"A": "oak", "B": "elm"}


def test_released_hands_of_24_have_their_numbers(tmp_path):
    row = {
        "question": [1, 2, 3, 4],
        "query": "Make 24 of [1, 2, 3, 4].",
        "answer": ["(1+2+3)×4", "1×2×3×4"],
        "pid": "0",
    }
    _, [task] = tasks_of(tmp_path, "gameof24", [row])
    assert (task.question, task.reward) == ("Make 24 of [1, 2, 3, 4].", "game24")
    assert task.answers == ("(1+2+3)×4", "1×2×3×4")
    assert task.metadata == {"numbers": [1, 2, 3, 4]}
    for wrong in ({"question": [1, 2, 3, "4"]}, {"pid": None, "query": None}):
        with pytest.raises(UsageError, check=coded("bad-rows", "entry 1")):
            tasks_of(tmp_path, "gameof24", [row | wrong])
    with pytest.raises(UsageError, check=coded("bad-rows", "no 'query' and 'pid'")):
        tasks_of(tmp_path, "gameof24", [{"numbers": [1, 2, 3, 4]}])


CHOICE = {"query": QUESTION, "pid": 0, "choices": ["A. oak", "B. elm"], "answer": "B"}
HAND = {"query": "Make 24.", "pid": 0, "question": [1, 2, 3, 4], "answer": "1*2*3*4"}


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("hotpotqa", CHOICE, "it has options"),
        ("medqa", FLASHRAG | {"query": QUESTION, "pid": 0, "answer": "elm"}, "it has no options"),
        ("gameof24", FLASHRAG | {"query": QUESTION, "pid": 0, "answer": "elm"}, "it has no numbers"),
        ("bamboogle", HAND, "it has numbers"),
    ],
)
def test_the_file_of_another_benchmark_is_refused(tmp_path, name, row, reason):
    with pytest.raises(UsageError, check=coded("bad-rows", f"entry 1: {reason}, so it is of another benchmark")):
        tasks_of(tmp_path, name, [row])


@pytest.mark.parametrize("stem", ["x" + " " * 100_000 + "y", "A. oak B. elm " * 20_000 + "y"])
def test_options_are_looked_for_in_any_text_without_delay(tmp_path, stem):
    _, [task] = tasks_of(tmp_path, "gpqa", [CHOICE | {"question": stem}])
    assert task.question.startswith(stem)


def test_a_prompt_that_is_no_message_is_a_bad_row(tmp_path):
    with pytest.raises(UsageError, check=coded("bad-rows", "'prompt' must be one message")):
        tasks_of(tmp_path, "dapo-math-17k", [{"prompt": ["a"], "reward_model": {}}])


def test_a_released_question_has_the_id_that_it_has_elsewhere(tmp_path):
    released = {"query": QUESTION + ON_TAGS, "answer": ["elm"], "pid": 0}
    assert tasks_of(tmp_path, "hotpotqa", [released])[1][0].id == tasks_of(tmp_path, "hotpotqa", [FLASHRAG])[1][0].id


# --- settings ---------------------------------------------------------------------------------------------------------


def test_what_has_no_use_is_refused(tmp_path):
    with pytest.raises(RecipeError, check=coded("unknown-benchmark", "'zebra'")):
        BenchmarkConfig(name="zebra").check_recipe("tasks", None)
    for settings in ({"name": "gazetteer", "file": "a.json"}, {"name": "hotpotqa", "file": "a.json", "revision": "x"}):
        with pytest.raises(RecipeError, check=coded("setting-conflict", "has no use for")):
            BenchmarkConfig(**settings).check_recipe("tasks", None)
    with pytest.raises(RecipeError, check=coded("setting-conflict", "has no use for revision and instruction")):
        BenchmarkConfig(name="gazetteer", revision="x", instruction="").check_recipe("tasks", None)
    with pytest.raises(RecipeError, check=coded("setting-conflict", "has no use for instruction")):
        BenchmarkConfig(name="gameof24", instruction="Be brief.").check_recipe("tasks", None)


def test_a_file_is_one_split(tmp_path):
    source, _ = tasks_of(tmp_path, "hotpotqa", [FLASHRAG])
    with pytest.raises(RecipeError, check=coded("unknown-split", "'train'")) as caught:
        source.sample("train", 1, 0)
    assert "it has test" in caught.value.what


def test_worlds_are_made_here():
    assert len(make(BenchmarkConfig(name="gazetteer")).fixed("test", seed=1, count=5)) == 5
    hands = make(BenchmarkConfig(name="gameof24"))
    assert {split: len(hands.fixed(split, seed=0)) for split in SPLITS} == BENCHMARKS["gameof24"].sizes
