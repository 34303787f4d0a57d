"""Curves and tables of what interleaved policies do with their tools."""

import io

from rich.console import Console

from midstream.core.metrics import EvaluationResult, StepMetrics
from midstream.core.stream_metrics import StreamMetrics
from midstream.core.stream_template import load_template
from midstream.report.evaluation_tables import evaluation_view
from midstream.report.tables import run_summary
from midstream.report.training_page import part_charts, render_report, stream_charts
from support.fake_run import evaluation, metrics, report_data
from support.streams import MATH_PARTS, math_stream

MEASURED = StreamMetrics(
    trajectories=64, replies=190, calls=128, correct=96, reasoning_per_call=41.5, answered=48, steps_to_answer=1.75
)


def steps(**changes) -> list[StepMetrics]:
    return [one.model_copy(update={"streams": MEASURED, "reward_parts": MATH_PARTS} | changes) for one in metrics(3)]


def evaluated(**changes) -> EvaluationResult:
    return evaluation(1.0, 300).model_copy(update={"streams": MEASURED, "reward_parts": MATH_PARTS} | changes)


def shown(renderable) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_curves_end_with_their_last_value():
    html = stream_charts(steps())
    for title in ("Reasoning a call 41.5", "Calls a run 2", "Correct calls 75.0%", "Calls to the answer 1.75"):
        assert title in html, title
    assert "Runs that answer 75.0%" in html
    assert "tokens around the call" in html


def test_what_was_never_measured_has_no_curve_through_zero():
    early = steps(streams=MEASURED.model_copy(update={"reasoning_per_call": None, "steps_to_answer": None}))
    assert "<b>Reasoning a call</b>" in stream_charts(early), "no last value"
    assert stream_charts(early).count("<polyline") == 3


def test_every_part_of_a_reward_of_several_has_its_curve():
    html = part_charts(steps())
    assert [f"<b>{name}" in html for name in ("answer 2", "relaxed format 0.5", "tool success 1", "total 4")] == [
        True
    ] * 4
    assert part_charts(steps(reward_parts={"exact_match": 0.5})) == ""


def test_runs_of_other_agents_show_none_of_it():
    assert stream_charts(metrics(3)) == part_charts(metrics(3)) == ""
    page = render_report(report_data())
    assert "Calls of the policy" not in page
    assert "Parts of the reward" not in page
    text = shown(evaluation_view([evaluation(1.0, 300)]))
    assert "Calls of the policy" not in text
    assert "Parts of the score" not in text


def test_the_page_has_curves_parts_and_streams():
    page = render_report(
        report_data(metrics=steps(), samples=[("after", math_stream())], template=load_template("artist-math"))
    )
    for part in ("Calls of the policy", "Parts of the reward", "◂ output"):
        assert part in page, part


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
