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
from midstream.core.text import visible
from midstream.report import blocks
from midstream.report.draw import chosen, draw
from midstream.report.evaluation import evaluation_page
from midstream.report.training import lead, parts, schedules, streams, tool_shift, training_page
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
    assert keys(whole) == ["summary", "results", "evaluations", "curves", "tools", "update", "waits", "counts"]
    (tiles,) = found(whole, "tiles")
    greedy = next(tile for tile in tiles["tiles"] if tile["name"] == "Success, greedy")
    assert (greedy["before"], greedy["value"]) == ("32.6%", "70.6%")
    (table,) = found(whole, "table", "Success on worlds/test")
    assert [column["name"] for column in table["columns"]][:4] == [
        "family", "tasks", "sampled before", "sampled after",
    ]  # fmt: skip
    assert rows(table)[-1] == ["mean", "400", "25.6%", "63.6%", "+38.0", "32.6%", "70.6%", "+38.0"]
    assert [row["total"] for row in table["rows"]] == [False] * 5 + [True]
    counted = next(cells for cells in rows(table) if cells[0] == "count matching")
    assert counted[-1] == "-2.0"
    tones = [cell["tone"] for cell in table["rows"][4]["cells"] if isinstance(cell, dict)]
    assert tones == ["strong", "down", "strong", "down"]


def test_every_chart_says_in_words_what_it_shows():
    charts = found(page(), "chart")
    assert len(charts) == 12
    assert all(chart["summary"] for chart in charts)
    (held_out,) = found(page(), "chart", "Held-out success")
    assert held_out["summary"] == "greedy: 32.6% at step 0, 70.6% at step 300"
    assert held_out["lines"][0]["points"][0] == [0, pytest.approx(0.326, abs=1e-3)]


def test_what_waits_is_shown_where_it_was_measured():
    ahead = [
        step.model_copy(update={"policy_version": max(0, step.step - 3), "sampler_kl": 1e-3}) for step in metrics(6)
    ]
    times = [time.model_copy(update={"tail_s": 2.0, "busy": 0.25}) for time in timings(6)]
    whole = page(ahead, times=times)
    assert line_of(whole, "Staleness")[-1] == [6, 2.0]
    assert line_of(whole, "Slowest quarter")[-1] == [6, 2.0]
    assert line_of(whole, "Rollouts under way")[-1] == [6, 0.25]
    assert line_of(whole, "KL to the sampler")[-1] == [6, 1e-3]
    names = [chart["name"] for chart in found(page(), "chart")]
    assert not {"Staleness", "Slowest quarter", "KL to the sampler"} & {*names}


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
    assert (len(raw["points"]), len(smooth["points"])) == (300, 38)
    assert reward["note"] == "bold: mean of 8 steps"


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
    (warning,) = [block["text"] for block in found(whole, "text") if block["tone"] == "warn"]
    assert "12 of 400 tasks without a result, counted as wrong (73.6% without them)" in warning


def test_shared_tokens_are_drawn_and_warnings_shown():
    steps = [one.model_copy(update={"warnings": ("the rows part in '<b>Memory</b>'",)}) for one in metrics(1)]
    steps += metrics(3)[1:]
    whole = page(steps)
    assert [y for _, y in line_of(whole, "Tokens for each unique one")] == [4.5, 4.5, 4.5]
    assert "Step 1: the rows part in '<b>Memory</b>'" in texts(whole)
    uncounted = [one.model_copy(update={"unique_tokens": 0}) for one in steps]
    assert found(page(uncounted), "chart", "Tokens for each unique one") == []


def test_failed_requests_are_counted():
    steps = [one.model_copy(update={"request_failures": 1_500, "replies_repaired": 2}) for one in metrics(2)]
    (counts,) = found(page(steps), "table", "Sums over all steps")
    counted = {cells[0]: cells[1] for cells in rows(counts)}
    assert (counted["Request failures"], counted["Replies repaired"]) == ("3,000", "4")


@settings(deadline=None)
@given(st.text(st.characters(codec=None), max_size=30))
def test_any_text_is_kept_as_it_is(text):
    whole = page(metrics(2), [evaluation(0.5, 3, policy=text).model_copy(update={"set_name": text})])
    assert visible(text) in json.loads(json.dumps(found(whole, "table", "Success (95%")[0]["rows"][0]["cells"]))


MEASURED = StreamMetrics(
    trajectories=64, replies=190, calls=128, correct=96, reasoning_per_call=41.5, answered=48, steps_to_answer=1.75
)


def steps(**changes) -> list[StepMetrics]:
    return [one.model_copy(update={"streams": MEASURED, "reward_parts": MATH_PARTS} | changes) for one in metrics(3)]


def evaluated(**changes) -> EvaluationResult:
    return evaluation(1.0, 300).model_copy(update={"streams": MEASURED, "reward_parts": MATH_PARTS} | changes)


