"""The documents of the viewer, by path: runs, a run, a part of it, a group, a trajectory, its calls and their tokens.

    runs    run/RUN    run/RUN/part/PART    compare/RUN/RUN
    compare/RUN/RUN/choices    run/RUN/part/PART/failures    run/RUN/part/PART/group/TASK
    run/RUN/part/PART/trajectory/PLACE    .../call/N    .../call/N/tokens

Each is a JSON value (viewer/README.md). A run that is damaged or half written is shown as far as it goes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from midstream.components.kinds import modules_of
from midstream.core.errors import MidstreamError, RunError, UsageError
from midstream.core.trajectory import Trajectory
from midstream.report.blocks import Block, safe
from midstream.report.comparison import compare, comparison_page
from midstream.report.evaluation import where
from midstream.report.run import run_page
from midstream.report.trajectory import brief, stop_words, template_of, trajectory_document
from midstream.runs import RunDirectory
from midstream.runs.files import damaged
from midstream.runs.journal import skip_damage
from midstream.runs.segments import Entry, evaluation_name, result_name
from midstream.view import calls
from midstream.view.advantages import advantages
from midstream.view.entries import READ, Filter, entries, failures
from midstream.view.feedback import choice_document, given, keep_choice, keep_feedback
from midstream.view.parts import RESTORE, Part, journal_sets, of_task, segment_part, trajectory_at
from midstream.view.runs import Runs, state_of, summary, updates_of

T = TypeVar("T")
PAGE = 100  # entries of a list, unless a number is asked for
TURNS = 50  # turns of a trajectory
_LISTED_S = 0.3
_GROUP_TURNS = 200  # turns of a rollout in its group
_MISSING_SHOWN = 10  # parts that are named
# What reading records of a damaged run may raise.
_NOT_WHOLE = (MidstreamError, ValidationError, ValueError, LookupError, TypeError, OSError)


class Documents:
    """The documents of the runs in some places; threads may share it."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.runs = Runs(places)

    def get(self, path: Sequence[str], query: Mapping[str, str]) -> Block:
        """The document at a path, whose pieces are decoded; `query` limits what it holds. Raises `UsageError`."""
        match path:
            case ["runs"]:
                return self.list_runs()
            case ["run", run]:
                return self.run(run)
            case ["run", run, "part", part]:
                texts = {name: query.get(name, "") for name in ("reward", "status", *READ)}
                start, limit = _number(query, "from", 0), max(1, _number(query, "limit", PAGE))
                return self.part(run, part, Filter(**texts, start=start, limit=limit, seconds=_LISTED_S))
            case ["run", run, "part", part, "failures"]:
                opened = self.open(run, part)
                return failures(opened, len(opened.entries))
            case ["run", run, "part", part, "group", task]:
                return self.group(run, part, task)
            case ["run", run, "part", part, "trajectory", place]:
                first, limit = _number(query, "turn", 0), _number(query, "limit", TURNS)
                return self.trajectory(run, part, _place(place), first=first, limit=max(1, limit))
            case ["run", run, "part", part, "trajectory", place, "call", number]:
                trajectory = trajectory_at(self.open(run, part), _place(place))
                return safe(calls.call_document(trajectory, _place(number)))
            case ["run", run, "part", part, "trajectory", place, "call", number, "tokens"]:
                opened, directory, place = self.open(run, part), self.runs.directory(run), _place(place)
                trajectory, resolved = trajectory_at(opened, place), _resolved(directory)
                advantage, trained = _advantage(opened, part, resolved, place), _trained(resolved, part)
                found = calls.tokens_document(trajectory, _place(number), directory, resolved, trained, advantage)
                return safe(found)
            case ["compare", first, second]:
                return comparison_page(_kept(compare, self.runs.directory(first), self.runs.directory(second)))
            case ["compare", first, second, "choices"]:
                runs = self.runs.directory(first), self.runs.directory(second)
                return choice_document(*runs, _number(query, "place", -1))
        raise _missing(f"there is no document {'/'.join(path)!r}")

    def list_runs(self) -> Block:
        """All runs, those that changed last first."""
        found = [self._summary(name) for name in self.runs.find()]
        return {"title": "Runs", "runs": sorted(found, key=lambda summary: summary["updated"], reverse=True)}

    def _summary(self, name: str) -> Block:
        root = self.runs.directory(name).root
        return {"run": name, **summary(root, state_of(root))}

    def run(self, name: str) -> Block:
        """A run: its page, its parts, what is missing."""
        run, about = self.runs.directory(name), self._summary(name)
        warnings: list[str] = []
        page: Block = {"title": about["recipe"] or name, "lead": "", "sections": []}
        listed: list[Block] = []
        try:
            page = _kept(_overview, run)
        except _NOT_WHOLE as error:
            warnings.append(f"the overview cannot be made: {_line(error)}")
        try:
            listed = parts(run, warnings)
            # Of a run at work the last lines may be half written.
            if about["state"] != "running":
                damage = _kept(RunDirectory.damage, run)
                warnings += [error.what.replace(f"{run.root}{os.sep}", "") for error in damage]
        except (OSError, RunError) as error:
            warnings.append(f"its rollouts cannot be listed: {_line(error)}")
        warnings = list(dict.fromkeys([*about["damage"], *warnings]))
        return {"summary": about, "page": page, "parts": listed, "warnings": safe(warnings)}

    def part(self, run: str, name: str, wanted: Filter) -> Block:
        """A list of trajectories."""
        part = self.open(run, name)
        found, following, seen = entries(part, wanted)
        directory = self.runs.directory(run)
        listed = {each["name"]: each for each in parts(directory, [])}
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
        values, left_out = _advantages(name, resolved, found)
        rollouts, acts, read = [], [], []
        said = given(self.runs.directory(run), name)
        for (place, entry), advantage in zip(found, values, strict=True):
            try:
                trajectory = trajectory_at(part, place)
            except MidstreamError:  # damaged, or too large: the others are shown
                trajectory = Trajectory(id=entry.id, task_id=entry.task_id)
            read.append(trajectory)
            taken = trajectory.turns[:_GROUP_TURNS]
            acts.append([(turn.action, turn.command) for turn in taken])
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
                    "vote": said.get(entry.id, {}).get("vote", ""),
                }
            )
        longest = max(map(len, acts))
        differs = (at for at in range(longest) if any(each[at : at + 1] != acts[0][at : at + 1] for each in acts))
        return safe(
            {
                "task": task,
                "family": read[0].family,
                "question": read[0].question,
                "gold": next((trajectory.gold for trajectory in read if trajectory.gold is not None), None),
                "first_difference": next(differs, None),
                "rollouts": rollouts,
                "left_out": left_out,
            }
        )

    def trajectory(self, run: str, name: str, place: int, *, first: int = 0, limit: int | None = None) -> Block:
        """A trajectory with at most `limit` turns from `first` (from 0) on."""
        part, directory = self.open(run, name), self.runs.directory(run)
        trajectory, resolved = trajectory_at(part, place), _resolved(directory)
        return trajectory_document(
            trajectory,
            first=min(first, max(0, len(trajectory.turns) - 1)),
            limit=limit,
            template=template_of(resolved),
            trained=_trained(resolved, name),
            part=name,
            place=place,
            advantage=_advantage(part, name, resolved, place),
            vote=given(directory, name).get(part.entries[place].id),
        )

    def feedback(self, run: str, body: Any) -> Block:
        """Keep a thumb, a note or a decision; raises as `keep_feedback`."""
        part = body.get("part") if isinstance(body, dict) else None
        return keep_feedback(self.runs.directory(run), body, self.open(run, part) if isinstance(part, str) else None)

    def choose(self, first: str, second: str, body: Any) -> Block:
        """Keep a choice between two answers, and return the next question; raises as `keep_choice`."""
        return keep_choice(self.runs.directory(first), self.runs.directory(second), body)

    def open(self, run: str, name: str) -> Part:
        """A part of a run. Raises `UsageError` without it."""
        directory = self.runs.directory(run)
        if name in (segments := directory.trajectories.parts()):
            return segment_part(segments[name].path)
        for journal in _journals(directory):
            for named, part in journal_sets(journal).items():
                if _unfinished(named) == name:
                    return part
        raise _missing(f"{run} has no part {name!r}")


