"""BFCL's dialogues: all 800 ground truths pass, a call less never does, and no rollout sees another's state."""

from __future__ import annotations

import asyncio
import copy
import decimal
import importlib
import importlib.util
import itertools
import shutil
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mpmath
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from midstream.agents.calls import read_calls
from midstream.core.errors import RecipeError
from midstream.core.json_schema import schema_error
from midstream.core.source import Dialogues
from midstream.core.stream import Block
from midstream.core.stream_template import load_template
from midstream.core.tool import Tool
from midstream_benchmarks import bfcl_package
from midstream_benchmarks.bfcl_package import CATEGORIES, package, parse_call
from midstream_benchmarks.bfcl_state import State
from midstream_benchmarks.bfcl_tasks import Bfcl, BfclConfig, BfclDialogue
from midstream_worlds.functions import Invocation
from support.errors import coded
from support.planned import isolated, played, replies, shuffled, without_last

needs_data = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None, reason=f"BFCL's data is not installed: {bfcl_package.INSTALL}"
)
NAMES = itertools.count()  # upstream keeps a model's objects for the life of the process


@pytest.fixture(scope="module")
def source() -> Bfcl:
    return Bfcl(BfclConfig(train=0))


def task_of(source: Bfcl, name: str):
    return next(task for task in source.tasks("test") if task.id == f"multi_turn_{name}")


def opened(source: Bfcl, name: str) -> BfclDialogue:
    return source.open(task_of(source, name), seed=0)


def scenarios_of(source: Bfcl, split: str) -> set[int]:
    return {source.entry(task).scenario for task in source.tasks(split)}


async def called(dialogue: BfclDialogue, calls):
    return [await dialogue.functions[one.name].call(one.arguments) for one in calls]


async def replay(dialogue: BfclDialogue, plan, seen=None) -> Any:
    """Make a plan's calls, and call `seen` with every call and the tools that were offered."""
    turn = await dialogue.begin()
    for calls in plan:
        assert not turn.over
        for one in calls:
            if seen is not None:
                seen(one, {tool.name: tool for tool in turn.tools})
        await called(dialogue, calls)
        turn = await dialogue.reply("done")
    assert turn.over
    return dialogue.outcome()


# --- judging ------------------------------------------------------------------------------------------------------


# All 800 tasks, or every eighth: 25 of each category.
SHARES = pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 8])


@pytest.mark.slow
@needs_data
@SHARES
def test_every_ground_truth_passes_and_none_without_its_last_call_and_no_network_is_used(source, monkeypatch, step):
    def refuse(*args, **more):
        raise AssertionError("the network was asked for")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    tasks = source.tasks("test")[::step]

    async def passed(plan_of) -> int:
        return sum([(await replay(source.open(task, seed=0), plan_of(task)))["success"] for task in tasks])

    assert asyncio.run(passed(source.expected)) == len(tasks) == 800 // step
    assert asyncio.run(passed(lambda task: without_last(source.expected(task)))) == 0


@pytest.mark.slow
@needs_data
@SHARES
def test_an_agent_may_make_every_expected_call_but_one_that_upstream_holds_back(source, step):
    wrong = []

    def seen(one: Invocation, offered: dict[str, Tool]) -> None:
        if one.name not in offered or schema_error(dict(one.arguments), offered[one.name].parameters):
            wrong.append((task.id, one.name))

    for task in [*source.tasks("test")[::step], task_of(source, "miss_func_49")]:
        asyncio.run(replay(source.open(task, seed=0), source.expected(task), seen))
    assert set(wrong) == {("multi_turn_miss_func_49", "tail")}


def upstreams(source: Bfcl, task, plan) -> bool:
    """The verdict of upstream's own checker on a plan, under a name that it has no objects for yet."""
    check = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker").multi_turn_checker
    entry = source.entry(task)
    said = [[[written(one) for one in calls]] if calls else [] for calls in plan]
    test = {"id": entry.id, "initial_config": entry.initial, "involved_classes": list(entry.classes)}
    return check(said, [list(calls) for calls in entry.truth], test, entry.category, f"model{next(NAMES)}")["valid"]