def shown(found) -> str:
    console = Terminal(file=io.StringIO(), width=80)
    console.print(draw(found))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_curves_of_streams_have_their_values():
    value = list(streams(steps()))
    last = {chart["title"]: chart["lines"][0]["points"][-1][1] for chart in found(value, "chart")}
    assert last == {
        "Reasoning a call 41.5": 41.5,
        "Calls to the answer 1.75": 1.75,
        "Runs that answer 75.0%": 0.75,
    }


def test_what_was_never_measured_has_no_chart():
    early = steps(streams=MEASURED.model_copy(update={"reasoning_per_call": None, "steps_to_answer": None}))
    assert [chart["name"] for chart in found(list(streams(early)), "chart")] == ["Runs that answer"]


def test_every_part_of_a_reward_of_several_has_its_curve():
    titles = [chart["title"] for chart in found(parts(steps()), "chart")]
    assert {"answer 2", "relaxed format 0.5", "tool success 1", "total 4"} <= set(titles)
    assert parts(steps(reward_parts={"exact_match": 0.5})) is None


def test_runs_of_other_agents_show_none_of_it():
    assert (streams(metrics(3)), parts(metrics(3))) == ([], None)
    text = shown(chosen(evaluation_page([evaluation(1.0, 300)])[1], "results"))
    assert "reasoning" not in text
    assert "Parts of the score" not in text


def test_an_evaluation_says_how_its_policy_called_and_what_its_score_is_made_of():
    text = shown(chosen(evaluation_page([evaluated()])[1], "results"))
    assert ["41.5", "tokens", "1.75", "75.0%"] in [line.split()[-4:] for line in text.splitlines()]
    assert "relaxed_format 0.5" in " ".join(text.split())
    assert "Parts of the score" not in shown(
        chosen(evaluation_page([evaluated(judged=True, metric="judge (m)")])[1], "results")
    )


def test_a_stage_is_a_number_and_a_schedule_of_a_tool_a_probability():
    staged = steps(schedules={"training.stages": 3.0, "tools.search.fails": 0.25})
    assert [chart["title"] for chart in found(schedules(staged), "chart")] == [
        "training.stages 3",
        "tools.search.fails 25.0%",
    ]
    assert schedules(steps()) is None


SIDES = [[result for result in evaluations() if result.step == step] for step in (0, 300)]


def test_the_use_of_tools_before_and_after():
    table = tool_shift(*SIDES)
    cells = {cells[0]: cells[1:] for cells in rows(table)}
    assert cells["local_search"] == ["34.0%", "55.0%", "+21.0"]
    assert cells["tool errors"] == ["24.0%", "2.0%", "-22.0"]
    assert cells["turns a run"] == ["3.50", "2.40", "-1.10"]
    assert [cell["tone"] for row in table["rows"] for cell in row["cells"] if isinstance(cell, dict)] == ["up"]
    assert tool_shift(SIDES[0], []) is None


def test_without_an_after_the_table_has_only_a_before():
    (table,) = found(page(results=[evaluation(0.0, 0)]), "table", "Success on")
    assert rows(table)[-1] == ["mean", "400", "32.6%", "-", "-"]


def counted_in(steps, results=()) -> dict[str, tuple[str, str]]:
    (table,) = found(page(steps, list(results)), "table", "Sums over all steps")
    return {cells[0]: (cells[1], cells[2]) for cells in rows(table)}


def test_what_was_lost_and_left_out_is_counted_and_what_did_not_happen_is_not():
    counts = counted_in(metrics(), evaluations())
    assert counts["Trajectories lost to errors"][0] == "6"
    assert counts["Groups, broken"][0] == "3"
    assert counts["Samples left out"] == ("7", "too_long")
    calm = counted_in(metrics(1), [evaluation(1.0, 1)])
    assert not any("equest" in name or "again" in name or "limit" in name or "split" in name for name in calm)


def test_runs_that_context_or_time_ended_are_counted_where_there_were_any():
    steps = [one.model_copy(update={"limits": {"context_limit": 3, "time_limit": 1}}) for one in metrics(2)]
    (table,) = found(page(steps), "table", "Sums over all steps")
    ended = [cells[1:] for cells in rows(table) if cells[0] == "Trajectories ended by a limit"]
    assert ended == [["6", "context limit"], ["2", "time limit"]]
    assert "limits" not in metrics(1)[0].model_dump_json()
    assert StepMetrics.model_validate_json(steps[0].model_dump_json()) == steps[0]
    result = evaluation(1.0, 1).model_copy(update={"stop_reasons": {"context_limit": 12, "verified": 3}})
    assert "12 of 400 runs ended by a limit (context 12)" in shown(chosen(evaluation_page([result])[1], "notes"))


def test_rows_that_were_split_are_counted_where_there_were_any():
    steps = [one.model_copy(update={"rows_split": {"branch": 1, "reply changed": 4}}) for one in metrics(2)]
    (table,) = found(page(steps), "table", "Sums over all steps")
    split = [cells[1:] for cells in rows(table) if cells[0] == "Rows split from a conversation"]
    assert split == [["2", "branch"], ["8", "reply changed"]]
    assert "rows_split" not in metrics(1)[0].model_dump_json()
