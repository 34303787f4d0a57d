"""Lists of trajectories, filtered or by cause; what takes long is done for a while, and continues where it ended."""

from __future__ import annotations

import math
import operator
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from pydantic import ValidationError

from midstream.core.errors import RunError, UsageError
from midstream.core.text import visible
from midstream.core.trajectory import Trajectory
from midstream.report.blocks import Block, safe
from midstream.report.causes import add_task, cause_of, matches, reason_of
from midstream.runs.segments import Entry
from midstream.view.parts import Part, records

_REWARD = re.compile(r"(<=|>=|<|>|)(-?\d+(?:\.\d+)?)")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "": math.isclose,
}  # fmt: skip
_LONGEST = 400  # characters of a question or an answer in a list
READ = ("tool", "error", "text", "family", "cause", "where")  # filters that need the trajectories themselves


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What a list holds: at most `limit` trajectories from the place `start` on that pass.

    After about so many `seconds` of reading a filtered list ends early, another one shows only what the index says.
    `reward` is a number, one with "<", "<=", ">" or ">=" before it, "none", or "wrong" for all that are not right;
    `status` is "ok" or "error". `tool` is the name of a tool that was called, `error` a text within an error of the
    trajectory or of a turn ("*": any), `text` one within a question, an answer or any other text; letter case does not
    matter. `family` and `cause` are whole names, `where` is an expression (`report/causes.py`).
    """

    reward: str = ""
    status: str = ""
    tool: str = ""
    error: str = ""
    text: str = ""
    family: str = ""
    cause: str = ""
    where: str = ""
    start: int = 0
    limit: int | None = None
    seconds: float = math.inf

    def takes(self, entry: Entry) -> bool:
        """Whether the index lets the trajectory pass. Raises `UsageError` for a reward of another form."""
        if self.status and entry.status != self.status:
            return False
        if self.reward == "wrong":
            return entry.status != "ok" or entry.score is None or entry.score < 1
        if self.reward in ("", "none"):
            return not self.reward or entry.score is None
        if (wanted := _REWARD.fullmatch(self.reward)) is None:
            fix = "a number such as 1 or <0.5, none, or wrong"
            raise UsageError(f"reward = {self.reward!r} is no filter", code="setting-range", fix=fix)
        return entry.score is not None and _COMPARE[wanted[1]](entry.score, float(wanted[2]))

    def finds(self, record: Block) -> bool:
        """Whether the trajectory of a record passes. Raises `UsageError` for no expression."""
        try:
            turns = record.get("turns") or []
            named = (part for turn in turns for part in (turn.get("action"), turn.get("command")))
            made = (call for turn in turns for call in (turn.get("observation") or {}).get("tool_calls", ()))
            return (
                (not self.tool or any(part and part.get("tool") == self.tool for part in (*named, *made)))
                and (not self.error or _within(self.error, _errors(record, turns)))
                and (not self.text or _within(self.text, _texts(record)))
                and (not self.family or visible(record.get("family", "")) == self.family)
                and (not self.cause or visible(cause_of(Trajectory.model_validate(record))) == self.cause)
                and (not self.where or matches(Trajectory.model_validate(record), self.where))
            )
        except (AttributeError, TypeError, ValidationError):  # of a record of another form
            return False


def entries(part: Part, wanted: Filter) -> tuple[list[Block], int | None, int]:
    """The entries of a list, where to continue (None: at its end), and how many trajectories were seen."""
    places = [place for place, entry in enumerate(part.entries) if place >= wanted.start and wanted.takes(entry)]
    found: list[Block] = []
    searched = any(getattr(wanted, name) for name in READ)
    following, until = None, math.inf
    try:
        for place, record in zip(places, records(part, places), strict=True):
            if len(found) == wanted.limit or time.monotonic() > until:
                following = place
                break
            # The clock starts here, since the first record may be deep in its file.
            until = min(until, time.monotonic() + wanted.seconds)
            if not searched or wanted.finds(record):
                found.append(_entry(place, part.entries[place], record))
    except RunError as error:
        part.damage = part.damage or error.what
    if not searched:
        # The page asks for these by their places, and would leave holes.
        shown = places[: wanted.limit]
        found += [_entry(place, part.entries[place], {}) for place in shown[len(found) :]]
        following = places[len(shown)] if len(shown) < len(places) else None
    return found, following, (len(part.entries) if following is None else following) - wanted.start


@lru_cache(8)
def failures(part: Part, count: int) -> Block:
    """The first `count` trajectories of a part, those that are not right by cause, and the tasks that these make."""
    wrong = Filter(reward="wrong")
    places = [place for place, entry in enumerate(part.entries[:count]) if wrong.takes(entry)]
    causes: dict[str, Block] = {}
    tasks, ids = dict[str, str](), dict[str, str]()
    try:
        for place, record in zip(places, records(part, places), strict=True):
            with suppress(ValidationError):  # which is counted as unread
                run = Trajectory.model_validate(record)
                cause, words = cause_of(run), reason_of(run)[1][:_LONGEST]
                row = {**_entry(place, part.entries[place], record), "gold": (run.gold or "")[:_LONGEST]}
                row["line"] = add_task(run, tasks, ids)
                causes.setdefault(cause, {"cause": cause, "words": words, "rollouts": []})["rollouts"].append(row)
    except RunError as error:
        part.damage = part.damage or error.what
    ordered = sorted(causes.values(), key=lambda found: -len(found["rollouts"]))
    found = {"count": count, "causes": ordered, "tasks": tasks, "warnings": [part.damage] * bool(part.damage)}
    return safe({**found, "unread": len(places) - sum(len(group["rollouts"]) for group in ordered)})


def _entry(place: int, entry: Entry, record: Block) -> Block:
    """What the index says, with family, question, answer and turns; these not of a record that cannot be read."""
    found = {"place": place, "id": entry.id, "task": entry.task_id, "reward": entry.score, "status": entry.status}
    if record:
        turns = record.get("turns", ())
        found["turns"] = len(turns) if isinstance(turns, list) else 0
        found["family"] = record.get("family", "")
        for name in ("question", "answer"):
            text = record.get(name)
            found[name] = text[:_LONGEST] if isinstance(text, str) else None
    return found


def _errors(record: Block, turns: list[Block]) -> Iterator[str]:
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


def _texts(record: Block) -> Iterator[str]:
    """Every text in a JSON value, names of fields left out."""
    waiting: list[object] = [record]
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
