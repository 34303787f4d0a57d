"""The page of a training run: its numbers, tables and curves."""

from __future__ import annotations

import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.core.metrics import EvaluationResult, StepMetrics, StreamMetrics
from midstream.core.terminal import Terminal
from midstream.report import blocks
from midstream.report.evaluation_tables import evaluation_view
from midstream.report.tables import run_summary
from midstream.report.training_page import lead, parts, schedules, streams, training_page
from support.fake_run import evaluation, evaluations, metrics, timings
from support.pages import found, keys, made, rows, texts
from support.streams import MATH_PARTS


def page(steps=None, results=None, times=None):
    steps, results = metrics() if steps is None else steps, evaluations() if results is None else results
    return made(training_page(steps, timings() if times is None else times, results))


def line_of(value, title, place=0):
    (chart,) = found(value, "chart", title)
    return chart["lines"][place]["points"]


def test_the_page_has_the_numbers_of_the_run():
    whole = page()
    assert keys(whole) == ["summary", "results", "curves", "tools", "update", "counts"]
    (tiles,) = found(whole, "tiles")
    greedy = next(tile for tile in tiles["tiles"] if tile["name"] == "Success, greedy")
    assert (greedy["before"], greedy["value"]) == ("32.6%", "70.6%")
    (table,) = found(whole, "table", "Success on worlds/test")
    assert [column["name"] for column in table["columns"]][:4] == [
        "Family", "Greedy: before", "Greedy: after", "Greedy: points",
    ]  # fmt: skip
    assert rows(table)[-1][:4] == ["All tasks", "32.6%", "70.6%", "+38.0"]
    assert [row["total"] for row in table["rows"]] == [False] * 5 + [True]
    counted = next(cells for cells in rows(table) if cells[0] == "count matching")
    assert counted[3] == "−2.0"
    assert [cell["tone"] for cell in table["rows"][4]["cells"] if isinstance(cell, dict)] == ["down", "down"]


def test_every_chart_says_in_words_what_it_shows():
    charts = found(page(), "chart")
    assert len(charts) == 16
    assert all(chart["summary"] for chart in charts)
    (held_out,) = found(page(), "chart", "Held-out success")
    assert held_out["summary"] == "greedy: 32.6% at step 0, 70.6% at step 300"
    assert held_out["lines"][0]["points"][0] == [0, pytest.approx(0.326, abs=1e-3)]


def test_bands_of_tools_add_up_and_malformed_has_its_color():
    (chart,) = found(page(), "chart", "Tools chosen")
    assert chart["stacked"]
    assert [band["name"] for band in chart["lines"]][-1] == "malformed"
    assert chart["lines"][-1]["color"] == blocks.BAD
    assert blocks.BAD not in [band["color"] for band in chart["lines"][:-1]]
    for place in range(len(chart["lines"][0]["points"])):
        assert sum(band["points"][place][1] for band in chart["lines"]) == pytest.approx(1)


NAN = [
    step.model_copy(update={"trajectories_error": 64, "reward_mean": math.nan, "kl": math.inf}) for step in metrics(5)
]


@pytest.mark.parametrize(
    ("steps", "results", "times"),
    [
        ([], [], []),
        ([], None, []),
        (None, [], None),
        (metrics(1), None, None),
        (None, [evaluation(0.0, 0)], None),
        (None, [evaluation(0.0, 0, "T=1"), evaluation(1.0, 10, "T=1")], None),
        (None, [evaluation(0.5, None)], None),
        (NAN, None, None),
    ],
)
def test_whatever_is_missing_the_page_is_whole(steps, results, times):
    shown = texts(page(steps, results, times)).split()
    assert not {"nan", "inf", "None"} & set(shown)


def test_steps_that_lost_every_run_do_not_pull_the_reward_curve_down():
    broken = [step.model_copy(update={"trajectories_error": 64, "reward_mean": 0.0}) for step in metrics(5)]
    whole = page(broken)
    (reward,) = found(whole, "chart", "Training reward")
    assert reward["lines"] == []
    (counts,) = found(whole, "table", "Sums over all steps")
    assert rows(counts)[1][:2] == ["Trajectories lost to errors", "320"]
    assert "320 of 320 training runs were lost" in whole["lead"]


def test_a_long_run_s_reward_is_drawn_raw_and_smooth():
    (reward,) = found(page(), "chart", "Training reward")
    raw, smooth = reward["lines"]
    assert (raw["faint"], smooth["faint"]) == (True, False)
    assert len(raw["points"]) == len(smooth["points"]) == 300
    assert reward["note"] == "bold: mean of 15 steps"


def test_sets_evaluated_at_the_ends_alone_stay_out_of_the_curve():
    ends = [evaluation(share, step).model_copy(update={"set_name": "longer"}) for share, step in ((0.0, 0), (1.0, 300))]
    whole = page(results=[*evaluations(), *ends])
    (held_out,) = found(whole, "chart", "Held-out success")
    assert [line["name"] for line in held_out["lines"]] == ["greedy"]
    assert len(found(whole, "table", "Success on ")) == 2
    (held_out,) = found(page(results=[*ends, evaluation(0.0, 0), evaluation(1.0, 300)]), "chart", "Held-out success")
    assert [line["name"] for line in held_out["lines"]] == ["longer greedy", "worlds greedy"]


