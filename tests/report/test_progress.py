import io
import re
from collections.abc import Sequence

import pytest

from midstream.core.events import (
    BudgetSpent,
    EvaluationFinished,
    Note,
    Phase,
    RunFinished,
    RunStarted,
    SetStarted,
    StepFinished,
    TrajectoriesFinished,
)
from midstream.core.metrics import EvaluationResult, StepMetrics
from midstream.core.terminal import Terminal
from midstream.core.trajectory import Trajectory
from midstream.report.progress import Kind, Progress
from support.evaluations import evaluated
from support.fake_run import evaluation, lost, metrics, solved, timings, unsolved
from support.lesson_runs import made_up

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
KINDS = ("training", "lessons", "evaluation")
UPDATES = made_up(4).updates


def terminal(width: int = 100, height: int = 40) -> Terminal:
    # A dumb terminal cannot draw, so the kind is fixed here.
    environ = {"TERM": "xterm-256color"}
    return Terminal(file=io.StringIO(), force_terminal=True, width=width, height=height, _environ=environ)


def pipe() -> Terminal:
    return Terminal(file=io.StringIO(), force_terminal=False, width=60)


def written(console: Terminal) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def last_panel(console: Terminal) -> str:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(console)).replace("\r", "\n")
    return text[text.rindex("╭") :]


def training(listener: Progress, steps: int = 20) -> None:
    for done in ("1/450", "2/450", "450/450"):
        listener(Phase(f"warm start {done}"))
    listener(EvaluationFinished(evaluation(0.0, 0)))
    listener(RunStarted(recipe="recipes/worlds.toml", directory="runs/a", total=steps))
    for record, timing in zip(metrics(steps), timings(steps), strict=True):
        listener(StepFinished(record, timing))
    listener(Note("3 samples were left out: [bold]too_long[/bold]"))
    listener(EvaluationFinished(evaluation(1.0, steps)))
    listener(RunFinished())


def of_aime(right: int, policy: str, step: int) -> EvaluationResult:
    scores = {f"t{index}": [float(index < right)] for index in range(10)}
    return evaluated(scores, policy=policy, set_name="aime", step=step)[0]


def learn_lessons(listener: Progress, done: int = 0) -> None:
    limits = {"rollouts": 3000, "cost_usd": 5.0}
    listener(RunStarted(recipe="lessons-math", directory="runs/a", total=4, done=done, limits=limits))
    for record in UPDATES[:done]:
        listener(record.event)
    listener(EvaluationFinished(of_aime(3, "no lessons", 0)))
    for record in UPDATES[done:]:
        for count in range(3):
            listener(Phase(f"rollouts {count * 20}/50"))
            listener(BudgetSpent(record.spent))
        listener(Phase("gate: whole, 48 pairs, evidence 2.1 of 4.8"))
        listener(record.event)
    listener(Note("budget.updates = 4 were [bold]made[/bold]"))
    listener(EvaluationFinished(of_aime(5, "with lessons", 4)))
    listener(RunFinished())


def evaluating(listener: Progress, second: str = "gaia T=0.7") -> None:
    """40 runs of one set, of which 10 were done before; then the first of another set."""

    def ended(*trajectories: Trajectory) -> None:
        listener(TrajectoriesFinished(trajectories, "eval-test"))

    costly = solved().model_copy(update={"cost_usd": 0.5})
    listener(RunStarted(recipe="agentflow-7b", directory="runs/eval-a", total=80, sets=2))
    listener(SetStarted(place=1, name="bamboogle T=0.7", total=40, done=10))
    listener(TrajectoriesFinished([unsolved()] * 10, "eval-test", earlier=True))
    for _ in range(14):
        ended(costly)
    ended(*[unsolved()] * 15)
    ended(lost())
    listener(EvaluationFinished(of_aime(4, "agentflow-7b", 0)))
    listener(Note("a [bold]torn[/bold] record was cut off"))
    listener(SetStarted(place=2, name=second, total=40))
    ended(lost())


EVENTS = {"training": training, "lessons": learn_lessons, "evaluation": evaluating}


def lines(kind: Kind, *more) -> list[str]:
    console = pipe()
    with Progress(kind, console) as listener:
        EVENTS[kind](listener, *more)
    assert written(console).isascii(), "neither control sequences nor characters that a log may not hold"
    return written(console).splitlines()


# -- plain lines -------------------------------------------------------------------------------------------------------


