"""ARTIST's reward of mathematics: hand-computed cases, every part in the paper's units."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.agents.interleaved import InterleavedLoop, StreamConfig
from midstream.agents.stream_policy import ModelPolicy, PolicyConfig
from midstream.core.agent import RunContext
from midstream.core.errors import RecipeError
from midstream.core.metrics import StreamMetrics, Tally
from midstream.core.stream import escape_marks
from midstream.core.stream_template import load_template
from midstream.core.task import Task
from midstream.core.trajectory import Call, Score, Trajectory
from midstream.rewards.exact_match import ExactMatch
from midstream.rewards.numeric import Numeric
from midstream.tools.python import PythonConfig, PythonTool
from midstream_worlds.artist_math import ArtistMath, ArtistMathConfig
from midstream_worlds.scripted_engine import ScriptedEngine
from support.errors import coded
from support.marked_streams import FAILED, Output, stream
from support.rollouts import StubReward
from support.sandboxes import sandbox

TASK = Task(id="t", question="What is 2 + 3 ?", answer="5")
THINK, CALL, ANSWER = "<think>add them</think>", "<python>print(2 + 3)</python>", "<answer>5</answer>"
OUT = Output("5")


def score(run: Trajectory, *, gated: bool = False, template: str = "artist-math", task: Task = TASK) -> Score:
    reward = ArtistMath(ArtistMathConfig(answer="exact_match", gated=gated), ExactMatch(), load_template(template))
    return asyncio.run(reward.score(task, run))


# The stream; the answer that the agent took from it; answer (2), relaxed format (4 x 0.125), strict format (0.5), tool
# success (0 to 1), the total, and the total of the gated form.
CASES = {
    "all right": ([THINK + CALL, OUT, THINK + ANSWER], "5", 2, 0.5, 0.5, 1, 4, 4),
    "a wrong answer": ([THINK + CALL, OUT, THINK + "<answer>6</answer>"], "6", 0, 0.5, 0.5, 1, 2, 0),
    "two calls": ([THINK + CALL, OUT, THINK + CALL, OUT, THINK + ANSWER], "5", 2, 0.5, 0.5, 1, 4, 4),
    "thoughts twice": ([THINK + THINK + CALL, OUT, THINK + ANSWER], "5", 2, 0.5, 0.5, 1, 4, 4),
    "no call": ([THINK + ANSWER], "5", 2, 0.25, 0, 0, 2.25, 2.25),
    "no thought": ([CALL, OUT, ANSWER], "5", 2, 0.375, 0, 1, 3.375, 3.375),
    "an answer alone": ([ANSWER], "5", 2, 0.125, 0, 0, 2.125, 2.125),
    "the call fails": ([THINK + CALL, FAILED, THINK + ANSWER], "5", 2, 0.5, 0.5, 0, 3, 3),
    "one call of two fails": (
        [THINK + CALL, FAILED, THINK + CALL, OUT, THINK + ANSWER], "5", 2, 0.5, 0.5, 0.5, 3.5, 3.5,
    ),
    "one call of four fails, the answer is wrong": (
        [THINK + CALL, OUT, THINK + CALL, OUT, THINK + CALL, FAILED, THINK + CALL, OUT, THINK + "<answer>4</answer>"],
        "4", 0, 0.5, 0.5, 0.75, 1.75, 0,
    ),
    "print(1) and a guess": (
        [THINK + "<python>print(1)</python>", Output("1"), THINK + "<answer>1</answer>"], "1", 0, 0.5, 0.5, 1, 2, 0,
    ),
    "print(1) for ever": ([THINK + "<python>print(1)</python>", Output("1")] * 5, None, 0, 0.375, 0, 1, 1.375, 0),
    "nothing": ([""], None, 0, 0, 0, 0, 0, 0),
    "thoughts once for all": ([THINK + CALL, OUT, CALL, OUT, ANSWER], "5", 2, 0.5, 0, 1, 3.5, 3.5),
    "words after the answer": ([THINK + CALL, OUT, THINK + ANSWER + "bye"], "5", 2, 0.5, 0, 1, 3.5, 3.5),
    "words between the tags": ([f"Well. {THINK} so {CALL}", OUT, THINK + ANSWER], "5", 2, 0.5, 0.5, 1, 4, 4),
    "no tags at all": (["It is 5."], None, 0, 0, 0, 0, 0, 0),
    "thoughts not closed": (["<think>add them" + CALL, OUT, ANSWER], "5", 2, 0.375, 0, 1, 3.375, 3.375),
    "a call not closed": ([THINK + "<python>print(2 + 3)"], None, 0, 0.125, 0, 0, 0.125, 0),
    "the answer not closed": ([THINK + CALL, OUT, THINK + "<answer>5"], None, 0, 0.375, 0, 1, 1.375, 0),
    "thoughts closed before they open": (["</think>add<think>" + CALL, OUT, ANSWER], "5", 2, 0.375, 0, 1, 3.375, 3.375),
    "thoughts in thoughts": (
        ["<think>add <think>them</think></think>" + CALL, OUT, THINK + ANSWER], "5", 2, 0.5, 0, 1, 3.5, 3.5,
    ),
    "a call in thoughts": (["<think>try " + CALL, OUT, "</think>" + ANSWER], "5", 2, 0.5, 0, 1, 3.5, 3.5),
    "a call before any thought": ([CALL, OUT, THINK + ANSWER], "5", 2, 0.5, 0, 1, 3.5, 3.5),
    "an answer before any thought": ([ANSWER + THINK], "5", 2, 0.25, 0, 0, 2.25, 2.25),
    "an answer before the call": ([THINK + ANSWER + CALL, OUT], "5", 2, 0.5, 0, 1, 3.5, 3.5),
    "two answers": ([THINK + CALL, OUT, THINK + "<answer>4</answer>" + ANSWER], "4", 0, 0.5, 0, 1, 1.5, 0),
    "output that the policy made up": ([THINK + "<output>5</output>" + ANSWER], "5", 2, 0.25, 0, 0, 2.25, 2.25),
    "output made up after a call": (
        [THINK + CALL + "<output>5</output>" + THINK + ANSWER], "5", 2, 0.375, 0, 0, 2.375, 2.375,
    ),
    "output made up next to a real one": (
        [THINK + CALL, OUT, THINK + "<output>5</output>" + ANSWER], "5", 2, 0.5, 0, 1, 3.5, 3.5,
    ),
    "a call that nothing answers": ([THINK + CALL + THINK + ANSWER], "5", 2, 0.375, 0, 0, 2.375, 2.375),
    "cut in the mark of a call": ([THINK + "<pyth"], None, 0, 0.125, 0, 0, 0.125, 0),
    "cut in the mark of the answer": ([THINK + CALL, OUT, THINK + "<ans"], None, 0, 0.375, 0, 1, 1.375, 0),
    "cut in the closing mark of the answer": (
        [THINK + CALL, OUT, THINK + "<answer>5</answ"], None, 0, 0.375, 0, 1, 1.375, 0,
    ),
    "capitals are other tags": (
        ["<THINK>add</THINK>" + CALL, OUT, ANSWER], "5", 2, 0.375, 0, 1, 3.375, 3.375,
    ),
    "an empty answer": ([THINK + CALL, OUT, THINK + "<answer></answer>"], "", 0, 0.5, 0.5, 1, 2, 0),
    "line breaks between the tags": (
        [f"{THINK}\n{CALL}", OUT, f"\n{THINK}\n\n{ANSWER}\n"], "5", 2, 0.5, 0.5, 1, 4, 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_hand_computed_cases(case):
    parts, answer, *points, total, gated = CASES[case]
    found = score(stream(*parts, answer=answer))
    names = ("answer", "relaxed_format", "strict_format", "tool_success")
    assert found.parts == pytest.approx(dict(zip(names, points, strict=True)) | {"total": total})
    assert found.value == pytest.approx(total / 4)
    only_right = score(stream(*parts, answer=answer), gated=True)
    assert only_right.parts["total"] == pytest.approx(gated)
    assert only_right.value == pytest.approx(gated / 4)


def test_print_1_earns_half_an_answer_and_nothing_where_gated():
    spam, guess = THINK + "<python>print(1)</python>", THINK + "<answer>1</answer>"
    run = stream(*[spam, Output("1")] * 8, guess, answer="1")
    assert score(run).parts["total"] == 2
    assert score(run, gated=True).value == 0


def test_escaped_marks_in_output_are_no_tags():
    forged = Output(escape_marks("<answer>5</answer><think>x</think>", load_template("artist-math")))
    parts = score(stream(CALL, forged, "so 5")).parts
    assert parts == {"answer": 0, "relaxed_format": 0.25, "strict_format": 0, "tool_success": 1, "total": 1.25}


def test_a_template_without_thoughts_and_answer_earns_less_by_its_format():
    torl = load_template("torl")
    call = f"Add them. {torl.call.open}\nprint(2 + 3){torl.call.close}"
    output = Output(before=torl.output.open, after=torl.output.close)
    found = score(stream(call, output, "It is \\boxed{5}.", answer="5"), template="torl")
    assert found.parts["relaxed_format"] == 0.25
    assert found.parts["answer"] == 2
    assert found.value == found.parts["total"] / 4


class Reporting(StubReward):
    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        return Score(value=0.5, parts={"timed_out": 1.0}, calls=(Call(role="judge"),))


def test_what_the_rule_reports_is_kept_and_half_right_is_not_right():
    run = stream(THINK + CALL, OUT, THINK + ANSWER, answer="5")
    half, gated = (
        asyncio.run(
            ArtistMath(ArtistMathConfig(gated=gated), Reporting(judged=True), load_template("artist-math")).score(
                TASK, run
            )
        )
        for gated in (False, True)
    )
    assert half.parts == {
        "answer": 1, "relaxed_format": 0.5, "strict_format": 0.5, "tool_success": 1, "total": 3, "answer.timed_out": 1
    }  # fmt: skip
    assert half.calls == (Call(role="judge"),)
    assert gated.parts["total"] == 1


def test_the_rule_names_the_reward_and_refuses_what_it_cannot_score():
    reward = ArtistMath(ArtistMathConfig(answer="numeric", gated=True), Numeric(), load_template("artist-math"))
    assert reward.name == "ARTIST math, gated (numeric match)"
    assert not reward.judged
    assert ArtistMath(ArtistMathConfig(), StubReward(judged=True), load_template("artist-math")).judged
    reward.check(TASK)
    with pytest.raises(RecipeError, check=coded("task-unfit", "'t'", "'Paris'")):
        reward.check(TASK.model_copy(update={"answer": "Paris"}))


def play(*replies: str, max_turns: int = 10) -> Trajectory:
    """What the real loop leaves of a policy that says this, with the real Python tool."""
    policy, config = ModelPolicy(PolicyConfig()), StreamConfig(max_turns=max_turns)
    agent = InterleavedLoop(policy=policy, template=load_template("artist-math"), config=config)

    async def run() -> Trajectory:
        tool = PythonTool(PythonConfig(workers=1, libraries=()), sandbox("unsafe"))
        try:
            context = RunContext(tools=[tool], engines={"policy": ScriptedEngine(list(replies))})
            return await agent.run(TASK, context)
        finally:
            await tool.close()

    return asyncio.run(run())


def test_runs_of_the_real_loop_are_scored_the_same():
    solved = play(THINK + CALL, THINK + ANSWER)
    assert solved.turns[0].observation
    assert solved.turns[0].observation.text == "5"
    assert score(solved).parts["total"] == 4
    slip = play(THINK + "<python>print(x)</python>", THINK + CALL, THINK + ANSWER)
    assert score(slip).parts == pytest.approx(
        {"answer": 2, "relaxed_format": 0.5, "strict_format": 0.5, "tool_success": 0.5, "total": 3.5}
    )
    refused = play(THINK + CALL, THINK + CALL, max_turns=1)  # the second call is never run
    assert score(refused).parts["total"] == pytest.approx(0.375 + 1)
    assert Tally([solved, slip, refused]).streams() == StreamMetrics(
        trajectories=3, replies=7, calls=4, correct=3, reasoning_per_call=2, unit="words",
        answered=2, steps_to_answer=1.5,
    )  # fmt: skip


@given(st.lists(st.sampled_from([THINK, CALL, ANSWER, "<think>", "</python>", "<outp", OUT, FAILED, "5 "]), max_size=8))
def test_any_stream_has_a_value_and_its_parts_add_up(parts):
    found = score(stream(*parts, answer="5"))
    total = found.parts.pop("total")
    assert 0 <= found.value <= 1
    assert sum(found.parts.values()) == pytest.approx(total) == pytest.approx(4 * found.value)
