"""Tasks of reasoning-gym: their splits, levels and stages, scores as the library's own, a training that is killed."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import midstream as ms
from midstream.core.errors import RecipeError, RewardError
from midstream.core.trajectory import Trajectory
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream_environments import reasoning_gym
from midstream_environments.cases import case_of
from midstream_environments.library import library_of
from midstream_environments.reasoning_gym import GymTasks, ReasoningGymConfig
from midstream_environments.reward import EnvironmentReward
from support.errors import raises
from support.killed_training import differences, finish, train_with_kills

TEN = (
    "countdown", "spell_backward", "chain_sum", "letter_counting", "number_sorting", "word_sorting", "letter_jumble",
    "knights_knaves", "decimal_arithmetic", "rotate_matrix",
)  # fmt: skip


class Generators:
    """A library of three generators, in place of reasoning-gym."""

    key = "gym"
    config = SimpleNamespace(adapter="reasoning_gym", library="reasoning-gym")
    known = {
        "sums": {"levels": 3, "settings": ["seed", "size", "terms"]},
        "few": {"levels": 0, "settings": ["seed", "size", "words"]},
        "broken": {"levels": 0, "settings": ["seed", "size"]},
    }

    def call(self, name: str, **arguments: Any) -> Any:
        if name == "families":
            return self.known
        if name == "refusal":
            return "AssertionError: too many terms" if arguments["family"] == "sums@2" else ""
        family, start = arguments["family"], arguments["start"]
        return [self.row(family, arguments["seed"], number) for number in range(start, start + arguments["count"])]

    def row(self, family: str, seed: int, number: int) -> dict[str, str]:
        draw = random.Random(seed + number)
        if family == "broken" or draw.random() < 0.2:
            return {"problem": "RuntimeError: no puzzle"}
        question = f"{family.partition('@')[0]} {draw.randrange(20 if family == 'few' else 10**9)}"
        return {"case": f"{family} {seed} {number}", "question": question, "answer": "1"}


def made(**settings: Any) -> GymTasks:
    return GymTasks(ReasoningGymConfig(**settings), Generators())  # type: ignore[arg-type]


def questions(tasks: list[Any]) -> set[str]:
    return {task.question for task in tasks}


def test_equal_seeds_give_equal_tasks_and_other_seeds_others() -> None:
    one, other = made(families=["sums"]), made(families=["sums", "few"])
    assert one.sample("train", 5, 1) == one.sample("train", 5, 1)
    assert not questions(one.sample("train", 5, 1)) & questions(one.sample("train", 5, 2))
    fixed = one.fixed("test", seed=3, per_family=8)
    assert fixed == other.fixed("test", seed=3, families=["sums"], per_family=8)
    assert fixed[:4] == one.fixed("test", seed=3, per_family=4)
    assert len(questions(fixed)) == len({task.id for task in fixed}) == 8


def test_no_question_is_in_two_splits_whatever_the_seed_or_level() -> None:
    source = made(families=["few", "sums"])
    found = {
        split: questions([task for seed in range(20) for task in source.sample(split, 2, seed)])
        for split in ("train", "validation", "test")
    }
    assert all(len(some) > 4 for some in found.values())
    assert (
        not found["train"] & found["validation"] | found["train"] & found["test"] | found["validation"] & found["test"]
    )


def test_a_draw_has_families_in_proportion_to_their_weights() -> None:
    source = made(families=["sums@0", "sums@1"])
    assert Counter(task.family for task in source.sample("train", 12, 1, {"sums@0": 0.0})) == {"sums@1": 12}
    assert set(Counter(task.family for task in source.sample("train", 30, 1))) == {"sums@0", "sums@1"}
    dealt = Counter(task.family for task in source.fixed("test", seed=1, count=9))
    assert dealt == {"sums@0": 5, "sums@1": 4}


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"families": ["few"]}, "too-few-tasks", "'few' tasks of 60"),
        ({"families": ["broken"]}, "too-few-tasks", "no puzzle"),
        ({"families": ["sumz"]}, "unknown-family", "did you mean 'sums'"),
        ({"families": ["composite"]}, "unknown-family", "mixes others"),
        ({"families": ["few"], "level": 0}, "no-levels", "words"),
        ({"families": ["sums@3"]}, "no-levels", "0 to 2"),
        ({"families": ["sums@2"]}, "environment-refused", "too many terms"),
        ({"families": ["sums"], "settings": {"sums": {"term": 2}}}, "unknown-setting", "did you mean 'terms'"),
        ({"families": ["sums"], "settings": {"sum": {"terms": 2}}}, "unknown-family", "did you mean 'sums'"),
        ({"families": ["sums"], "settings": {"sums": {"seed": 2}}}, "setting-conflict", "draws seeds"),
    ],
)
def test_what_the_library_does_not_have_is_refused_by_name(settings: Any, code: str, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        made(**settings).fixed("test", seed=0)
    assert caught.value.code == code
    assert words in f"{caught.value} {caught.value.cause} {caught.value.fix}"


def test_a_split_that_does_not_exist_is_refused() -> None:
    with raises("unknown-split"):
        made(families=["sums"]).sample("dev", 1, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"families": ["sums"], "stages": [{"families": ["sums"]}]},
        {"families": ["sums@high"]},
        {"families": ["sums", "sums@1"], "level": 1},
        {"stages": [{"families": []}]},
    ],
)
def test_families_and_stages_that_contradict_each_other_are_refused(settings: Any) -> None:
    with pytest.raises(ValueError, match=r"families|stages|level|twice"):
        ReasoningGymConfig(**settings)


# -- stages ------------------------------------------------------------------------------------------------------------


def staged(*overrides: str) -> Any:
    stages = "[{families=['sums'], level=0}, {families=['sums', 'words@2'], level=1}]"
    tasks = f"tasks={{type='reasoning_gym', families=[], stages={stages}}}"
    return load_recipe("reasoning-gym-small", [tasks, *overrides])


def test_stages_of_tasks_are_those_of_the_training() -> None:
    assert resolve(staged())["training"]["stages"] == [["sums@0"], ["sums@1", "words@2"]]
    resolve(staged("training.stages=[['sums@0'], ['sums@1', 'words@2']]"))
    recipe = staged("tasks.level=0", "tasks.stages=[{families=['sums']}, {families=['sums', 'words@2'], level=1}]")
    resolve(recipe)
    assert recipe.training.stages == (("sums@0",), ("sums@1", "words@2"))


def test_other_stages_of_the_training_are_refused_with_the_line_to_write() -> None:
    with pytest.raises(RecipeError) as caught:
        resolve(staged("training.stages=[['sums@1'], ['sums@0']]"))
    assert caught.value.code == "setting-conflict"
    assert "stages = [['sums@0'], ['sums@1', 'words@2']]" in caught.value.fix


def test_stages_of_an_evaluation_set_are_refused() -> None:
    tasks = "{type='reasoning_gym', stages=[{families=['sums']}]}"
    with raises("setting-conflict"):
        resolve(load_recipe("reasoning-gym", [f"evaluation.sets=[{{name='other', split='test', tasks={tasks}}}]"]))


# -- with the library --------------------------------------------------------------------------------------------------

# Scores as the library's own loop has them: the answer between its tags, scored by the generator that made the item.
SCORES = """
import json, sys
import reasoning_gym
from reasoning_gym.utils import extract_answer

