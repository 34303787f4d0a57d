import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.metrics import EvaluationResult, StepMetrics, ToolUse
from midstream.core.terminal import Terminal
from midstream.core.trajectory import ErrorInfo, Trajectory
from midstream.evaluation.pairs import Pair, Paired, Side
from midstream.report import tables
from midstream.report.evaluation_tables import evaluation_view
from midstream.report.tables import compared_screen, effort_table, sentence
from support.fake_run import broken, evaluation, evaluations, lost, metrics, solved, turn, unsolved


def shown(renderable, width: int = 100) -> str:
    console = Terminal(file=io.StringIO(), width=width, force_terminal=False)
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
    text = shown(tables.trajectory_view(lost().model_copy(update={"gold": "Orla [b]Vane[/b]"})))
    assert "lost to EngineError: the endpoint answered 503 three times" in text
    assert "Orla [b]Vane[/b]" in text
    frame = '  File "mine.py", line 3, in agent\n    1 / 0'
    raised = f"Traceback (most recent call last):\n{frame}\nZeroDivisionError: by zero\n"
    foreign = lost().model_copy(update={"error": ErrorInfo(type="ZeroDivisionError", message=raised)})
    text = shown(tables.trajectory_view(foreign))
    assert 'lost to File "mine.py", line 3, in agent: ZeroDivisionError: by zero\n' in text
    assert "--json" in text
    assert "1 / 0" not in text


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
        gold=hostile,
    )
    text = shown(tables.trajectory_view(one), 400)
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


def test_runs_that_context_or_time_ended_are_counted_where_there_were_any():
    steps = [one.model_copy(update={"limits": {"context_limit": 3, "time_limit": 1}}) for one in metrics(2)]
    result = evaluation(1.0, 1).model_copy(update={"stop_reasons": {"context_limit": 12, "verified": 3}})
    total = sum(one.trajectories for one in steps)
    assert f"8 of {total} runs ended by a limit (context 6, time 2)" in shown(
        tables.run_summary("a", "b", 2, steps, [result])
    )
    assert "12 of 400 runs ended by a limit (context 12)" in shown(evaluation_view([result]))
    plain = metrics(1)[0]
    assert "limits" not in shown(tables.run_summary("a", "b", 1, [plain], [evaluation(1.0, 1)]))
    assert "limits" not in plain.model_dump_json()
    assert StepMetrics.model_validate_json(steps[0].model_dump_json()) == steps[0]


def test_rows_that_were_split_are_counted_where_there_were_any():
    steps = [one.model_copy(update={"rows_split": {"branch": 1, "reply changed": 4}}) for one in metrics(2)]
    assert "branch 2, reply changed 8" in shown(tables.run_summary("a", "b", 2, steps, []))
    plain = metrics(1)[0]
    assert "split" not in shown(tables.run_summary("a", "b", 1, [plain], []))
    assert "rows_split" not in plain.model_dump_json()
    assert StepMetrics.model_validate_json(steps[0].model_dump_json()) == steps[0]


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


# --- evaluations compared task by task --------------------------------------------------------------------------------

LETTERS = {"runs/a": "A", "runs/b": "B", "runs/c": "C"}


def paired(**changes) -> Paired:
    whole = {
        "first": "runs/a", "other": "runs/b", "set_name": "bamboogle", "sampling": "T=0.7", "metric": "exact match",
        "tasks": 125, "first_success": 0.4, "other_success": 0.432, "difference": 0.032, "interval": (0.011, 0.053),
        "level": 0.95, "verdict": "better", "wins": 6, "losses": 2, "ties": 117, "left_out": 0, "only_first": 0,
        "only_other": 0,
    }  # fmt: skip
    return Paired.model_validate(whole | changes)


def shown_comparison(*found: Paired, tasks: bool = False) -> str:
    console = Terminal(file=io.StringIO(), width=80)
    console.print(compared_screen(LETTERS, found, tasks=tasks))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    return text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "B is better than A by 3.2 points (95% interval 1.1 to 5.3)"),
        (
            {"difference": -0.032, "interval": (-0.053, -0.011), "verdict": "worse"},
            "B is worse than A by 3.2 points (95% interval 1.1 to 5.3)",
        ),
        (
            {"difference": 0.004, "interval": (-0.02, 0.028), "verdict": "no evidence of a difference"},
            "B and A: no evidence of a difference (+0.4 points, 95% interval -2.0 to +2.8)",
        ),
        ({"verdict": "the same"}, "B and A are the same: every turn of every task is equal"),
        ({"level": 1 - 0.05 / 3}, "B is better than A by 3.2 points (98.33% interval 1.1 to 5.3)"),
    ],
)
def test_the_verdict_in_words(changes, words):
    one = paired(**changes)
    assert sentence(LETTERS, one) == words
    assert words in " ".join(shown_comparison(one).split())


def test_one_table_a_set_and_the_first_once():
    text = shown_comparison(paired(), paired(other="runs/c"), paired(set_name="gaia"))
    assert text.count("bamboogle, T=0.7: exact match") == 1
    assert text.count("gaia, T=0.7: exact match") == 1
    assert [line.split()[0] for line in text.splitlines() if "%" in line and "." in line.split()[2]] == list("ABCAB")


def test_what_was_left_out():
    text = shown_comparison(paired(left_out=2, only_first=1, only_other=3, runs_left_out=4))
    assert "4 runs of the others left out: no result" in text
    assert "2 tasks left out: no result on one side" in text
    assert "1 task left out: only A has it" in text
    assert "3 tasks left out: only B has them" in text


def test_tasks_that_differ_with_hostile_and_endless_answers():
    sides = (Side(value=0.0, answers=("[red]x\x1b[2J", None)), Side(value=1.0, answers=("y" * 5000,)))
    pair = Pair(task_id="t1", question="why [bold]?", gold="y", first=sides[0], other=sides[1])
    text = shown_comparison(paired(differing=(pair,)), tasks=True)
    assert "B is better on t1: why [bold]?" in text
    assert "[red]x\\x1b[2J | (none)" in text
    assert len(text) < 3000
    assert "t1" not in shown_comparison(paired(differing=(pair,)))


def test_what_a_task_took_is_per_run_whatever_the_agent():
    one = EvaluationResult(
        policy="p", set_name="s", split="test", sampling="greedy", seed=0, tasks=10, trials=2, success=0.5,
        success_without_errors=0.5, errors=0, by_family={}, turns_mean=2.5, prompt_tokens=20000, completion_tokens=900,
        tool_use=ToolUse(turns=50, errors=5, error_rate=0.1, calls={"python": 30, "search": 15}),
    )  # fmt: skip
    console = Terminal(file=io.StringIO(), width=80)
    console.print(effort_table({"A": one, "B": one.model_copy(update={"cost_usd": 1.0})}, "s, greedy"))
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["A", "2.50", "2.25", "10.0%", "1,000", "45", "-"] in rows
    assert ["B", "2.50", "2.25", "10.0%", "1,000", "45", "$0.0500"] in rows
