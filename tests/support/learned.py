"""A lesson run on disk whose agent asks a scripted server, and a lesson set for it: made without any learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from midstream.core.metrics import Spent, ToolUse
from midstream.lessons.commit import History, UpdateRecord
from midstream.lessons.gate import ChangeRecord, Test
from midstream.lessons.lesson_set import Effect, Lesson, LessonOrigin, LessonSet
from midstream.lessons.operations import Operation
from midstream.recipe.check import resolve
from midstream.recipe.files import to_toml
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info
from midstream.runs.journal import Records

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


def write_waiting(root: Path) -> RunDirectory:
    """A finished run of which a new lesson and a change of L1 wait for a person, in `root`."""
    run, origin = write_run(root), LessonOrigin(update=2, tasks=("t3",), model="scripted", why="units were lost")
    effect = Effect(mean=0.05, interval=(0.01, 0.09), pairs=32)
    add = Operation(kind="add", id="L5", module="planner", text="Write <b>units</b> down.", origin=origin)
    modify = Operation(kind="modify", id="L1", module="planner", text="Look numbers up, then calculate.", origin=origin)
    test = Test(name="whole", changes=(0, 1), pairs=64, mean=0.1, evidence=5.1, needed=4.8, verdict="better")
    record = UpdateRecord(
        step=2, epoch=1, tasks=("t3",), groups=1, uniform=0, mean_reward=0.5, turns_mean=2.0, tool_use=ToolUse(),
        changes=tuple(ChangeRecord(operation=each, fate="waiting", effect=effect) for each in (add, modify)),
        tests=(test,), version=2, lessons=2, spent=Spent(),
    )  # fmt: skip
    Records(run.updates_path, UpdateRecord).append(record)
    return run