def written(one: Invocation) -> str:
    return f"{one.name}({', '.join(f'{name}={value!r}' for name, value in one.arguments.items())})"


@needs_data
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_change_of_a_ground_truth_is_judged_as_upstream_judges_it(source, data):
    task = data.draw(st.sampled_from(source.tasks("test")), "task")
    plan = [list(calls) for calls in source.expected(task)]
    places = st.tuples(st.integers(0, len(plan) - 1), st.integers(0, 3))
    for kind in data.draw(st.lists(st.sampled_from(["drop", "twice", "move", "reverse", "other"]), max_size=3), "how"):
        turn, place = data.draw(places, "where")
        if place >= len(plan[turn]):
            continue
        one = plan[turn][place]
        if kind == "drop":
            del plan[turn][place]
        elif kind == "twice":
            plan[turn].append(one)
        elif kind == "move":
            plan[data.draw(st.integers(0, len(plan) - 1), "to")].append(plan[turn].pop(place))
        elif kind == "reverse":
            plan[turn].reverse()
        elif texts := [name for name, value in one.arguments.items() if isinstance(value, str)]:
            plan[turn][place] = Invocation(name=one.name, arguments={**one.arguments, texts[0]: "other"})
    outcome = asyncio.run(replay(source.open(task, seed=0), plan))
    assert outcome["success"] == upstreams(source, task, plan)


@needs_data
def test_calls_in_another_order_and_additional_calls_do_not_matter(source):
    dialogue, plan = opened(source, "base_3"), source.expected(task_of(source, "base_3"))
    assert asyncio.run(replay(dialogue, [[*calls, Invocation(name="pwd", arguments={})] for calls in plan]))["success"]


@needs_data
def test_a_result_of_an_earlier_turn_counts_but_a_turn_needs_a_call(source):
    """The task asks for a listing, then to look at a file: what the second turn wants may be found in the first."""
    task = task_of(source, "base_1")
    plan = source.expected(task)
    early = [[*plan[0]], [*plan[1]], [*plan[2], *plan[3]], [Invocation(name="ls", arguments={})]]
    assert asyncio.run(replay(opened(source, "base_1"), early))["success"]
    lazy = asyncio.run(replay(opened(source, "base_1"), [*early[:3], []]))
    assert (lazy["success"], lazy["why"]) == (False, "turn 4: nothing was called")


@needs_data
def test_each_turn_reports_what_matched(source):
    task = task_of(source, "base_50")
    plan = source.expected(task)
    outcome = asyncio.run(replay(opened(source, "base_50"), [plan[0][:-1], *plan[1:]]))
    assert outcome["turns"][0]["calls"] == [len(plan[0]) - 1, len(plan[0])]
    assert outcome["turns"][0]["results"] == [len(plan[0]) - 1, len(plan[0])]
    assert not outcome["turns"][0]["passed"]
    assert str(outcome["why"]).startswith("turn 1: ")
    assert [set(turn) for turn in outcome["turns"]] == [
        {"state", "calls", "results", "passed", "why", "finished"} for _ in plan
    ]


@needs_data
def test_a_wrong_change_fails_its_turn_by_the_state_and_every_turn_after_it(source):
    plan = source.expected(task_of(source, "base_1"))
    spoiled = [[*plan[0], Invocation(name="mkdir", arguments={"dir_name": "extra"})], *plan[1:]]
    outcome = asyncio.run(replay(opened(source, "base_1"), spoiled))
    assert not outcome["success"]
    assert outcome["why"] == "turn 1: the state differs in GorillaFileSystem.root"
    assert [turn["passed"] for turn in outcome["turns"]] == [False] * len(plan)
    assert [turn["calls"][0] for turn in outcome["turns"]] == [len(calls) for calls in plan]