def test_a_training_run_writes_a_line_a_step_and_never_wraps():
    log = lines("training")
    assert [line.split(" | ")[0] for line in log if line.startswith("step")] == [f"step {k}/20" for k in range(1, 21)]
    assert sum(line.startswith("warm start") for line in log) == 1
    assert any(line.startswith("evaluation at step 20: worlds greedy: success 70.6%") for line in log)
    assert "warning: 3 samples were left out: [bold]too_long[/bold]" in log
    assert len(log) == 26


def test_a_lesson_run_writes_each_update_once_and_never_wraps():
    log = lines("lessons")
    assert log[0] == "lessons-math: 4 updates, in runs/a"
    assert [line.split(" | ")[0] for line in log if line.startswith("update")] == [f"update {k}/4" for k in range(1, 5)]
    assert sum(line.startswith("rollouts") for line in log) == 4, "one a phase, not one a counter"
    assert any(line.startswith("evaluation at step 0: aime T=1: success 30.0%") for line in log)
    assert "warning: budget.updates = 4 were [bold]made[/bold]" in log
    third = next(line for line in log if line.startswith("update 3/4"))
    spent = "1,050 of 3,000 rollouts, 1.23M tokens, $0.6300 of $5.00"
    assert f"changes accepted 3, rejected 2, refused 2 | lessons 4 | spent {spent}" in third
    assert "lost replies 1" in third


def test_a_resumed_lesson_run_does_not_write_its_old_updates_again():
    log = lines("lessons", 2)
    assert log[0] == "lessons-math: 4 updates, 2 of them done before, in runs/a"
    assert [line.split(" | ")[0] for line in log if line.startswith("update")] == ["update 3/4", "update 4/4"]


def test_an_evaluation_writes_few_lines():
    log = lines("evaluation")
    assert log[0] == "agentflow-7b: 80 runs, in runs/eval-a"
    assert log[1] == "bamboogle T=0.7 (1/2): 40 runs, 10 of them done before"
    so_far = [line.split(" | ") for line in log if "so far" in line]
    assert [line[0] for line in so_far] == ["12/40", "16/40", "20/40", "24/40", "39/40"]
    assert so_far[-1][1:3] == ["success so far 35.9%", "errors 0"]
    assert so_far[-1][4] == "cost $7.00"
    assert log[-3].startswith("aime T=1: success 40.0%")
    assert log[-1] == "gaia T=0.7 (2/2): 40 runs"


def failing(step: int, **counts: int) -> StepMetrics:
    return metrics(step)[-1].model_copy(update={"trajectories_error": 0, **counts})


def test_what_went_wrong_is_in_the_line_of_its_step():
    console = pipe()
    with Progress("training", console) as listener:
        listener(RunStarted(recipe="r", directory="run", total=2))
        for step in (1, 2):
            trouble = {"request_failures": 4, "replies_repaired": 2, "trajectories_error": 2} if step == 1 else {}
            listener(StepFinished(failing(step, **trouble), timings(1)[0]))
    first, second = (line for line in written(console).splitlines() if line.startswith("step"))
    assert first.endswith("2 trajectories lost to errors, 4 request failures, 2 replies repaired")
    assert "lost" not in second
    assert "request" not in second


def test_an_evaluation_names_its_failed_requests():
    console = pipe()
    with Progress("training", console) as listener:
        listener(EvaluationFinished(evaluation(1.0, 5).model_copy(update={"request_failures": 1})))
    assert written(console).strip().endswith("of 400 tasks, 1 request failure")


# -- the live panel ----------------------------------------------------------------------------------------------------

PANELS = {
    "training": (
        *("step 20/20", "100%", "-> 70.6% at step 20", "6,857 tokens/s", "finished"),
        *("4.5 tokens for each unique one", "local_search 55%"),
    ),
    "lessons": (
        *("update 4/4", "100%", f"{UPDATES[-1].mean_reward:.3f}", "runs/a", "finished"),
        "30.0% no lessons -> 50.0% with lessons",
        "1,400 of 3,000 rollouts, 1.64M tokens, $0.8400 of $5.00",
        "accepted 8, rejected 9, refused 8, pending 3",
        "uniform groups 6, broken groups 2, lost replies 1, lost pairs 8",
    ),
    "evaluation": (
        "1/40",
        "success so far  0.0%",
        "counted as wrong",
        "python",
        "$7.00",
        "41 of 80 runs",
        "gaia T=0.7",
    ),
}


