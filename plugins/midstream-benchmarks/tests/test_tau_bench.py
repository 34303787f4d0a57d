"""tau-bench's conversations, on a made-up domain, and on a clone where MIDSTREAM_TAU_BENCH says where one is."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from midstream.core.errors import EngineError, RecipeError
from midstream.core.json_schema import schema_error
from midstream.core.source import Dialogues
from midstream.core.task import Task
from midstream.core.tool import Tool
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream_benchmarks.tau_bench import STOP, TauBench, TauBenchConfig, TauDialogue
from midstream_worlds.functions import Invocation
from midstream_worlds.scripted_engine import ScriptedEngine
from support.errors import coded
from support.planned import isolated, played, replies, shuffled, spoken
from tau_clone import write_clone

CLONE = os.environ.get("MIDSTREAM_TAU_BENCH")
BOOK = Invocation(name="book", arguments={"seat": "1A", "names": ["ann"]})
TRANSFER = Invocation(name="transfer_to_human_agents", arguments={"summary": "Cy"})


def user(*texts: str) -> ScriptedEngine:
    """A user who says one thing after the other in every conversation, and then is content."""
    return ScriptedEngine(lambda request: [*texts, STOP][min(spoken(request), len(texts))])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_clone(tmp_path / "clone")


def source_of(path: Path, **settings: Any) -> TauBench:
    config = TauBenchConfig.model_validate({"path": path, "families": ["airline"], **settings})
    return TauBench(config, user("hello"))


def nth(source: TauBench, place: int) -> Task:
    return source.tasks("test")[place]


async def called(dialogue: TauDialogue, *calls: Invocation) -> list[str]:
    return [(await dialogue.functions[one.name].call(one.arguments)).text for one in calls]


def conversation(dialogue: TauDialogue, calls: list[Invocation], *said: str) -> Any:
    """Call, then say: how it went."""

    async def talk() -> Any:
        await dialogue.begin()
        await called(dialogue, *calls)
        for text in said:
            await dialogue.reply(text)
        return dialogue.outcome()

    return asyncio.run(talk())


# --- judging ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "said", "why"),
    [
        ([BOOK], "That is $1,200, and booked.", ""),
        ([BOOK], "Booked.", "not said: 1200"),
        ([], "It costs 1200.", "the database differs"),
        ([BOOK, Invocation(name="book", arguments={"seat": "1A", "names": ["bo"]})], "1200", ""),
        ([Invocation(name="book", arguments={"seat": "1A", "names": ["Ann"]})], "1200", "the database differs"),
        ([Invocation(name="book", arguments={"seat": "9Z", "names": []}), BOOK], "1200", ""),
    ],
)
def test_the_database_and_what_was_said_must_be_right(path, calls, said, why):
    source = source_of(path)
    outcome = conversation(source.open(nth(source, 0), seed=0), calls, said)
    assert (outcome["success"], outcome["why"], outcome["ended"]) == (not why, why, "stopped")
    assert outcome["turns"][0]["calls"] == [int(BOOK in calls), 1]


def test_each_table_counts_for_the_state(path):
    source = source_of(path)
    assert conversation(source.open(nth(source, 0), seed=0), [], "1200")["turns"][0]["state"] == [1, 2]


def test_doing_nothing_succeeds_where_refusing_is_right_and_every_outcome_says_where(path):
    source = source_of(path)
    tasks = source.tasks("test")
    outcomes = [conversation(source.open(task, seed=0), [], "No.") for task in tasks]
    assert [one["do_nothing"] for one in outcomes] == [one["success"] for one in outcomes] == [False, True, True]
    assert [source.solved_by_nothing(task) for task in tasks] == [False, True, True]


def test_handing_over_to_a_person_ends_the_conversation_and_nothing_counts_after_it(path):
    source = source_of(path)
    dialogue = source.open(nth(source, 2), seed=0)

    async def talk() -> tuple[list[str], Any]:
        await dialogue.begin()
        answers = await called(dialogue, TRANSFER, BOOK)
        return answers, (await dialogue.reply("Goodbye.")).over

    assert asyncio.run(talk()) == (["Transfer successful", "Error: the conversation is over"], True)
    assert (dialogue.outcome()["success"], dialogue.outcome()["ended"]) == (True, "transferred")


def test_a_conversation_that_nobody_ends_is_no_success(path):
    source = source_of(path)
    unfinished = conversation(source.open(nth(source, 1), seed=0), [])
    assert (unfinished["success"], unfinished["ended"]) == (False, "")
    assert unfinished["why"] == "the conversation was not brought to an end"


@pytest.mark.parametrize(("steps", "success"), [(2, True), (1, False)])
def test_calls_and_replies_together_are_bounded(path, steps, success):
    source = source_of(path, max_steps=steps)
    dialogue = source.open(nth(source, 0), seed=0)
    assert conversation(dialogue, [BOOK], "1200 and booked")["success"] is success


def test_a_user_who_never_stops_is_not_heard_for_ever(path):
    source = source_of(path, max_steps=3)
    source.engine = user(*["more"] * 9)

    async def talk() -> list[bool]:
        dialogue = source.open(nth(source, 1), seed=0)
        await dialogue.begin()
        return [(await dialogue.reply("What else?")).over for _ in range(4)]

    assert asyncio.run(talk()) == [False, False, True, True]


def test_the_calculator_runs_no_python(path, tmp_path):
    source = source_of(path)
    dialogue, mark = source.open(nth(source, 0), seed=0), tmp_path / "ran"
    sums = ["100 / 3", "1 / 0", "9**9**9**9", f"__import__('os').system('touch {mark}')", "2 * (3 + 4)"]
    answers = asyncio.run(called(dialogue, *[Invocation(name="calculate", arguments={"expression": s}) for s in sums]))
    assert [answers[0], answers[4]] == ["33.33", "14.0"]
    assert all(answer.startswith("Error: ") for answer in answers[1:4])
    assert not mark.exists()


def test_wrong_arguments_are_answers(path):
    source = source_of(path)
    dialogue = source.open(nth(source, 0), seed=0)
    answers = asyncio.run(called(dialogue, Invocation(name="book", arguments={"seats": "1A"})))
    assert answers[0].startswith("Error: ")
    assert all(isinstance(tool, Tool) for tool in dialogue.functions.values())


# --- state --------------------------------------------------------------------------------------------------------


def test_eight_rollouts_at_once_in_any_order_are_rewarded_like_each_alone(path):
    source = source_of(path)
    task = nth(source, 0)
    right = [replies([[BOOK]])[0], "It costs 1200."]
    wrong = [["It costs 1200."], [replies([[BOOK]])[0], "Done."]]
    texts = shuffled([right, wrong[0], right, wrong[1]] * 2)
    done = played(source, task, texts)
    assert [one.error for one in done] == [None] * 8
    assert [one.reward.value for one in done if one.reward] == [float(one is right) for one in texts]
    alone = {id(text): isolated(source, task, text).outcome for text in (right, *wrong)}
    assert [one.outcome for one in done] == [alone[id(text)] for text in texts]
    assert {part for one in done if one.reward for part in one.reward.parts} >= {"state", "calls", "do_nothing"}


def test_what_a_function_stores_is_no_part_of_the_task_or_of_what_was_called(path):
    source = source_of(path)
    task = nth(source, 0)
    dialogue, names = source.open(task, seed=0), ["ann"]
    asyncio.run(called(dialogue, Invocation(name="book", arguments={"seat": "1A", "names": names})))
    names.append("bo")
    outcome = conversation(dialogue, [], "1200")
    assert outcome["turns"][0]["state"] == [2, 2]
    assert source.scripted(task).actions == (BOOK,)


# --- users --------------------------------------------------------------------------------------------------------


def test_a_model_plays_the_user_by_the_instruction_and_its_requests_are_on_record(path):
    engine = ScriptedEngine(["<think>who am I</think> Seat 1A, please. ", "What does it cost?", f"Fine. {STOP}"])
    source = source_of(path)
    source.engine = engine
    dialogue = source.open(nth(source, 0), seed=5)

    async def talk() -> list[Any]:
        return [await dialogue.begin(), await dialogue.reply("Sure."), await dialogue.reply("1,200.")]

    first, second, last = asyncio.run(talk())
    assert (first.text, second.text) == ("Seat 1A, please.", "What does it cost?")
    assert [one.over for one in (first, second, last)] == [False, False, True]
    assert [call.role for one in (first, second, last) for call in one.calls] == ["user"] * 3
    messages = engine.requests[-1].messages
    assert "You are Ann and want seat 1A." in messages[0].content
    assert [one.role for one in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [one.content for one in messages[2:]] == ["Seat 1A, please.", "Sure.", "What does it cost?", "1,200."]
    assert len({request.seed for request in engine.requests}) == 3


def test_a_users_broken_model_is_an_error_and_no_reward_of_zero(path):
    source = source_of(path)
    source.engine = ScriptedEngine(["Hello."])
    done = isolated(source, nth(source, 1), ["No."])
    assert (done.status, done.reward) == ("error", None)
    assert done.error is not None
    assert done.error.type == EngineError.__name__


def test_without_a_user_a_recipe_learns_how_to_name_one(path):
    source = TauBench(source_of(path).config)
    with pytest.raises(RecipeError, check=coded("engine-missing")):
        source.open(nth(source, 0), seed=0)
    assert isinstance(source, Dialogues)


def test_a_model_in_process_plays_no_user(path):
    """It would wait for every live trajectory, the one that it speaks to among them."""
    overrides = [
        f'tasks={{type="tau_bench", path="{path}", engine="customer"}}',
        'engines={agent={type="openai_compatible", model="m"}, customer={type="transformers_local", model="m"}}',
        'evaluation.sets=[{name="test", count=1}]',
    ]
    with pytest.raises(RecipeError, check=coded("engine-in-process", "tasks.engine = 'customer'")):
        resolve(load_recipe("function-calling-simulated", overrides))


# --- the clone ----------------------------------------------------------------------------------------------------


def test_a_clone_is_read_without_what_its_packages_import_and_leaves_no_module_behind(path, monkeypatch):
    installed = ModuleType("tau_bench")
    monkeypatch.setitem(sys.modules, "tau_bench", installed)
    monkeypatch.setitem(sys.modules, "tau_bench.types", ModuleType("tau_bench.types"))
    source = source_of(path)
    assert [task.id for task in source.tasks("test")] == ["airline-test-0", "airline-test-1", "airline-test-2"]
    assert {task.family for task in source.tasks("test")} == {"airline"}
    assert source.splits == ("test",)
    assert source.open(nth(source, 0), seed=0).system == "Be kind. Book only what is asked for."
    assert sys.modules["tau_bench"] is installed
    assert sorted(name for name in sys.modules if f"{name}.".startswith("tau_bench.")) == [
        "tau_bench",
        "tau_bench.types",
    ]


def test_a_place_without_a_clone_and_a_broken_one_are_named(path, tmp_path):
    with pytest.raises(RecipeError, check=coded("data-not-found", "'airline'")) as caught:
        source_of(tmp_path / "nowhere").tasks("test")
    assert "git clone https://github.com/sierra-research/tau-bench" in caught.value.fix
    shutil.rmtree(path / "tau_bench" / "envs" / "airline" / "tools")
    with pytest.raises(RecipeError, check=coded("data-invalid")):
        source_of(path).tasks("test")


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("data/seats.json", '{"1A": nul', "JSONDecodeError"),
        ("data/seats.json", None, "FileNotFoundError"),
        ("wiki.md", None, "FileNotFoundError"),
        ("tasks_test.py", None, "No module named 'tau_bench.envs.airline.tasks_test'"),
        ("tasks_test.py", "", "ValueError"),
        ("tasks_test.py", "TASKS = [", "SyntaxError"),
        ("tools/book.py", "class Book:\n    get_info = dict", "KeyError: 'function'"),
    ],
)
def test_half_a_clone_and_one_whose_files_are_broken_are_named_and_no_task_is_left_out(path, file, text, says):
    broken = path / "tau_bench" / "envs" / "airline" / file
    broken.unlink() if text is None else broken.write_text(text, "utf-8")
    with pytest.raises(RecipeError, check=coded("data-invalid", "tau-bench's airline at ")) as caught:
        source_of(path).tasks("test")
    assert says in caught.value.what


@pytest.mark.skipif(not CLONE, reason="MIDSTREAM_TAU_BENCH names no clone of tau-bench")
@pytest.mark.parametrize(("domain", "count", "nothing"), [("airline", 50, 19), ("retail", 115, 7)])
def test_every_ground_truth_of_the_real_domains_passes_and_can_be_called(domain, count, nothing):
    source = source_of(Path(str(CLONE)), families=[domain])
    tasks = source.tasks("test")
    outcomes = []
    for task in tasks:
        dialogue, scripted = source.open(task, seed=0), source.scripted(task)
        parameters = {name: tool.parameters for name, tool in dialogue.functions.items()}
        assert [schema_error(dict(one.arguments), parameters[one.name]) for one in scripted.actions] == [None] * len(
            scripted.actions
        )
        outcomes.append(conversation(dialogue, list(scripted.actions), " ".join(scripted.outputs)))
    assert sum(one["success"] for one in outcomes) == len(tasks) == count
    assert sum(map(source.solved_by_nothing, tasks)) == sum(one["do_nothing"] for one in outcomes) == nothing