@needs_data
def test_arguments_left_to_their_defaults_are_the_same_call(source):
    state = State(package(), source.entry(task_of(source, "base_1")))
    short = Invocation(name="tail", arguments={"file_name": "a"})
    assert state.complete(short) == state.complete(Invocation(name="tail", arguments={"file_name": "a", "lines": 10}))
    strange = Invocation(name="tail", arguments={"no_such": 1})
    assert state.complete(strange) is strange


@needs_data
def test_a_turn_that_was_cut_off_is_no_success_whatever_was_called_in_it(source):
    async def cut() -> Any:
        task = task_of(source, "base_1")
        dialogue = source.open(task, seed=0)
        await dialogue.begin()
        await called(dialogue, source.expected(task)[0])
        return dialogue.outcome(), dialogue.outcome()

    outcome, again = asyncio.run(cut())
    assert outcome == again
    assert (outcome["success"], outcome["why"]) == (False, "turn 1: the agent did not end its turn")
    assert outcome["turns"][0]["calls"] == [1, 1]
    assert [turn["why"] for turn in outcome["turns"][1:]] == ["never reached"] * 3
    assert all(turn["calls"][0] == 0 < turn["calls"][1] for turn in outcome["turns"][1:])


@needs_data
def test_a_turn_in_which_nothing_should_be_called_is_not_judged_but_what_is_called_in_it_shows_later(source):
    task = task_of(source, "miss_param_0")
    plan = source.expected(task)
    empty = plan.index([])
    assert asyncio.run(replay(opened(source, "miss_param_0"), plan))["turns"][empty]["calls"] == [0, 0]
    early = copy.deepcopy(plan)
    early[empty] = [Invocation(name="mkdir", arguments={"dir_name": "guess"})]
    outcome = asyncio.run(replay(opened(source, "miss_param_0"), early))
    assert outcome["turns"][empty]["passed"]
    assert not outcome["turns"][empty + 1]["passed"]


# --- what is said and offered -------------------------------------------------------------------------------------


@needs_data
def test_a_function_that_is_held_back_comes_with_the_turn_that_says_so(source):
    async def turns():
        dialogue = opened(source, "miss_func_0")
        said = [await dialogue.begin()]
        while not (turn := await dialogue.reply("")).over:
            said.append(turn)
        return said

    said = asyncio.run(turns())
    assert ["sort" in [tool.name for tool in turn.tools] for turn in said] == [False, False, False, True, True]
    assert said[3].tools[-1].name == "sort"
    assert said[3].text == package().more_functions != ""
    assert all(isinstance(tool, Tool) for turn in said for tool in turn.tools)


