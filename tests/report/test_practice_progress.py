"""What is seen while an agent practises."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from midstream.practice.progress import NoPracticeDisplay, PracticeDisplay
from midstream.practice.settings import BudgetConfig
from midstream.report.practice_progress import LivePractice, PlainPractice, make_practice_progress
from support.evaluations import evaluated
from support.practice_runs import made_up

UPDATES = made_up(4).updates


def terminal(width: int = 100) -> Console:
    # A dumb terminal cannot draw, so the kind is fixed here.
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=40, _environ={"TERM": "xterm-256color"})


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=60)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drive(display: PracticeDisplay, *, first: int = 1) -> None:
    display.start("training-free-math", 4, first, "runs/a", BudgetConfig(rollouts=3000, cost_usd=5))
    for record in UPDATES[: first - 1]:
        display.update(record)
    scores = {f"t{index}": [float(index < 3)] for index in range(10)}
    display.evaluation(evaluated(scores, policy="no lessons", set_name="aime", step=0)[0])
    for record in UPDATES[first - 1 :]:
        for done in range(3):
            display.phase(f"rollouts {done * 20}/50")
            display.spent(record.spent)
        display.phase("gate: whole, 48 pairs, evidence 2.1 of 4.8")
        display.update(record)
    display.note("practice.budget.updates = 4 were [bold]made[/bold]")
    scores = {f"t{index}": [float(index < 5)] for index in range(10)}
    display.evaluation(evaluated(scores, policy="with lessons", set_name="aime", step=4)[0])
    display.finish()


def last_panel(console: Console) -> str:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(console)).replace("\r", "\n")
    return text[text.rindex("╭") :]


def test_the_display_suits_the_console():
    assert isinstance(make_practice_progress(terminal()), LivePractice)
    assert isinstance(make_practice_progress(pipe()), PlainPractice)


def test_plain_lines_tell_each_update_once_and_never_wrap():
    console = pipe()
    with make_practice_progress(console) as display:
        drive(display)
    lines = written(console).splitlines()
    assert lines[0] == "training-free-math: 4 updates, run runs/a"
    assert [line.split(" | ")[0] for line in lines if line.startswith("update")] == [
        f"update {k}/4" for k in range(1, 5)
    ]
    assert sum(line.startswith("rollouts") for line in lines) == 4  # one a phase, not one a counter
    assert "evaluation aime/test T=1 (no lessons): success 30.0% of 10 tasks" in lines
    assert "warning: practice.budget.updates = 4 were [bold]made[/bold]" in lines
    third = next(line for line in lines if line.startswith("update 3/4"))
    assert (
        "3 accepted, 2 rejected, 2 refused | 4 lessons | 1,050 of 3,000 rollouts, 1.23M tokens, $0.6300 of $5.00"
        in third
    )
    assert "lost replies 1" in third
    assert written(console).isascii()


def test_a_resumed_run_does_not_tell_its_old_updates_again():
    console = pipe()
    with make_practice_progress(console) as display:
        drive(display, first=3)
    lines = written(console).splitlines()
    assert lines[0] == "training-free-math: 4 updates, resumed at update 3, run runs/a"
    assert [line.split(" | ")[0] for line in lines if line.startswith("update")] == ["update 3/4", "update 4/4"]


def test_quiet_shows_warnings_alone():
    console = terminal()
    with make_practice_progress(console, quiet=True) as display:
        drive(display)
    assert written(console).count("\n") == 1
    assert "[bold]made[/bold]" in written(console)


def test_the_silent_display_accepts_everything():
    display: PracticeDisplay = NoPracticeDisplay()
    with display as inside:
        drive(inside)


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_holds_every_number_within_the_width(width, first):
    console = terminal(width)
    with make_practice_progress(console) as display:
        drive(display, first=first)
    panel = last_panel(console)
    assert max(map(len, panel.splitlines())) <= width
    for expected in (
        *("update 4/4", "100%", f"{UPDATES[-1].mean_reward:.3f}", "runs/a", "finished"),
        "30.0% no lessons -> 50.0% with lessons",
        "1,400 of 3,000 rollouts, 1.64M tokens, $0.8400 of $5.00",
        "8 accepted, 9 rejected, 8 refused, 3 pending",
        "uniform groups 6, broken groups 2, lost replies 1, lost pairs 8",
    ):
        assert expected in panel, expected


def test_an_error_leaves_a_panel_that_says_so():
    console = terminal()

    def breaks() -> None:
        with make_practice_progress(console) as display:
            display.start("a", 2, 1, "runs/a", BudgetConfig())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        breaks()
    assert "stopped by an error" in last_panel(console)
    assert "not evaluated yet" in last_panel(console)
    assert written(console).endswith("\x1b[?25h")


def test_hostile_phases_do_not_reach_the_terminal():
    console = terminal()
    with make_practice_progress(console) as display:
        display.start("a", 2, 1, "runs/a", BudgetConfig())
        display.phase("task \x1b[2J[red]t1[/red]")
        display.finish()
        display.phase("task \x1b[2J[red]t1[/red]")
    assert "\x1b[2J" not in written(console)
    assert "[red]t1[/red]" in last_panel(console)
