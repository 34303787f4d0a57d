"""A run on the terminal: a live panel, or plain lines where output goes to a file or pipe.

A `Progress` is the listener: it draws. A view per kind of run counts the events and chooses what is worth a line.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Literal, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from midstream.core import events
from midstream.core.metrics import EvaluationResult, Spent, StepMetrics, tool_use
from midstream.core.terminal import Terminal
from midstream.core.trajectory import usage_of
from midstream.engines.openai.prices import prices_used
from midstream.evaluation.estimates import value
from midstream.report.evaluation import is_greedy, summary_line, where
from midstream.report.numbers import (
    counted,
    counts_text,
    dollars,
    duration,
    fates_text,
    mean,
    number,
    percent,
    sharing,
    sparkline,
    spent_text,
    summed,
    total_fates,
    troubles,
)

_RECENT = 10  # steps in the panel's recent mean
_SPARKLINE = 40  # steps or updates
_LINES_A_SET = 10
_COUNTERS = re.compile(r"\s*\S*\d\S*")  # words of a phase such as "120/450", which alone make no new line

Rows = list[tuple[str, Text]]
Kind = Literal["training", "practice", "evaluation"]


class RunView:
    """What every kind of run shows: its name, its phase, the units done, the time left."""

    unit = ""

    def __init__(self) -> None:
        self.recipe, self.directory, self.phase = "midstream", "", "starting"
        self.total = self.done = 0
        self._earlier = 0  # units of earlier sessions took no time in this one
        self._loaded = self._started = time.monotonic()

    def count(self, event: events.RunEvent) -> str:
        """Count an event; returns the line that it is worth in a log, "" for none."""
        match event:
            case events.RunStarted():
                self.recipe, self.directory = event.recipe, event.directory
                self.total, self.done, self._earlier = event.total, event.done, event.done
                self._started = time.monotonic()
                resumed = f", resumed at {self.unit} {event.done + 1}" if event.done else ""
                return f"{event.recipe}: {counted(event.total, self.unit)}{resumed}, run {event.directory}"
            case events.Phase():
                changed = _COUNTERS.sub("", event.text) != _COUNTERS.sub("", self.phase)
                self.phase = event.text
                return event.text if changed else ""
            case events.RunFinished():
                self.phase = "finished"
                return f"finished after {duration(self.elapsed_s)}"
        return ""

    def rows(self) -> Rows:
        """The panel's lines, between the bar and the time."""
        return []

    def bar(self) -> tuple[str, int, int]:
        """The bar's label, how much of it is done, and its length."""
        return f"{self.unit} {self.done}/{self.total}", self.done, self.total

    @property
    def elapsed_s(self) -> float:
        """Seconds of this session, loading and warm start included."""
        return time.monotonic() - self._loaded

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at this session's pace; None before its first unit is done, and after the last."""
        fresh = self.done - self._earlier
        if fresh < 1 or self.done >= self.total:
            return None
        return (time.monotonic() - self._started) / fresh * (self.total - self.done)


