import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from midstream.core.trajectory import Trajectory
from midstream.report import tables
from support.fake_run import broken, evaluation, evaluations, lost, metrics, solved, turn, unsolved


def shown(renderable, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def row(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(name)).removeprefix(f"  {name}").split()


@pytest.fixture
def sides():
    return [e for e in evaluations() if e.step == 0], [e for e in evaluations() if e.step == 300]


def test_before_after_has_a_row_a_family_and_their_mean(sides):
    text = shown(tables.before_after_table(*sides))
    assert row(text, "lookup then add") == ["80", "24.0%", "83.0%", "+59.0", "31.0%", "90.0%", "+59.0"]
    assert row(text, "mean") == ["400", "25.6%", "63.6%", "+38.0", "32.6%", "70.6%", "+38.0"]
    assert row(text, "count matching")[-1] == "-2.0"


def test_before_after_at_80_columns_cuts_nothing(sides):
    assert "…" not in shown(tables.before_after_table(*sides), 80)
    assert "…" not in shown(tables.run_summary("a", "b", 300, metrics(), evaluations()), 80)


def test_before_after_without_an_after_or_a_sampling():
    text = shown(tables.before_after_table([evaluation(0.0, 0)], []))
    assert row(text, "mean") == ["400", "32.6%", "-", "-"]
    assert "sampled" not in text
    assert "mean" in shown(tables.before_after_table([], []))


def test_tasks_without_a_result_are_named():
    text = shown(tables.before_after_table([evaluation(0.0, 0)], [evaluation(1.0, 300, errors=12)]))
    assert "12 of 400 tasks without a result, counted as wrong (73.6% without them)" in " ".join(text.split())


def test_tool_shift(sides):
    text = shown(tables.tool_shift_table(*sides))
    assert row(text, "local_search") == ["34.0%", "55.0%", "+21.0"]
    assert row(text, "tool errors") == ["24.0%", "2.0%", "-22.0"]
    assert row(text, "turns a run") == ["3.50", "2.40", "-1.10"]
    assert "tool errors" in shown(tables.tool_shift_table([], []))


def test_a_solved_trajectory_reads_turn_by_turn():
    text = shown(tables.trajectory_view(solved()))
    order = [
        "How high is",
        "turn 1",
        "find height",
        "local_search",
        "Amberbank height 105",
        "turn 2",
        "STOP",
        "answer",
        "gold",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "1  (exact_match 1)" in text


def test_malformed_actions_and_lost_runs_are_shown_as_such():
    text = shown(tables.trajectory_view(unsolved()))
    assert "malformed: no tool named in the action" in text
    assert "find height ; ;" in text
    text = shown(tables.trajectory_view(lost(), "Orla [b]Vane[/b]"))
    assert "lost to EngineError: the endpoint answered 503 three times" in text
    assert "Orla [b]Vane[/b]" in text


def test_a_broken_turn_shows_what_it_holds_and_what_broke_it():
    rows = [re.sub("  +", "  ", line.strip()) for line in shown(tables.trajectory_view(broken())).splitlines()]
    for part in (
        'code  print(wikipedia(title="Oakfell"))',
        'call  wikipedia(title="Oakfell") -> error: no such page',
        "retry 1  verifier: 429: slow down",
        "repaired  the reply of the planner was not JSON until it was repaired",
        "broken  EngineError: verifier failed 2 times",
        "retry 1  generator: timed out",
        "lost to EngineError: verifier failed 2 times",
        "run 1  failed: ToolServerError: gone",
        "requests  4 request failures, 1 reply repaired",
    ):
        assert part in rows, part


@given(st.text(st.characters(codec=None), max_size=40))
def test_no_text_is_read_as_markup_or_steers_the_terminal(evil):
    hostile = f"[bold]{evil}[/nonsense]\x1b[31m"
    one = Trajectory(
        id="1",
        task_id="1",
        question=hostile,
        turns=(turn(1, hostile, hostile, {"q": hostile}, hostile),),
        answer=hostile,
    )
    text = shown(tables.trajectory_view(one, hostile), 400)
    assert "[bold]" in text
    assert "[/nonsense]" in text
    assert "\x1b" not in text


def test_run_summary_counts_what_was_lost_and_left_out():
    text = shown(tables.run_summary("worlds-7", "worlds.toml", 300, metrics(), evaluations()))
    for part in (
        "300 of 300",
        "4.5 tokens for each unique one",
        "6 of 19,200 trajectories lost",
        "3 broken",
        "too_long 7",
        "70.6%",
    ):
        assert part in text, part


def test_failed_requests_are_counted_where_there_were_any():
    step = metrics(1)[0].model_copy(update={"request_failures": 3, "trajectories_retried": 2})
    result = evaluation(1.0, 1).model_copy(update={"request_failures": 1, "replies_repaired": 2})
    text = shown(tables.run_summary("a", "b", 1, [step], [result]))
    assert "3 request failures" in text
    assert "2 run again" in text
    assert "1 request failure, 2 replies repaired" in text
    assert "1 request failure, 2 replies repaired" in shown(tables.before_after_table([evaluation(0.0, 0)], [result]))
    calm = shown(tables.run_summary("a", "b", 1, metrics(1), [evaluation(1.0, 1)]))
    assert "request" not in calm
    assert "run again" not in calm


def test_run_summary_before_the_first_step():
    text = shown(tables.run_summary("worlds-7", "worlds.toml", 300, [], []))
    assert "0 of 300" in text