scores = []
for family, seed, number, reply in json.load(sys.stdin):
    generator = reasoning_gym.create_dataset(family, seed=seed)
    item = generator[number]
    scores.append([item["question"], generator.score_answer(extract_answer(reply), item)])
print(json.dumps(scores))
"""


def run_script(python: Path, script: str, given: Any) -> Any:
    """What a script prints as JSON, in the interpreter that has the library; it reads `given` as JSON."""
    found = subprocess.run([str(python), "-c", script], input=json.dumps(given), capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout.splitlines()[-1])


def library_tasks(python: Path, **settings: Any) -> GymTasks:
    config = ReasoningGymConfig(python=python, **settings)
    return GymTasks(config, library_of(config))


def closed(source: GymTasks) -> None:
    asyncio.run(source._library.close())


def reply_of(place: int, gold: str, others: list[str]) -> str:
    """A right reply, a wrong one, or one that is partly right."""
    words = gold.split(", ")
    said = [
        gold, others[place % len(others)], f"{gold} I think", gold[:-1] or "-", ", ".join(reversed(words)), "12",
        gold.upper(), gold.replace(" ", "  "), ", ".join(words[:-1]) or "none", f"It is {gold}.",
    ][place % 10]  # fmt: skip
    return f"Let me think.\n<answer>\n{said}\n</answer>"


@pytest.mark.slow
def test_scores_are_those_of_the_library_on_the_same_replies(interpreter: Any, tmp_path: Path) -> None:
    source = library_tasks(interpreter("games"), families=TEN)
    tasks = source.fixed("test", seed=99, per_family=20)
    closed(source)
    gold = {family: [task.answer for task in tasks if task.family == family] for family in TEN}
    # A prompt ends without the white space of a question.
    replies = {
        task.question.strip(): reply_of(place, task.answer, gold[task.family]) for place, task in enumerate(tasks)
    }
    (tmp_path / "replies.json").write_text(json.dumps(replies))
    (tmp_path / "model.py").write_text(
        "import json, pathlib\n"
        "REPLIES = json.loads(pathlib.Path(__file__).with_name('replies.json').read_text())\n"
        "def reply(messages):\n    return REPLIES[messages[-1]['content']]\n"
    )
    (tmp_path / "mine.toml").write_text(
        'extends = "reasoning-gym"\nname = "mine"\n'
        f'tasks = {{ type = "reasoning_gym", families = {json.dumps(TEN)}, python = "{interpreter("games")}" }}\n'
        'engines.model = { type = "model.py:reply" }\n'
        'evaluation.sets = [{ name = "test", split = "test", per_family = 20, seed = 99 }]\n'
    )
    run = ms.evaluate(str(tmp_path / "mine.toml"), out=tmp_path / "run", quiet=True)
    found = {one.question: one for one in run.trajectories()}
    assert len(found) == 200
    assert {one.status for one in found.values()} == {"ok"}
    given = []
    for task in tasks:
        family, seed, number, _ = case_of(task)[1].split(" ")
        given.append([family, int(seed), int(number), replies[task.question.strip()]])
    expected = dict(run_script(interpreter("games"), SCORES, given))
    values = {question: one.reward.value for question, one in found.items() if one.reward is not None}
    assert values == expected
    assert {0.0, 1.0} < set(values.values())
    assert len(set(values.values())) > 10


def test_generators_that_go_through_a_set_make_the_same_item_in_every_process(interpreter: Any) -> None:
    families = ["ransom_note", "isomorphic_strings", "word_ladder"]
    drawn = []
    for processes in (1, 2):
        source = library_tasks(interpreter("games"), families=families, processes=processes)
        drawn.append([task.question for task in source.fixed("train", seed=1, per_family=3)])
        closed(source)
    assert drawn[0] == drawn[1]


def test_levels_are_the_curriculums_and_settings_go_before_them(interpreter: Any) -> None:
    source = library_tasks(interpreter("games"), families=["chain_sum"], settings={"chain_sum": {"max_digits": 1}})
    hard = source.fixed("test", seed=1, per_family=5, families=["chain_sum@4"])
    assert all(task.family == "chain_sum@4" for task in hard)
    numbers = [word for task in hard for word in task.question.partition(":")[2].split() if word.isdecimal()]
    assert len(numbers) > 15
    assert {len(number) for number in numbers} == {1}
    with raises("environment-refused"):
        source.fixed("test", seed=1, families=["knight_swap@0"])
    closed(source)


async def scored(tasks: list[Any], answers: list[str]) -> list[Any]:
    reward, found = EnvironmentReward(), []
    for task, answer in zip(tasks, answers, strict=True):
        found.append(await reward.score(task, Trajectory(id="1", task_id=task.id, answer=answer)))
    return found


def test_an_answer_in_another_form_is_wrong_and_an_item_that_was_made_differently_an_error(interpreter: Any) -> None:
    source = library_tasks(interpreter("games"), families=["prime_factorization"])
    [task] = source.fixed("test", seed=1, per_family=1)
    [wrong] = asyncio.run(scored([task], ["two times two"]))
    assert (wrong.value, "ValueError" in wrong.feedback) == (0.0, True)
    changed = task.model_copy(update={"metadata": {"case": str(task.metadata["case"])[:-4] + "0000"}})
    with pytest.raises(RewardError, match="made another item"):
        asyncio.run(scored([changed], ["2"]))
    closed(source)


# The adapter in the library's interpreter: scores of answers that are code, and of some that are data or formulas.
ANSWERS = """
import importlib.util, json, sys

