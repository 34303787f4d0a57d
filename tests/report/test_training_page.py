"""The page of a training run: its numbers, charts and runs, and nothing that could do harm."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.core.errors import StorageError
from midstream.core.metrics import EvaluationResult, StepMetrics, StreamMetrics
from midstream.core.stream_template import load_template
from midstream.core.terminal import Terminal
from midstream.core.trajectory import ErrorInfo, Trajectory
from midstream.report.evaluation_tables import evaluation_view
from midstream.report.html import save_page
from midstream.report.tables import run_summary
from midstream.report.training_page import part_charts, render_report, stream_charts, summary
from support.errors import coded
from support.fake_run import broken, evaluation, evaluations, lost, metrics, report_data, solved, turn, unsolved
from support.streams import MATH_PARTS, math_stream

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "link", "br"}
NOTHING = dict(
    metrics=[], timings=[], evaluations=[], samples=[], limits="", next_steps=[], run_info={}, recipe_toml=""
)


class Page(HTMLParser):
    """Headings, text, tags and addresses of a page; fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.tags, self.links, self.headings, self.text = [], [], [], [], ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.links += [value for key, value in attrs if key in ("src", "href", "srcset", "action", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)
        if "style" not in self.open:
            self.text += data


def test_the_page_has_the_whole_story(tmp_path):
    path = tmp_path / "new" / "report.html"
    save_page(path, render_report(report_data()))
    page = Page(path.read_text(encoding="utf-8"))
    for heading in ("worlds-flow-grpo", "Results", "Training curves", "Use of tools", "Runs, turn by turn", "Limits"):
        assert heading in page.headings, heading
    for part in (
        "70.6%",
        "+38.0",
        "−2.0",
        "3f2c9ab",
        "group_size = 8",
        "lost to an error",
        "malformed action",
        "One seed.",
    ):
        assert part in page.text, part


def test_nothing_is_loaded_and_nothing_runs():
    page = Page(render_report(report_data()))
    assert all(link.startswith("#") or link == "data:," for link in page.links)
    assert not any(tag in ("script", "img", "iframe", "object") for tag, _ in page.tags)
    assert "url(" not in render_report(report_data())
    assert "@import" not in render_report(report_data())


def test_pictures_and_tables_can_be_read_without_seeing_them():
    html = render_report(report_data())
    page = Page(html)
    assert all(attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg")
    assert html.count("<table>") == html.count("<caption>")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(ids)
    assert "Mean training reward: " in html


@pytest.mark.parametrize(
    "changes",
    [
        NOTHING,
        {"metrics": [], "timings": []},
        {"evaluations": []},
        {"metrics": metrics(1)},
        {"evaluations": [evaluation(0.0, 0)]},
        {"evaluations": [evaluation(0.0, 0, "T=1"), evaluation(1.0, 10, "T=1")]},
        {"evaluations": [evaluation(0.5, None)]},
        {"samples": [("after", lost())]},
        {"samples": [("x", Trajectory(id="1", task_id="1", status="error", error=ErrorInfo(type="E", message="m")))]},
        {
            "metrics": [
                step.model_copy(update={"trajectories_error": 64, "reward_mean": float("nan"), "kl": float("nan")})
                for step in metrics(5)
            ]
        },
    ],
)
def test_whatever_is_missing_the_page_is_whole(changes):
    html = render_report(report_data(**changes))
    assert Page(html).headings[0] == "worlds-flow-grpo"
    assert not re.search(r"\b(nan|inf|None)\b", Page(html).text)


def test_steps_that_lost_every_run_do_not_pull_the_reward_curve_down():
    broken = [step.model_copy(update={"trajectories_error": 64, "reward_mean": 0.0}) for step in metrics(5)]
    whole = render_report(report_data(metrics=broken))
    assert 'lost to errors</th><td class="n">320' in whole
    assert '<b>Training reward</b> <span>mean of the sampled runs</span></figcaption><p class="empty">' in whole
    assert "320 of 320 training runs were lost" in whole


def test_sets_evaluated_at_the_ends_alone_stay_out_of_the_curve():
    ends = [evaluation(share, step).model_copy(update={"set_name": "longer"}) for share, step in ((0.0, 0), (1.0, 300))]
    html = render_report(report_data(evaluations=[*evaluations(), *ends]))
    assert 'aria-label="greedy: 32.6% at step 0, 70.6% at step 300"' in html
    assert html.count("Success on ") == 2 * 2
    html = render_report(report_data(evaluations=[*ends, evaluation(0.0, 0), evaluation(1.0, 300)]))
    assert "longer greedy: 32.6% at step 0, 70.6% at step 300; worlds greedy" in html


def test_summary_says_up_down_or_unknown():
    up = summary(report_data())
    assert "now solves 70.6% of 400 held-out tasks (worlds/test), up from 32.6% before" in up
    assert "6 of 19,200 training runs were lost" in up
    down = summary(report_data(evaluations=[evaluation(1.0, 0), evaluation(0.0, 10)]))
    assert "32.6% of 400 held-out tasks (worlds/test), down from 70.6%" in down
    same = summary(report_data(evaluations=[evaluation(1.0, 0), evaluation(1.0, 10)]))
    assert "as 70.6% before" in same
    assert "not known" in summary(report_data(evaluations=[]))
    assert summary(report_data(**NOTHING)).startswith("No training step has finished yet.")


def test_missing_results_are_noted_below_the_table():
    text = Page(render_report(report_data(evaluations=[evaluation(0.0, 0), evaluation(1.0, 9, errors=12)]))).text
    assert "12 of 400 tasks without a result, counted as wrong (73.6% without them)" in text


def test_shared_tokens_are_drawn_and_warnings_shown():
    steps = [one.model_copy(update={"warnings": ("the rows part in '<b>Memory</b>'",)}) for one in metrics(1)]
    steps += metrics(3)[1:]
    html = render_report(report_data(metrics=steps))
    assert 'aria-label="Tokens for each unique one: 4.5 at step 1, 4.5 at step 3"' in html
    assert "Warning: the rows part in '<b>Memory</b>'" in Page(html).text
    uncounted = [one.model_copy(update={"unique_tokens": 0}) for one in steps]
    assert 'aria-label="Tokens for each unique one' not in render_report(report_data(metrics=uncounted))


def test_hostile_text_stays_text():
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    run = solved().model_copy(
        update={"turns": (turn(1, evil, evil, {"q": evil}, evil),), "question": evil, "answer": evil}
    )
    data = report_data(
        title=evil, recipe_toml=evil, run_info={evil: evil}, samples=[(evil, run)], limits=evil, next_steps=[evil]
    )
    page = Page(render_report(data))
    assert not any(tag in ("script", "img") for tag, _ in page.tags)
    assert page.text.count("<script>alert(1)</script>") >= 10


@settings(deadline=None)
@given(st.text(st.characters(codec=None), max_size=30))
def test_any_text_gives_a_page_that_can_be_written(text):
    run = unsolved().model_copy(update={"answer": text, "question": text})
    evaluated = evaluation(0.5, 3, policy=text)
    html = render_report(report_data(title=text, samples=[(text, run)], evaluations=[evaluated], metrics=metrics(2)))
    html.encode("utf-8")
    Page(html)


def test_a_report_that_cannot_be_written_says_why(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, check=coded("write-failed", "report.html")):
        save_page(tmp_path / "file" / "report.html", render_report(report_data(**NOTHING)))


def browse(page: Path) -> tuple[str, list[str]]:
    """The page as a browser builds it, and every console message; no name resolves, so nothing leaves the machine."""
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --enable-logging=stderr --log-level=0"
    done = subprocess.run(
        [
            str(CHROMIUM),
            *flags.split(),
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={page.parent / 'profile'}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH")


@needs_browser
def test_a_real_browser_shows_it_without_an_error(tmp_path):
    evil = solved().model_copy(update={"answer": "<script>document.title='owned'</script>"})
    save_page(tmp_path / "report.html", render_report(report_data(samples=[("after", evil), ("before", unsolved())])))
    dom, console = browse(tmp_path / "report.html")
    assert console == []
    assert re.findall(r"<h1>(.*?)</h1>", dom) == ["worlds-flow-grpo"]
    assert dom.count("<h2") == 9
    assert "<title>worlds-flow-grpo</title>" in dom


@needs_browser
def test_the_browser_refuses_scripts_and_requests_that_got_in(tmp_path):
    html = render_report(report_data())
    smuggled = "<img src='https://example.org/x.png'><script>document.title='owned'</script>"
    (tmp_path / "report.html").write_text(html.replace("<main>", f"<main>{smuggled}"), encoding="utf-8")
    dom, console = browse(tmp_path / "report.html")
    assert sum("Content Security Policy" in line for line in console) == 2
    assert "<title>worlds-flow-grpo</title>" in dom


def test_a_broken_turn_shows_what_it_holds_and_what_broke_it():
    page = Page(render_report(report_data(samples=[("after", broken())])))
    for part in (
        'print(wikipedia(title="Oakfell"))',
        "error: no such page",
        "verifier: 429: slow down",
        "the reply of the planner was not JSON",
        "EngineError: verifier failed 2 times",
        "generator: timed out",
        "failed: ToolServerError: gone",
        "4 request failures, 1 reply repaired",
    ):
        assert part in page.text, part


def test_failed_requests_are_counted():
    steps = [one.model_copy(update={"request_failures": 1_500, "replies_repaired": 2}) for one in metrics(2)]
    text = Page(render_report(report_data(metrics=steps))).text
    assert re.search(r"Request failures\s*3,000", text)
    assert re.search(r"Replies repaired\s*4", text)


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
