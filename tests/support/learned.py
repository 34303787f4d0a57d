"""A lesson run on disk whose agent asks a scripted server, and a lesson set for it: made without any learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from midstream.lessons.commit import History
from midstream.lessons.lesson_set import Effect, Lesson, LessonOrigin, LessonSet
from midstream.recipe.check import resolve
from midstream.recipe.files import to_toml
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info

RECIPE = """
extends = "gazetteer-prompted"
name = "learned"

[tools.guess]

[rollout]
concurrency = 8
max_attempts = 1

[engines.model]
type = "openai_compatible"
model = "scripted"
base_url = "{base_url}"
max_attempts = 1
first_pause_s = 0.0
"""
LESSONS_TABLE = """
[lessons]
tasks = 4
batch_size = 4
group_size = 2
modules = ["planner", "executor"]

[lessons.reflector]
engine = "model"
"""
LESSONS = LessonSet(
    lessons=(
        Lesson(
            id="L1",
            text="Look numbers up before you calculate.",
            origin=LessonOrigin(
                update=1, tasks=("t1", "t2"), trajectories=("t1#0", "t1#1"), model="scripted", why="it paid"
            ),
            used=40,
            helped=9,
            harmed=2,
            effect=Effect(mean=0.031, interval=(-0.019, 0.081), pairs=64, helped=9, harmed=2),
        ),
        Lesson(id="L2", text="Round to whole numbers.", module="executor"),
        Lesson(id="L4", text="Never look twice.", state="vetoed"),
    ),
    next_number=5,
)


def write_recipe(directory: Path, base_url: str = "http://127.0.0.1:9/v1", *, lessons: bool = True) -> Path:
    """The agent's recipe as a file."""
    path = directory / ("learned.toml" if lessons else "agent.toml")
    path.write_text(RECIPE.format(base_url=base_url) + (LESSONS_TABLE if lessons else ""))
    return path


def write_run(
    root: Path,
    base_url: str = "http://127.0.0.1:9/v1",
    versions: Sequence[LessonSet] = (LessonSet(), LESSONS),
    *,
    recipe: str = "",
) -> RunDirectory:
    """The run directory with these versions of its lesson set; `recipe` names one that comes with midstream."""
    resolved = resolve(load_recipe(recipe or str(write_recipe(root.parent, base_url))))
    run = RunDirectory.create(root, collect_info("learned", 0, resolved), to_toml(resolved))
    history = History(root / "lessons")
    for place, lesson_set in enumerate(versions):
        history.add(lesson_set, by="learning" if place else "start", update=place)
    run.set_status("finished")
    return run
