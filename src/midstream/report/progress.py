"""A training run on the terminal: a live panel, or plain lines where output goes to a file or pipe."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming
from midstream.core.progress import NoProgress, ProgressDisplay
from midstream.report.compare import is_greedy, where
from midstream.report.numbers import counted, duration, mean, number, percent, sharing, sparkline, troubles, visible

_RECENT = 10
_SPARK_STEPS = 40


class _Clock:
    """Time since the start and time left, from the pace of this session's steps (evaluations included)."""

    def __init__(self, steps: int = 0, first_step: int = 1, began: float | None = None) -> None:
        self.steps = steps
        self.done = first_step - 1
        self._began = time.monotonic() if began is None else began
        self._first_done: tuple[int, float] | None = None
        self._last_s = 0.0

    def start(self, steps: int, first_step: int) -> _Clock:
        """A clock for the steps; what went before (warm start, first evaluation) stays in the elapsed time."""
        return _Clock(steps, first_step, self._began)

    def step(self, step: int, duration_s: float) -> None:
        self.done = step
        self._last_s = duration_s
        self._first_done = self._first_done or (step, time.monotonic())

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float | None:
        """Seconds to the end, None before the first step."""
        if self._first_done is None:
            return None
        first, at = self._first_done
        pace = (time.monotonic() - at) / (self.done - first) if self.done > first else self._last_s
        return pace * max(0, self.steps - self.done)


class _Troubles:
    """What went wrong around the model, summed over steps and evaluations."""

    def __init__(self) -> None:
        self.lost = self.request_failures = self.replies_repaired = 0

    def add(self, counts: StepMetrics | EvaluationResult) -> None:
        if isinstance(counts, StepMetrics):  # an evaluation tells its own lost tasks
            self.lost += counts.trajectories_error
        self.request_failures += counts.request_failures
        self.replies_repaired += counts.replies_repaired

    def text(self, lost: str) -> str:
        """In words, with `lost` for what became of the trajectories; "" for nothing."""
        parts = [f"{counted(self.lost, 'trajectory', 'trajectories')} {lost}"] if self.lost else []
        return ", ".join(filter(None, [*parts, troubles(self.request_failures, self.replies_repaired)]))


class WarningsOnly(NoProgress):
    """Silent except for notes: what `--quiet` shows."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        """Print the warning on a line of its own."""
        _print_note(self._console, text)


class PlainProgress:
    """One line every `every` steps and on each evaluation, phase and note: for logs and pipes."""

    def __init__(self, console: Console, every: int = 10) -> None:
        self._console = console
        self._every = every
        self._clock = _Clock()
        self._rewards: list[float] = []
        self._troubles = _Troubles()  # since the last line
        self._phase = ""

    def __enter__(self) -> Self:
        """Nothing to take."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to give back."""

    def start(self, recipe: str, steps: int, first_step: int, run: str) -> None:
        """Print what is run and where it is written."""
        self._clock = self._clock.start(steps, first_step)
        resumed = f", resumed at step {first_step}" if first_step > 1 else ""
        self._line(f"{recipe}: {steps} steps{resumed}, run {run}")

    def phase(self, text: str) -> None:
        """Print a phase when its name changes; its counter ("120/450") alone makes no new line."""
        name = " ".join(word for word in text.split() if not any(letter.isdigit() for letter in word))
        if name != self._phase:
            self._phase = name
            self._line(text)

    def step(self, metrics: StepMetrics, timing: StepTiming) -> None:
        """Print every `every`-th step and the last one."""
        self._clock.step(metrics.step, timing.duration_s)
        self._rewards.append(metrics.reward_mean)
        self._troubles.add(metrics)
        if metrics.step % self._every and metrics.step != self._clock.steps:
            return
        parts = [
            f"step {metrics.step}/{self._clock.steps}",
            f"reward {metrics.reward_mean:.3f} (mean of {len(self._rewards)}: {mean(self._rewards) or 0.0:.3f})",
            f"tool errors {percent(metrics.tool_use.error_rate)}",
            f"turns {metrics.turns_mean:.2f}",
            f"{number(timing.tokens_per_s)} tokens/s",
            *sharing(metrics.sharing),
            f"{duration(self._clock.left_s or 0.0)} left",
        ]
        parts += filter(None, [self._troubles.text("lost to errors")])
        self._line(" | ".join(parts))
        self._rewards, self._troubles = [], _Troubles()

    def evaluation(self, result: EvaluationResult) -> None:
        """Print the result on one line."""
        self._line(_evaluation_text(result))

    def note(self, text: str) -> None:
        """Print the warning on a line of its own."""
        _print_note(self._console, text)

    def finish(self) -> None:
        """Print the time it took."""
        self._line(f"finished after {duration(self._clock.elapsed_s)}")

    def _line(self, text: str) -> None:
        self._console.print(Text(visible(text)), soft_wrap=True)


