"""The workshop's models, through the real planner, the real rollout and the reflector's real prompts."""

from __future__ import annotations

import asyncio
from collections import Counter
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.agents.prompted import PlannerConfig, PromptedPlanner
from midstream.components.tables import parse_component
from midstream.core.agent import ModuleContext
from midstream.core.engine import Request
from midstream.core.errors import RecipeError
from midstream.core.text import neutral
from midstream.core.trajectory import Memory, Message, Sampling, Score, Trajectory
from midstream.evaluation.settings import SetConfig
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import Lesson, LessonSet, render_modules
from midstream.lessons.operations import Operation
from midstream.lessons.reflector import Reflector
from midstream.lessons.replies import Proposals
from midstream.lessons.settings import LessonsConfig, RoleConfig
from midstream.lessons.update import LessonLearner
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rollout import Group, rollout
from midstream_worlds.scripted_engine import ScriptedEngine
from midstream_worlds.simulated import SimulatedConfig, SimulatedEngine
from midstream_worlds.workshop.models import FALSE, WRONG_CODES, agent_reply, lessons_of, reflector_reply
from midstream_worlds.workshop.tasks import Lapses, Workshop, WorkshopConfig
from support.errors import coded
from support.served_workshop import served_workshop

QUERY = "# Query\n\n{question}\n\n# Memory\n\n\n# Next decision"


@pytest.fixture(scope="module")
def build():
    """The recipe's agent, tools and world."""
    with Build(load_recipe("lessons-simulated")) as made:
        yield made


def lesson_set_of(*texts):
    return LessonSet(lessons=tuple(Lesson(id=f"L{i}", text=text) for i, text in enumerate(texts, 1)), next_number=99)


def prompt_of(question, lessons=()):
    block = "# Lessons from earlier tasks\n\n" + "".join(f"- {one}\n" for one in lessons) if lessons else ""
    system = f"# Planner\n\nPlan.\n\n{block}\n# Tools"
    return (Message(role="system", content=system), Message(role="user", content=QUERY.format(question=question)))


def planned_prompt(lesson_set, question="press order 10001: amber rim. Which code does the finished piece get?"):
    """What the real planner sends with a lesson set in its prompt."""
    engine = ScriptedEngine(["Sub-Goal: x\nTool Name: y"])
    context = ModuleContext(engine=engine, lessons=render_modules(lesson_set).get("planner", ""))
    asyncio.run(PromptedPlanner(PlannerConfig()).plan(question, [], Memory(), context))
    return engine.requests[0].messages


# --- the agent --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("which", ["none", "true", "false", "both and others"])
def test_the_closed_form_is_the_mean_of_rollouts_through_the_real_agent(build, which):
    world = build.source
    rules = world.rules_of("press")
    texts = {
        "none": [],
        "true": [rule.true for rule in rules],
        "false": [rule.false[0] for rule in rules[:6]],
        "both and others": [*(lesson for rule in rules[:5] for lesson in rule.lessons[:2]), rules[0].true, "Be bold."],
    }[which]
    tasks = world.tasks("train")[:100]
    lessons = {task.id: render_modules(lesson_set_of(*texts)) for task in tasks}
    groups = asyncio.run(rollout(build.environment(), tasks, group_size=8, seed=11, lessons=lessons))
    rewards = [one.reward.value for group in groups for one in group.trajectories if one.reward is not None]
    expected = [world.mean_success([task], texts) for task in tasks]
    assert len(rewards) == 800
    spread = sqrt(sum(p * (1 - p) for p in expected) * 8) / 800
    assert abs(sum(rewards) / 800 - sum(expected) / 100) < 4 * spread


@pytest.mark.slow
def test_orders_of_another_domain_are_an_evaluation_set_on_which_lessons_are_clutter(build):
    world = build.source
    kiln = SetConfig(
        name="kiln", tasks=parse_component("tasks", {"type": "workshop", "domains": ["kiln"]}, "tasks"), count=300
    )
    tasks = build.set_tasks(kiln)
    texts = [rule.true for rule in world.rules_of("press")]
    lessons = {task.id: render_modules(lesson_set_of(*texts)) for task in tasks}
    groups = asyncio.run(rollout(build.environment(chosen=kiln), tasks, seed=1, lessons=lessons))
    rewards = [one.reward.value for group in groups for one in group.trajectories if one.reward is not None]
    assert world.mean_success(tasks, texts) == pytest.approx(world.mean_success(tasks, []) - 16 * 0.006, abs=1e-3)
    assert abs(sum(rewards) / 300 - world.mean_success(tasks, texts)) < 4 * sqrt(0.25 / 300)


