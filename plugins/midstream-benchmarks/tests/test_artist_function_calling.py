"""ARTIST's reward of function calling: hand-computed cases, every part in the paper's units."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.stream_template import Marks, load_template
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream_benchmarks.function_calling import ArtistFunctionCalling, FunctionCallingConfig
from support.marked_streams import Output, stream

TASK = Task(id="t", question="Fill the tank.", answer="")
TEMPLATE = load_template("artist-function-calling")
THINK, CALL = "<reasoning>fill it</reasoning>", '<tool>[{"name": "fill", "arguments": {"litres": 20}}]</tool>'
OUT = Output('{"fuel": 45}', before=TEMPLATE.output.open, after=TEMPLATE.output.close)
UNREADABLE = replace(OUT, text="no JSON", ok=False)
GOOD = [THINK + CALL, OUT, "Done."]


def score(run: Trajectory, *, gated: bool = False) -> Score:
    reward = ArtistFunctionCalling(FunctionCallingConfig(gated=gated), TEMPLATE)
    return asyncio.run(reward.score(TASK, run))


# The stream; each user turn's matched parts of the state, their total, matched calls, theirs; whether the dialogue
# succeeded; state (0.5), function (0.5), relaxed format (4 x 0.025), strict format (0.1), total, the same gated.
CASES = {
    "all right": (GOOD, [(2, 2, 1, 1)], True, 0.5, 0.5, 0.1, 0.1, 1.2, 1.2),
    "thoughts before the last words, too": (
        [THINK + CALL, OUT, THINK + "Done."], [(2, 2, 1, 1)], True, 0.5, 0.5, 0.1, 0.1, 1.2, 1.2,
    ),
    "the wrong call": (GOOD, [(0, 2, 0, 1)], False, 0, 0, 0.1, 0.1, 0.2, 0),
    "half of it": (GOOD, [(1, 2, 1, 2)], False, 0.25, 0.25, 0.1, 0.1, 0.7, 0.5),
    "all calls, another state": (GOOD, [(3, 4, 2, 2)], False, 0.375, 0.5, 0.1, 0.1, 1.075, 0.875),
    "two user turns": (
        [*GOOD, THINK + CALL, OUT, "Done."], [(2, 2, 1, 1), (1, 3, 0, 3)], False, 0.3, 0.125, 0.1, 0.1, 0.625, 0.425,
    ),
    "a turn that was never reached": (GOOD, [(2, 2, 1, 1), (0, 2, 0, 1)], False, 0.25, 0.25, 0.1, 0.1, 0.7, 0.5),
    "nothing was to be done": (["Which tank?"], [(0, 0, 0, 0)], True, 0.5, 0.5, 0, 0, 1, 1),
    "nothing was to be done, and something was": (GOOD, [(0, 0, 0, 0)], False, 0, 0, 0.1, 0.1, 0.2, 0),
    "no call": (["I cannot."], [(0, 2, 0, 1)], False, 0, 0, 0, 0, 0, 0),
    "thoughts alone": ([THINK + "Well."], [(0, 2, 0, 1)], False, 0, 0, 0.05, 0, 0.05, 0),
    "a call without thoughts": ([CALL, OUT, "Done."], [(2, 2, 1, 1)], True, 0.5, 0.5, 0.05, 0, 1.05, 1.05),
    "thoughts after the call": ([CALL, OUT, THINK + "Done."], [(2, 2, 1, 1)], True, 0.5, 0.5, 0.1, 0, 1.1, 1.1),
    "thoughts not closed": (
        ["<reasoning>fill it" + CALL, OUT, "Done."], [(2, 2, 1, 1)], True, 0.5, 0.5, 0.075, 0, 1.075, 1.075,
    ),
    "a call not closed": ([THINK + '<tool>[{"name": "fill"'], [(0, 2, 0, 1)], False, 0, 0, 0.075, 0, 0.075, 0),
    "a call in thoughts": (
        ["<reasoning>try " + CALL, OUT, "</reasoning>Done."], [(2, 2, 1, 1)], True, 0.5, 0.5, 0.1, 0, 1.1, 1.1,
    ),
    "closing marks alone": (["</tool></reasoning>"], [(0, 2, 0, 1)], False, 0, 0, 0.05, 0, 0.05, 0),
    "cut in a mark": (["<reasoning>fill it</reason"], [(0, 2, 0, 1)], False, 0, 0, 0.025, 0, 0.025, 0),
    "a malformed call": (
        [THINK + "<tool>fill!</tool>", UNREADABLE, "Hm."], [(0, 2, 0, 1)], False, 0, 0, 0.1, 0.1, 0.2, 0,
    ),
    "the second user turn without thoughts": (
        [*GOOD, CALL, OUT, "Done."], [(2, 2, 1, 1), (2, 2, 1, 1)], True, 0.5, 0.5, 0.1, 0, 1.1, 1.1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_hand_computed_cases(case):
    parts, matched, success, *points, total, gated = CASES[case]
    turns = [{"state": [a, b], "calls": [c, d]} for a, b, c, d in matched]
    run = stream(*parts, outcome={"success": success, "turns": turns})
    names = ("state", "function", "relaxed_format", "strict_format")
    assert score(run).parts == pytest.approx(dict(zip(names, points, strict=True)) | {"total": total})
    assert score(run).value == pytest.approx(total / 1.2)
    assert score(run, gated=True).parts["total"] == pytest.approx(gated)
    assert score(run, gated=True).value == pytest.approx(gated / 1.2)


def test_marks_with_the_names_of_tools_count_whichever_tool_they_name():
    named = TEMPLATE.model_copy(update={"call": Marks(open="<call {tool}>", close="</call {tool}>")})
    run = stream("<call fill_tank>", outcome={"success": False})
    found = asyncio.run(ArtistFunctionCalling(FunctionCallingConfig(), named).score(TASK, run))
    assert found.parts["relaxed_format"] == 0.025


def test_marks_that_only_the_environment_wrote_earn_nothing():
    run = stream("Hm.", Output(THINK + CALL), "Hm.", outcome={"success": False})
    assert score(run).parts["relaxed_format"] == 0


PAIRS = st.integers(0, 9).flatmap(lambda total: st.integers(0, total).map(lambda matched: [matched, total]))


@given(st.lists(st.fixed_dictionaries({"state": PAIRS, "calls": PAIRS}), max_size=5), st.booleans())
def test_any_outcome_has_a_value_and_its_parts_add_up(turns, success):
    found = score(stream(*GOOD, outcome={"success": success, "turns": turns}))
    total = found.parts.pop("total")
    assert 0 <= found.value <= 1
    assert sum(found.parts.values()) == pytest.approx(total) == pytest.approx(1.2 * found.value)