class TrainingView(RunView):
    """Steps, reward, held-out success, errors, turns, speed and tool shares of a training run."""

    unit = "step"

    def __init__(self) -> None:
        super().__init__()
        self._rewards: list[float] = []
        self._troubles: Counter[str] = Counter()
        self._last: events.StepFinished | None = None
        self._newest: EvaluationResult | None = None

    def count(self, event: events.RunEvent) -> str:
        """A line for each step and each evaluation."""
        match event:
            case events.RunStarted():
                line = super().count(event)
                self._next_step(event.done)
                return line
            case events.StepFinished():
                return self._count_step(event)
            case events.EvaluationFinished(result):
                self._troubles += _troubles(result)
                # A sampled result is shown only until there is a greedy one.
                if is_greedy(result) or self._newest is None or not is_greedy(self._newest):
                    self._newest = result
                at = f"step {result.step}: " if result.step is not None else ""
                return f"evaluation {at}{_result_text(result)}"
        return super().count(event)

    def rows(self) -> Rows:
        """Reward, held-out success, tool errors, tools, speed and errors."""
        rows: Rows = [("held-out", self._held_out())]
        if self._last is not None:
            metrics = self._last.metrics
            recent = self._rewards[-_RECENT:]
            reward = Text(f"{metrics.reward_mean:.3f}  ", "bold")
            reward.append(sparkline(self._rewards[-_SPARKLINE:]), "cyan")
            reward.append(f"  last {len(recent)}: {mean(recent) or 0.0:.3f}", "not bold")
            tools = Text()
            for name, share in sorted(metrics.tool_use.share.items(), key=lambda item: -item[1]):
                tools.append("  " if tools else "").append(name).append(f" {share:.0%}", "bold")
            habits = f"{percent(metrics.tool_use.error_rate)} of turns   {metrics.turns_mean:.2f} turns a run"
            pace = [f"{number(self._last.timing.tokens_per_s)} tokens/s", *sharing(metrics.sharing)]
            rows = [("reward", reward), *rows, ("tool errors", Text(habits)), ("tools", tools)]
            rows.append(("speed", Text("   ".join(pace))))
        if errors := _troubles_text(self._troubles, "lost, left out of training"):
            rows.append(("errors", Text(errors, "bold yellow")))
        return rows

    def _next_step(self, done: int) -> None:
        self.phase = f"training step {done + 1} of {self.total}" if done < self.total else "writing down"

    def _count_step(self, event: events.StepFinished) -> str:
        metrics = event.metrics
        self.done, self._last = metrics.step, event
        self._next_step(metrics.step)
        self._rewards.append(metrics.reward_mean)
        met = _troubles(metrics, lost=metrics.trajectories_error)
        self._troubles += met
        recent = self._rewards[-_RECENT:]
        parts = [
            f"step {metrics.step}/{self.total}",
            f"reward {metrics.reward_mean:.3f} (last {len(recent)}: {mean(recent) or 0.0:.3f})",
            f"tool errors {percent(metrics.tool_use.error_rate)}",
            f"turns {metrics.turns_mean:.2f}",
            f"{number(event.timing.tokens_per_s)} tokens/s",
            *sharing(metrics.sharing),
            f"{duration(self.left_s or 0.0)} left",
            _troubles_text(met, "lost to errors"),
        ]
        return " | ".join(filter(None, parts))

    def _held_out(self) -> Text:
        newest = self._newest
        if newest is None:
            return Text("not evaluated yet", "dim")
        when = f"at step {newest.step}" if newest.step is not None else f"({newest.policy})"
        text = Text(percent(newest.success), "bold green").append(f" {when}", "not bold")
        return text.append(f"  {newest.set_name}, {newest.sampling}", "dim not bold")


class PracticeView(RunView):
    """Updates, reward, held-out success, lessons, fates of changes and budget of a practice run."""

    unit = "update"

    def __init__(self) -> None:
        super().__init__()
        self._limits: Mapping[str, float] = {}
        self._updates: list[events.UpdateFinished] = []
        self._spent = Spent()
        self._results: dict[tuple[str, str], list[EvaluationResult]] = {}

    def count(self, event: events.RunEvent) -> str:
        """A line for each update of this session and each evaluation."""
        match event:
            case events.RunStarted():
                self._limits = event.limits
            case events.BudgetSpent():
                self._spent = event.spent
            case events.UpdateFinished():
                self._updates.append(event)
                self._spent = event.spent
                if event.update <= self.done:
                    return ""  # of an earlier session
                self.done = event.update
                parts = [
                    f"update {event.update}/{self.total}",
                    f"reward {event.reward_mean:.3f}",
                    fates_text(event.fates),
                    counted(event.lessons, "lesson"),
                    spent_text(event.spent, self._limits),
                    counts_text(event.left_out),
                    f"{duration(self.left_s)} left" if self.left_s is not None else "",
                ]
                return " | ".join(filter(None, parts))
            case events.EvaluationFinished():
                self._results.setdefault((where(event.result), event.result.sampling), []).append(event.result)
                return f"evaluation {_result_text(event.result)}"
        return super().count(event)

    def rows(self) -> Rows:
        """Reward, a line for each set without and with lessons, lessons, changes and budget."""
        rows: Rows = []
        for (name, sampling), results in self._results.items():
            scores = " -> ".join(f"{percent(result.success)} {result.policy}" for result in results)
            line = Text(scores, "bold green").append(f"  {name}, {sampling}", "dim not bold")
            rows.append(("held-out", line))
        rows = rows or [("held-out", Text("not evaluated yet", "dim"))]
        if self._updates:
            last = self._updates[-1]
            rewards = sparkline([update.reward_mean for update in self._updates[-_SPARKLINE:]])
            newest = f"  last update: {last.proposed} proposed, {fates_text(last.fates)}"
            total = total_fates([update.fates for update in self._updates])
            rows = [("reward", Text(f"{last.reward_mean:.3f}  ", "bold").append(rewards, "cyan")), *rows]
            rows.append(("lessons", Text(f"{last.lessons}", "bold").append(newest, "not bold")))
            rows.append(("changes", Text(fates_text(total))))
        rows.append(("spent", Text(spent_text(self._spent, self._limits))))
        if lost := counts_text(summed(update.left_out for update in self._updates)):
            rows.append(("left out", Text(lost, "yellow")))
        return rows


