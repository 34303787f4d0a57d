"""Questions of your own: what is read, what is refused, who is tested on what."""

from __future__ import annotations

import csv
import io
import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from midstream.core.errors import RecipeError, UsageError
from midstream.rewards.composite import rule_for
from midstream.sources.file import FileTasksConfig
from support.errors import coded, raises


def source(directory, rows, **settings):
    path = directory / "own.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return FileTasksConfig(path=path, **settings).build()


def row(number, **more):
    return {"question": f"What is {number} + {number}?", "answer": 2 * number, **more}


def test_every_field_finds_its_place(tmp_path):
    written = {
        "question": " Which tree? ",
        "answer": ["elm", "Elm tree"],
        "aliases": ["ulmus", "elm"],
        "family": "trees",
        "id": 7,
        "reward": "f1",
        "rubric": "Any elm.",
        "level": {"hard": True},
    }
    [task] = source(tmp_path, [written]).tasks("test")
    assert (task.id, task.question, task.family, task.reward) == ("7", "Which tree?", "trees", "f1")
    assert task.answers == ("elm", "Elm tree", "ulmus")
    assert task.metadata == {"rubric": "Any elm.", "level": {"hard": True}, "row": "line 1"}


def test_other_names_for_fields(tmp_path):
    written = {"q": "Which?", "a": 0, "key": "x", "kind": "k"}
    names = {"question_field": "q", "answer_field": "a", "id_field": "key", "family_field": "kind"}
    [task] = source(tmp_path, [written], **names).tasks("test")
    assert (task.id, task.question, task.answer, task.family) == ("x", "Which?", "0", "k")


def test_numbers_are_scored_as_numbers_where_neither_row_nor_recipe_names_a_reward(tmp_path):
    answers = [215.0, 215, [215, 215.0], "215.0", [215, "two hundred"], True]
    rows = [{**row(number), "answer": answer} for number, answer in enumerate(answers)]
    rewards = [rule_for(task) for task in source(tmp_path, rows).tasks("test")]
    assert rewards == ["numeric", "numeric", "numeric", "numeric", "exact_match", "exact_match"]


def test_rewards(tmp_path):
    rows = [row(1), row(2, options=["3", "4"]), row(3, reward="math"), row(4, options=["8", "9"], reward="f1")]
    assert [one.reward for one in source(tmp_path, rows).tasks("test")] == [
        "",
        "multiple_choice",
        "math",
        "f1",
    ]
    assert [one.reward for one in source(tmp_path, rows, reward="numeric").tasks("test")] == [
        "numeric",
        "numeric",
        "math",
        "f1",
    ]


def test_a_choice_is_listed_and_its_answer_is_a_letter(tmp_path):
    [task] = source(tmp_path, [row(2, options=["3", "4"])], instruction="A letter, please.").tasks("test")
    assert task.question == "What is 2 + 2?\nA. 3\nB. 4\nA letter, please."
    assert task.answers == ("B", "4")
    assert task.metadata["options"] == {"A": "3", "B": "4"}


def test_a_csv_may_hold_lists_as_json(tmp_path):
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows(
        [
            ["question", "answer", "options", "aliases"],
            ["Which?", "elm", '["oak", "elm"]', ""],
            ["Who?", "I", "", '["me"]'],
        ]
    )
    path = tmp_path / "own.csv"
    path.write_text(text.getvalue(), encoding="utf-8")
    first, second = FileTasksConfig(path=path).build().tasks("test")
    assert (first.answer, first.metadata["options"]) == ("B", {"A": "oak", "B": "elm"})
    assert second.answers == ("I", "me")