class TerminalProgress:
    """A live panel: step, bar, reward, held-out success, errors, turns, speed, tool shares, time left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._recipe, self._run, self._phase = "midstream", "", "starting"
        self._clock = _Clock()
        self._rewards: list[float] = []
        self._last: tuple[StepMetrics, StepTiming] | None = None
        self._troubles = _Troubles()
        self._newest: EvaluationResult | None = None
        self._best: dict[tuple[str, str], EvaluationResult] = {}
        # Last, because it draws once at once.
        self._live = Live(console=console, get_renderable=self._screen, refresh_per_second=2)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop drawing and show the cursor again; the last panel stays on screen."""
        if kind is not None:
            self._phase = "interrupted" if kind is KeyboardInterrupt else "stopped by an error"
        self._live.stop()

    def start(self, recipe: str, steps: int, first_step: int, run: str) -> None:
        """Head the panel with the recipe and set the length of its bar."""
        self._recipe, self._run = visible(recipe), visible(run)
        self._clock = self._clock.start(steps, first_step)

    def phase(self, text: str) -> None:
        """Replace the phase line."""
        self._phase = visible(text)

    def step(self, metrics: StepMetrics, timing: StepTiming) -> None:
        """Move the bar and replace the numbers."""
        self._clock.step(metrics.step, timing.duration_s)
        self._last = (metrics, timing)
        self._troubles.add(metrics)
        self._rewards = [*self._rewards[1 - _SPARK_STEPS :], metrics.reward_mean]

    def evaluation(self, result: EvaluationResult) -> None:
        """The newest greedy result is the held-out line, beside the best of its set; sampled ones fill in before."""
        self._troubles.add(result)
        key = (result.set_name, result.sampling)
        if key not in self._best or result.success >= self._best[key].success:
            self._best = {**self._best, key: result}
        if is_greedy(result) or self._newest is None or not is_greedy(self._newest):
            self._newest = result

    def note(self, text: str) -> None:
        """Print the warning above the panel, where it stays."""
        _print_note(self._console, text)

    def finish(self) -> None:
        """Mark the run as complete."""
        self._phase = "finished"

    def _screen(self) -> RenderableType:
        clock, done = self._clock, self._clock.done
        left = f", about {duration(clock.left_s)} left" if clock.left_s and done < clock.steps else ""
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True, min_width=len("tool errors"))
        # One line each, cut if need be: the panel keeps its height.
        rows.add_column(no_wrap=True, overflow="ellipsis")
        for name, text in self._rows():
            rows.add_row(name, text)
        rows.add_row("time", f"{duration(clock.elapsed_s)} elapsed{left}")
        rows.add_row("now", Text(self._phase))
        return Panel(
            Group(_bar(done, clock.steps), Text(), rows) if clock.steps else rows,
            title=Text(f" {self._recipe} ", "bold"),
            title_align="left",
            subtitle=Text(f" {self._run} ", "dim"),
            subtitle_align="right",
            border_style="dim",
            width=min(self._console.width, 100),
        )

    def _rows(self) -> list[tuple[str, Text]]:
        rows = []
        if self._last is not None:
            metrics, timing = self._last
            recent = self._rewards[-_RECENT:]
            reward = Text(f"{metrics.reward_mean:.3f}  ", "bold")
            reward.append(sparkline(self._rewards), "cyan")
            reward.append(f"  last {len(recent)}: {mean(recent) or 0.0:.3f}", "not bold")
            rows.append(("reward", reward))
        rows.append(("held-out", self._held_out()))
        if self._last is not None:
            metrics, timing = self._last
            habits = f"{percent(metrics.tool_use.error_rate)} of turns   {metrics.turns_mean:.2f} turns a run"
            rows.append(("tool errors", Text(habits)))
            rows.append(("tools", _shares(metrics.tool_use.share)))
            pace = [f"{number(timing.tokens_per_s)} tokens/s", *sharing(metrics.sharing)]
            rows.append(("speed", Text("   ".join(pace))))
        errors = self._troubles.text("lost, left out of training")
        if errors:
            rows.append(("errors", Text(errors, "bold yellow")))
        return rows

    def _held_out(self) -> Text:
        newest = self._newest
        if newest is None:
            return Text("not evaluated yet", "dim")
        best = self._best[newest.set_name, newest.sampling]
        text = Text(percent(newest.success), "bold green")
        text.append(f" {_where(newest)}  best {percent(best.success)} {_where(best)}", "not bold")
        text.append(f"  {visible(newest.set_name)}, {newest.sampling}", "dim not bold")
        return text


def _bar(done: int, steps: int) -> Table:
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(f"step {done}/{steps}", ProgressBar(total=steps, completed=done), f"{done / steps:4.0%}")
    return bar


def make_progress(console: Console, quiet: bool = False) -> ProgressDisplay:
    """The display that suits `console`: live on a terminal, plain lines elsewhere, warnings alone if `quiet`."""
    if quiet:
        return WarningsOnly(console)
    return TerminalProgress(console) if console.is_terminal else PlainProgress(console)


def _where(result: EvaluationResult) -> str:
    return f"at step {result.step}" if result.step is not None else f"({visible(result.policy)})"


def _shares(share: dict[str, float]) -> Text:
    text = Text()
    for name, value in sorted(share.items(), key=lambda item: -item[1]):
        text.append("  " if text else "").append(visible(name)).append(f" {value:.0%}", "bold")
    return text


def _evaluation_text(result: EvaluationResult) -> str:
    errors = f", {result.errors} without a result (counted as wrong)" if result.errors else ""
    trouble = troubles(result.request_failures, result.replies_repaired)
    step = f"step {result.step}: " if result.step is not None else ""
    return (
        f"evaluation {step}{where(result)} {result.sampling} ({result.policy}): "
        f"success {percent(result.success)} of {result.tasks} tasks{errors}{', ' if trouble else ''}{trouble}"
    )


def _print_note(console: Console, text: str) -> None:
    console.print(Text(f"warning: {visible(text)}", "bold yellow"), soft_wrap=True)
