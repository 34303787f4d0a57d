"""One batch from rollouts to operations: what is learned from, what is left out, and that none of it is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from midstream.core.engine import Request
from midstream.core.errors import BudgetError, EngineError, PromptTooLongError
from midstream.core.task import Task
from midstream.core.trajectory import Call
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import Lesson, LessonSet
from midstream.lessons.proposer import Proposal
from midstream_worlds.scripted_engine import ScriptedEngine
from support.reflectors import FAILS, algorithm, asked, operations, propose, role_engine, section, settings
from support.rollouts import pause

TASKS = [Task(id=f"t{i}", question=f"How high is Place{i}?", answer="right") for i in range(3)]
LESSONS = LessonSet(lessons=tuple(Lesson(id=f"L{i}", text=f"When {i}, do it.") for i in range(1, 5)), next_number=5)
ADD = {"kind": "add", "text": "When asked for a height, look it up.", "module": "planner"}
CONTRAST = ["right", "wrong"]


def learn(
    answers: Sequence[object],
    engine: Any,
    tasks: Sequence[Task] = TASKS,
    lesson_set: LessonSet = LESSONS,
    ledger: Ledger | None = None,
    **more: Any,
) -> Proposal:
    return propose(algorithm(answers, engine, settings(**more), ledger), tasks, lesson_set)


def by_task(**replies: str) -> ScriptedEngine:
    """A critic that has a reply for each task, by the number in its question."""

    def contrast(request: Request) -> str:
        question = json.loads(section(asked(request), "Question"))
        return replies.get("t" + question.removesuffix("?")[-1], operations())

    return role_engine(contrast)


def requests(engine: ScriptedEngine, role: str) -> list[Request]:
    return [request for request in engine.requests if request.role == role]


def test_add_delete_modify_and_keep_arrive_exactly():
    changes = (
        ADD,
        {"kind": "delete", "id": "L2"},
        {"kind": "modify", "id": "L3", "text": "When 3, do it twice."},
        {"kind": "keep", "id": "L4"},
    )
    made = learn(CONTRAST, role_engine(operations(*changes)), TASKS[:1], changes_per_group=3)
    assert [operation.model_dump(include={"kind", "id", "text", "module"}) for operation in made.operations] == [
        {"kind": "add", "id": "", "text": ADD["text"], "module": "planner"},
        {"kind": "delete", "id": "L2", "text": "", "module": ""},
        {"kind": "modify", "id": "L3", "text": "When 3, do it twice.", "module": ""},
        {"kind": "keep", "id": "L4", "text": "", "module": ""},
    ]
    assert all(operation.origin.trajectories == ("t0#0", "t0#1") for operation in made.operations)
    assert (made.uniform, made.broken, made.left_out, made.unreadable) == (0, {}, [], [])


def test_every_rollout_of_a_group_with_contrast_is_summarized_and_the_critic_reads_it():
    engine = role_engine()
    learn(["right", "wrong", "right"], engine, TASKS[:1], group_size=3)
    assert len(requests(engine, "summariser")) == 3
    (critic,) = requests(engine, "critic")
    rollouts = [json.loads(line) for line in section(asked(critic), "Rollouts").splitlines()]
    assert [one["reward"] for one in rollouts] == [1.0, 0.0, 1.0]
    assert all(f"for the {i}th time" in one["summary"] for i, one in enumerate(rollouts))
    assert json.loads(section(asked(critic), "Gold answer")) == "right"


def test_groups_without_contrast_are_skipped_and_counted():
    engine = role_engine()
    made = learn(["right", "right", "wrong", "wrong", *CONTRAST], engine)
    assert made.uniform == 2
    assert made.broken == {}
    assert [request.role for request in engine.requests] == ["summariser", "summariser", "critic"]
    assert len(made.groups) == 3


def test_groups_without_contrast_are_studied_where_the_recipe_says_so():
    engine = role_engine()
    made = learn(["right", "right"], engine, TASKS[:1], skip_uniform=False)
    assert made.uniform == 0
    assert len(requests(engine, "critic")) == 1


def test_failed_rollouts_are_named_and_are_no_reward_of_0():
    engine = role_engine()
    made = learn(["right", FAILS, "wrong", "right", FAILS, FAILS], engine, TASKS[:2], group_size=3)
    assert list(made.failed) == ["t0#1", "t1#1", "t1#2"]
    assert made.failed["t0#1"] == "EngineError: the endpoint failed"
    assert made.broken == {"t1": "2 of 3 rollouts failed: EngineError: the endpoint failed"}
    (critic,) = requests(engine, "critic")
    assert len(section(asked(critic), "Rollouts").splitlines()) == 2
    assert [len(group.trajectories) for group in made.groups] == [3, 3]


def test_a_group_of_one_can_be_studied_alone():
    engine = role_engine(operations(ADD))
    made = learn(["right"], engine, TASKS[:1], group_size=1, skip_uniform=False)
    assert [operation.text for operation in made.operations] == [ADD["text"]]
    assert made.broken == {}


def test_equal_questions_stay_two_tasks():
    twins = [Task(id=name, question="How high is Place0?", answer="right") for name in ("one", "two")]
    engine = role_engine(operations(ADD))
    made = learn([*CONTRAST, *CONTRAST], engine, twins)
    assert len(requests(engine, "critic")) == 2
    assert len(requests(engine, "summariser")) == 4
    assert made.operations[0].origin.tasks == ("one", "two")


def test_a_reply_that_cannot_be_used_is_asked_for_again():
    replies = iter(["no json", operations(ADD)])
    made = learn(CONTRAST, role_engine(lambda request: next(replies)), TASKS[:1])
    assert [operation.text for operation in made.operations] == [ADD["text"]]
    assert made.unreadable == []


def test_a_critic_that_never_gives_json_breaks_its_group_alone():
    engine = by_task(t0="no json at all", t1=operations(ADD))
    made = learn([*CONTRAST, *CONTRAST], engine, TASKS[:2])
    assert [operation.text for operation in made.operations] == [ADD["text"]]
    assert made.broken == {"t0": "the critic gave no reply that could be used"}
    (lost,) = made.unreadable
    assert lost.startswith("critic, task t0: no usable reply when asked 3 times")
    assert "no json at all" in lost


@pytest.mark.parametrize(("unusable", "studied"), [(1, True), (2, False)])
def test_a_rollout_without_a_summary_keeps_its_reward_in_the_contrast(unusable: int, studied: bool):
    def reply(request: Request) -> str:
        if request.role != "summariser":
            return operations(ADD)
        late = any(f"for the {i}th time" in asked(request) for i in range(unusable))
        return "?" if late else '{"summary": "it went"}'

    engine = ScriptedEngine(reply)
    made = learn(["wrong", "right", "right"], engine, TASKS[:1], group_size=3)
    assert len(made.unreadable) == unusable
    assert made.unreadable[0].startswith("summariser, task t0, rollout 0")
    assert bool(made.operations) == studied
    if studied:
        rollouts = [json.loads(line) for line in section(asked(requests(engine, "critic")[0]), "Rollouts").splitlines()]
        assert (rollouts[0]["reward"], rollouts[0]["summary"]) == (0.0, None)
    else:
        assert made.broken == {"t0": "fewer than two rollouts could be summarized"}


def test_more_changes_than_a_group_may_make_are_left_out_by_name():
    many = [{**ADD, "text": f"When {i}, do it."} for i in range(4)]
    made = learn(CONTRAST, role_engine(operations(*many, {"kind": "keep", "id": "L1"})), TASKS[:1])
    assert [operation.kind for operation in made.operations] == ["add", "add", "keep"]
    assert [(outcome.operation.text, outcome.refused) for outcome in made.left_out] == [
        (f"When {i}, do it.", "beyond the 2 changes of a group") for i in (2, 3)
    ]


def test_the_merger_is_asked_where_changes_come_from_several_groups():
    engine = by_task(t0=operations(ADD), t1=operations({"kind": "keep", "id": "L1"}))
    made = learn([*CONTRAST] * 3, engine)
    assert [operation.kind for operation in made.operations] == ["add", "keep"]
    assert not requests(engine, "merger")
    engine = by_task(t0=operations(ADD), t1=operations({"kind": "keep", "id": "L1"}), t2=operations(ADD))
    made = learn([*CONTRAST] * 3, engine)
    (merger,) = requests(engine, "merger")
    assert [json.loads(line)["groups"] for line in section(asked(merger), "Proposals").splitlines()] == [2, 1]
    assert [(operation.kind, operation.origin.tasks) for operation in made.operations] == [
        ("add", ("t0", "t2")),
        ("keep", ("t1",)),
    ]


def test_what_the_merger_leaves_out_is_reported():
    joined = operations({"kind": "add", "text": "When asked, look.", "from": [1]})
    engine = role_engine(lambda request: operations({**ADD, "text": section(asked(request), "Question")}), joined)
    made = learn([*CONTRAST] * 2, engine, TASKS[:2])
    assert [operation.text for operation in made.operations] == ["When asked, look."]
    assert [outcome.refused for outcome in made.left_out] == [
        "merged into: add When asked, look.",
        "left out by the merger",
    ]


def test_a_merger_that_fails_loses_no_proposal():
    engine = role_engine(lambda request: operations({**ADD, "text": section(asked(request), "Question")}), "no json")
    made = learn([*CONTRAST] * 2, engine, TASKS[:2])
    assert len(made.operations) == 2
    assert made.unreadable[0].startswith("merger: no usable reply when asked 3 times")


class Shuffled(ScriptedEngine):
    """Answers after a random while."""

    async def sample(self, request: Request) -> Call:
        call = await super().sample(request)
        await pause()
        return call


def test_the_order_in_which_answers_come_changes_nothing():
    answers = ["right", "wrong", "wrong", "right", FAILS, "right"]

    def contrast(request: Request) -> str:
        text = section(asked(request), "Question")
        return operations({**ADD, "text": text}, {"kind": "replace"}, {**ADD, "text": f"{text} 2"})

    plain = learn(answers, role_engine(contrast))
    for _ in range(3):
        made = learn(answers, Shuffled(role_engine(contrast)._reply))
        assert (made.operations, made.unreadable, made.broken, made.failed) == (
            plain.operations,
            plain.unreadable,
            plain.broken,
            plain.failed,
        )
    assert len(plain.unreadable) == 2


def test_a_resumed_batch_repeats_no_rollout_and_no_request():
    ledger, answers = Ledger(), [*CONTRAST] * 2
    engine = role_engine(operations(ADD))
    first = learn(answers, engine, TASKS[:2], ledger=ledger)
    silent = ScriptedEngine([])
    again = algorithm([], silent, settings(), ledger)
    assert propose(again, TASKS[:2], LESSONS) == first
    assert silent.requests == []


def test_an_engine_that_fails_stops_the_run_and_what_was_paid_for_is_kept():
    ledger = Ledger()

    def fails(request: Request) -> str:
        raise EngineError("503")

    with pytest.raises(EngineError, match="503"):
        learn(CONTRAST, role_engine(fails), TASKS[:1], ledger=ledger)
    engine = role_engine(operations(ADD))
    assert propose(algorithm([], engine, settings(), ledger), TASKS[:1], LESSONS).operations
    assert [request.role for request in engine.requests] == ["critic"]


@pytest.mark.parametrize("role", ["summariser", "critic"])
def test_a_prompt_that_is_too_long_breaks_its_group_alone(role: str):
    fitting = role_engine(operations(ADD))

    def reply(request: Request) -> str:
        if request.role == role and "Place0" in asked(request):
            raise PromptTooLongError("a prompt of 9000 tokens does not fit")
        return fitting._reply(request)

    made = learn([*CONTRAST] * 2, ScriptedEngine(reply), TASKS[:2])
    assert made.broken == {"t0": "a prompt of 9000 tokens does not fit"}
    assert [operation.origin.tasks for operation in made.operations] == [("t1",)]


def test_a_merge_that_does_not_fit_loses_no_proposal():
    def too_long(request: Request) -> str:
        raise PromptTooLongError("a prompt of 9000 tokens does not fit")

    made = learn([*CONTRAST] * 2, role_engine(operations(ADD), too_long), TASKS[:2])
    assert [operation.origin.tasks for operation in made.operations] == [("t0", "t1")]
    assert made.unreadable == ["merger: a prompt of 9000 tokens does not fit"]


# --- without gold answers ---------------------------------------------------------------------------------------------


def majority(answers: Sequence[object], engine: ScriptedEngine, **more: Any) -> Proposal:
    secret = [Task(id="t0", question="How high is Place0?", answer="GOLD", aliases=("GOLD too",))]
    return learn(answers, engine, secret, truth="majority", group_size=len(answers), **more)


def test_the_most_frequent_answer_is_right():
    engine = role_engine(operations(ADD))
    made = majority(["the 7", "7.", None, "8", "7"], engine)
    (critic,) = requests(engine, "critic")
    rollouts = [json.loads(line) for line in section(asked(critic), "Rollouts").splitlines()]
    assert [one["reward"] for one in rollouts] == [1.0, 1.0, 0.0, 0.0, 1.0]
    assert len(made.operations) == 1


def test_no_role_sees_the_gold_answer():
    engine = role_engine(operations(ADD))
    made = majority(["7", "7", "8"], engine)
    assert made.operations
    assert made.groups[0].trajectories[0].gold == "GOLD"
    assert not any("GOLD" in message.content for request in engine.requests for message in request.messages)
    assert "not known" in section(asked(requests(engine, "critic")[0]), "Gold answer")
    shown = role_engine(operations(ADD))
    learn(["GOLD", "8"], shown, [Task(id="t0", question="?", answer="GOLD")])
    assert any("GOLD" in message.content for request in shown.requests for message in request.messages)


@pytest.mark.parametrize("answers", [["7", "8"], ["7", "7", "8", "8", "9"], [None, None], ["", "7", "8"]])
def test_a_group_without_a_majority_is_left_out_with_the_reason(answers: Sequence[object]):
    engine = role_engine()
    assert majority(answers, engine).broken == {"t0": "no answer is more frequent than every other"}
    assert engine.requests == []


def test_a_unanimous_group_has_no_contrast():
    assert majority(["7", "7", " the 7"], role_engine()).uniform == 1


@pytest.mark.parametrize("answers", [["GOLD", "8"], ["7", "7"], ["7", None]])
def test_ungraded_groups_are_all_contrasted_and_no_role_sees_a_reward_or_an_answer(answers: Sequence[object]):
    engine = role_engine(operations(ADD))
    secret = [Task(id="t0", question="How high is Place0?", answer="GOLD", aliases=("GOLD too",))]
    made = learn(answers, engine, secret, truth="none", group_size=2)
    assert (len(made.operations), made.uniform) == (1, 0)
    (critic,) = requests(engine, "critic")
    rollouts = [json.loads(line) for line in section(asked(critic), "Rollouts").splitlines()]
    assert [(rollout["reward"], rollout["answer"]) for rollout in rollouts] == [(None, answer) for answer in answers]
    for request in requests(engine, "summariser"):
        assert json.loads(section(asked(request), "Rollout").splitlines()[-1])["reward"] is None
    for request in engine.requests:
        assert "nothing is graded" in section(asked(request), "Gold answer")
    if "GOLD" not in answers:
        assert not any("GOLD" in message.content for request in engine.requests for message in request.messages)
    assert all(trajectory.reward for trajectory in made.groups[0].trajectories), "the record keeps them"


# --- without rollouts -------------------------------------------------------------------------------------------------


def test_lessons_without_rollouts_come_from_the_questions_alone():
    engine = role_engine(operations(ADD))
    made = learn([], engine, lessons_from="model")
    assert [request.role for request in engine.requests] == ["critic"] * 3 + ["merger"]
    assert made.groups == []
    assert [operation.origin.tasks for operation in made.operations] == [("t0", "t1", "t2")]
    assert not any("right" in asked(request) for request in engine.requests)


def test_each_role_is_asked_at_its_own_engine():
    engines = {role: role_engine(operations(ADD)) for role in ("summariser", "critic", "merger")}
    made = algorithm([*CONTRAST] * 2, engines, settings())
    assert propose(made, TASKS[:2], LESSONS).operations
    assert {role: {request.role for request in engine.requests} for role, engine in engines.items()} == {
        role: {role} for role in engines
    }


def test_lessons_for_every_module_arrive_for_that_module():
    changes = (ADD, {**ADD, "module": "executor", "text": "Write units out."})
    made = learn(CONTRAST, role_engine(operations(*changes)), TASKS[:1], modules=("planner", "executor"))
    assert [operation.module for operation in made.operations] == ["planner", "executor"]


def test_a_budget_that_is_spent_stops_the_batch():
    def spent(request: Request) -> str:
        raise BudgetError("10 tokens more would pass the limit")

    with pytest.raises(BudgetError):
        learn(CONTRAST, role_engine(spent), TASKS[:1])