path, cases = json.load(sys.stdin)
spec = importlib.util.spec_from_file_location("adapter", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
adapter = module.Adapter({})
scores = {}
for family, answers in cases.items():
    [item] = adapter.items(family, 7, 0, 1)
    given = [answer.replace("GOLD", item["answer"] or "") for answer in answers]
    scores[family] = [adapter.score(item["case"], answer)["reward"] for answer in given]
print(json.dumps(scores))
"""


@pytest.mark.slow
def test_no_scorer_runs_what_a_model_wrote(interpreter: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    attacks = [
        f"__import__('pathlib').Path({str(mark)!r}).touch()",
        f"open({str(mark)!r}, 'w')",
        f"sin(\"open({str(mark)!r}, 'w')\")",
        f"(lambda: open({str(mark)!r}, 'w'))()",
        "exit()",
        "(exit)()",
        "preview(x)",
    ]
    lists = ("binary_matrix", "spiral_matrix", "string_insertion", "n_queens")
    formulas = ("countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication")
    adapter = Path(reasoning_gym.__file__).with_name("adapters") / "reasoning_gym.py"
    cases = dict.fromkeys([*lists, *formulas], attacks) | {"string_insertion": [*attacks, "['GOLD']"]}
    cases |= {family: [*attacks, "(GOLD)"] for family in formulas if family != "puzzle24"}
    scores = run_script(interpreter("games"), ANSWERS, [str(adapter), cases])
    assert not mark.exists()
    for family in (*lists, *formulas):
        unreadable = 0.01 if family in ("countdown", "puzzle24") else 0.0
        assert scores[family][: len(attacks)] == [unreadable] * len(attacks)
    assert all(scores[family][-1] == 1.0 for family in formulas if family != "puzzle24")
    assert scores["string_insertion"][-1] == 0.1


def tiny(directory: Path, python: Path, **settings: Any) -> Path:
    lines = ['extends = "reasoning-gym-tiny"', 'name = "tiny"', f'tasks.python = "{python}"']
    lines += [f"{name} = {value}" for name, value in settings.items()]
    (directory / "tiny.toml").write_text("\n".join(lines))
    return directory / "tiny.toml"


@pytest.mark.slow
def test_a_training_that_is_killed_and_resumed_gives_equal_numbers(interpreter: Any, tmp_path: Path) -> None:
    sizes = {"training.steps": 6, "training.checkpoint_every": 2, "training.tasks_per_step": 4}
    recipe = tiny(tmp_path, interpreter("games"), **sizes)
    finish(recipe, tmp_path / "whole")
    kills = train_with_kills(recipe, tmp_path / "killed", iter(["record", "save"]), random.Random(1))
    assert any(0 < kill.steps < 6 for kill in kills)
    assert not differences(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_a_new_model_learns_from_partial_scores(interpreter: Any, tmp_path: Path) -> None:
    run = ms.train(str(tiny(tmp_path, interpreter("games"))), out=tmp_path / "run", quiet=True)
    before, *_, after = [each for each in run.evaluations if each.set_name == "test" and each.sampling == "T=1"]
    assert before.success < 0.02
    assert after.success > before.success + 0.05