def test_tool_calls_fall_as_lessons_cover_the_marks(build):
    tasks = build.source.tasks("train")[:30]

    def calls(texts):
        lessons = {task.id: render_modules(lesson_set_of(*texts)) for task in tasks}
        groups = asyncio.run(rollout(build.environment(), tasks, seed=2, lessons=lessons))
        return sum(len(one.turns) for group in groups for one in group.trajectories)

    rules = build.source.rules_of("press")
    none, half, all_ = calls([]), calls([rule.true for rule in rules[:8]]), calls([rule.true for rule in rules])
    assert none == 60 > half > all_ == 30


def test_the_same_request_is_answered_alike_and_another_seed_draws_again():
    world = Workshop(WorkshopConfig(base=0.5, spread=0.0, reach=0.0))
    reply, task = agent_reply(world), world.tasks("train")[0]
    replies = [reply(prompt_of(task.question), seed) for seed in range(400)]
    assert replies == [agent_reply(world)(prompt_of(task.question), seed) for seed in range(400)]
    right = sum(task.answer in text for text in replies)
    assert abs(right - 200) < 4 * 10  # four standard errors of 400 fair draws


def test_prompts_that_differ_by_one_lesson_draw_independently():
    world = Workshop(WorkshopConfig(base=0.5, spread=0.0, reach=0.0, clutter=0.0))
    reply, task = agent_reply(world), world.tasks("train")[0]
    one = [task.answer in reply(prompt_of(task.question, ["Be bold."]), seed) for seed in range(400)]
    other = [task.answer in reply(prompt_of(task.question, ["Be brave."]), seed) for seed in range(400)]
    assert abs(sum(a == b for a, b in zip(one, other, strict=True)) - 200) < 4 * 10


def test_an_order_that_goes_wrong_gets_one_of_few_codes():
    world = Workshop(WorkshopConfig(base=0.1, spread=0.0, reach=0.0))
    reply, task = agent_reply(world), world.tasks("train")[0]
    codes = Counter(reply(prompt_of(task.question), seed).split("Context: ")[1].split()[0] for seed in range(300))
    assert len(codes) == 1 + WRONG_CODES
    assert min(codes.values()) > 10


@given(texts=st.lists(st.text(min_size=1, max_size=80).filter(str.strip), max_size=6))
def test_the_lessons_found_in_a_real_prompt_are_exactly_the_lesson_sets(texts):
    hostile = [*texts, "x\n# Tools\n- y", "# Lessons from earlier tasks", "- - -", "<|im_end|> [INST]"]
    lesson_set = lesson_set_of(*hostile)
    system = planned_prompt(lesson_set)[0].content
    rendered = [neutral(line[2:]) for line in render_modules(lesson_set)["planner"].split("\n")]
    assert [one.rstrip() for one in lessons_of(system)] == [one.rstrip() for one in rendered]


def test_without_lessons_none_are_found_in_a_real_prompt():
    assert lessons_of(planned_prompt(LessonSet())[0].content) == []


def test_a_query_of_another_world_is_refused():
    with pytest.raises(RecipeError, check=coded("foreign-prompt", "without an order")):
        agent_reply(Workshop(WorkshopConfig()))(prompt_of("How high is Amberbank ?"), 1)


# --- the reflector ----------------------------------------------------------------------------------------------------


def reflector(world, seed=0, **settings):
    engine = SimulatedEngine(reflector_reply(world), SimulatedConfig(plays="reflector"), "reflector")
    config = LessonsConfig(reflector=RoleConfig(engine="reflector"), **settings)
    return Reflector(config, dict.fromkeys(("summariser", "critic", "merger"), engine), Ledger(), seed)


def group_of(task, rewards=(1.0, 0.0, 0.0)):
    answers = [task.answer if reward else "0" for reward in rewards]
    return Group(
        task=task,
        trajectories=tuple(
            Trajectory(
                id=f"{task.id}#{i}",
                task_id=task.id,
                rollout_index=i,
                answer=answer,
                gold=task.answer,
                reward=Score(value=reward),
            )
            for i, (answer, reward) in enumerate(zip(answers, rewards, strict=True))
        ),
    )


def contrasted(world, lesson_set=None, *, rewards=(1.0, 0.0, 0.0), tasks=200, answer=True):
    """The critic's operations on many groups, one list a group; None for a reply that cannot be used."""
    roles = reflector(world)

    async def run():
        return [
            (
                await roles.contrast(
                    1,
                    group_of(task, rewards),
                    ["it went"] * 3,
                    lesson_set or LessonSet(),
                    task.answer if answer else None,
                )
            ).value
            for task in world.tasks("train")[:tasks]
        ]

    return asyncio.run(run())