def test_an_alias_may_be_zero(tmp_path):
    assert source(tmp_path, [row(1, aliases=0)]).tasks("test")[0].answers == ("2", "0")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"prompt": "q", "answer": "4"}, """'question' is missing or null; its fields are ["prompt", "answer"]"""),
        ({"question": "", "answer": "4"}, "'question' is empty"),
        ({"question": 4, "answer": "4"}, "'question' must be text, not 4"),
        ({"question": "Which?"}, "'answer' is missing or null"),
        ({"question": "Which?", "answer": None}, "'answer' is missing or null"),
        ({"question": "Which?", "answer": "  "}, "'answer' is empty"),
        ({"question": "Which?", "answer": []}, "'answer' is an empty list"),
        ({"question": "Which?", "answer": {"a": 1}}, "'answer' must be text or a number"),
        ({"question": "Which?", "answer": "x", "options": ["a", "b"]}, 'the answer "x" is not one of the options'),
        (
            {"question": "Which?", "answer": ["a", "b"], "options": ["a", "b"]},
            "a choice has one answer, and here are 2",
        ),
        ({"question": "Which?", "answer": "a", "options": ["a", "b"], "aliases": ["c"]}, "a choice has one answer"),
        ({"question": "1 + 2?", "answer": 3, "options": [3, 2]}, "it repeats line 2 with its options in another order"),
        ({"question": "Which?", "answer": "x", "options": "a, b"}, "'options' must be a list or a table by letter"),
        ({"question": "Which?", "answer": "x", "options": "[a, b"}, '"[a, b" is no JSON list'),
        ({"question": "Which?", "answer": "x", "aliases": [None]}, "'aliases' is missing or null"),
        ({"question": "Which?", "answer": "x", "reward": ""}, "'reward' is empty"),
        ({"question": "Which?", "answer": "x", "id": ["a"]}, "'id' must be text or a number"),
        ({"question": "Which?", "answer": "x", "rubric": None}, "'rubric' is missing or null"),
        ({"question": "Which?", "answer": "x", "id": "one"}, "its id 'one' stands on line 1 already"),
        ({"question": "What is  1 + 1?", "answer": 2}, 'it repeats line 1 (duplicates = "drop" leaves such rows out)'),
        (
            {"question": "What is 1 + 1?", "answer": 3},
            'its question stands on line 1 with another answer: "2", here "3"',
        ),
        ('{"question": "Which?"', "it is no JSON"),
    ],
)
def test_a_bad_row_is_named_by_its_line_and_reason(tmp_path, bad, reason):
    own = source(tmp_path, [row(1, id="one"), {"question": "1 + 2?", "answer": 3, "options": [2, 3]}, bad, row(2)])
    for _ in range(2):  # nor is a file with a bad row used when it is asked for again
        with pytest.raises(UsageError) as caught:
            own.tasks("test")
    assert f"own.jsonl has 1 bad row:\n    line 3: {reason}" in caught.value.what


def test_all_bad_rows_are_reported_together(tmp_path):
    with pytest.raises(UsageError) as caught:
        source(tmp_path, [row(1), {"question": "a"}, row(2), {"answer": 1}, "x"]).tasks("test")
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:4]] == [
        "line 2",
        "line 4",
        "line 5",
    ]


def test_an_empty_file_has_no_question(tmp_path):
    with pytest.raises(UsageError, check=coded("no-questions")):
        source(tmp_path, [""]).tasks("test")


def test_a_repeated_row_is_fixed_by_a_table_of_its_recipe(tmp_path):
    with raises("bad-rows", "it repeats line 1") as caught:
        source(tmp_path, [row(1), row(1)]).tasks("test")
    table = caught.value.fix.partition("[[evaluation.sets]] ")[2]
    settings = tomllib.loads(table)["tasks"]
    assert settings.pop("type") == "file"
    assert len(FileTasksConfig.model_validate(settings).build().tasks("test")) == 1


def test_repeated_rows_can_be_dropped_and_are_counted(tmp_path):
    own = source(tmp_path, [row(1), row(2), row(1), row(1)], duplicates="drop")
    assert len(own.tasks("test")) == 2
    assert own.left_out == {"test": {"it repeats an earlier question": 2}}
    with pytest.raises(UsageError, check=coded("bad-rows", "another answer")):
        source(tmp_path, [row(1), row(1) | {"answer": 5}], duplicates="drop").tasks("test")


# --- splits -----------------------------------------------------------------------------------------------------------


def test_a_file_is_a_test_set_and_nothing_else(tmp_path):
    own = source(tmp_path, [row(1)])
    assert own.splits == ("test",)
    with pytest.raises(RecipeError, check=coded("unknown-split", "'train'")) as caught:
        own.sample("train", 1, 0)
    assert "splits = { train = 0.8" in caught.value.fix