def _kept(make: Callable[..., T], *runs: RunDirectory) -> T:
    """What `make` makes of these runs, kept while their files stay as they are."""
    return _made(make, *((run.root, state_of(run.root)) for run in runs))


@lru_cache(8)
def _made(make: Callable[..., Any], *runs: tuple[Path, Hashable]) -> Any:
    return make(*(RunDirectory(root) for root, _ in runs))


def _overview(run: RunDirectory) -> Block:
    """The page of a run, with what people said of its lessons in their cards."""
    page = run_page(run)
    voted = [card for section in page["sections"] for card in _cards(section["blocks"]) if card["vote"]]
    said = given(run) if voted else {}
    for card in voted:
        card["given"] = said.get(card["id"])
    return page


def _cards(blocks: Sequence[Block]) -> Iterator[Block]:
    """The cards in these blocks, folded ones included."""
    for block in blocks:
        yield from block.get("cards", ())
        yield from _cards(block.get("blocks", ()))


def _advantages(
    name: str, resolved: Mapping[str, Any], group: Sequence[tuple[int, Entry]]
) -> tuple[list[float | None], str]:
    """The advantage of each trajectory of a group of the part `name`, and why the group was not trained on."""
    if _kind(name) != "step" or not resolved.get("training"):
        return [None] * len(group), ""
    return advantages([entry for _, entry in group], resolved["training"])