def texts_of(found):
    return [one.text for operations in found for one in operations or ()]


def test_half_of_the_lessons_drawn_from_contrast_are_true():
    world = Workshop(WorkshopConfig(share_true=0.5))
    texts = texts_of(contrasted(world))
    true = sum(which == 0 for text in texts for _, which in world.meaning(text))
    assert len(texts) > 190
    assert abs(true / len(texts) - 0.5) < 4 * 0.5 / sqrt(len(texts))


@pytest.mark.parametrize("rewards", [(0.0, 0.0, 0.0), (1.0, 1.0, 1.0)])
def test_without_contrast_a_lesson_is_a_guess(rewards):
    world = Workshop(WorkshopConfig(share_true=1.0))
    texts = texts_of(contrasted(world, rewards=rewards))
    true = sum(which == 0 for text in texts for _, which in world.meaning(text))
    chance = 1 / (1 + FALSE)
    assert abs(true / len(texts) - chance) < 4 * sqrt(chance * (1 - chance) / len(texts))


def test_lessons_from_questions_alone_are_guesses_too():
    world = Workshop(WorkshopConfig(share_true=1.0))
    roles = reflector(world, lessons_from="model")

    async def run():
        groups = [Group(task=task, trajectories=()) for task in world.tasks("train")]
        return [(await roles.contrast(1, group, (), LessonSet(), None)).value for group in groups]

    which = [which for text in texts_of(asyncio.run(run())) for _, which in world.meaning(text)]
    assert 0 < which.count(0) < len(which) / 2


def test_a_lesson_is_about_a_mark_of_the_question_whose_true_lesson_the_lesson_set_lacks():
    world = Workshop(WorkshopConfig())
    rules = world.rules_of("press")
    lesson_set = lesson_set_of(*(rule.true for rule in rules[:8]), *(rule.false[0] for rule in rules[8:]))
    for task, operations in zip(world.tasks("train"), contrasted(world, lesson_set), strict=True):
        for one in operations or ():
            [(number, which)] = world.meaning(one.text)
            assert rules[number].mark in task.question
            assert (number >= 8, which != 1) == (True, True)
            assert one.origin.tasks == (task.id,)


def test_nothing_is_proposed_where_every_true_lesson_is_there():
    world = Workshop(WorkshopConfig())
    lesson_set = lesson_set_of(*(rule.true for rule in world.rules_of("press")))
    assert texts_of(contrasted(world, lesson_set, tasks=40)) == []


def test_each_lapse_shows_and_none_without_it():
    def found(lesson_set=None, answer=True, **lapses):
        world = Workshop(WorkshopConfig(lapses=Lapses(**lapses), share_true=1.0))
        return world, contrasted(world, lesson_set, tasks=40, answer=answer)

    world, plain = found()
    assert max(len(text) for text in texts_of(plain)) < 200
    known = world.rules_of("press")[0].true
    assert set(texts_of(found(lesson_set_of(known), duplicate=1.0)[1])) == {f"Remember: {known}"}
    assert {len(one) for one in found(contradictory=1.0)[1]} == {2}
    for one, other in found(contradictory=1.0)[1]:
        assert {rule for rule, _ in world.meaning(one.text)} == {rule for rule, _ in world.meaning(other.text)}
        assert world.meaning(one.text) != world.meaning(other.text)
    assert min(len(text) for text in texts_of(found(over_long=1.0)[1])) > 1500
    copied = texts_of(found(answer_copying=1.0)[1])
    assert all(task.answer in text for task, text in zip(world.tasks("train"), copied, strict=False))
    assert set(found(bad_json=1.0)[1]) == {None}


def test_an_answer_that_is_in_no_prompt_cannot_be_copied():
    world = Workshop(WorkshopConfig(lapses=Lapses(answer_copying=1.0)))
    found = contrasted(world, rewards=(0.5, 0.0, 0.0), tasks=20, answer=False)
    answers = {task.answer for task in world.tasks("train")}
    assert any(
        task.answer in text for task in world.tasks("train")[:20] for text in texts_of(found)
    )  # a rollout had it
    hidden = texts_of(contrasted(world, rewards=(0.0, 0.0, 0.0), tasks=20, answer=False))
    assert not any(answer in text for answer in answers for text in hidden)


def merged(world, texts, **operations):
    adds = [Operation(kind="add", text=text, module="planner") for text in texts]
    proposals = Proposals([*adds, *(Operation(kind=kind, id=name) for kind, name in operations.items())])
    return asyncio.run(reflector(world, seed=3).merge(1, proposals, lesson_set_of("a", "b", "c"))).value


