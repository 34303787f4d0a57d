"""The documents of the viewer, by path: runs, a run, a part of it, a group, a trajectory, its calls and their tokens.

    runs    run/RUN    run/RUN/part/PART    compare/RUN/RUN
    run/RUN/part/PART/group/TASK
    run/RUN/part/PART/trajectory/PLACE    .../call/N    .../call/N/tokens

Each is a JSON value (viewer/README.md). A run that is damaged or half written is shown as far as it goes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from midstream.components.kinds import modules_of
from midstream.core.errors import MidstreamError, RunError, UsageError
from midstream.core.trajectory import Trajectory
from midstream.report.blocks import Block
from midstream.report.comparison import compare, comparison_page
from midstream.report.evaluation import where
from midstream.report.run import run_page
from midstream.report.trajectory import brief, safe, stop_words, template_of, trajectory_document
from midstream.runs import RunDirectory
from midstream.runs.files import damaged
from midstream.runs.journal import skip_damage
from midstream.runs.segments import Entry, evaluation_name, result_name
from midstream.view import calls
from midstream.view.advantages import advantages
from midstream.view.entries import NO_FILTER, Filter, entries
from midstream.view.feedback import given_on_lessons, given_on_trajectories, keep_feedback
from midstream.view.parts import (
    RESTORE,
    JournalIndex,
    JournalPart,
    Kept,
    Part,
    SegmentPart,
    identity,
    of_task,
    trajectory_at,
)
from midstream.view.runs import Runs, cursor_of, not_files, updates_of

PAGE = 100  # entries of a list, unless a number is asked for
TURNS = 50  # turns of a trajectory
_LISTED_S = 0.3
_GROUP_TURNS = 200  # turns of a rollout in its group
# What reading records of a damaged run may raise.
_NOT_WHOLE = (MidstreamError, ValidationError, ValueError, LookupError, TypeError, OSError)


class Documents:
    """The documents of the runs in some places; threads may share it."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.runs = Runs(places)
        self._parts, self._journals, self._trajectories, self._pages = Kept(8), Kept(8), Kept(8), Kept(8)

    def get(self, path: Sequence[str], query: Mapping[str, str]) -> Block:
        """The document at a path, whose pieces are decoded; `query` limits what it holds. Raises `UsageError`."""
        match path:
            case ["runs"]:
                return self.list_runs()
            case ["run", run]:
                return self.run(run)
            case ["run", run, "part", part]:
                wanted = Filter(**{name: query.get(name, "") for name in ("reward", "status", "tool", "error", "text")})
                start, limit = _number(query, "from", 0), _number(query, "limit", PAGE)
                return self.part(run, part, start=start, limit=max(1, limit), wanted=wanted, seconds=_LISTED_S)
            case ["run", run, "part", part, "group", task]:
                return self.group(run, part, task)
            case ["run", run, "part", part, "trajectory", place]:
                first, limit = _number(query, "turn", 0), _number(query, "limit", TURNS)
                return self.trajectory(run, part, _place(place), first=first, limit=max(1, limit))
            case ["run", run, "part", part, "trajectory", place, "call", number]:
                return self.call(run, part, _place(place), _place(number))
            case ["run", run, "part", part, "trajectory", place, "call", number, "tokens"]:
                return self.tokens(run, part, _place(place), _place(number))
            case ["compare", first, second]:
                return self.compare(first, second)
        raise _missing(f"there is no document {'/'.join(path)!r}")

    def list_runs(self) -> Block:
        """All runs, those that changed last first."""
        states = self.runs.states()
        found = [self.runs.summary(name) for name in states]
        found.sort(key=lambda summary: summary["updated"], reverse=True)
        return {"title": "Runs", "runs": found, "cursor": cursor_of(states)}

    def run(self, name: str) -> Block:
        """A run: its page, its parts, what is missing."""
        states, run = self.runs.states(), self.runs.directory(name)
        summary = self.runs.summary(name)
        warnings: list[str] = []
        page: Block = {"title": summary["recipe"] or name, "lead": "", "sections": []}
        listed: list[Block] = []
        if not not_files(run.root):
            try:
                page = self._pages.get((name, states.get(name)), lambda: safe(_with_given(run_page(run), run)))
            except _NOT_WHOLE as error:
                warnings.append(f"the overview cannot be made: {_line(error)}")
            try:
                listed = parts(run, self._journal, warnings)
                if summary["state"] != "running":
                    damage = self._pages.get(("damage", name, states.get(name)), run.damage)
                    warnings += [error.what.replace(f"{run.root}{os.sep}", "") for error in damage]
            except (OSError, RunError) as error:
                warnings.append(f"its rollouts cannot be listed: {_line(error)}")
        warnings = list(dict.fromkeys([*summary["damage"], *warnings]))
        return {
            "summary": summary,
            "page": page,
            "parts": listed,
            "warnings": safe(warnings),
            "cursor": cursor_of(states),
        }

    def part(
        self,
        run: str,
        name: str,
        *,
        start: int = 0,
        limit: int | None = None,
        wanted: Filter = NO_FILTER,
        seconds: float = math.inf,
    ) -> Block:
        """A list of trajectories, from the place `start` on."""
        part = self.open(run, name)
        found, following, seen = entries(part, start, limit, wanted, seconds)
        directory = self.runs.directory(run)
        listed = {each["name"]: each for each in parts(directory, self._journal, [])}
        return safe(
            {
                "part": listed.get(name) or {"name": name, "kind": _kind(name), "step": None, "title": name},
                "entries": found,
                "next": following,
                "scanned": seen,
                "warnings": [part.damage] if part.damage else [],
            }
        )

    def group(self, run: str, name: str, task: str) -> Block:
        """The rollouts of a task next to each other. Raises `UsageError` without one."""
        part, resolved = self.open(run, name), _resolved(self.runs.directory(run))
        found = of_task(part, task)
        if not found:
            raise _missing(f"{name} has no task {task!r}")
        values, left_out = self._advantages(part, name, resolved, found)
        rollouts, turns, read = [], [], []
        given = given_on_trajectories(self.runs.directory(run), name)
        for (place, entry), advantage in zip(found, values, strict=True):
            try:
                trajectory = self._trajectory(part, place)
            except MidstreamError:  # damaged, or too large: the others are shown
                trajectory = Trajectory(id=entry.id, task_id=entry.task_id)
            read.append(trajectory)
            taken = trajectory.turns[:_GROUP_TURNS]
            turns.append([(turn.action, turn.command) for turn in taken])
            rollouts.append(
                {
                    "place": place,
                    "id": entry.id,
                    "reward": entry.score,
                    "advantage": advantage,
                    "status": entry.status,
                    "answer": trajectory.answer,
                    "stop": stop_words(trajectory.stop_reason),
                    "turns": [brief(turn) for turn in taken],
                    "tokens": sum(call.usage.completion_tokens for turn in taken for call in turn.calls),
                    "vote": given.get(entry.id, {}).get("vote", ""),
                }
            )
        return safe(
            {
                "task": task,
                "family": read[0].family,
                "question": read[0].question,
                "gold": next((trajectory.gold for trajectory in read if trajectory.gold is not None), None),
                "first_difference": _first_difference(turns),
                "rollouts": rollouts,
                "left_out": left_out,
            }
        )

    def trajectory(self, run: str, name: str, place: int, *, first: int = 0, limit: int | None = None) -> Block:
        """A trajectory with at most `limit` turns from `first` (from 0) on."""
        part, directory = self.open(run, name), self.runs.directory(run)
        trajectory, resolved = self._trajectory(part, place), _resolved(directory)
        return trajectory_document(
            trajectory,
            first=min(first, max(0, len(trajectory.turns) - 1)),
            limit=limit,
            template=template_of(resolved),
            trained=_trained(resolved, name),
            part=name,
            place=place,
            advantage=self._advantage(part, name, resolved, place),
            vote=given_on_trajectories(directory, name).get(part.entries[place].id),
        )

    def call(self, run: str, name: str, place: int, number: int) -> Block:
        """What one call sent, and what changed since the call before it of the same role."""
        return safe(calls.call_document(self._trajectory(self.open(run, name), place), number))

    def tokens(self, run: str, name: str, place: int, number: int) -> Block:
        """The tokens of one call, and the training row that it is in."""
        part, directory = self.open(run, name), self.runs.directory(run)
        trajectory, resolved = self._trajectory(part, place), _resolved(directory)
        trained, value = _trained(resolved, name), self._advantage(part, name, resolved, place)
        return safe(calls.tokens_document(trajectory, number, directory, resolved, trained=trained, advantage=value))

    def compare(self, first: str, second: str) -> Block:
        """The paired comparison of two runs. Raises `UsageError` if they have nothing in common."""
        states, both = self.runs.states(), (first, second)
        key = tuple((name, states.get(name)) for name in both)
        return self._pages.get(key, lambda: comparison_page(compare(*map(self.runs.directory, both))))

    def feedback(self, run: str, body: Any) -> dict[str, str]:
        """Keep a thumb or a note; raises as `keep_feedback`."""
        part = body.get("part") if isinstance(body, dict) else None
        return keep_feedback(self.runs.directory(run), body, self.open(run, part) if isinstance(part, str) else None)

    def open(self, run: str, name: str) -> Part:
        """A part of a run. Raises `UsageError` without it."""
        directory = self.runs.directory(run)
        path = directory.trajectories.root / f"{name}.jsonl.gz"
        if _fits(name) and os.path.isfile(path):
            found = identity(path.stat())
            return self._parts.get((path, found), lambda: SegmentPart(path))
        for journal in _journals(directory):
            index = self._journal(journal)
            for named in index.sets:
                if f"unfinished-{evaluation_name(named).removeprefix('eval-')}" == name:
                    return JournalPart(index, named)
        raise _missing(f"{run} has no part {name!r}")

    def _trajectory(self, part: Part, place: int) -> Trajectory:
        return self._trajectories.get((part.identity, place), lambda: trajectory_at(part, place))

    def _journal(self, path: Path) -> JournalIndex:
        found = identity(path.stat())[0]
        index = self._journals.get((path, found), lambda: JournalIndex(path))
        index.update()
        return index

    def _advantages(
        self, part: Part, name: str, resolved: Mapping[str, Any], group: Sequence[tuple[int, Entry]]
    ) -> tuple[list[float | None], str]:
        """The advantage of each trajectory of a group, and why the group was not trained on."""
        if _kind(name) != "step" or not resolved.get("training"):
            return [None] * len(group), ""
        return advantages([entry for _, entry in group], resolved["training"])

    def _advantage(self, part: Part, name: str, resolved: Mapping[str, Any], place: int) -> float | None:
        group = of_task(part, part.entries[place].task_id)
        values, _ = self._advantages(part, name, resolved, group)
        return {at: value for (at, _), value in zip(group, values, strict=True)}.get(place)


