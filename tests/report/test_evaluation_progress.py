import io
import re

import pytest
from rich.console import Console

from midstream.report.evaluation_progress import EvaluationProgress, LivePanel, PlainProgress, make_evaluation_progress
from support.fake_run import lost, solved, unsolved

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def terminal(width: int = 80, height: int = 40) -> Console:
    environ = {"TERM": "xterm-256color"}
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, _environ=environ)


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=60)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def panel_of(console: Console) -> str:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(console)).replace("\r", "\n")
    return text[text.rindex("╭") :]


def drive(display: EvaluationProgress, second: str = "gaia T=0.7") -> None:
    """40 runs of one set, of which 10 were done before; then the first of another set."""
    costly = solved().model_copy(update={"cost_usd": 0.5})
    display.start("agentflow-7b", "runs/eval-a", 2, 80, 0)
    display.begin_set(1, "bamboogle T=0.7", 40, [unsolved()] * 10)
    for _ in range(14):
        display.ended([costly])
    display.ended([unsolved()] * 15)
    display.ended([lost()])
    display.end_set("bamboogle T=0.7: success 35.0%")
    display.begin_set(2, second, 40, [])
    display.ended([lost()])


def test_the_display_suits_the_console():
    assert isinstance(make_evaluation_progress(terminal()), LivePanel)
    assert isinstance(make_evaluation_progress(pipe()), PlainProgress)
    quiet = make_evaluation_progress(terminal(), quiet=True)
    assert type(quiet) is EvaluationProgress


def test_plain_lines_are_few_and_say_where_it_stands():
    console = pipe()
    with make_evaluation_progress(console) as display:
        drive(display)
    lines = written(console).splitlines()
    assert lines[0] == "agentflow-7b: 80 runs in 2 evaluations, in runs/eval-a"
    assert lines[1] == "bamboogle T=0.7 (1/2): 40 runs, 10 of them done before"
    so_far = [line.split(" | ") for line in lines if "so far" in line]
    assert [line[0] for line in so_far] == ["12/40", "16/40", "20/40", "24/40", "39/40"]
    assert so_far[-1][1:3] == ["success so far 35.9%", "0 errors"]
    assert so_far[-1][4] == "$7.00"
    assert lines[-2:] == ["bamboogle T=0.7: success 35.0%", "gaia T=0.7 (2/2): 40 runs"]
    assert written(console).isascii()


def test_errors_count_as_wrong_and_every_set_counts_its_own():
    display = EvaluationProgress()
    drive(display)
    assert (display.set_done, display.errors, display.success) == (1, 1, 0.0)
    assert (display.all_done, display.total) == (41, 80)
    assert display.calls == {"local_search": 14 + 2, "python": 14 + 25, "wikipedia": 25}
    assert display.left_s is not None


def test_what_was_kept_takes_no_time():
    display = EvaluationProgress()
    display.start("a", "b", 1, 40, 0)
    display.begin_set(1, "c", 40, [solved()] * 39)
    assert (display.set_done, display.left_s) == (39, None)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 12), (120, 50)])
def test_the_panel_fits_the_terminal(width, height):
    console = terminal(width, height)
    with make_evaluation_progress(console) as display:
        drive(display)
    panel = panel_of(console)
    assert max(map(len, panel.splitlines())) <= width
    assert len(panel.rstrip().splitlines()) <= min(height, 12)
    for expected in ("1/40", "0.0% so far", "counted as wrong", "python", "$7.00", "41 of 80 runs", "gaia T=0.7"):
        assert expected in panel, expected


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_restores_the_terminal_and_is_not_swallowed(error):
    console = terminal()

    def fail() -> None:
        with make_evaluation_progress(console) as display:
            display.start("r", "run", 1, 10, 0)
            raise error

    with pytest.raises(error):
        fail()
    assert written(console).rindex(SHOW_CURSOR) > written(console).rindex(HIDE_CURSOR)
    assert ("interrupted" if error is KeyboardInterrupt else "stopped by an error") in written(console)


def test_hostile_names_do_nothing_and_warnings_stay():
    for console in (terminal(), pipe()):
        with make_evaluation_progress(console) as display:
            drive(display, "evil \x1b]0;title\x07 [red]")
            display.note("a torn record was cut off")
        assert "\x1b]0;" not in written(console)
        assert "[red]" in written(console)
        assert "warning: a torn record was cut off" in written(console)