def _advantage(part: Part, name: str, resolved: Mapping[str, Any], place: int) -> float | None:
    group = of_task(part, part.entries[place].task_id)
    values, _ = _advantages(name, resolved, group)
    return {at: value for (at, _), value in zip(group, values, strict=True)}.get(place)


def parts(run: RunDirectory, warnings: list[str]) -> list[Block]:
    """The parts of a run: steps, then evaluations in their order, then what is unfinished; `warnings` gets the rest."""
    there, found = run.trajectories.parts(), dict[str, Block]()

    def add(
        name: str, title: str, step: int | None = None, count: int = 0, mean: float | None = None, errors: int = 0
    ) -> None:
        about = {"name": name, "kind": _kind(name), "step": step, "title": title}
        found[name] = {**about, "count": count, "mean": mean, "errors": errors}

    # Steps without a record first, so that all are in order.
    for step in (*run.trajectories.steps(), *(update.step for update in updates_of(run))):
        add(f"step-{step:06d}", f"step {step}", step)
    for each in run.metrics.read(skip_damage):
        numbers = each.trajectories, each.reward_mean, each.trajectories_error
        add(f"step-{each.step:06d}", f"step {each.step}", each.step, *numbers)
    of_evaluation = not (run.root / "checkpoints").is_dir()
    for result in run.evaluations.read(skip_damage):
        step = None if of_evaluation else result.step
        title = f"{where(result)} {result.sampling}" + ("" if step is None else f", step {step}")
        name = evaluation_name(result_name(result.set_name, result.sampling, step))
        add(name, title, step, result.tasks * result.trials, result.success, result.errors)
    for name in sorted(there.keys() - found.keys()):
        add(name, name.replace("eval-gate-", "gate of update ").removeprefix("eval-"))
    missing = [part["title"] for name, part in found.items() if name not in there]
    warnings += [f"the trajectories of {title} are missing" for title in missing[:_MISSING_SHOWN]]
    listed = []
    for name, part in found.items():
        if name in there:
            try:
                recorded = part["count"] and part["mean"] is not None
                listed.append(part if recorded else part | _numbers(segment_part(there[name].path)))
            except (OSError, RunError) as error:
                warnings.append(f"the trajectories of {part['title']} cannot be read: {_line(error)}")
    for path in _journals(run):
        for name, unfinished in journal_sets(path).items():
            # A crash may leave records of a set that is finished.
            if not {evaluation_name(name), name} & there.keys():
                about = {"kind": "unfinished", "step": None, "title": f"{name}, under way"}
                listed.append({"name": _unfinished(name), **about, **_numbers(unfinished)})
    return safe(listed)


def _numbers(part: Part) -> Block:
    """The numbers of a part that no record has, from its index."""
    if part.damage and not part.entries:
        raise damaged(part.path, part.damage, RESTORE)
    scores = [entry.score for entry in part.entries if entry.score is not None]
    errors = sum(entry.status == "error" for entry in part.entries)
    return {"count": len(part.entries), "mean": sum(scores) / len(scores) if scores else None, "errors": errors}


def _unfinished(name: str) -> str:
    """The name of the part of a set under way."""
    return f"unfinished-{evaluation_name(name).removeprefix('eval-')}"


def _journals(run: RunDirectory) -> list[Path]:
    """The journals of what is unfinished."""
    return [path for path in (run.results_path, run.ledger_dir / "rollouts.jsonl") if path.is_file()]


def _resolved(run: RunDirectory) -> Mapping[str, Any]:
    """The run's recipe; empty if it cannot be read."""
    try:
        return run.info().resolved
    except MidstreamError:
        return {}


def _trained(resolved: Mapping[str, Any], part: str) -> Collection[str]:
    """The roles whose calls in this part were trained on."""
    agent, training = resolved.get("agent") or {}, resolved.get("training")
    if _kind(part) != "step" or not training:
        return ()
    return training.get("roles") or (agent.get("role") or modules_of(agent.get("type", ""))[0],)


def _kind(name: str) -> str:
    return {"step": "step", "unfinished": "unfinished"}.get(name.partition("-")[0], "evaluation")


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