@needs_data
def test_a_scenario_is_in_one_split_with_all_its_categories():
    source = Bfcl(BfclConfig(train=100, validation=40))
    scenarios = {split: scenarios_of(source, split) for split in source.splits}
    assert {split: len(found) for split, found in scenarios.items()} == {"train": 100, "validation": 40, "test": 60}
    assert len(set.union(*scenarios.values())) == 200
    assert len(source.tasks("train")) == 400
    assert source.families == list(CATEGORIES)
    domains = [scenario // 50 for scenario in scenarios["train"]]  # upstream's order: fifty of each
    assert [domains.count(domain) for domain in range(4)] == [25] * 4
    other = Bfcl(BfclConfig(train=100, validation=40, split_seed=1))
    assert scenarios_of(other, "train") != scenarios["train"]


@needs_data
def test_categories_are_chosen_and_a_split_without_tasks_is_not_there():
    source = Bfcl(BfclConfig(families=("miss_func", "miss_func"), train=0))
    assert source.splits == ("test",)
    assert source.families == ["miss_func"]
    assert len(source.tasks("test")) == 200
    assert isinstance(source, Dialogues)
    with pytest.raises(RecipeError, check=coded("unknown-split", "'train'")):
        source.tasks("train")


def test_an_unknown_category_is_refused():
    with pytest.raises(ValidationError, match="no category 'composite'"):
        BfclConfig(families=("composite",))


# --- state --------------------------------------------------------------------------------------------------------


@pytest.mark.matrix(1)
@needs_data
@pytest.mark.parametrize("name", ["base_1", "long_context_150", "miss_param_55", "miss_func_102"])
def test_eight_rollouts_at_once_in_any_order_are_rewarded_like_each_alone(source, name):
    task = task_of(source, name)
    plan = source.expected(task)
    plans = shuffled([plan, without_last(plan)] * 4)
    texts = [replies(one) for one in plans]
    done = played(source, task, texts)
    assert [one.error for one in done] == [None] * 8
    assert [one.reward.value for one in done if one.reward] == [float(one is plan) for one in plans]
    alone = [isolated(source, task, text) for text in (replies(plan), replies(without_last(plan)))]
    assert [one.outcome for one in done] == [alone[one is not plan].outcome for one in plans]


@needs_data
def test_what_a_class_keeps_in_its_module_no_rollout_changes(source):
    """In a long context the travel class hands out the dictionaries of its module: a booking would spend for all."""
    name = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code.long_context"
    shared = importlib.import_module(name).CREDIT_CARD_EXTENSION
    before, card = copy.deepcopy(shared), next(iter(shared))
    entry = source.entry(task_of(source, "long_context_150"))
    first, second = State(package(), entry), State(package(), entry)
    first.public()["TravelAPI.credit_card_list"][card]["balance"] = -1
    assert second.public()["TravelAPI.credit_card_list"][card] == before[card]
    assert shared == before


@needs_data
def test_a_list_that_is_a_functions_default_is_in_the_state_of_one_rollout_alone(source):
    """A post without mentions takes the default list itself, and a later call adds to what the post holds."""
    task = task_of(source, "base_5")
    entry = source.entry(task)
    post = Invocation(name="post_tweet", arguments={"content": "x"})
    name = Invocation(name="mention", arguments={"tweet_id": 0, "mentioned_usernames": ["@stranger"]})
    states = State(package(), entry), State(package(), entry)
    for state in states:
        calls = [one for turn in source.expected(task) for one in turn if one.name == "authenticate_twitter"]
        assert [state.call(one).ok for one in [*calls, post]] == [True] * (len(calls) + 1)
    assert states[0].call(name).ok
    mentions = [state.public()["TwitterAPI.tweets"][0]["mentions"] for state in states]
    assert mentions == [["@stranger"], []]


@needs_data
def test_a_folder_that_is_copied_into_itself_ends_no_rollout(source):
    plan = source.expected(task_of(source, "base_1"))
    loop = [
        Invocation(name="mkdir", arguments={"dir_name": "loop"}),
        Invocation(name="cp", arguments={"source": "loop", "destination": "loop"}),
        Invocation(name="du", arguments={}),
    ]
    outcome = asyncio.run(replay(opened(source, "base_1"), [[*loop, *plan[0]], *plan[1:]]))
    assert not outcome["success"]


# --- what a model may do to it ------------------------------------------------------------------------------------


@needs_data
def test_code_in_a_models_text_never_runs(source, tmp_path: Path):
    """Neither as a call, nor as an argument of one, nor as text that is written and read again."""
    mark = tmp_path / "ran"
    code = f"__import__('os').system('touch {mark}')"
    dialogue = opened(source, "base_1")
    template = load_template("artist-function-calling").model_copy(update={"body": "python"})
    bodies = [code, f"[{code}]", f"ls(a={code})", f"echo(content={code!r}, file_name='log.txt')", f"ls()\n{code}"]
    for body in bodies:
        for call in read_calls([Block(kind="call", body=body)], template, dialogue.functions):
            if call.command is not None and call.command.error is None:
                asyncio.run(called(dialogue, [Invocation(name=call.tool, arguments=call.command.arguments)]))
    results = asyncio.run(
        called(
            dialogue,
            [
                Invocation(name="cd", arguments={"folder": "workspace"}),
                Invocation(name="echo", arguments={"content": code}),
                Invocation(name="find", arguments={"path": code, "name": code}),
                Invocation(name="grep", arguments={"file_name": "log.txt", "pattern": code}),
            ],
        )
    )
    assert code in results[1].text
    assert not mark.exists()


@pytest.mark.parametrize(
    "text", ["f(x=__import__('os'))", "f(g(1))", "a.b()", "f(", "1", "f(x=[y])", "(lambda: 1)()", "f(**{'a': 1})"]
)
def test_an_expected_call_is_read_as_literals_or_not_at_all(text):
    with pytest.raises(ValueError, match=r"not a call|malformed"):
        parse_call(text)


def test_an_expected_call_has_arguments_by_place_and_by_name():
    assert parse_call("f(1, [2.5, 'a'], b=True, c={'d': None})") == (
        "f",
        [1, [2.5, "a"]],
        {"b": True, "c": {"d": None}},
    )


@needs_data
def test_wrong_arguments_and_refusals_are_answers_and_endless_sums_are_refused(source):
    name = next(
        task.id.removeprefix("multi_turn_")
        for task in source.tasks("test")
        if "MathAPI" in source.entry(task).classes and "GorillaFileSystem" in source.entry(task).classes
    )
    state = State(package(), source.entry(task_of(source, name)))
    kept = mpmath.mp.dps, decimal.getcontext().prec

    def said(function: str, **arguments):
        result = state.call(Invocation(name=function, arguments=arguments))
        return result.ok, result.text

    assert said("cd", folder="nowhere")[0] is False
    assert said("cd")[1].startswith("Error during execution: ")
    assert said("power", base=10, exponent=10**9) == (
        False,
        "Error during execution: a power of more than 10000 digits",
    )
    assert said("power", base=2, exponent=10) == (True, '{"result": 1024}')
    assert said("power", base=10, exponent=-1) == (True, '{"result": 0.1}')
    assert "precision of more than" in said("square_root", number=2, precision=10**9)[1]
    assert "precision of more than" in said("round_number", number=2, decimal_places=-(10**9))[1]
    assert "1.4142136" in said("square_root", number=2, precision=8)[1]
    assert said("logarithm", value=100, base=10, precision=5)[0] is True
    assert (mpmath.mp.dps, decimal.getcontext().prec) == kept


# --- the package --------------------------------------------------------------------------------------------------


def test_without_the_package_a_recipe_learns_what_to_install_when_its_tasks_are_wanted(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    bfcl_package.package.cache_clear()
    source = Bfcl(BfclConfig())
    with pytest.raises(RecipeError, check=coded("data-not-found")) as caught:
        source.tasks("test")
    assert "pip install --no-deps bfcl-eval==" in caught.value.fix


@needs_data
def test_a_package_of_another_layout_is_named():
    with pytest.raises(
        RecipeError, check=coded("data-invalid", "tasks (composite) cannot be read: FileNotFoundError: ")
    ) as caught:
        package().entries("composite")
    assert "pip install --no-deps bfcl-eval==" in caught.value.fix


@needs_data
@pytest.mark.parametrize(
    ("file", "text", "values"),
    [
        (
            "data/BFCL_v4_multi_turn_base.json",
            '{"id": "multi_turn_base_0", ',
            ("base", "JSONDecodeError"),
        ),
        ("data/BFCL_v4_multi_turn_base.json", '{"id": "multi_turn_base_200"}', ("base", "KeyError")),
        ("data/multi_turn_func_doc/math_api.json", "[]", ("MathAPI", "TypeError")),
    ],
)
def test_a_package_whose_files_are_broken_is_named(tmp_path, monkeypatch, file, text, values):
    broken = bfcl_package.Package()
    data = tmp_path / "data"
    shutil.copytree(broken._data, data, ignore=shutil.ignore_patterns("*live*", "memory_*"))
    (tmp_path / file).write_text(text, "utf-8")
    monkeypatch.setattr(broken, "_data", data)
    with pytest.raises(RecipeError, check=coded("data-invalid", *values)):
        [broken.entries("base"), broken.documents("MathAPI")]


@needs_data
def test_a_package_without_its_constants_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bfcl_eval.constants.default_prompts", ModuleType("an older one"))
    with pytest.raises(RecipeError, check=coded("data-invalid", "constants cannot be read: AttributeError")):
        bfcl_package.Package()
