"""A run on the terminal: a live panel, or plain lines where output goes to a file or pipe."""

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
from midstream.core.metrics import Tally
from midstream.core.terminal import Terminal
from midstream.core.trajectory import usage_of
from midstream.engines.openai.providers import prices_used
from midstream.evaluation.estimates import value
from midstream.report.evaluation import summary_line
from midstream.report.numbers import (
    counted,
    counts_text,
    dollars,
    duration,
    number,
    percent,
    sparkline,
    spent_text,
    total_fates,
    troubles,
)

Kind = Literal["training", "lessons", "evaluation"]
_UNITS = {"training": "step", "lessons": "update", "evaluation": "run"}
_SPARKLINE = 40  # steps or updates
_LINES_A_SET = 10
_TROUBLES = ("errors", "left out")
_COUNTERS = re.compile(r"\s*\S*\d\S*")  # words of a phase such as "120/450", which alone make no new line


class Progress:
    """The listener that shows a run. Leaving its context, also by an error or Ctrl-C, restores the terminal.

    `facts` are the newest numbers by name: the panel shows all of them, a line of a log those of its unit, which is a
    step, an update, or a trajectory of an evaluation. An evaluation's bar is that of its current set.
    """

    def __init__(self, kind: Kind, console: Terminal, *, quiet: bool = False) -> None:
        self.kind, self.unit = kind, _UNITS[kind]
        self.recipe, self.directory, self.phase = "midstream", "", "starting"
        self.total = self.done = self.sets = self.set_total = self.set_done = self.errors = 0
        self.solved = 0.0
        self.facts = {} if kind == "evaluation" else {"reward": "", "held-out": "not evaluated yet"}
        # Units of earlier sessions took no time in this one, and say nothing about the time left.
        self._earlier = 0
        self._loaded = self._started = time.monotonic()
        self._rewards: list[float] = []
        self._scores: dict[str, list[str]] = {}  # of each set and sampling
        self._counts: Counter[str] = Counter()  # what went wrong, or what an evaluation used up
        self._tools: Counter[str] = Counter()
        self._cost_usd = self._waited_s = 0.0
        self._updates: list[events.UpdateFinished] = []
        self._left_out: Counter[str] = Counter()
        self._limits: Mapping[str, float] = {}
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
            self.phase = "interrupted" if kind is KeyboardInterrupt else "stopped by an error"
        if self._live:
            self._live.stop()

    def __call__(self, event: events.RunEvent) -> None:
        """Show an event. Warnings are printed in every mode, and stay above the live panel."""
        before = self.phase
        line = self._count(event)
        if self._live and _COUNTERS.sub("", self.phase) != _COUNTERS.sub("", before):
            # A phase that is shorter than the time between two pictures is seen, too.
            self._live.refresh()
        if isinstance(event, events.Note):
            self._console.print(Text(f"warning: {event.text}", "bold yellow"), soft_wrap=True)
        elif line and not self._live and not self._quiet:
            self._console.print(Text(line), soft_wrap=True)

    # --- events ---------------------------------------------------------------------------------------------------

    def _count(self, event: events.RunEvent) -> str:
        """Count an event; returns the line that it is worth in a log, "" for none."""
        match event:
            case events.RunStarted():
                self.recipe, self.directory, self.sets = event.recipe, event.directory, event.sets
                self.total, self.done, self._earlier = event.total, event.done, event.done
                self._started, self._limits = time.monotonic(), event.limits
                if self.kind == "evaluation":
                    self.facts["all sets"] = f"{self.done:,} of {counted(self.total, 'run')}"
                resumed = f", {event.done:,} of them done before" if event.done else ""
                return f"{event.recipe}: {counted(event.total, self.unit)}{resumed}, in {event.directory}"
            case events.Phase():
                changed = _COUNTERS.sub("", event.text) != _COUNTERS.sub("", self.phase)
                self.phase = event.text
                return event.text if changed else ""
            case events.StepFinished():
                return self._count_step(event)
            case events.BudgetSpent():
                self.facts["spent"] = spent_text(event.spent, self._limits)
            case events.UpdateFinished():
                return self._count_update(event)
            case events.SetStarted():
                self.set_total, self.set_done, self.errors, self.solved = event.total, 0, 0, 0.0
                self.phase = f"set {event.place} of {self.sets}: {event.name}"
                before = f", {event.done:,} of them done before" if event.done else ""
                return f"{event.name} ({event.place}/{self.sets}): {counted(event.total, 'run')}{before}"
            case events.TrajectoriesFinished() if self.kind == "evaluation":
                return self._count_trajectories(event)
            case events.EvaluationFinished(result):
                if self.kind == "evaluation":
                    return summary_line(result)
                at = f"at step {result.step}" if result.step is not None else f"({result.policy})"
                scores = self._scores.setdefault(f"{result.set_name}, {result.sampling}", [])
                scores.append(f"{percent(result.success)} {result.policy if self.kind == 'lessons' else at}")
                # The first and the newest.
                shown = {name: " -> ".join(dict.fromkeys((all[0], all[-1]))) for name, all in self._scores.items()}
                met = Counter(failures=result.request_failures, repaired=result.replies_repaired)
                self._counts += met
                self.facts["held-out"] = "\n".join(f"{words}  {name}" for name, words in shown.items())
                self.facts["errors"] = _wrong(self._counts)
                return ", ".join(filter(None, (f"evaluation {at}: {summary_line(result)}", _wrong(met))))
            case events.RunFinished():
                self.phase = "finished"
                return f"finished after {duration(time.monotonic() - self._loaded)}"
        return ""

    def _count_step(self, event: events.StepFinished) -> str:
        metrics = event.metrics
        self.done, self.phase = metrics.step, "training"
        facts = {
            "reward": f"{metrics.reward_mean:.3f}",
            "tool errors": percent(metrics.tool_use.error_rate),
            "turns": f"{metrics.turns_mean:.2f}",
            "speed": f"{number(event.timing.tokens_per_s)} tokens/s",
        }
        if metrics.sharing:
            facts["speed"] += f", {metrics.sharing:.1f} tokens for each unique one"
        met = Counter(
            lost=metrics.trajectories_error, failures=metrics.request_failures, repaired=metrics.replies_repaired
        )
        self._counts += met
        tools = sorted(metrics.tool_use.share.items(), key=lambda item: -item[1])
        shown = {"reward": self._curve(metrics.reward_mean), "errors": _wrong(self._counts)}
        self.facts |= {**facts, **shown, "tools": "  ".join(f"{name} {share:.0%}" for name, share in tools)}
        return self._line(facts, _wrong(met))

    def _count_update(self, event: events.UpdateFinished) -> str:
        self._updates.append(event)
        self._left_out.update(event.left_out)
        facts = {
            "reward": f"{event.reward_mean:.3f}",
            "changes": counts_text(event.fates) or "none",
            "lessons": f"{event.lessons:,}",
            "spent": spent_text(event.spent, self._limits),
            "left out": counts_text(event.left_out),
        }
        changes = counts_text(total_fates([update.fates for update in self._updates])) or "none"
        so_far = {"changes": changes, "left out": counts_text(self._left_out)}
        self.facts |= {**facts, **so_far, "reward": self._curve(event.reward_mean)}
        if self.kind == "training":
            # Between the steps of weights.
            parts = [f"{name} {value}" for name, value in facts.items() if value]
            return " | ".join([f"update {event.update} of the lessons", *parts])
        if event.update <= self.done:
            # It was made in an earlier session, whose log has it.
            return ""
        self.done = event.update
        return self._line(facts)

    def _count_trajectories(self, event: events.TrajectoriesFinished) -> str:
        tenths = self.set_done * _LINES_A_SET // self.set_total
        self.done += len(event.trajectories)
        self.set_done += len(event.trajectories)
        for trajectory in event.trajectories:
            used = usage_of(trajectory.calls)
            self.solved += value(trajectory)
            self.errors += trajectory.status == "error"
            self._cost_usd += trajectory.cost_usd
            self._counts["tokens"] += used.prompt_tokens + used.completion_tokens
            self._waited_s += sum(float(str(call.sent.get("waited_s", 0))) for call in trajectory.calls)
        self._tools.update(Tally(event.trajectories).tools().calls)
        facts = {
            "success so far": percent(self.solved / self.set_done if self.set_done else None),
            "errors": f"{self.errors:,}" + ", counted as wrong" * bool(self.errors),
            "tokens": number(self._counts["tokens"]),
            "cost": dollars(self._cost_usd) if self._cost_usd else "",
            "rate limits": f"requests waited {duration(self._waited_s)} in all" if self._waited_s else "",
        }
        calls = ", ".join(f"{name} {count:,}" for name, count in self._tools.most_common())
        self.facts = {**facts, "tool calls": calls, "all sets": f"{self.done:,} of {counted(self.total, 'run')}"}
        if event.earlier:
            self._earlier += len(event.trajectories)
            return ""
        if self.set_done * _LINES_A_SET // self.set_total == tenths or self.set_done == self.set_total:
            return ""
        return self._line(facts)

    def _curve(self, reward: float) -> str:
        self._rewards.append(reward)
        return f"{reward:.3f}  {sparkline(self._rewards[-_SPARKLINE:])}"

    # --- drawing --------------------------------------------------------------------------------------------------

    def _bar(self) -> tuple[str, int, int]:
        """The bar's label, how much of it is done, and its length."""
        if self.kind == "evaluation":
            return f"{self.set_done:,}/{self.set_total:,}", self.set_done, self.set_total
        return f"{self.unit} {self.done}/{self.total}", self.done, self.total

    def _line(self, facts: Mapping[str, str], *more: str) -> str:
        """A line of a log: the unit, its facts, the time left and `more`."""
        left = f"{duration(self.left_s)} left" if self.left_s is not None else ""
        parts = [f"{name} {value}" for name, value in facts.items() if value]
        return " | ".join(filter(None, [self._bar()[0], *parts, left, *more]))

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at this session's pace; None before its first unit is done, and after the last."""
        fresh = self.done - self._earlier
        if fresh < 1 or self.done >= self.total:
            return None
        return (time.monotonic() - self._started) / fresh * (self.total - self.done)

    def _panel(self) -> RenderableType:
        left = f", about {duration(self.left_s)} left" if self.left_s is not None else ""
        elapsed = duration(time.monotonic() - self._loaded)
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True, min_width=len("tool errors"))
        # One line each, cut if need be: the panel keeps its height.
        rows.add_column(no_wrap=True, overflow="ellipsis")
        for name, text in {**self.facts, "time": f"{elapsed} elapsed{left}", "now": self.phase}.items():
            if text:
                color = "yellow" if name in _TROUBLES and text != "0" else "bold" if name == "held-out" else ""
                rows.add_row(name, Text(text, color))
        label, done, total = self._bar()
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(label, ProgressBar(total=max(1, total), completed=done), f"{done / max(1, total):4.0%}")
        return Panel(
            Group(bar, Text(), rows) if total else rows,
            title=Text(f" {self.recipe} ", "bold"),
            title_align="left",
            subtitle=Text(f" {self.directory} ", "dim"),
            subtitle_align="right",
            border_style="dim",
            width=min(self._console.width, 100),
        )