def test_shares_part_the_questions_and_hold_when_the_file_grows(tmp_path):
    shares = {"train": 0.6, "validation": 0.1, "test": 0.3}
    few = source(tmp_path, [row(number) for number in range(200)], splits=shares)
    before = {split: {task.id for task in few.tasks(split)} for split in few.splits}
    assert sum(map(len, before.values())) == 200
    assert 100 < len(before["train"]) < 140
    many = source(tmp_path, [row(number) for number in reversed(range(400))], splits=shares)
    for split, ids in before.items():
        assert ids < {task.id for task in many.tasks(split)}


def test_all_of_it_may_be_to_train_on(tmp_path):
    own = source(tmp_path, [row(1), row(2)], splits={"train": 1})
    assert own.splits == ("train",)
    assert len(own.sample("train", 2, 0)) == 2
    with pytest.raises(RecipeError, check=coded("unknown-split", "'test'")):
        own.tasks("test")


def test_rows_that_name_their_split_are_not_divided_again(tmp_path):
    rows = [row(number, split=split) for number, split in enumerate(["train", "test"] * 4)]
    with pytest.raises(UsageError, check=coded("bad-rows", "`split`", 'split_field = ""')):
        source(tmp_path, rows, splits={"train": 0.5, "test": 0.5}).tasks("test")
    assert source(tmp_path, rows, splits={"test": 1}, split_field="").tasks("test")[0].metadata["split"] == "train"


def test_a_fixed_draw_may_stand_for_a_split(tmp_path):
    rows = [row(number, split="train" if number % 2 else "test") for number in range(20)]
    whole, drawn = source(tmp_path, rows), source(tmp_path, rows, counts={"train": 3})
    assert drawn.tasks("train") == drawn.tasks("train") == whole.fixed("train", seed=99, count=3)
    assert drawn.tasks("test") == whole.tasks("test")
    with pytest.raises(RecipeError, check=coded("too-few-tasks", 11, fix="`counts`")):
        source(tmp_path, rows, counts={"test": 11}).tasks("test")


def test_rows_may_name_their_split(tmp_path):
    own = source(tmp_path, [row(1, s="train"), row(2, s="test")], split_field="s")
    assert [len(own.tasks(split)) for split in ("train", "test")] == [1, 1]
    with pytest.raises(RecipeError, check=coded("no-questions", "'validation'")):
        own.tasks("validation")
    for wrong in ("Test", None, 3):
        with pytest.raises(UsageError, check=coded("bad-rows", "'s' must be one of train, validation, test")):
            source(tmp_path, [row(1, s=wrong)], split_field="s").tasks("test")


@pytest.mark.parametrize(
    "settings",
    [
        {"splits": {"train": 0.5}},
        {"splits": {"train": 0.5, "dev": 0.5}},
        {"splits": {}},
        {"splits": {"train": 1.5, "test": -0.5}},
        {"splits": {"train": 1.0}, "split_field": "s"},
        {"question_field": "answer"},
        {"split_field": "family"},
    ],
)
def test_impossible_settings(settings):
    with pytest.raises(ValidationError):
        FileTasksConfig(path="a.jsonl", **settings)


def test_written_out_settings_can_be_read_again():
    """As a run's recipe is, with every default filled in."""
    config = FileTasksConfig(path="a.jsonl", split_field="s")
    assert FileTasksConfig(**config.model_dump(mode="json")) == config


VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)


@given(
    rows=st.lists(
        st.dictionaries(
            st.sampled_from(["question", "answer", "id", "options", "aliases", "x"]),
            VALUES | st.lists(VALUES, max_size=3),
        ),
        max_size=5,
    )
)
def test_rows_are_tasks_or_named(tmp_path_factory, rows):
    """Either every row is a task, or each that is not is reported; nothing else is raised."""
    own = source(tmp_path_factory.mktemp("x"), rows)
    message = ""
    try:
        tasks = own.tasks("test")
    except UsageError as error:
        tasks, message = [], error.what
    assert not message or "\n    line " in message or not rows
    assert message or len({task.id for task in tasks if task.question and task.answer}) == len(rows)
