"""Which evaluations belong together, and their tables."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from midstream.core.metrics import EvaluationResult
from midstream.core.terminal import Terminal
from midstream.report import evaluation as module
from midstream.report.draw import chosen, draw
from midstream.report.evaluation import all_evaluations, evaluation_page, summary_line
from support.evaluations import evaluated
from support.fake_run import evaluation, evaluations
from support.pages import found, keys, made, rows


def test_before_is_the_first_evaluated_step_and_after_the_last():
    [kinds] = module.by_set(evaluations(300)).values()
    assert [(kind, [[result.step for result in side] for side in module.ends(kinds[kind])]) for kind in kinds] == [
        ("sampled", [[0], [300]]),
        ("greedy", [[0], [300]]),
    ]


def test_one_evaluation_has_no_after():
    kind, before, after = module.headline([evaluation(0.0, 0)])
    assert (kind, len(before), after) == ("greedy", 1, [])


def test_results_without_a_step_are_of_no_point_of_the_run():
    assert module.by_set([evaluation(0.0, None, policy="random")]) == {}
    assert module.headline([]) == ("", [], [])


def test_success_is_averaged_over_seeds():
    seeds = [evaluation(0.0, 0).model_copy(update={"success": value}) for value in (0.2, 0.4)]
    assert abs((module.success(seeds) or 0) - 0.3) < 1e-12
    assert module.success([]) is None
    assert module.success(seeds, "no such family") is None


def shown(renderable, width: int = 80) -> str:
    console = Terminal(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def view(results):
    return draw(chosen(evaluation_page(results)[1], "results", "notes"))


def result(name: str = "bamboogle", **changes) -> EvaluationResult:
    known = {"tasks": 125, "success": 0.412, "interval": (0.33, 0.499), "metric": "exact match", "cost_usd": 12.34}
    use = evaluation(1.0, None).tool_use.model_copy(update={"calls": {"web_search": 310, "python": 42}})
    made = evaluation(1.0, None, "T=0.7").model_copy(update={"set_name": name, "by_family": {}, "tool_use": use})
    return made.model_copy(update={**known, **changes})


JUDGED = {"judged": True, "metric": "judge (gpt-4o)", "success": 0.52, "rule_success": 0.412, "disagreements": 27}
TRIALS = {
    "trials": 3, "pass_at": {1: 0.41, 2: 0.5, 3: 0.55}, "pass_all": {1: 0.41, 2: 0.3, 3: 0.25}, "majority": 0.44,
    "deviation": 0.031,
}  # fmt: skip


def row(text: str, name: str, table: int = 0) -> list[str]:
    """The cells of a set's line in one of the tables."""
    return [line for line in text.splitlines() if line.strip().startswith(name)][table].split()


def test_success_stands_with_its_interval_and_without_what_crashed():
    why = {"model answered 503: \x1bbusy": 2}
    text = shown(view([result(errors=3, success_without_errors=0.422, error_reasons=why)]))
    assert row(text, "bamboogle") == ["bamboogle", "125", "41.2%", "33.0–49.9", "3", "42.2%"]
    assert "3 of 125 tasks without a result, counted as wrong (42.2% without them)" in " ".join(text.split())
    assert "2 x model answered 503: \\x1bbusy" in text
    assert "by judge" not in text
    assert "$12.34" in text
    assert row(text, "bamboogle", 2) == ["bamboogle", "web_search", "310", *row(text, "bamboogle", 2)[3:]]


def test_judged_and_rule_based_numbers_share_no_column():
    text = shown(view([result(), result("gaia", **JUDGED)]))
    head = next(line for line in text.splitlines() if "by rule" in line and "by judge" in line)
    rule_end, judge_end = head.index("by rule") + len("by rule"), head.index("by judge") + len("by judge")
    lines = {
        name: next(line for line in text.splitlines() if line.strip().startswith(name)) for name in ("bam", "gaia")
    }
    assert lines["bam"][:rule_end].split()[-2:] == ["41.2%", "33.0–49.9"]
    assert lines["bam"][:judge_end].split()[-1] == "-"
    assert lines["gaia"][:rule_end].split()[-1] == "41.2%", "the rule's word on the same answers"
    assert lines["gaia"][:judge_end].split()[-2:] == ["52.0%", "33.0–49.9"]
    assert row(text, "gaia")[5] == "27"
    assert "exact match (bamboogle); judge (gpt-4o) (gaia)" in text
    runs = shown(draw(all_evaluations([result(), result("gaia", **JUDGED)])), 120)
    assert "by judge" in runs


