import io
import re

import pytest
from rich.console import Console

from midstream.core.metrics import StepMetrics
from midstream.core.progress import NoProgress, ProgressDisplay
from midstream.report.progress import PlainProgress, TerminalProgress, make_progress
from support.fake_run import evaluation, metrics, timings

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def terminal(width: int = 100) -> Console:
    # A dumb terminal cannot draw, so the kind is fixed here.
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=40, _environ={"TERM": "xterm-256color"})


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=60)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drive(display: ProgressDisplay, steps: int = 20) -> None:
    display.start("recipes/worlds.toml", steps, 1, "runs/a")
    for done in ("1/450", "2/450", "450/450"):
        display.phase(f"warm start {done}")
    display.evaluation(evaluation(0.0, 0))
    for record, timing in zip(metrics(steps), timings(steps), strict=True):
        display.step(record, timing)
    display.note("3 samples were left out: [bold]too_long[/bold]")
    display.evaluation(evaluation(1.0, steps))
    display.finish()


def test_the_display_suits_the_console():
    assert isinstance(make_progress(terminal()), TerminalProgress)
    assert isinstance(make_progress(pipe()), PlainProgress)


def test_plain_lines_are_few_and_never_wrapped():
    console = pipe()
    with make_progress(console) as display:
        drive(display)
    lines = written(console).splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("step")] == ["step 10/20", "step 20/20"]
    assert sum(line.startswith("warm start") for line in lines) == 1
    assert "evaluation step 20: worlds/test greedy (trained): success 70.6% of 400 tasks" in lines
    assert "warning: 3 samples were left out: [bold]too_long[/bold]" in lines
    assert len(lines) == 8
    assert "\x1b" not in written(console)


def test_plain_lines_are_ascii():
    console = pipe()
    with make_progress(console) as display:
        drive(display)
    assert written(console).isascii()


def test_quiet_shows_warnings_alone():
    console = terminal()
    with make_progress(console, quiet=True) as display:
        drive(display)
    assert written(console).count("\n") == 1
    assert "3 samples were left out" in written(console)


def test_silent_display_accepts_everything():
    display: ProgressDisplay = NoProgress()
    with display as inside:
        drive(inside)


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_holds_every_number_within_the_width(width):
    console = terminal(width)
    with make_progress(console) as display:
        drive(display)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(console)).replace("\r", "\n")
    panel = text[text.rindex("╭") :]
    assert max(map(len, text.splitlines())) <= width
    for expected in (
        "step 20/20",
        "100%",
        "70.6% at step 20",
        "best 70.6%",
        "6,857 tokens/s",
        "4.5 tokens for each unique one",
        "local_search 55%",
        "finished",
    ):
        assert expected in panel, expected
    assert any(block in panel for block in "▂▃▄▅▆▇")


def test_best_is_kept_when_the_newest_is_worse():
    console = terminal()
    with make_progress(console) as display:
        display.start("r", 10, 1, "run")
        display.evaluation(evaluation(1.0, 5))
        display.evaluation(evaluation(1.0, 5, "T=1"))
        display.evaluation(evaluation(0.5, 10))
    panel = written(console)
    assert re.search(r"66\.\d%.* at step 10 +best 70\.6% at step 5", panel)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_restores_the_terminal_and_is_not_swallowed(error):
    console = terminal()

    def fail() -> None:
        with make_progress(console) as display:
            display.start("r", 10, 1, "run")
            raise error

    with pytest.raises(error):
        fail()
    assert written(console).rindex(SHOW_CURSOR) > written(console).rindex(HIDE_CURSOR)
    assert ("interrupted" if error is KeyboardInterrupt else "stopped by an error") in written(console)


def test_a_resumed_run_starts_where_it_stopped_and_hostile_text_does_nothing():
    console = terminal()
    with make_progress(console) as display:
        display.start("r", 100, 51, "run")
        display.phase("evil \x1b]0;title\x07 [red]")
    assert "step 50/100" in written(console)
    assert "\x1b]0;" not in written(console)
    assert "[red]" in written(console)


def test_before_the_steps_begin_the_panel_shows_phase_and_first_evaluation():
    console = terminal()
    with make_progress(console) as display:
        display.phase("warm start 120/450")
        display.evaluation(evaluation(0.0, 0))
    assert "warm start 120/450" in written(console)
    assert "32.6% at step 0" in written(console)
    assert "0/0" not in written(console)


def test_best_is_of_the_same_set():
    console = terminal()
    with make_progress(console) as display:
        display.start("r", 10, 1, "run")
        display.evaluation(evaluation(1.0, 5).model_copy(update={"set_name": "easy"}))
        display.evaluation(evaluation(0.5, 10))
    assert re.search(r"66\.\d%.* at step 10 +best 66\.\d% at step 10.*worlds", written(console))


def failing(step: int, **counts: int) -> StepMetrics:
    return metrics(step)[-1].model_copy(update={"trajectories_error": 0, **counts})


def test_what_went_wrong_is_counted_since_the_last_line():
    console = pipe()
    with make_progress(console) as display:
        display.start("r", 20, 1, "run")
        for step in range(1, 21):
            trouble = {"request_failures": 2, "replies_repaired": 1, "trajectories_error": 1} if step in (3, 7) else {}
            display.step(failing(step, **trouble), timings(1)[0])
    first, second = (line for line in written(console).splitlines() if line.startswith("step"))
    assert first.endswith("2 trajectories lost to errors, 4 request failures, 2 replies repaired")
    assert "lost" not in second
    assert "request" not in second


def test_an_evaluation_names_its_failed_requests():
    console = pipe()
    with make_progress(console) as display:
        display.evaluation(evaluation(1.0, 5).model_copy(update={"request_failures": 1}))
    assert written(console).strip().endswith("of 400 tasks, 1 request failure")


def test_the_panel_sums_up_what_went_wrong():
    console = terminal()
    with make_progress(console) as display:
        display.start("r", 10, 1, "run")
        display.step(failing(1, request_failures=2, trajectories_error=1), timings(1)[0])
        display.step(failing(2, request_failures=3, replies_repaired=1), timings(1)[0])
        display.evaluation(evaluation(1.0, 2).model_copy(update={"request_failures": 4}))
    text = "1 trajectory lost, left out of training, 9 request failures, 1 reply repaired"
    assert text in written(console)
