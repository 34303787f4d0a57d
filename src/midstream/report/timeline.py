"""One run on the terminal while it happens: every step as it ends, and a live line with what is under way.

    turn 1
      sub-goal     find population                               0.4s  11 tokens
      tool         local_search
      context      Roseview population
      command      local_search(query="Roseview population")
      observation  Roseview population 95                                   0.1s
      verdict      CONTINUE, result valid

Of an interleaved policy the parts of each reply are printed when it is written, then its call and the result.

What is printed stays. Below it, on a terminal, stand the last lines of the reply that is being written, dim, and a line
with what runs and for how long; in a file or pipe there are only the steps. Text of models and tools is never markup,
and what would steer the terminal is written out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from midstream.core.events import TurnEvent
from midstream.core.stream import POLICY
from midstream.core.stream_template import Template
from midstream.core.terminal import Terminal
from midstream.core.text import visible
from midstream.core.trajectory import Action, Call, Trajectory, usage_of
from midstream.report import trajectory as record
from midstream.report.draw import STYLES, plain
from midstream.report.numbers import counted, duration, troubles
from midstream.report.trajectory import Row, stream_row

_WIDEST = 110
_LABEL_WIDTH = len("observation")
_INDENT = 2 + _LABEL_WIDTH + 2
_LEAST_ROOM = 8  # columns of text: below this the terminal folds the lines itself
_LEAST_WIDTH_WITH_NOTES = 60
_KEPT_TEXT = 4000  # characters of the reply under way, of which the last lines are shown
_MOST_TEXT_LINES = 6
_MOST_LINES = 12  # of a row that stays on screen


class Timeline:
    """Shows one run: a `core.events.TurnListener` in `listen`, a context manager that gives the terminal back."""

    def __init__(
        self, console: Terminal, question: str, notes: Sequence[str] = (), template: Template | None = None
    ) -> None:
        """Show one run of `question`; `template` separates the parts of an interleaved policy's stream."""
        self._console, self._question, self._notes = console, question, notes
        self._template = template
        self._width = min(console.width or _WIDEST, _WIDEST)
        self._began = self._step_began = time.monotonic()
        self._turn = 0  # or, of a stream, the reply
        self._unit = "turn"
        self._replied = 0  # of a stream: the turn that the reply under way began
        self._action = Action()  # and its call under way, as it was written
        self._doing = ""  # the module or tool under way
        self._text = ""  # what it has written
        self._calls: list[Call] = []  # of the step under way
        self._retries = 0
        self._requests: list[Call] = []  # of the whole run
        self._thrown_away: list[Call] = []  # of attempts that were started again
        self._answer_note = ""
        self._spinner = Spinner("dots" if console.encoding.startswith("utf") else "line", style="cyan")
        self._live = Live(console=console, get_renderable=self._screen, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        """Print the question and the notes; on a terminal, start the live line."""
        self._console.print(Text(self._question, "bold"))
        for note in [*self._notes, *[record.LEGEND] * (self._template is not None)]:
            self._console.print(Text(note, "dim"))
        if self._console.redraws:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Take the live line away and show the cursor again. What an interrupted module had written stays."""
        doing, text = self._doing, self._text
        self._written()
        self._doing = ""
        self._live.stop()
        if kind is None:
            return
        if text:
            self._print([Row(doing, text, "soft")])
        if not self._turn:
            return
        how = "stopped by Ctrl-C" if kind is KeyboardInterrupt else "ended by an error"
        what = f"{how} in {self._unit} {self._turn} ({doing})" if doing else how
        took = duration(time.monotonic() - self._began)
        self._console.print(Text(f"\n{what} after {took}, {_spent(self._requests)}"))

    def listen(self, event: TurnEvent) -> None:
        """Show one event."""
        value, policy = event.value, event.role == POLICY
        if policy and event.kind in ("action", "command", "observation", "user"):
            self._written()
        match event.kind:
            case "start" if policy and event.turn == self._replied:
                # The same reply continues.
                self._doing, self._text = event.role, ""
            case "start":
                if event.turn == 1 and self._turn == 0 and not self._requests:
                    # What was loaded before is not the run's time.
                    self._began = time.monotonic()
                if event.role in ("planner", POLICY):
                    self._written()
                    # A reply may make several turns, or none.
                    self._unit, self._turn = ("reply", self._turn + 1) if policy else ("turn", event.turn)
                    self._console.print(Text(f"\n{self._unit} {self._turn}", "bold cyan"))
                    self._replied = event.turn
                self._begin(event.role)
            case "text":
                self._text = (self._text + value)[-_KEPT_TEXT:]
            case "retry":
                self._text = ""
                self._retries += 1
                self._print([Row(f"retry {self._retries}", f"{self._doing}: {value}", "warn")])
            case "call":
                self._text, self._retries = "", 0
                self._calls.append(value)
                self._requests.append(value)
                # The attempts that failed were printed when they did.
                self._print([row for row in record.trouble_rows(value) if row.label == "repaired"])
            case "user":
                self._print([stream_row("user", value, sampled=False)])
            case "action" if policy:
                self._action = value
                if value.error is not None:
                    self._print([record.call_row(value, None)])
            case "action" | "verdict":
                self._step(record.part_rows(value, self._calls))
            case "command":
                if policy:
                    self._print([record.call_row(self._action, value)])
                else:
                    self._step(record.part_rows(value))
                self._begin(value.tool)
            case "observation":
                rows = [record.output_row(value)] if policy else record.part_rows(value)
                # The calls that code made stand before its result, the last row; a stream's part has none of them.
                for row, call in zip(rows[:-1], value.tool_calls, strict=False):
                    self._print([row], duration(call.duration_s))
                self._print(rows[-1:], duration(value.duration_s))
                self._begin("")
            case "analysis":
                self._step([Row("analysis", value)])
            case "answer":
                self._written()
                self._begin("")
            case "agent_run":
                self._print([Row(event.role, value)])
            case "restart":
                words = f"the run starts again after {value.line}"
                self._print([Row("restart", words, "warn")])
                self._thrown_away = list(self._requests)
                self._turn = self._replied = 0
                self._begin("")

    def finish(self, trajectory: Trajectory, *, final: bool = False) -> None:
        """Print the answer, why the run stopped and what it took; with `final` the whole last reply before it.

        An error's text is the caller's to print.
        """
        self._written()
        self._doing = self._text = ""
        self._live.stop()
        requests = [*self._thrown_away, *trajectory.calls]
        self._console.print()
        lost = trajectory.status == "error"
        took = f"{duration(time.monotonic() - self._began)}, {counted(len(requests), 'request')}, {_spent(requests)}"
        took += "" if any(call.usage.cost_usd for call in requests) else ", no price set"
        trouble = troubles(trajectory.request_failures, trajectory.replies_repaired)
        if final and trajectory.final:
            self._print([Row("final", trajectory.final)], whole=True)
        if trajectory.answer is None:
            self._print([Row("answer", "(none)", "soft")])
        else:
            self._print([Row("answer", trajectory.answer, "strong")], self._answer_note, whole=True)
        reason = f"error, no answer, {counted(len(trajectory.turns), 'turn')}" if lost else record.stopped(trajectory)
        self._print([Row("stopped", reason, "bad" if lost else ""), Row("spent", took)])
        self._print([Row("requests", trouble or "none failed", "warn" if trouble else "")])

    # --- events ---------------------------------------------------------------------------------------------------

    def _begin(self, doing: str) -> None:
        self._doing, self._text, self._calls = doing, "", []
        self._retries, self._step_began = 0, time.monotonic()

    def _written(self) -> None:
        """Print what an interleaved policy wrote, once its reply is whole; the answer is printed at the end."""
        shown = record.reply_rows(self._calls, self._template, first=self._turn == 1, without=("call", "answer"))
        self._answer_note = self._note() or self._answer_note
        self._print(shown, self._note())
        if self._calls:
            self._begin("")

    def _step(self, rows: list[Row]) -> None:
        """A module is done."""
        self._print(rows, self._note())
        self._begin("")

    def _note(self) -> str:
        """What the step took."""
        tokens = sum(call.usage.completion_tokens for call in self._calls)
        took = duration(time.monotonic() - self._step_began)
        return f"{took}  {counted(tokens, 'token')}" if self._calls else ""

    # --- drawing --------------------------------------------------------------------------------------------------

    def _print(self, rows: Sequence[Row], note: str = "", *, whole: bool = False) -> None:
        """Print rows under the turn, long ones cut; `note` stands at the right end of the first if there is room."""
        for row in rows:
            style = STYLES.get(row.tone, "")
            content = Text(visible(row.text), style) if whole else plain(row.text, style)
            note = note if self._width >= _LEAST_WIDTH_WITH_NOTES else ""
            room = max(_LEAST_ROOM, self._width - _INDENT - (len(note) + 2 if note else 0))
            lines = list(content.wrap(self._console, room, overflow="fold"))
            if not whole and len(lines) > _MOST_LINES:
                lines[_MOST_LINES - 1 :] = [Text("… (cut here; --json has all of it)", "dim")]
            for place, line in enumerate(lines):
                line.rstrip()
                label = f"  {row.label if place == 0 else '':<{_LABEL_WIDTH}}  "
                gap = " " * (self._width - _INDENT - line.cell_len - len(note))
                right = gap + note if note and place == 0 else ""
                self._console.print(Text.assemble((label, "dim"), line, (right, "dim")), soft_wrap=True)
            note = ""

    def _screen(self) -> RenderableType:
        """The live line, below the last lines of what is being written."""
        now = time.monotonic()
        line = Table.grid(padding=(0, 1))
        status = f"starting {duration(now - self._began)}"
        if self._turn:
            what = f"{self._unit} {self._turn}  {self._doing or 'waiting'} {duration(now - self._step_began)}"
            status = f"{what}   in all {duration(now - self._began)}, {_spent(self._requests)}"
        line.add_column()
        line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_row(self._spinner, Text(status, "dim"))
        text = Text(visible(self._text.strip()), "dim")
        most = max(1, min(_MOST_TEXT_LINES, self._console.height // 3))
        written = text.wrap(self._console, max(1, self._width - 2), overflow="fold")[-most:] if text else []
        return Group(*(Padding(text, (0, 0, 0, 2)) for text in written), line)


def _spent(calls: Sequence[Call]) -> str:
    """Prompt and completion tokens of requests, and their cost where a price is known."""
    used = usage_of(calls)
    cost = f", ${used.cost_usd:,.4f}" if used.cost_usd else ""
    return f"{used.prompt_tokens:,} + {used.completion_tokens:,} tokens{cost}"