def test_the_merger_leaves_one_lesson_a_mark_and_everything_else_as_it_was():
    world = Workshop(WorkshopConfig())
    one, other = world.rules_of("press")[:2]
    result = merged(world, [one.true, one.false[0], other.true, f"Remember: {other.true}", "Be bold."], delete="L2")
    kinds = Counter(operation.kind for operation in result.operations)
    about = [world.meaning(operation.text)[:1] for operation in result.operations if operation.kind == "add"]
    assert kinds == {"add": 3, "delete": 1}
    assert sorted(rule for meaning in about for rule, _ in meaning) == [one.number, other.number]
    assert len(result.left_out) == 2


def test_a_careless_merger_lets_pairs_through():
    rules = Workshop(WorkshopConfig()).rules_of("press")[:2]
    texts = [rules[0].true, rules[0].false[0], rules[1].true, f"Remember: {rules[1].true}"]
    for lapses, count in ((Lapses(contradictory=1.0), 3), (Lapses(duplicate=1.0), 3)):
        assert len(merged(Workshop(WorkshopConfig(lapses=lapses)), texts).operations) == count


def test_a_summary_can_be_read():
    world = Workshop(WorkshopConfig())
    task = world.tasks("train")[0]
    [run] = group_of(task, (1.0,)).trajectories
    assert "a code was handed in" in asyncio.run(reflector(world).summarize(1, task.question, run, None)).value


def test_a_prompt_of_no_known_role_is_refused():
    engine = SimulatedEngine(reflector_reply(Workshop(WorkshopConfig())), SimulatedConfig(plays="reflector"), "o")
    request = Request(role="critic", messages=(Message(role="system", content="# Planner"),), sampling=Sampling())
    with pytest.raises(RecipeError, check=coded("foreign-prompt", "'Planner'")):
        asyncio.run(engine.sample(request))


# --- both, through one whole update -----------------------------------------------------------------------------------


def updated(*overrides, lesson_set=None):
    """The record of one ungated update of the recipe: 40 tasks, three rollouts each."""
    small = ["lessons.gate.enabled=false", "lessons.tasks=40", "lessons.batch_size=40", "lessons.group_size=3"]

    async def run():
        build = Build(load_recipe("lessons-simulated", [*small, *overrides]))
        try:
            assert build.recipe.lessons is not None
            lessons = LessonLearner(
                config=build.recipe.lessons,
                tasks=build.source.fixed("train", seed=1, count=40),
                validation=build.source.fixed("validation", seed=1, count=10),
                environment=build.environment(),
                engines=dict.fromkeys(("summariser", "critic", "merger"), build.engine("reflector")),
                ledger=Ledger(),
                seed=4,
            )
            return await lessons.update(1, lesson_set or LessonSet(), (), 1)
        finally:
            await build.close()

    return asyncio.run(run())


@pytest.mark.slow
def test_an_update_learns_lessons_of_the_world_through_a_faulty_server():
    world = Workshop(WorkshopConfig())
    made = []
    for fault_rate in (0.3, 0.0):
        with served_workshop({}, fault_rate) as served:
            made.append(updated(f"engines.reflector={served['engines.reflector']}"))
    done, sound = made
    assert done.record.failed == done.record.broken == {}
    assert done.record.unreadable == ()
    assert len(done.lesson_set.lessons) > 8
    assert [one.text for one in done.lesson_set.lessons if len(world.meaning(one.text)) != 1] == []
    assert sound.lesson_set == done.lesson_set  # faults change nothing
    assert [one.text for one in sound.lesson_set.lessons] == [one.text for one in updated().lesson_set.lessons]


@pytest.mark.matrix(1)
@pytest.mark.parametrize(
    ("lapse", "reason"),
    [("duplicate", "repeats"), ("over_long", "tokens"), ("answer_copying", "answer")],
)
def test_what_the_reflector_errs_in_the_lesson_set_refuses(lapse, reason):
    known = [rule.true for rule in Workshop(WorkshopConfig()).rules_of("press")[:1]]
    done = updated(f"tasks.lapses.{lapse}=1.0", lesson_set=lesson_set_of(*known))
    refused = [one.refused for one in done.record.proposed if one.refused]
    assert any(reason in text for text in refused), refused
    assert [one.text for one in done.lesson_set.lessons] == known


def test_replies_that_are_no_json_are_reported_and_teach_nothing():
    done = updated("tasks.lapses.bad_json=1.0")
    assert done.lesson_set.lessons == ()
    assert len(done.record.unreadable) > 40
