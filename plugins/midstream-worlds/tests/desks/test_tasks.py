"""The desks as a source of tasks: plans that can be carried out, exact checks, splits that share nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.core.errors import RecipeError
from midstream.core.source import Dialogues
from midstream.core.task import Task
from midstream_worlds.desks.agent import wanted
from midstream_worlds.desks.desk import Wording
from midstream_worlds.desks.dialogue import (
    DESKS,
    GOALS,
    DeskDialogue,
    Plan,
    PlannedCall,
    PlannedTurn,
    Room,
    noise,
    replay,
)
from midstream_worlds.desks.tasks import CATEGORIES, DIFFICULTIES, LONG, Desks, DesksConfig, tight, without_one
from support.errors import coded

SEEDS = st.integers(0, 10_000)
LEVELS = st.sampled_from(list(DIFFICULTIES))
FAMILIES = st.sampled_from(CATEGORIES)


@cache
def world(**chosen):
    return Desks(DesksConfig(**chosen))


def one_task(level, family, seed, split="train"):
    [task] = world(difficulty=level, families=(family,)).sample(split, 1, seed)
    return task


def plan_of(task):
    return Plan.model_validate(task.metadata)


def gold(plan):
    return [list(turn.calls) for turn in plan.turns]


# --- plans ------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(level=LEVELS, family=FAMILIES, seed=SEEDS)
def test_the_plan_is_a_success_and_without_any_one_call_it_is_not(level, family, seed):
    plan = plan_of(one_task(level, family, seed))
    outcome = replay(plan, gold(plan))
    assert outcome["success"] is True
    assert all(right == total for turn in outcome["turns"] for right, total in turn.values())
    shortened = list(without_one(plan))
    assert len(shortened) == sum(map(len, gold(plan))) > 0
    assert [replay(plan, calls)["success"] for calls in shortened] == [False] * len(shortened)


@settings(deadline=None)
@given(level=LEVELS, family=FAMILIES, seed=SEEDS)
def test_a_plan_has_the_size_and_the_kind_that_were_asked_for(level, family, seed):
    plan, size = plan_of(one_task(level, family, seed)), DIFFICULTIES[level]
    asked = [turn for turn in plan.turns if not turn.calls]
    specials = {"missing_parameters": 1, "missing_functions": 1, "composite": 2}.get(family, 0)
    assert len(asked) == specials
    assert size.turns[0] <= len(plan.turns) - specials <= max(size.turns[1], specials)
    assert len(plan.desks) == size.desks
    assert plan.long == (LONG if family in ("long_context", "composite") else 0)
    held = [turn.withheld for turn in plan.turns]
    assert any(held) == (family in ("missing_functions", "composite"))
    assert held[-1] == ()  # it was brought before the end
    for turn in plan.turns:
        assert not {call.name for call in turn.calls} & set(turn.withheld)


@settings(deadline=None)
@given(level=LEVELS, seed=SEEDS)
def test_what_the_user_says_can_be_read_back_into_the_calls(level, seed):
    plan = plan_of(one_task(level, "base", seed))
    room, seen, read = Room(plan.desks), {}, []
    for turn in plan.turns:
        read.append([])
        for goal, _, values in wanted(turn.user):
            for step in goal.steps:
                call = PlannedCall(name=step.function, arguments=step.fill(values, seen))
                seen.update(room.call(call.name, call.arguments))
                read[-1].append(call)
    assert read == gold(plan)


@pytest.mark.parametrize("said", ["Kiwi", "12", "2.4", "round and green"])
def test_every_wording_is_found_in_itself_alone(said):
    goals = [goal for of in GOALS.values() for goal in of]
    texts = [wording.text for goal in goals for wording in goal.wordings]
    assert len(set(texts)) == len(texts)
    for goal in goals:
        for wording in goal.wordings:
            text = f"Good morning. {wording.text.format_map(defaultdict(lambda: said))} Thank you."
            assert [(found.texts, read.text) for found, read, _ in wanted(text)] == [(goal.texts, wording.text)]


def test_a_goal_that_lacks_a_value_is_completed_by_what_follows():
    wording = Wording("I want paint for {room}, buy some for me.", "Make it {cans} cans.")
    assert wording.find("Good. I want paint for the hall, buy some for me.") == [(6, {"room": "the hall"})]
    assert wording.complete("Next. Make it 12 cans.") == {"cans": 12}
    assert wording.complete("Pump the rear left tire up to 2.4 bar.") is None
    assert Wording("Up to {bar} bar.").find("Up to 2.4 bar.") == [(0, {"bar": 2.4})]


def test_every_goal_that_may_be_held_back_is_changed_by_that_function_alone():
    for name, goals in GOALS.items():
        functions = DESKS[name].functions()
        for goal in goals:
            assert {step.function for step in goal.steps} <= set(functions)
            assert not goal.hold or goal.hold in {step.function for step in goal.steps}
            for text, then in goal.vague:
                left_out = {place for place in _places(goal.texts[0]) if place not in _places(text)}
                assert left_out
                assert left_out == _places(then), goal.texts


def _places(text):
    return {part.split("}")[0] for part in text.split("{")[1:]}


def test_a_plan_that_could_do_without_a_call_is_not_tight():
    state = {"vehicle": DESKS["vehicle"].stocked(random.Random(0)).state()}
    lights = PlannedCall(name="set_lights", arguments={"beam": "low"})
    status = PlannedCall(name="vehicle_status")
    assert tight(Plan(desks=state, turns=(PlannedTurn(user="Light.", calls=(status, lights)),)))
    assert not tight(Plan(desks=state, turns=(PlannedTurn(user="Light.", calls=(lights, lights)),)))
    assert not tight(Plan(desks=state, turns=(PlannedTurn(user="State?", calls=(status, status)),)))


# --- the source -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tasks_repeat_and_no_split_shares_one():
    source = world(difficulty="easy")
    sets = {split: source.fixed(split, seed=1, per_family=25) for split in ("train", "validation", "test")}
    sampled = source.sample("train", 200, 5)
    assert sampled == Desks(DesksConfig(difficulty="easy")).sample("train", 200, 5)
    assert sampled != source.sample("train", 200, 6)
    questions = {split: {task.question for task in tasks} for split, tasks in sets.items()}
    questions["train"] |= {task.question for task in sampled}
    assert not questions["train"] & questions["test"]
    assert not questions["train"] & questions["validation"]
    assert not questions["validation"] & questions["test"]
    for tasks in sets.values():
        assert len({task.question for task in tasks}) == len({task.id for task in tasks}) == 125
        assert [task.family for task in tasks] == [family for family in CATEGORIES for _ in range(25)]


def test_families_are_drawn_by_weight():
    source = world(difficulty="easy")
    weights = {"base": 1.0, "composite": 3.0} | dict.fromkeys(CATEGORIES[1:4], 0.0)
    drawn = [task.family for task in source.sample("train", 200, 1, weights)]
    assert {*drawn} == {"base", "composite"}
    assert 120 < drawn.count("composite") < 180


def test_a_count_is_shared_out_and_other_desks_give_other_tasks():
    source = world(difficulty="easy", desks=("files",))
    tasks = source.fixed("test", seed=1, families=("base", "composite"), count=7)
    assert [task.family for task in tasks] == ["base"] * 4 + ["composite"] * 3
    assert all(list(plan_of(task).desks) == ["files"] for task in tasks)


@pytest.mark.parametrize(
    ("chosen", "code", "value"),
    [
        ({"families": ("base", "hopeless")}, "unknown-family", "'hopeless'"),
        ({"desks": ("vehicle", "kitchen")}, "unknown-desk", "'kitchen'"),
        ({"desks": ("trading",)}, "unknown-desk", "'trading'"),
    ],
)
def test_names_that_do_not_exist_are_refused(chosen, code, value):
    with pytest.raises(RecipeError, check=coded(code, value)):
        Desks(DesksConfig(**chosen))


def test_a_split_that_does_not_exist_and_a_task_of_another_world_are_refused():
    with pytest.raises(RecipeError, check=coded("unknown-split", "'dev'")):
        world().sample("dev", 1, 0)
    for metadata in ({}, {"desks": {"trading": {}}, "turns": []}):  # a task of another world; one of a removed desk
        with pytest.raises(RecipeError, check=coded("foreign-task", "'t1'")):
            world().open(Task(id="t1", question="?", answer="", metadata=metadata), seed=0)


def test_more_tasks_than_there_are_are_refused():
    sleepy = Desks(DesksConfig(difficulty="easy", desks=("vehicle",), families=("base",)))
    sleepy.make = lambda split, family, draws, task_id: Task(id=task_id, question="again", answer="")
    with pytest.raises(RecipeError, check=coded("too-few-tasks", "1 different 'base' tasks of 2")):
        sleepy.fixed("test", seed=0, per_family=2)


# --- what is compared -------------------------------------------------------------------------------------------------


def lamp_plan():
    """Two turns at the car: light, then a look at the fuel."""
    car = DESKS["vehicle"].stocked(random.Random(3)).state()
    return Plan(
        desks={"vehicle": car},
        turns=(
            PlannedTurn(user="Light, please.", calls=(PlannedCall(name="set_lights", arguments={"beam": "low"}),)),
            PlannedTurn(user="And the fuel?", calls=(PlannedCall(name="vehicle_status"),)),
        ),
    )


LOW, HIGH = ("set_lights", {"beam": "low"}), ("set_lights", {"beam": "high"})
STATUS = ("vehicle_status", {})


@pytest.mark.parametrize(
    ("turns", "success", "state", "calls", "results"),
    [
        ([[LOW], [STATUS]], True, [9, 9], [1, 1], [1, 1]),
        ([[HIGH, LOW], [STATUS]], True, [9, 9], [1, 1], [1, 1]),  # another way to the same state
        ([[LOW, STATUS], []], True, [9, 9], [1, 0], [1, 1]),  # the result was seen before
        ([[STATUS], [LOW, STATUS]], False, [8, 9], [0, 1], [0, 1]),  # the state comes too late
        ([[HIGH], [STATUS]], False, [8, 8], [0, 1], [0, 1]),
        ([[LOW], []], False, [9, 9], [1, 0], [1, 0]),
        ([[LOW], [STATUS, HIGH]], False, [9, 8], [1, 1], [1, 1]),
        ([[], []], False, [8, 8], [0, 0], [0, 0]),
        ([[LOW]], False, [9, 0], [1, 0], [1, 0]),  # it never ended its second turn
        ([], False, [0, 0], [0, 0], [0, 0]),
    ],
)
def test_state_and_results_after_every_turn_decide(turns, success, state, calls, results):
    session = DeskDialogue(lamp_plan())
    for turn in turns:
        for name, arguments in turn:
            session.call(name, arguments)
        session.end_turn()
    outcome = session.outcome()
    assert outcome["success"] is success
    found = {what: [turn[what][0] for turn in outcome["turns"]] for what in ("state", "calls", "results")}
    assert found == {"state": state, "calls": calls, "results": results}
    assert [turn["state"][1] for turn in outcome["turns"]] == [9, 9]
    json.dumps(outcome)


def test_calls_of_a_turn_that_is_not_ended_count_for_nothing():
    session = DeskDialogue(lamp_plan())
    session.call(*LOW)
    assert [turn["calls"] for turn in session.outcome()["turns"]] == [[0, 1], [0, 1]]


def test_a_default_that_is_named_is_the_same_call():
    car = DESKS["vehicle"].stocked(random.Random(3)).state()
    planned = PlannedCall(name="set_cabin", arguments={"celsius": 20})
    plan = Plan(desks={"vehicle": car}, turns=(PlannedTurn(user="Warmer.", calls=(planned, planned)),))
    session = DeskDialogue(plan)
    session.call("set_cabin", {"fan": "gentle", "celsius": 20.0})
    session.call("set_cabin", {"celsius": 20, "fan": "strong"})
    session.call("set_cabin", {"celsius": 20})
    session.end_turn()
    assert session.outcome()["turns"][0]["calls"] == [2, 2]


# --- dialogues --------------------------------------------------------------------------------------------------------


async def carry_out(dialogue, calls, order=None):
    """Play calls turn by turn through the tools that a user turn offers; what came back."""
    user, seen = await dialogue.begin(), []
    for turn in calls:
        tools = {tool.name: tool for tool in user.tools}
        for one in turn:
            await asyncio.sleep(0)  # others may come in between
            seen.append((await tools[one.name].call(one.arguments)).text)
        user = await dialogue.reply("Done.")
    assert user.over
    return seen


@settings(deadline=None)
@given(level=LEVELS, family=FAMILIES, seed=SEEDS)
def test_the_plan_can_be_carried_out_with_the_tools_that_each_turn_offers(level, family, seed):
    task = one_task(level, family, seed)
    source = world(difficulty=level, families=(family,))
    assert isinstance(source, Dialogues)
    dialogue = source.open(task, seed=seed)
    seen = asyncio.run(carry_out(dialogue, gold(plan_of(task))))
    assert dialogue.outcome()["success"] is True
    assert task.question.split("\n")[0] == plan_of(task).turns[0].user
    for text in seen:
        assert len(text) > 6000 if plan_of(task).long else len(text) < 2000
        assert "error" not in json.loads(text)


def test_a_function_that_is_withheld_is_not_offered_until_it_is_brought():
    task = one_task("standard", "missing_functions", 4)
    plan = plan_of(task)
    [name] = plan.turns[0].withheld

    async def offers():
        dialogue = world().open(task, seed=0)
        user, found = await dialogue.begin(), []
        while not user.over:
            found.append(name in {tool.name for tool in user.tools})
            user = await dialogue.reply("What now?")
        return found

    assert asyncio.run(offers()) == [name not in turn.withheld for turn in plan.turns]
    assert name in next(turn.user for turn in plan.turns if not turn.withheld)


def test_eight_rollouts_of_one_task_at_once_get_what_each_would_get_alone():
    task = one_task("hard", "composite", 2)
    plan = plan_of(task)
    variants = [gold(plan) if i % 2 else calls for i, calls in zip(range(8), without_one(plan), strict=False)]
    source = world(difficulty="hard")

    async def outcome(calls):
        dialogue = source.open(task, seed=0)
        await carry_out(dialogue, calls)
        return dialogue.outcome()

    async def together(order):
        found = await asyncio.gather(*(outcome(variants[i]) for i in order))
        return dict(zip(order, found, strict=True))

    alone = {i: asyncio.run(outcome(calls)) for i, calls in enumerate(variants)}
    assert [alone[i]["success"] for i in range(8)] == [bool(i % 2) for i in range(8)]
    for shuffle in range(5):
        order = random.Random(shuffle).sample(range(8), 8)
        assert asyncio.run(together(order)) == alone


def test_long_results_repeat_and_keep_what_matters_first():
    assert noise(500, "read_file", 1) == noise(500, "read_file", 1) != noise(500, "read_file", 2)
    assert 500 <= sum(map(len, noise(500, "read_file", 1))) < 600
    task = one_task("standard", "long_context", 1)

    async def first_result():
        user = await world().open(task, seed=0).begin()
        call = next(call for turn in plan_of(task).turns for call in turn.calls)
        [tool] = [tool for tool in user.tools if tool.name == call.name]
        result = await tool.call(call.arguments)
        return tool, result

    tool, result = asyncio.run(first_result())
    assert list(json.loads(result.text))[-1] == "noise"
    assert len(result.text) < 4 * tool.output_tokens


def test_what_a_desk_refuses_is_no_result():
    state = DESKS["files"].stocked(random.Random(0)).state()
    plan = Plan(desks={"files": state}, turns=(PlannedTurn(user="Look."),)).model_dump(mode="json")

    async def refusal():
        dialogue = world(difficulty="easy").open(Task(id="t1", question="", answer="", metadata=plan), seed=0)
        user = await dialogue.begin()
        [tool] = [tool for tool in user.tools if tool.name == "delete_file"]
        return await tool.call({"file": "none"})

    result = asyncio.run(refusal())
    assert (result.ok, json.loads(result.text)) == (False, {"error": "there is no file none here"})