def _wrong(counts: Mapping[str, int]) -> str:
    """What failed around the model; "" for nothing."""
    lost = f"{counted(counts['lost'], 'trajectory', 'trajectories')} lost to errors" if counts["lost"] else ""
    return ", ".join(filter(None, [lost, troubles(counts["failures"], counts["repaired"])]))


def print_warnings(event: events.RunEvent) -> None:
    """Print warnings on standard error."""
    if isinstance(event, events.Note):
        Terminal(stderr=True).print(Text(f"warning: {event.text}", "bold yellow"), soft_wrap=True)


def server_line(event: events.ServerStarts) -> str:
    """Which server starts, or after how long it answers."""
    words = f"{event.command} (log {event.log})" if event.ready_s is None else f"answers after {event.ready_s:.0f} s"
    return f"server  {words}"


def about_agent(event: events.AgentBuilt) -> list[str]:
    """What holds its code back, who answers for its tools, what its models cost."""
    words = {"sandbox ": event.sandbox, "tools   replayed from ": event.replay, "prices  ": prices_used(event.resolved)}
    return [name + value for name, value in words.items() if value]


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[events.Listener]:
    """Show a run on standard error while it works; if `quiet`, its warnings only."""
    console = Terminal(stderr=True)
    with ExitStack() as screen:
        display: events.Listener = print_warnings  # until the agent is built

        def listen(event: events.RunEvent) -> None:
            nonlocal display
            lines: list[str] = []
            match event:
                case events.RunLoads():
                    what = "PyTorch and the agent" if event.pytorch else "the agent"
                    lines = [f"{event.recipe} in {event.directory}: loading {what}"]
                case events.ServerStarts():
                    lines = [server_line(event)]
                case events.AgentBuilt():
                    lines = about_agent(event)
                case _:
                    display(event)
            for line in () if quiet else lines:
                console.print(line, highlight=False, soft_wrap=True)
            if isinstance(event, events.AgentBuilt) and event.work in ("training", "lessons", "evaluation"):
                display = screen.enter_context(Progress(event.work, console, quiet=quiet))

        yield listen
