"""A practice run on the terminal: a live panel, or plain lines where output goes to a file or pipe."""

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

from midstream.core.metrics import EvaluationResult
from midstream.practice.budget import Spent
from midstream.practice.commit import UpdateRecord
from midstream.practice.progress import PracticeDisplay
from midstream.practice.settings import BudgetConfig
from midstream.report.compare import where
from midstream.report.numbers import counted, duration, percent, sparkline, visible
from midstream.report.practice_data import fates, fates_text, left_out_text, proposed, spent_text, total_fates

_SPARK_UPDATES = 40


class PracticeProgress:
    """Keeps what was told, and shows warnings alone: what `--quiet` shows, and the base of the other two."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._recipe, self._run, self._phase = "midstream", "", "starting"
        self._updates = 0
        self._limits = BudgetConfig()
        self._records: list[UpdateRecord] = []
        self._spent = Spent()
        self._results: dict[tuple[str, str], list[EvaluationResult]] = {}
        self._first = 1
        self._began = self._started = time.monotonic()

    def __enter__(self) -> Self:
        """Take the terminal."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the terminal back; never swallows an error."""

    def start(self, recipe: str, updates: int, first: int, run: str, limits: BudgetConfig) -> None:
        """Take down what is run; the time of the updates counts from now."""
        self._recipe, self._updates, self._first, self._run, self._limits = recipe, updates, first, run, limits
        self._started = time.monotonic()

    def phase(self, text: str) -> None:
        """Replace the phase."""
        self._phase = text

    def spent(self, spent: Spent) -> None:
        """Replace what was used up."""
        self._spent = spent

    def update(self, record: UpdateRecord) -> None:
        """Add an update."""
        self._records.append(record)
        self._spent = record.spent

    def evaluation(self, result: EvaluationResult) -> None:
        """Keep it beside those of the same set."""
        self._results.setdefault((where(result), result.sampling), []).append(result)

    def note(self, text: str) -> None:
        """Print the warning on a line of its own, where it stays."""
        self._console.print(Text(f"warning: {visible(text)}", "bold yellow"), soft_wrap=True)

    def finish(self) -> None:
        """Mark the run as complete."""
        self._phase = "finished"

    @property
    def _done(self) -> int:
        return self._records[-1].step if self._records else self._first - 1

    @property
    def _left_s(self) -> float | None:
        """Seconds until the last update at this session's pace, None before its first is done, or after the last."""
        fresh = self._done - self._first + 1
        if fresh < 1 or self._done >= self._updates:
            return None
        return (time.monotonic() - self._started) / fresh * (self._updates - self._done)


class PlainPractice(PracticeProgress):
    """One line an update, evaluation, phase and note: for logs and pipes."""

    def start(self, recipe: str, updates: int, first: int, run: str, limits: BudgetConfig) -> None:
        """Print what is run and where it is written."""
        super().start(recipe, updates, first, run, limits)
        resumed = f", resumed at update {first}" if first > 1 else ""
        self._line(f"{recipe}: {counted(updates, 'update')}{resumed}, run {run}")

    def phase(self, text: str) -> None:
        """Print a phase when its name changes; its counters ("120/450") alone make no new line."""
        if _name(text) != _name(self._phase):
            self._line(text)
        super().phase(text)

    def update(self, record: UpdateRecord) -> None:
        """Print its numbers, unless it was done before this session."""
        super().update(record)
        if record.step < self._first:
            return
        parts = [
            f"update {record.step}/{self._updates}",
            f"reward {record.mean_reward:.3f}",
            fates_text(fates(record)),
            counted(record.lessons, "lesson"),
            spent_text(record.spent, self._limits),
        ]
        parts += filter(None, [left_out_text([record])])
        parts += [f"{duration(self._left_s)} left"] if self._left_s is not None else []
        self._line(" | ".join(parts))

    def evaluation(self, result: EvaluationResult) -> None:
        """Print the result on one line."""
        super().evaluation(result)
        errors = f", {result.errors} without a result (counted as wrong)" if result.errors else ""
        named = f"{where(result)} {result.sampling} ({result.policy})"
        self._line(f"evaluation {named}: success {percent(result.success)} of {counted(result.tasks, 'task')}{errors}")

    def finish(self) -> None:
        """Print the time it took."""
        super().finish()
        self._line(f"finished after {duration(time.monotonic() - self._began)}")

    def _line(self, text: str) -> None:
        self._console.print(Text(visible(text)), soft_wrap=True)


class LivePractice(PracticeProgress):
    """A live panel: updates, reward, held-out success, lessons, what became of changes, what was used up, phase."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
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

    def _screen(self) -> RenderableType:
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True, min_width=len("held-out"))
        # One line each, cut if need be: the panel keeps its height.
        rows.add_column(no_wrap=True, overflow="ellipsis")
        for name, text in self._rows():
            rows.add_row(name, text)
        return Panel(
            Group(self._bar(), Text(), rows) if self._updates else rows,
            title=Text(f" {visible(self._recipe)} ", "bold"),
            title_align="left",
            subtitle=Text(f" {visible(self._run)} ", "dim"),
            subtitle_align="right",
            border_style="dim",
            width=min(self._console.width, 100),
        )

    def _bar(self) -> Table:
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(
            f"update {self._done}/{self._updates}",
            ProgressBar(total=self._updates, completed=self._done),
            f"{self._done / self._updates:4.0%}",
        )
        return bar

    def _rows(self) -> list[tuple[str, Text]]:
        rows: list[tuple[str, Text]] = []
        if self._records:
            last = self._records[-1]
            rewards = [one.mean_reward for one in self._records[-_SPARK_UPDATES:]]
            rows.append(("reward", Text(f"{last.mean_reward:.3f}  ", "bold").append(sparkline(rewards), "cyan")))
        rows += [("held-out", line) for line in self._held_out()]
        if self._records:
            last = self._records[-1]
            newest = f"  last update: {proposed(last)} proposed, {fates_text(fates(last))}"
            rows.append(("lessons", Text(f"{last.lessons}", "bold").append(newest, "not bold")))
            rows.append(("changes", Text(fates_text(total_fates(self._records)))))
        rows.append(("spent", Text(spent_text(self._spent, self._limits))))
        lost = left_out_text(self._records)
        if lost:
            rows.append(("left out", Text(lost, "yellow")))
        left = f", about {duration(self._left_s)} left" if self._left_s is not None else ""
        rows.append(("time", Text(f"{duration(time.monotonic() - self._began)} elapsed{left}")))
        rows.append(("now", Text(visible(self._phase))))
        return rows

    def _held_out(self) -> list[Text]:
        """A line a set: without lessons, and then with them."""
        if not self._results:
            return [Text("not evaluated yet", "dim")]
        lines = []
        for (name, sampling), results in self._results.items():
            said = " -> ".join(f"{percent(one.success)} {visible(one.policy)}" for one in results)
            lines.append(Text(said, "bold green").append(f"  {visible(name)}, {sampling}", "dim not bold"))
        return lines


def make_practice_progress(console: Console, quiet: bool = False) -> PracticeDisplay:
    """The display that suits `console`: live on a terminal, plain lines elsewhere, warnings alone if `quiet`."""
    if quiet:
        return PracticeProgress(console)
    return LivePractice(console) if console.is_terminal else PlainPractice(console)


def _name(phase: str) -> str:
    """A phase without its numbers."""
    return " ".join(word for word in phase.split() if not any(letter.isdigit() for letter in word))