def shows(console: Terminal, width: int, expected: Sequence[str]) -> str:
    panel = last_panel(console)
    assert max(map(len, panel.splitlines())) <= width
    for text in expected:
        assert text in panel, text
    return panel


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("kind", KINDS)
def test_the_panel_holds_every_number_within_the_width(kind, width):
    console = terminal(width)
    with Progress(kind, console) as listener:
        EVENTS[kind](listener)
    panel = shows(console, width, PANELS[kind])
    assert kind == "evaluation" or any(block in panel for block in "▂▃▄▅▆▇")


def test_the_panel_of_a_resumed_lesson_run_holds_its_old_updates():
    console = terminal(80)
    with Progress("lessons", console) as listener:
        learn_lessons(listener, 2)
    shows(console, 80, PANELS["lessons"])


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 12)])
def test_the_panel_fits_the_terminal(width, height):
    console = terminal(width, height)
    with Progress("evaluation", console) as listener:
        evaluating(listener)
    assert len(shows(console, width, PANELS["evaluation"]).rstrip().splitlines()) <= min(height, 12)


def test_before_the_steps_begin_the_panel_shows_phase_and_first_evaluation():
    console = terminal()
    with Progress("training", console) as listener:
        listener(Phase("warm start 120/450"))
        listener(EvaluationFinished(evaluation(0.0, 0)))
    assert "warm start 120/450" in written(console)
    assert "32.6% at step 0" in last_panel(console)
    assert "0/0" not in written(console)


def test_the_panel_sums_up_what_went_wrong():
    console = terminal()
    with Progress("training", console) as listener:
        listener(StepFinished(failing(1, request_failures=2, trajectories_error=1), timings(1)[0]))
        listener(StepFinished(failing(2, request_failures=3, replies_repaired=1), timings(1)[0]))
        listener(EvaluationFinished(evaluation(1.0, 2).model_copy(update={"request_failures": 4})))
    text = "1 trajectory lost to errors, 9 request failures, 1 reply repaired"
    assert text in written(console)


# -- what is counted ---------------------------------------------------------------------------------------------------


def test_errors_count_as_wrong_and_every_set_counts_its_own():
    view = Progress("evaluation", pipe())
    evaluating(view)
    assert (view.set_done, view.errors, view.facts["success so far"]) == (1, 1, "0.0%")
    assert (view.done, view.total) == (41, 80)
    assert view.facts["tool calls"] == "python 39, wikipedia 25, local_search 16"
    assert view.left_s is not None


def test_what_was_kept_takes_no_time():
    view = Progress("evaluation", pipe())
    view(RunStarted(recipe="a", directory="b", total=40, sets=1))
    view(SetStarted(place=1, name="c", total=40, done=39))
    view(TrajectoriesFinished([solved()] * 39, "eval-test", earlier=True))
    assert (view.set_done, view.left_s) == (39, None)


# -- for every kind ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_quiet_shows_warnings_alone(kind):
    console = terminal()
    with Progress(kind, console, quiet=True) as listener:
        EVENTS[kind](listener)
    assert written(console).count("\n") == 1
    assert "warning: " in written(console)
    assert "[bold]" in written(console)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_restores_the_terminal_and_is_not_swallowed(kind, error):
    console = terminal()

    def fail() -> None:
        with Progress(kind, console) as listener:
            listener(RunStarted(recipe="r", directory="run", total=10))
            raise error

    with pytest.raises(error):
        fail()
    assert written(console).rindex(SHOW_CURSOR) > written(console).rindex(HIDE_CURSOR)
    assert ("interrupted" if error is KeyboardInterrupt else "stopped by an error") in last_panel(console)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [terminal, pipe])
def test_a_resumed_run_starts_where_it_stopped_and_hostile_text_does_nothing(kind, make):
    console = make()
    with Progress(kind, console) as listener:
        listener(RunStarted(recipe="r", directory="run", total=100, done=50, sets=1))
        listener(SetStarted(place=1, name="evil [red] \x1b]0;title\x07", total=10))
        listener(Phase("evil [red] \x1b]0;title\x07"))
    assert "50" in written(console)
    assert "\x1b]0;" not in written(console)
    assert "[red]" in written(console)


def test_a_file_with_colors_gets_lines_and_no_panel(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a Jupyter kernel
    console = Terminal(file=io.StringIO())
    with Progress("evaluation", console) as listener:
        listener(RunStarted(recipe="r", directory="runs/a", total=2, sets=1))
    assert "runs/a" in written(console)
    assert "╭" not in written(console)