def _with_given(page: Block, run: RunDirectory) -> Block:
    """The page of a run, with what people said of its lessons in their cards."""
    given: Block | None = None
    waiting = [block for section in page["sections"] for block in section["blocks"]]
    while waiting:
        block = waiting.pop()
        waiting += block.get("blocks", ())
        for card in block.get("cards", ()):
            waiting += card["blocks"]
            if card["vote"]:
                given = given_on_lessons(run) if given is None else given
                card["given"] = given.get(card["id"])
    return page


def parts(run: RunDirectory, journal: Any, warnings: list[str]) -> list[Block]:
    """The parts of a run: steps, then evaluations in their order, then what is unfinished; `warnings` gets the rest."""
    there = set(run.trajectories.parts())
    of_evaluation = not (run.root / "checkpoints").is_dir()
    found: list[Block] = []
    metrics = run.metrics.read(skip_damage)
    steps = {step.step: (step.reward_mean, step.trajectories, step.trajectories_error) for step in metrics}
    steps |= {update.step: (update.mean_reward, 0, len(update.failed)) for update in updates_of(run)}
    for step in run.trajectories.steps():
        mean, count, errors = steps.get(step, (None, 0, 0))
        name = f"step-{step:06d}"
        there.discard(name)
        try:
            found.append(_part(run, name, "step", step, f"step {step}", count, mean, errors))
        except (OSError, RunError) as error:
            warnings.append(f"the trajectories of step {step} cannot be read: {_line(error)}")
    if missing := sorted(set(steps) - set(run.trajectories.steps())):
        warnings.append(f"the trajectories of step {', '.join(map(str, missing[:10]))} are missing")
    for result in run.evaluations.read(skip_damage):
        step = None if of_evaluation else result.step
        name = evaluation_name(result_name(result.set_name, result.sampling, step))
        title = f"{where(result)} {result.sampling}" + ("" if step is None else f", step {step}")
        if name not in there:
            warnings.append(f"the trajectories of {title} are missing")
            continue
        there.discard(name)
        found.append(
            _part(run, name, "evaluation", step, title, result.tasks * result.trials, result.success, result.errors)
        )
    for name in sorted(there):
        title = name.replace("eval-gate-", "gate of update ").removeprefix("eval-")
        found.append(_part(run, name, _kind(name), None, title, 0, None, 0))
    done = {part["name"] for part in found}
    for path in _journals(run):
        for name, (_, listed) in journal(path).sets.items():
            if (evaluated := evaluation_name(name)) not in done and name not in done:
                unfinished = f"unfinished-{evaluated.removeprefix('eval-')}"
                about = {"name": unfinished, "kind": "unfinished", "step": None, "title": f"{name}, under way"}
                found.append({**about, **_numbers(listed)})
    return safe(found)