class EvaluationView(RunView):
    """Success so far, errors, tool calls, tokens and cost of an evaluation; its units are trajectories."""

    unit = "run"

    def __init__(self) -> None:
        super().__init__()
        self.phase = "loading"
        self.sets = self.set_total = self.set_done = self.errors = self.tokens = 0
        self.solved = self.cost_usd = 0.0
        self.calls: Counter[str] = Counter()

    def count(self, event: events.RunEvent) -> str:
        """A line for the start and end of each set, and ten while it runs."""
        match event:
            case events.RunStarted():
                super().count(event)
                self.sets = event.sets
                before = f", {event.done:,} of them done before" if event.done else ""
                size = f"{counted(event.total, 'run')} in {counted(event.sets, 'evaluation')}"
                return f"{event.recipe}: {size}{before}, in {event.directory}"
            case events.SetStarted():
                self.set_total, self.set_done, self.errors, self.solved = event.total, 0, 0, 0.0
                self.phase = f"set {event.place} of {self.sets}: {event.name}"
                before = f", {event.done:,} of them done before" if event.done else ""
                return f"{event.name} ({event.place}/{self.sets}): {counted(event.total, 'run')}{before}"
            case events.TrajectoriesFinished():
                tenths = self.set_done * _LINES_A_SET // self.set_total
                self.done += len(event.trajectories)
                self.set_done += len(event.trajectories)
                for trajectory in event.trajectories:
                    used = usage_of(trajectory.calls)
                    self.solved += value(trajectory)
                    self.errors += trajectory.status == "error"
                    self.cost_usd += trajectory.cost_usd
                    self.tokens += used.prompt_tokens + used.completion_tokens
                self.calls.update(tool_use(event.trajectories).calls)
                if event.earlier:
                    self._earlier += len(event.trajectories)
                    return ""
                if self.set_done * _LINES_A_SET // self.set_total == tenths or self.set_done == self.set_total:
                    return ""
                parts = [f"{self.set_done:,}/{self.set_total:,}", f"success so far {percent(self.success)}"]
                parts += [counted(self.errors, "error"), f"{number(self.tokens)} tokens"]
                parts += [dollars(self.cost_usd)] if self.cost_usd else []
                return " | ".join([*parts, f"{duration(self.left_s or 0.0)} left"])
            case events.EvaluationFinished():
                return summary_line(event.result)
            case events.RunFinished():
                super().count(event)
                return ""
        return super().count(event)

    def rows(self) -> Rows:
        """Success of the set so far, errors, tool calls, tokens, and how much of all sets is done."""
        errors = Text(f"{self.errors:,}", "bold yellow" if self.errors else "")
        if self.errors:
            errors.append("  counted as wrong", "not bold dim")
        calls = ", ".join(f"{name} {count:,}" for name, count in self.calls.most_common())
        cost = f", {dollars(self.cost_usd)}" if self.cost_usd else ""
        return [
            ("success", Text(percent(self.success), "bold green").append(" so far", "not bold dim")),
            ("errors", errors),
            ("tool calls", Text(calls or "-")),
            ("tokens", Text(f"{number(self.tokens)}{cost}")),
            ("all sets", Text(f"{self.done:,} of {counted(self.total, 'run')}")),
        ]

    def bar(self) -> tuple[str, int, int]:
        """The bar is the current set's."""
        return f"{self.set_done:,}/{self.set_total:,}", self.set_done, self.set_total

    @property
    def success(self) -> float | None:
        """Of the set so far; a trajectory that ended in an error counts as wrong."""
        return self.solved / self.set_done if self.set_done else None


