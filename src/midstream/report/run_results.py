"""The results of a run, read from its directory: before and after, samples, limits, next steps, and its page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from midstream.core.errors import RunError
from midstream.core.metrics import EvaluationResult
from midstream.core.stream_template import Template
from midstream.core.text_file import parse_toml
from midstream.core.trajectory import Trajectory
from midstream.evaluation.settings import result_name
from midstream.report import blocks, practice_tables, tables, turn_rows
from midstream.report.evaluation_page import evaluation_page
from midstream.report.evaluation_tables import comparisons, evaluation_view
from midstream.report.practice_data import practice_data
from midstream.report.practice_page import practice_page
from midstream.report.training_page import training_page
from midstream.report.trajectory_page import trajectory_document
from midstream.report.turn_rows import template_of
from midstream.runs import RunDirectory
from midstream.runs.files import damaged
from midstream.runs.journal import skip_damage, warn
from midstream.runs.segments import Segment

_PLANNER = """The planner has half a million parameters and a closed vocabulary: it plans for this made-up world and
for nothing else. Executor, verifier and generator are fixed programs; the verifier wants every named place looked up
and a result of the right form, and cannot distinguish right from wrong."""
_POLICY = """The policy has half a million parameters and a closed vocabulary: it thinks, calls its tools and
answers in this made-up world and nowhere else, and its thoughts are the few words that its warm start taught it."""
_WORLD = """Questions come from templates, and the test's differ from the training's in their places, facts and numbers,
not in their wording. What this shows is that the loop, the {parts} and the update work, on real tools and held-out
facts; it says nothing about how much a large model gains."""

_DESKS = """The policy is tiny and has a closed vocabulary: it calls the functions of made-up desks and of nothing else.
What this shows is that the loop, the masks and the update work on dialogues; it says nothing about how much a large
model gains."""

_TEXT = """The model has one million parameters. It reads and writes open text, with names that it never saw, but all
language that it knows is questions about a made-up atlas: ask about places, or for a sum of two numbers. What this
shows is that the loop, the masks and the update work on real tokens, with names and wordings held out; it says nothing
about how much a large model gains."""


def evaluated_trajectories(run: RunDirectory, result: EvaluationResult) -> Segment:
    """The trajectories of one evaluation, read when they are used."""
    # A training run evaluates a set at several steps, so there the step is part of the name.
    step = result.step if run.info().evaluation is None else None
    return run.trajectories.open(result_name(result.set_name, result.sampling, step))


def run_view(run: RunDirectory) -> RenderableType:
    """The numbers of a run of any kind."""
    info = run.info()
    if info.kind == "practice":
        return practice_tables.practice_view(practice_data(run, whole=False))
    found = run.evaluations.read(skip_damage)
    if info.kind == "evaluation":
        return evaluation_view(found)
    steps = parse_toml(run.recipe()).get("training", {}).get("steps", 0)
    return tables.run_summary(str(run.root), info.recipe_name, steps, run.metrics.read(skip_damage), found)


def samples(run: RunDirectory) -> list[tuple[str, Trajectory]]:
    """One test question before and after training: of those newly solved, the one with the most different actions."""
    of_test = [result for result in run.evaluations.read(skip_damage) if result.set_name == "test"]
    kinds = [kind for comparison in comparisons(of_test) for kind in comparison.by_kind()]
    found = [(before, after) for _, before, after in kinds if before and after]
    if not found:
        return []
    before, after = found[-1]  # greedy if that was evaluated

    def different_actions(pair: tuple[Trajectory, Trajectory]) -> int:
        return len({turn.action.model_dump_json() for turn in pair[1].turns if turn.action})

    first, last = (evaluated_trajectories(run, side[-1]) for side in (before, after))
    try:
        if len(first) != len(last):
            raise damaged(last.path, f"it holds {len(last):,} trajectories, and {first.path.name} {len(first):,}")
        entries = enumerate(zip(first.entries(), last.entries(), strict=True))
        solved = [place for place, (old, new) in entries if new.score == 1 != old.score] or [len(last) - 1]
        old, new = max(zip(first.at(solved), last.at(solved), strict=True), key=different_actions)
    except RunError as error:
        warn(f"no question is shown before and after: {error}")
        return []
    return [("before training", old), ("after training", new)]


def run_limits(resolved: Mapping[str, Any]) -> str:
    """What a run of a tiny model cannot show, by its resolved recipe; "" for other models."""
    types = _engine_types(resolved)
    if "tiny_text" in types:
        return " ".join(_TEXT.split())
    if "tiny" not in types:
        return ""
    if resolved.get("tasks", {}).get("type") == "desks":
        return " ".join(_DESKS.split())
    interleaved = resolved.get("agent", {}).get("type") == "interleaved"
    agent, parts = (_POLICY, "masks") if interleaved else (_PLANNER, "credit")
    return " ".join(f"{agent} {_WORLD.format(parts=parts)}".split())


def next_steps(run: RunDirectory) -> list[str]:
    """Commands to try after a training run."""
    question = next((trajectory.question for _, trajectory in samples(run)[-1:]), "What is 45 plus 17 ?")
    root = shlex.quote(str(run.root))
    own = [f'midstream solve "{question}" --planner {root}', f"midstream show {root}"]
    if "tiny_text" in _engine_types(run.info().resolved):  # other models do not know its atlas
        return [*own, "midstream train training-free-text     # lessons in place of training"]
    return [
        *own,
        f'midstream solve "{question}" --base-url http://localhost:11434/v1 --model qwen2.5:7b     # Ollama',
        f'midstream solve "{question}" --base-url http://localhost:8000/v1 --model Qwen/Qwen2.5-7B-Instruct     # vLLM',
        f'OPENAI_API_KEY=... midstream solve "{question}" --model gpt-4o-mini     # an API key',
        "midstream study controls --seeds 3",
    ]


def _engine_types(resolved: Mapping[str, Any]) -> set[str]:
    return {engine["type"] for engine in resolved.get("engines", {}).values()}


def tools_used(resolved: Mapping[str, Any]) -> str:
    """A resolved recipe's tools on one line, each with its provider: with another it is another experiment."""
    settings = ("provider", "language", "index", "engine")
    texts = []
    for name, table in resolved.get("tools", {}).items():
        words = ", ".join(f"{key} {table[key]}" for key in settings if table.get(key))
        texts.append(name + (f" ({words})" if words else ""))
    return "; ".join(texts) or "-"


