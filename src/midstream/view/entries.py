"""Lists of trajectories with filters; what takes long is done for a while, and continues where the answer ended."""

from __future__ import annotations

import json
import math
import operator
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from midstream.core.errors import UsageError
from midstream.runs.segments import Entry
from midstream.view.lines import Text
from midstream.view.parts import Line, Part
from midstream.view.turns import TROUBLES, Recorded

_REWARD = re.compile(r"(<=|>=|<|>|)(-?\d+(?:\.\d+)?)")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "": math.isclose,
}  # fmt: skip
_LONGEST = 400  # characters of a question or an answer in a list


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What a list holds.

    `reward` is a number, one with "<", "<=", ">" or ">=" before it, or "none"; `status` is "ok" or "error". `tool` is
    the name of a tool that was called, `error` a text within an error of the trajectory or of a turn ("*": any),
    `text` one within a question, an answer or any other text; letter case does not matter.
    """

    reward: str = ""
    status: str = ""
    tool: str = ""
    error: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        if self.reward not in ("", "none") and not _REWARD.fullmatch(self.reward):
            raise UsageError(
                f"reward = {self.reward!r} is no filter",
                code="setting-range",
                fix="a number such as 1 or <0.5, or none",
            )

    @property
    def reads(self) -> bool:
        """Whether it needs more than the index."""
        return bool(self.tool or self.error or self.text)

    def takes(self, entry: Entry) -> bool:
        """Whether the index lets the trajectory pass."""
        if self.status and entry.status != self.status:
            return False
        if not self.reward:
            return True
        if entry.score is None or self.reward == "none":
            return entry.score is None and self.reward == "none"
        sign, number = _REWARD.fullmatch(self.reward).groups()  # type: ignore[union-attr]  # checked
        return _COMPARE[sign](entry.score, float(number))

    def finds(self, line: Line) -> bool:
        """Whether the trajectory of a line passes; a large one is searched as text."""
        if line.record is None:
            return self._finds_in(line.text, line.start)
        try:
            return self._finds(line.record)
        except (AttributeError, TypeError):  # of a record of another form
            return False

    def _finds(self, record: dict[str, Any]) -> bool:
        turns = record.get("turns") or []
        return (
            (not self.tool or any(self.tool in _tools(turn) for turn in turns))
            and (not self.error or _within(self.error, _errors(record, turns)))
            and (not self.text or _within(self.text, _texts(record)))
        )

    def _finds_in(self, text: Text, start: int) -> bool:
        wanted = []
        if self.tool:
            wanted.append(f'"tool":{json.dumps(self.tool, ensure_ascii=False)}')
        if self.error:
            wanted.append('"error":' if self.error == "*" else _as_json(self.error))
        if self.text:
            wanted.append(_as_json(self.text))
        missing = {each.casefold().encode() for each in wanted}
        longest, before = max(map(len, missing), default=0), b""
        for part in text.parts(start):
            end = part.find(b"\n")
            part = part if end < 0 else part[:end]
            searched = (before + part).decode("utf-8", "ignore").casefold().encode()
            missing = {each for each in missing if each not in searched}
            if not missing or end >= 0:
                break
            before = part[-longest - 4 :]
        return not missing


NO_FILTER = Filter()


def entries(
    part: Part, start: int = 0, limit: int | None = None, wanted: Filter = NO_FILTER, seconds: float = math.inf
) -> tuple[list[dict[str, Any]], int | None, int]:
    """At most `limit` entries from the place `start` on, where to continue (None: at the end), and how many were seen.

    After about so many seconds it ends early, and shows of an entry only what the index says.
    """
    until = time.monotonic() + seconds
    found: list[dict[str, Any]] = []
    lines = _Lines(part.lines(start)) if wanted.reads else None
    seen, place = 0, start
    for place, entry in part.entries(start):
        if len(found) == limit or (lines is not None and seen and time.monotonic() > until):
            break
        seen += 1
        line = lines.at(place) if lines is not None else None
        if wanted.takes(entry) and (lines is None or (line is not None and wanted.finds(line))):
            found.append(_entry(place, entry, line))
    else:
        place = None
    if lines is None and found:
        until = time.monotonic() + seconds  # the list itself may have taken its time, once
        lines = _Lines(part.lines(found[0]["place"]))
        for shown in found:
            if time.monotonic() > until:
                break
            if (line := lines.at(shown["place"])) is not None:
                shown.update(_said(line))
    return found, place, seen


class _Lines:
    """Lines that are asked for in ascending order; those that are damaged are missing."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines, self._next = lines, next(lines, None)

    def at(self, place: int) -> Line | None:
        while self._next is not None and self._next.place < place:
            self._next = next(self._lines, None)
        return self._next if self._next is not None and self._next.place == place else None


def _entry(place: int, entry: Entry, line: Line | None) -> dict[str, Any]:
    shown = {"place": place, "id": entry.id, "task": entry.task_id, "reward": entry.score, "status": entry.status}
    return shown if line is None else shown | _said(line)


def _said(line: Line) -> dict[str, Any]:
    """Question, answer and number of turns; of a large line its question."""
    if line.record is None:
        recorded = Recorded(line.text, line.start)
        recorded.scan(1)
        try:
            return {"question": recorded.frame().question[:_LONGEST]}
        except TROUBLES:
            return {}
    record = line.record
    shown = {"question": record.get("question", ""), "answer": record.get("answer")}
    turns = record.get("turns", ())
    return {
        **{name: value[:_LONGEST] if isinstance(value, str) else None for name, value in shown.items()},
        "turns": len(turns) if isinstance(turns, list) else 0,
    }


def _tools(turn: Any) -> list[str]:
    """The tools that a turn named."""
    return [turn[name].get("tool", "") for name in ("action", "command") if isinstance(turn.get(name), dict)] + [
        call.get("tool", "") for call in (turn.get("observation") or {}).get("tool_calls", ())
    ]


def _errors(record: dict[str, Any], turns: list[Any]) -> Iterator[str]:
    """The texts of what failed."""
    for info in (record.get("error"), *(turn.get("error") for turn in turns), *record.get("earlier_errors", ())):
        if info:
            yield f"{info.get('type', '')}: {info.get('message', '')}"
    for turn in turns:
        for name in ("action", "command"):
            if (turn.get(name) or {}).get("error"):
                yield turn[name]["error"]
        if (turn.get("observation") or {}).get("status") == "error":
            yield turn["observation"].get("text", "")


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names of fields left out."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list) and value and not isinstance(value[0], int | float):  # token ids are no text
            waiting += value


def _within(wanted: str, texts: Iterator[str]) -> bool:
    wanted = "" if wanted == "*" else wanted.casefold()
    return any(wanted in text.casefold() for text in texts)


def _as_json(text: str) -> str:
    """A text as it stands within a string of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def of_task(part: Part, task: str) -> list[tuple[int, Entry]]:
    """The trajectories of a task."""
    return [(place, entry) for place, entry in part.entries() if entry.task_id == task]