def test_several_trials_have_a_table_of_their_own():
    text = shown(view([result(**TRIALS)]))
    assert row(text, "bamboogle")[:4] == ["bamboogle", "125", "x", "3"]
    means = ["bamboogle", "3", "41.2%", "3.1%", "44.0%"]
    assert row(text, "bamboogle", 1) == [*means, "@2", "50.0%", "^2", "30.0%"]
    assert row(text, "@3") == ["@3", "55.0%", "^3", "25.0%"]
    many = " ".join(shown(view([result(trials=64, pass_at={2**n: 0.5 for n in range(7)})])).split())
    assert [many.count(f"@{2**n} 50.0%") for n in range(7)] == [0, 1, 1, 1, 1, 1, 1], "none is cut, none is twice"
    assert "avg@k" not in shown(view([result()]))


def test_families_are_shown_where_there_are_several():
    text = shown(view([evaluation(1.0, 300)]))
    line = next(line for line in text.splitlines() if "chain of three" in line)
    assert line.split()[-3:] == ["80", "61.0%", "2.40"]


@pytest.mark.parametrize("width", [80, 60])
def test_everything_at_once_fits_the_terminal_and_cuts_no_number(width):
    everything = {**JUDGED, **TRIALS, "errors": 12, "tasks": 4326, "prompt_tokens": 10**9, "leaks": 7}
    sets = [result("2wikimultihopqa", **everything), result("a" * 60, **TRIALS, sampling="greedy")]
    text = shown(view(sets), width)
    assert max(map(len, text.splitlines())) <= width
    if width == 80:
        assert "…" not in text
        for number in ("4,326", "x 3", "52.0%", "41.2%", "27", "12", "1,000,000,000", "$24.68", "44.0%", "55.0%"):
            assert number in text, number


@given(st.text(max_size=30))
def test_no_name_steers_the_terminal_or_is_read_as_markup(name):
    text = shown(view([result(name, metric=name, sampling=name)]))
    assert "\x1b" not in text
    assert max(map(cell_len, text.split("\n"))) <= 80
    if "[/red]" in name:
        assert "[/red]" in text


def test_a_line_for_logs_says_all_of_the_headline():
    line = summary_line(result(errors=3, success_without_errors=0.422, **TRIALS))
    assert line == (
        "bamboogle T=0.7: success 41.2% (95% interval 33.0 to 49.9) of 125 tasks x 3 trials, "
        "3 of 375 runs without a result, counted as wrong (42.2% without them)"
    )
    assert "judge (gpt-4o)" in summary_line(result(**JUDGED))


def test_the_tools_that_are_called_least_share_one_cell():
    use = result().tool_use.model_copy(
        update={"calls": {f"tool{n:02}": 100 - n for n in range(20)}, "share": {f"tool{n:02}": 0.05 for n in range(20)}}
    )
    text = shown(view([result(tool_use=use)]), width=2000)
    assert "tool15 85 (5%)" in text
    assert "tool16" not in text
    assert "and 4 others" in text


def test_an_evaluation_s_page_has_its_numbers():
    half = {f"t{place}": [float(place % 2)] for place in range(40)}
    result, _ = evaluated({**half, "t40": [None]}, tools=("search",))
    page = made(evaluation_page([result]))
    assert keys(page) == ["summary", "results", "notes"]
    (tiles,) = found(page, "tiles")
    assert {tile["name"]: tile["value"] for tile in tiles["tiles"]} == {
        "Success, held-out": "48.8%",
        "Without a result": "1",
    }
    success = found(page, "table", "Success")[0]
    assert rows(success)[0][0] == "held-out"
    assert [column["align"] for column in success["columns"]][:2] == ["left", "right"]
    assert any(
        name == "errors" and "1 of 41 tasks without a result" in value
        for name, value in found(page, "facts")[0]["facts"]
    )
    assert page["lead"].startswith("held-out T=1: success 48.8%")


def test_without_results_an_evaluation_has_a_page_too():
    page = made(evaluation_page([]))
    assert keys(page) == ["results"]
    assert page["lead"] == "No set has been evaluated yet."