def run_page(run: RunDirectory) -> dict[str, Any]:
    """The page of a run of any kind: its results, then how it was made, what it does not show, what to do next.

    Damaged records are left out. Raises `RunError` if the run's settings cannot be read.
    """
    info, timings = run.info(), run.timings.read(skip_damage)
    facts: dict[str, object] = {
        "recipe": info.recipe_name, "seed": info.seed, "midstream": info.midstream, "python": info.python,
        "platform": info.platform, "commit": info.git_commit or "-", "started": info.created_at,
    }  # fmt: skip
    if info.kind == "practice":
        data = practice_data(run)
        (lead, sections), limits, steps, shown = practice_page(data), data.limits, data.next_steps, data.samples
    else:
        engines: Any = info.resolved.get("engines", {})
        devices = [
            f"{name}: {engine.get('device', 'cpu')}"
            for name, engine in engines.items()
            if "device" in engine or engine["type"] == "tiny"  # which has no other
        ]
        facts |= {"tools": tools_used(info.resolved), "devices": ", ".join(devices) or "-", **info.packages}
        limits, evaluations = run_limits(info.resolved), run.evaluations.read(skip_damage)
        if info.kind == "evaluation":
            root = shlex.quote(str(run.root))
            steps = [f"midstream show {root} --wrong", f"midstream compare {root} OTHER"]
            (lead, sections), shown = evaluation_page(evaluations), []
        else:
            facts["CPU-seconds of training steps"] = round(sum(timing.cpu_s for timing in timings), 1)
            steps, shown = next_steps(run), samples(run)
            lead, sections = training_page(run.metrics.read(skip_damage), timings, evaluations)
    how = [blocks.facts(facts), blocks.fold("The recipe, as resolved", blocks.code(run.recipe()))]
    return blocks.page(
        f"{info.recipe_name}, seed {info.seed}",
        lead,
        [
            *sections,
            ("runs", "One question, turn by turn", side_by_side(shown, template_of(info.resolved))),
            ("how", "How it was run", how),
            ("limits", "Limits", [blocks.text(limits)]),
            ("next", "What to try next", [blocks.code("\n".join(steps))]),
        ],
    )


def side_by_side(samples: Sequence[tuple[str, Trajectory]], template: Template | None) -> list[blocks.Block | None]:
    """Each sampled task with its labeled runs ("before training", "after training") next to each other."""
    by_task: dict[str, list[tuple[str, Trajectory]]] = {}
    for label, trajectory in samples:
        by_task.setdefault(trajectory.task_id, []).append((label, trajectory))
    streams = any(turn_rows.is_stream(trajectory) for _, trajectory in samples)
    found = [blocks.text(turn_rows.LEGEND if streams else "", "soft")]
    for labeled in by_task.values():
        first = labeled[0][1]
        runs = [{"label": label, "trajectory": trajectory_document(each, template=template)} for label, each in labeled]
        gold = next((trajectory.gold for _, trajectory in labeled if trajectory.gold is not None), None)
        found.append({"kind": "runs", "task": first.question or first.task_id, "gold": gold, "runs": runs})
    return found