class Progress:
    """The listener that shows a run. Leaving its context, also by an error or Ctrl-C, restores the terminal."""

    def __init__(self, view: RunView, console: Terminal, *, quiet: bool = False) -> None:
        self.view = view
        self._console, self._quiet = console, quiet
        self._live: Live | None = None
        if console.redraws and not quiet:
            self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4)

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Stop drawing and show the cursor again; the last panel stays on screen."""
        if kind is not None:
            self.view.phase = "interrupted" if kind is KeyboardInterrupt else "stopped by an error"
        if self._live:
            self._live.stop()

    def __call__(self, event: events.RunEvent) -> None:
        """Show an event. Warnings are printed in every mode, and stay above the live panel."""
        before = self.view.phase
        line = self.view.count(event)
        if self._live and _COUNTERS.sub("", self.view.phase) != _COUNTERS.sub("", before):
            self._live.refresh()  # a short phase is seen, too
        if isinstance(event, events.Note):
            self._console.print(Text(f"warning: {event.text}", "bold yellow"), soft_wrap=True)
        elif line and not self._live and not self._quiet:
            self._console.print(Text(line), soft_wrap=True)

    def _panel(self) -> RenderableType:
        view = self.view
        left = f", about {duration(view.left_s)} left" if view.left_s is not None else ""
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True, min_width=len("tool errors"))
        # One line each, cut if need be: the panel keeps its height.
        rows.add_column(no_wrap=True, overflow="ellipsis")
        time_row = ("time", Text(f"{duration(view.elapsed_s)} elapsed{left}"))
        for name, text in [*view.rows(), time_row, ("now", Text(view.phase))]:
            rows.add_row(name, text)
        label, done, total = view.bar()
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(label, ProgressBar(total=max(1, total), completed=done), f"{done / max(1, total):4.0%}")
        return Panel(
            Group(bar, Text(), rows) if total else rows,
            title=Text(f" {view.recipe} ", "bold"),
            title_align="left",
            subtitle=Text(f" {view.directory} ", "dim"),
            subtitle_align="right",
            border_style="dim",
            width=min(self._console.width, 100),
        )


def terminal_progress(kind: Kind, console: Terminal, *, quiet: bool = False) -> Progress:
    """The listener for `console`: live on a terminal, plain lines elsewhere, warnings alone if `quiet`."""
    views = {"training": TrainingView, "practice": PracticeView, "evaluation": EvaluationView}
    return Progress(views[kind](), console, quiet=quiet)


def print_warnings(event: events.RunEvent) -> None:
    """Print warnings on standard error."""
    if isinstance(event, events.Note):
        Terminal(stderr=True).print(Text(f"warning: {event.text}", "bold yellow"), soft_wrap=True)


def print_server(event: events.ServerStarts, console: Terminal) -> None:
    """Say which server starts, or after how long it answers."""
    words = f"{event.command} (log {event.log})" if event.ready_s is None else f"answers after {event.ready_s:.0f} s"
    console.print(f"server  {words}", highlight=False, soft_wrap=True)


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[events.Listener]:
    """Show a run on standard error while it works; if `quiet`, its warnings only."""
    console = Terminal(stderr=True)
    with ExitStack() as screen:
        display: events.Listener = print_warnings  # until the agent is built

        def listen(event: events.RunEvent) -> None:
            nonlocal display
            if isinstance(event, events.RunLoads):
                if not quiet:
                    what = "PyTorch and the agent" if event.pytorch else "the agent"
                    line = f"{event.recipe} in {event.directory}: loading {what}"
                    console.print(line, highlight=False, soft_wrap=True)
                return
            if isinstance(event, events.ServerStarts):
                if not quiet:
                    print_server(event, console)
                return
            if not isinstance(event, events.AgentBuilt):
                display(event)
                return
            prices, sandbox = prices_used(event.resolved), event.sandbox
            for name, value in (("sandbox ", sandbox), ("tools   replayed from ", event.replay), ("prices  ", prices)):
                if value and not quiet:
                    console.print(name + value, highlight=False, soft_wrap=True)
            if event.work in ("training", "practice", "evaluation"):
                display = screen.enter_context(terminal_progress(event.work, console, quiet=quiet))

        yield listen


def _result_text(result: EvaluationResult) -> str:
    errors = f", {result.errors} without a result (counted as wrong)" if result.errors else ""
    trouble = troubles(result.request_failures, result.replies_repaired)
    return (
        f"{where(result)} {result.sampling} ({result.policy}): success {percent(result.success)} of "
        f"{counted(result.tasks, 'task')}{errors}{', ' if trouble else ''}{trouble}"
    )


def _troubles(counts: StepMetrics | EvaluationResult, lost: int = 0) -> Counter[str]:
    """What failed around the model; an evaluation's line has its own lost tasks."""
    return Counter(failures=counts.request_failures, repaired=counts.replies_repaired, lost=lost)


def _troubles_text(counts: Mapping[str, int], lost: str) -> str:
    """What failed around the model, with `lost` for the fate of the trajectories; "" for nothing."""
    parts = [f"{counted(counts['lost'], 'trajectory', 'trajectories')} {lost}"] if counts["lost"] else []
    return ", ".join(filter(None, [*parts, troubles(counts["failures"], counts["repaired"])]))