def test_the_lead_says_up_down_or_unknown():
    up = lead(metrics(), evaluations())
    assert "now solves 70.6% of 400 held-out tasks (worlds/test), up from 32.6% before" in up
    assert "6 of 19,200 training runs were lost" in up
    assert ", down from 70.6%" in lead(metrics(), [evaluation(1.0, 0), evaluation(0.0, 10)])
    assert "as 70.6% before" in lead(metrics(), [evaluation(1.0, 0), evaluation(1.0, 10)])
    assert "not known" in lead(metrics(), [])
    assert lead([], []).startswith("No training step has finished yet.")


def test_missing_results_stand_below_the_table_as_a_warning():
    whole = page(results=[evaluation(0.0, 0), evaluation(1.0, 9, errors=12)])
    (warning,) = [block["text"] for block in found(whole, "text") if block["tone"] == "warning"]
    assert "12 of 400 tasks without a result, counted as wrong (73.6% without them)" in warning


def test_shared_tokens_are_drawn_and_warnings_shown():
    steps = [one.model_copy(update={"warnings": ("the rows part in '<b>Memory</b>'",)}) for one in metrics(1)]
    steps += metrics(3)[1:]
    whole = page(steps)
    assert [y for _, y in line_of(whole, "Tokens for each unique one")] == [4.5, 4.5, 4.5]
    assert "Step 1: the rows part in '<b>Memory</b>'" in texts(whole)
    uncounted = [one.model_copy(update={"unique_tokens": 0}) for one in steps]
    (chart,) = found(page(uncounted), "chart", "Tokens for each unique one")
    assert chart["lines"] == []


def test_failed_requests_are_counted():
    steps = [one.model_copy(update={"request_failures": 1_500, "replies_repaired": 2}) for one in metrics(2)]
    (counts,) = found(page(steps), "table", "Sums over all steps")
    counted = {cells[0]: cells[1] for cells in rows(counts)}
    assert (counted["Request failures"], counted["Replies repaired"]) == ("3,000", "4")


@settings(deadline=None)
@given(st.text(st.characters(codec=None), max_size=30))
def test_any_text_is_kept_as_it_is(text):
    whole = page(metrics(2), [evaluation(0.5, 3, policy=text).model_copy(update={"set_name": text})])
    assert text in json.loads(json.dumps(found(whole, "table", "Every")[0]["rows"][0]["cells"]))


MEASURED = StreamMetrics(
    trajectories=64, replies=190, calls=128, correct=96, reasoning_per_call=41.5, answered=48, steps_to_answer=1.75
)


def steps(**changes) -> list[StepMetrics]:
    return [one.model_copy(update={"streams": MEASURED, "reward_parts": MATH_PARTS} | changes) for one in metrics(3)]


def evaluated(**changes) -> EvaluationResult:
    return evaluation(1.0, 300).model_copy(update={"streams": MEASURED, "reward_parts": MATH_PARTS} | changes)


def shown(renderable) -> str:
    console = Terminal(file=io.StringIO(), width=80)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_curves_of_streams_have_their_values():
    value = list(streams(steps()))
    last = {chart["title"]: chart["lines"][0]["points"][-1][1] for chart in found(value, "chart")}
    assert last == {
        "Reasoning a call 41.5": 41.5,
        "Calls a run 2": 2.0,
        "Correct calls 75.0%": 0.75,
        "Calls to the answer 1.75": 1.75,
        "Runs that answer 75.0%": 0.75,
    }


def test_what_was_never_measured_has_no_line():
    early = steps(streams=MEASURED.model_copy(update={"reasoning_per_call": None, "steps_to_answer": None}))
    assert [len(chart["lines"]) for chart in found(list(streams(early)), "chart")] == [0, 1, 1, 0, 1]


def test_every_part_of_a_reward_of_several_has_its_curve():
    titles = [chart["title"] for chart in found(parts(steps()), "chart")]
    assert {"answer 2", "relaxed format 0.5", "tool success 1", "total 4"} <= set(titles)
    assert parts(steps(reward_parts={"exact_match": 0.5})) is None


def test_runs_of_other_agents_show_none_of_it():
    assert (streams(metrics(3)), parts(metrics(3))) == ([], None)
    text = shown(evaluation_view([evaluation(1.0, 300)]))
    assert "Calls of the policy" not in text
    assert "Parts of the score" not in text


def test_an_evaluation_says_how_its_policy_called_and_what_its_score_is_made_of():
    text = shown(evaluation_view([evaluated()]))
    assert "Calls of the policy (reasoning in tokens)" in text
    assert ["worlds", "2.00", "75.0%", "41.5", "1.75", "75.0%"] in [line.split() for line in text.splitlines()]
    assert ["relaxed_format", "0.5"] in [line.split() for line in text.splitlines()]
    assert "Parts of the score" not in shown(evaluation_view([evaluated(judged=True, metric="judge (m)")]))


def test_a_run_s_summary_has_its_calls_and_parts():
    text = " ".join(shown(run_summary("r", "artist", 3, steps(), [])).split())
    assert "calls 2.00 calls a run, 75.0% of them with a result" in text
    assert "its parts answer 2, relaxed format 0.5" in text


def test_a_stage_is_a_number_and_a_schedule_of_a_tool_a_probability():
    staged = steps(schedules={"tasks.stages": 3.0, "tools.search.fails": 0.25})
    assert [chart["title"] for chart in found(schedules(staged), "chart")] == [
        "tasks.stages 3",
        "tools.search.fails 25.0%",
    ]
    assert schedules(steps()) is None
    assert "stage 3 " in " ".join(shown(run_summary("r", "deep", 3, staged, [])).split())
