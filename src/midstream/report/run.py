"""A run of any kind: its page, and the blocks of it that `midstream show` prints."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from midstream.components.kinds import config_class, registered
from midstream.core.errors import MidstreamError, RunError
from midstream.core.stream_template import Template
from midstream.core.text_file import parse_toml
from midstream.core.trajectory import Trajectory
from midstream.report import blocks
from midstream.report.blocks import Block, Section
from midstream.report.draw import chosen
from midstream.report.evaluation import evaluated_trajectories, evaluation_page, headline, label
from midstream.report.training import training_page
from midstream.report.trajectory import LEGEND, is_stream, template_of, trajectory_document
from midstream.runs import RunDirectory
from midstream.runs.info import EvaluationInfo, RunInfo
from midstream.runs.journal import skip_damage, warn

LESSONS_LIMITS = """An interval shows how far the choice of tasks could move a result, not how another seed of the
whole run would turn out. A lesson's effect was measured while its update was tested, among the lessons of that time;
one that was accepted because its estimate was high is likely to do a little less than the estimate says. What is proven
is proven for this agent: another model, prompt or tool makes the lesson set unproven until it is validated again."""
# The sections that the terminal shows, by the kind of run.
_SHOWN = {
    "training": ("run", "results", "curves", "tools", "update", "waits", "counts", "waiting", "lessons", "updates"),
    "lessons": ("run", "results", "waiting", "lessons", "updates", "curves", "cost"),
    "evaluation": ("run", "results", "notes"),
}


def samples(run: RunDirectory) -> list[tuple[str, Trajectory]]:
    """One test question before and after learning: of those newly solved, the one with the most different actions."""
    evaluations = run.evaluations.read(skip_damage)
    of_test = [result for result in evaluations if result.set_name == "test"] or evaluations
    _, before, after = headline(of_test)
    if not (before and after):
        return []

    def different_actions(pair: tuple[Trajectory, Trajectory]) -> int:
        return len({turn.action.model_dump_json() for turn in pair[1].turns if turn.action})

    first, last = (evaluated_trajectories(run, side[-1]) for side in (before, after))
    try:
        entries = enumerate(zip(first.entries(), last.entries(), strict=True))
        solved = [place for place, (old, new) in entries if new.score == 1 != old.score] or [len(last) - 1]
        old, new = max(zip(first.at(solved), last.at(solved), strict=True), key=different_actions)
    except (RunError, ValueError) as error:
        why = error if isinstance(error, RunError) else "one of the evaluations has more trajectories than the other"
        warn(f"no question is shown before and after: {why}")
        return []
    return [(label(before[-1:], ""), old), (label(after[-1:], ""), new)]


def run_page(run: RunDirectory) -> Block:
    """The page of a run of any kind: its results, then how it was made, what it does not show, what to do next.

    Damaged records are left out. Raises `RunError` if the run's settings cannot be read.
    """
    info = run.info()
    lead, sections = _described(run, info)
    shown = samples(run) if info.kind != "evaluation" else []
    engines: Any = info.resolved.get("engines", {})
    cpu_s = sum(timing.cpu_s for timing in run.timings.read(skip_damage))
    facts: dict[str, object] = {
        "recipe": info.recipe_name, "seed": info.seed, "midstream": info.midstream, "python": info.python,
        "platform": info.platform, "commit": info.git_commit or "-", "started": info.created_at,
        "devices": ", ".join(f"{name}: {engine['device']}" for name, engine in engines.items() if engine.get("device")),
        **info.packages,
        "CPU-seconds of training steps": round(cpu_s, 1) or "",
    }  # fmt: skip
    how = [blocks.facts(facts), blocks.fold("The recipe, as resolved", blocks.code(run.recipe()))]
    return blocks.page(
        f"{info.recipe_name}, seed {info.seed}",
        lead,
        [
            *sections,
            ("runs", "One question, turn by turn", side_by_side(shown, template_of(info.resolved))),
            ("how", "How it was run", how),
            ("limits", "Limits", [blocks.text(run_limits(info))]),
            ("next", "What to try next", [blocks.code("\n".join(next_steps(run)))]),
        ],
    )


def run_blocks(run: RunDirectory, *keys: str) -> list[Block | None]:
    """What the terminal shows of a run of any kind, or the sections with these keys."""
    info, status = run.info(), run.status()
    lead, sections = _described(run, info)
    facts: dict[str, object] = {"run": run.root, "recipe": f"{info.recipe_name}, seed {info.seed}"}
    if info.kind == "evaluation":
        asked = info.evaluation or EvaluationInfo()
        agent: Any = info.resolved.get("agent") or {}
        lessons = f", with the lessons of {agent['lessons']}" if agent.get("lessons") else ""
        facts["agent"] = (f"step {asked.step} of {asked.run}" if asked.run else "as the recipe has it") + lessons
    elif steps := parse_toml(run.recipe()).get("training", {}).get("steps"):
        facts["steps"] = f"{len(run.metrics.read(skip_damage))} of {steps}"
    facts["status"] = status.state + (f": {status.message}" if status.message else "")
    about = [blocks.facts(facts), blocks.text("" if info.kind == "evaluation" else lead)]
    return chosen([("run", "", about), *sections], *(keys or _SHOWN[info.kind]))


def _described(run: RunDirectory, info: RunInfo) -> tuple[str, list[Section]]:
    if info.kind == "lessons":
        # Imported here: most runs need none of it.
        from midstream.report.lessons import lessons_page, read_lesson_run

        return lessons_page(read_lesson_run(run))
    evaluations = run.evaluations.read(skip_damage)
    if info.kind == "evaluation":
        return evaluation_page(evaluations)
    lead, sections = training_page(run.metrics.read(skip_damage), run.timings.read(skip_damage), evaluations)
    if info.resolved.get("lessons"):
        # The run learns them, too.
        from midstream.report.lessons import lessons_page, read_lesson_run

        _, more = lessons_page(read_lesson_run(run))
        sections += [section for section in more if section[0] in ("waiting", "lessons", "updates")]
    return lead, sections


def run_limits(info: RunInfo) -> str:
    """What a run of this kind and with these engines cannot show, in words."""
    engines: Any = info.resolved.get("engines") or {}
    found: dict[str, None] = {}
    for name in {str(engine.get("type")): None for engine in engines.values()}:
        # A user's own code is not imported to show a run.
        if name in registered("engine"):
            with suppress(MidstreamError):
                found[getattr(config_class("engine", name), "limits", "")] = None
    return " ".join(" ".join([*found, LESSONS_LIMITS if info.kind == "lessons" else ""]).split())


def next_steps(run: RunDirectory) -> list[str]:
    """Commands to try after a run."""
    root, kind = shlex.quote(str(run.root)), run.info().kind
    if kind == "evaluation":
        return [f"midstream show {root} --wrong", f"midstream compare {root} OTHER"]
    both = bool(headline(run.evaluations.read(skip_damage))[2])
    compare = [f"midstream compare {root}@0 {root} --tasks     # the test tasks that changed"] * both
    solve = f'midstream solve "..." --planner {root}     # this agent'
    if kind == "training":
        return [solve, *compare, f"midstream view {root}     # every rollout, in the browser"]
    steps = [
        f"midstream lessons show {root}     # every lesson, where it came from and what it did",
        f"midstream lessons edit {root}     # change, pin or veto lessons in your editor",
        *compare,
        solve,
    ]
    status = run.status()
    if status.state == "finished" and status.message.startswith("the budget of "):  # `BudgetError.what`
        steps.insert(0, f'midstream resume {root} --budget "..."     # continue, with a higher limit')
    return steps


def side_by_side(samples: Sequence[tuple[str, Trajectory]], template: Template | None) -> list[Block | None]:
    """One task's labeled runs next to each other."""
    if not samples:
        return []
    first = samples[0][1]
    runs = [{"label": name, "trajectory": trajectory_document(each, template=template)} for name, each in samples]
    legend = blocks.text(LEGEND if is_stream(first) else "", "soft")
    return [legend, {"kind": "runs", "task": first.question or first.task_id, "gold": first.gold, "runs": runs}]