def _part(
    run: RunDirectory, name: str, kind: str, step: int | None, title: str, count: int, mean: float | None, errors: int
) -> Block:
    """A part; what no record says of it is read from its index."""
    numbers = {"count": count, "mean": mean, "errors": errors}
    if not count or mean is None:
        part = SegmentPart(run.trajectories.root / f"{name}.jsonl.gz")
        if part.damage and not part.entries:
            raise damaged(part.path, part.damage, RESTORE)
        numbers = _numbers(part.entries)
    return {"name": name, "kind": kind, "step": step, "title": title, **numbers}


def _numbers(entries: Sequence[Entry]) -> Block:
    scores = [entry.score for entry in entries if entry.score is not None]
    errors = sum(entry.status == "error" for entry in entries)
    return {"count": len(entries), "mean": sum(scores) / len(scores) if scores else None, "errors": errors}


def _journals(run: RunDirectory) -> list[Path]:
    """The journals of what is unfinished."""
    return [path for path in (run.results_path, run.ledger_dir / "rollouts.jsonl") if path.is_file()]


def _resolved(run: RunDirectory) -> Mapping[str, Any]:
    """The run's recipe; empty if it cannot be read."""
    try:
        return run.info().resolved
    except MidstreamError:
        return {}


def _trained(resolved: Mapping[str, Any], part: str) -> str:
    """The role whose calls in this part were trained on, "" for none."""
    agent = resolved.get("agent") or {}
    if _kind(part) != "step" or not resolved.get("training"):
        return ""
    return agent.get("role") or modules_of(agent.get("type", ""))[0]


def _first_difference(rollouts: Sequence[Sequence[Any]]) -> int | None:
    """The first turn, from 0, in which not all rollouts do the same; None if they never differ."""
    longest = max(map(len, rollouts), default=0)
    for place in range(longest):
        first, *others = (turns[place : place + 1] for turns in rollouts)
        if any(other != first for other in others):
            return place
    return None


def _kind(name: str) -> str:
    return {"step": "step", "unfinished": "unfinished"}.get(name.partition("-")[0], "evaluation")


def _fits(name: str) -> bool:
    """Whether a part's name is one of a file in the directory of trajectories."""
    return bool(name) and not name.startswith(".") and "/" not in name and "\\" not in name and "\0" not in name


def _number(query: Mapping[str, str], name: str, otherwise: int) -> int:
    text = query.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 19 else otherwise


def _place(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise _missing(f"{text!r} is no place")
    return int(text)


def _missing(what: str) -> UsageError:
    return UsageError(what, code="unknown-name", fix="go up to the list, which has what there is")


def _line(error: Exception) -> str:
    return getattr(error, "what", None) or str(error).partition("\n")[0] or type(error).__name__
