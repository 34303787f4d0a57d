"""Transcripts that teach a model to play a search engine, made of what searches answered in runs.

Source: ZeroSearch, arXiv 2505.04588, search simulation tuning: searches of trajectories with a real search engine, a
judge that marks their documents useful or noisy, and supervised learning with the simulator's own prompt. The judge is
Qwen-Max in the paper's second version, any engine here (`UsefulJudge`). `by_rule` asks no model: it extends the paper's
first version, whose label is the outcome of the trajectory. Departures: a result that helped one trajectory is useful
to all whose query found it, or a right step of a wrong trajectory would be noisy; so is what holds the gold answer.
A trajectory that was not scored says nothing, and is left out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from midstream.core.engine import Engine
from midstream.core.errors import UsageError
from midstream.core.task import Task
from midstream.core.trajectory import ToolCall, Trajectory
from midstream.exports import OF_A_STRATEGY, SUCCESS, Exported, new_file, trajectories_of
from midstream.rewards.judge import Judge, JudgeConfig
from midstream.rollout import run_concurrently
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_file, encode_record
from midstream_extra.corpus import holds
from midstream_extra.simulated import (
    Kind,
    SimulatedConfig,
    SimulatorPrompt,
    query_of,
    read_documents,
    write_documents,
)

_AT_ONCE = 64  # requests to a judge


@dataclass(frozen=True, slots=True)
class Search:
    """What a tool found for one query of a trajectory; `answer` is the gold one.

    `solved`: a trajectory in which the query found this ended with the right answer, whatever its question.
    """

    query: str
    question: str
    answer: str
    documents: tuple[str, ...]
    solved: bool = field(compare=False)


Label = Callable[[Search], Awaitable[Kind]]


async def by_rule(search: Search) -> Kind:
    """Useful if a trajectory with this result was right in the end, or a document holds the gold answer verbatim."""
    useful = search.solved or any(holds(text, search.answer) for text in search.documents)
    return "useful" if useful else "noisy"


class UsefulJudge:
    """A model decides whether documents are useful; an error of the judge is never "noisy" (`rewards.judge.Judge`).

    Args:
        engine: the model, closed by its owner.
        model: its settings; another model's verdicts do not count.
        cache: a directory that keeps verdicts, so that a command that failed asks only for what is missing.
    """

    def __init__(self, engine: Engine, *, model: dict[str, Any], cache: Path) -> None:
        rubric = (resources.files("midstream_extra") / "useful.md").read_text(encoding="utf-8")
        self._judge = Judge(JudgeConfig(rubric=rubric, cache=cache, rule=""), engine, model=model)

    async def label(self, search: Search) -> Kind:
        """The judge's verdict on what one search found.

        Raises `RewardError` if the engine failed, or gave no verdict when asked twice.
        """
        task = Task(id="search", question=f"{search.question}\nQuery: {search.query}", answer=search.answer)
        found = Trajectory(id="search", task_id="search", answer=write_documents(search.documents))
        return "useful" if (await self._judge.score(task, found)).value else "noisy"

    async def close(self) -> None:
        """Close the verdicts."""
        await self._judge.close()


async def write_transcripts(
    runs: Sequence[RunDirectory], path: Path, *, tool: str, config: SimulatedConfig, label: Label, parts: str = ""
) -> tuple[Exported, Counter[Kind]]:
    """Write a transcript of each different search of `tool` to `path`, a new file for `warm_start.file`.

    A transcript's user message is the prompt of `simulated.ModelSimulator` with the settings `config`, its reply
    the documents in the form that this reads. `tool` is its name in trajectories. `parts` is a pattern of parts of the
    runs, by default what they learned from, of an evaluation all. Left out are trajectories that ended in an error, of
    a strategy, and with `by_rule` those without a reward. Returns what was written, and how many transcripts there are
    of each kind.

    Raises `UsageError` if no search is left, and what `label` raises.
    """
    new_file(path, ".jsonl")
    prompt, left_out, scored = SimulatorPrompt(config), Counter[str](), label is by_rule
    searches = [search for run in runs for search in _searches(run, tool, config, parts, left_out, scored)]
    solved = {(search.query, search.documents) for search in searches if search.solved}
    found = [replace(search, solved=(search.query, search.documents) in solved) for search in dict.fromkeys(searches)]
    if not found:
        raise UsageError(
            f"{', '.join(str(run.root) for run in runs)}: there is no search of {tool!r} to learn from",
            code="nothing-to-export",
            cause="; ".join(f"{number:,} left out: {reason}" for reason, number in left_out.items()) or "no trajectory",
            fix="name the tool that searched (--tool), other parts (--part 'eval-*'), or a run with the real tool",
        )
    waiting = asyncio.Semaphore(_AT_ONCE)

    async def labeled(search: Search) -> Kind:
        async with waiting:
            return await label(search)

    kinds = await run_concurrently([labeled(search) for search in found])
    with atomic_file(path) as file:
        for search, kind in zip(found, kinds, strict=True):
            asked = prompt.text(query=search.query, question=search.question, answer=search.answer, kind=kind)
            reply = write_documents(search.documents)
            messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]
            file.write(encode_record({"messages": messages}))
    return Exported(path, len(found), dict(left_out)), Counter(kinds)


def _searches(
    run: RunDirectory, tool: str, config: SimulatedConfig, parts: str, left_out: Counter[str], scored: bool
) -> Iterator[Search]:
    """The searches of a run; `left_out` counts trajectories without one by the reason. `scored`: only with a reward."""
    parts = parts or ("*" if run.info().kind == "evaluation" else "step-*")
    for _, trajectory in trajectories_of(run, parts, left_out):
        solved = trajectory.reward is not None and trajectory.reward.value >= SUCCESS
        if trajectory.status == "error":
            left_out["ended in an error"] += 1
        elif trajectory.refinement is not None:
            left_out[OF_A_STRATEGY] += 1
        elif scored and trajectory.reward is None:
            left_out["without a reward"] += 1
        elif trajectory.gold is None:
            left_out["without a gold answer"] += 1
        elif results := list(_results(trajectory, tool)):
            for call in results:
                if documents := tuple(read_documents(call.text, config)):
                    yield Search(query_of(call.arguments), trajectory.question, trajectory.gold, documents, solved)
        else:
            left_out[f"without a result of {tool} itself"] += 1


def _results(trajectory: Trajectory, tool: str) -> Iterator[ToolCall]:
    """The calls of a tool that found something. With a mark, a simulator answered, or the tool was degraded."""
    for turn in trajectory.turns:
        if turn.command is None or turn.command.error or turn.observation is None or turn.observation.marks:
            continue
        found = turn.observation
        alone = ToolCall(tool=turn.command.tool, arguments=turn.command.arguments, status=found.status, text=found.text)
        for call in found.tool_calls or (alone,):
            if call.tool == tool and call.status == "ok" and call.text.strip():
                yield call
