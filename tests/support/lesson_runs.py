"""A lesson run on disk, made from records: everything that a report shows, without running anything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midstream.core.metrics import Spent, ToolUse
from midstream.core.trajectory import Action, Command, Observation, Score, Trajectory, Turn
from midstream.lessons.commit import UpdateRecord, Version
from midstream.lessons.gate import ChangeRecord, Test
from midstream.lessons.lesson_set import Effect, Lesson, LessonOrigin, LessonSet
from midstream.lessons.operations import Operation, OperationOutcome
from midstream.lessons.settings import LessonsConfig, RoleConfig
from midstream.report.lessons import LessonsData
from midstream.runs import RunDirectory
from midstream.runs.budget import BudgetConfig, Entry
from midstream.runs.info import collect_info
from midstream.runs.journal import Journal
from midstream.runs.segments import result_name
from support.evaluations import evaluated

ADVICE = (
    "Write down the unit of every quantity before the first calculation, and check it again in the answer.",
    "When a search returns several people of one name, ask for the year before you take a number from any of them.",
    "Prefer brute force in Python where there are fewer than a million cases: enumeration finds what algebra misses.",
    "If a tool answers with an error twice, change the tool instead of the wording.",
    "Count the sub-questions first; stop only when each of them has a result.",
    "Read the question's last sentence again before answering: it says which of the results is asked for.",
    "A page that repeats the question is no evidence; open the source that it names.",
    "Trust the first result.",
)
REFUSALS = ("repeats L1", "the lesson set is full", "copies the answer of task t3", "unknown id L99", "too long")
CONFIG = LessonsConfig(reflector=RoleConfig(engine="reflector"), tasks=20, batch_size=10, group_size=5, epochs=2)


@dataclass
class MadeUp:
    """The records of a run of some updates, consistent with each other."""

    updates: list[UpdateRecord] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)

    @property
    def lesson_set(self) -> LessonSet:
        """After the last update."""
        return self.versions[-1].lesson_set


def made_up(updates: int = 4, *, changes: int = 5, gate: bool = True, seed: int = 1) -> MadeUp:
    """Updates that add, change and delete lessons, some of which a gate does not accept."""
    draw = random.Random(seed)
    made = MadeUp(versions=[Version(number=1, by="start", lesson_set=LessonSet())])
    pending: list[Operation] = []
    for step in range(1, updates + 1):
        lesson_set = made.lesson_set
        operations, number = _operations(draw, step, lesson_set, changes)
        refused = [
            OperationOutcome(operation=Operation(kind="add", text=draw.choice(ADVICE), module="planner"), refused=why)
            for why in draw.sample(REFUSALS, k=2)
        ]
        records = [_judged(draw, one, gate) for one in [*pending, *operations]]
        pending = [one.operation for one in records if one.fate == "pending"]
        lesson_set = _after(lesson_set, records, step).model_copy(
            update={"next_number": number, "proven_for": "4f2a81 (qwen2.5-7b-instruct)" if gate else ""}
        )
        if lesson_set.lessons != made.lesson_set.lessons:
            accepted = tuple(one.operation for one in records if one.fate == "accepted")
            version = Version(
                number=len(made.versions) + 1,
                parent=len(made.versions),
                update=step,
                operations=accepted,
                lesson_set=lesson_set,
            )
            made.versions.append(version)
        keep = (
            [OperationOutcome(operation=Operation(kind="keep", id=lesson_set.lessons[0].id))]
            if lesson_set.lessons
            else []
        )
        made.updates.append(
            UpdateRecord(
                step=step,
                epoch=1 + (step - 1) // 2,
                tasks=tuple(f"t{index}" for index in range(10)),
                groups=10,
                uniform=draw.randint(0, 4),
                broken={"t7": "fewer than two rollouts ended"} if step % 2 else {},
                mean_reward=min(1.0, 0.35 + 0.3 * step / updates + draw.gauss(0, 0.02)),
                turns_mean=3.2 - step / updates,
                tool_use=ToolUse(turns=150, errors=12, error_rate=0.08, share={"python": 0.6, "search": 0.4}),
                proposed=(*(OperationOutcome(operation=one) for one in operations), *refused, *keep),
                changes=tuple(records),
                tests=_tests(records) if gate else (),
                bisect_pairs=96 if gate else 0,
                unreadable=("critic, task t5: the reply is no JSON",) if step % 3 == 0 else (),
                version=made.versions[-1].number,
                lessons=len(lesson_set.rendered),
                spent=Spent(
                    rollouts=50 * step + (300 * step if gate else 0),
                    calls=620 * step,
                    tokens=410_000 * step,
                    cost_usd=0.21 * step,
                ),
            )
        )
    return made


def write_run(
    root: Path,
    made: MadeUp,
    *,
    before: float = 0.4,
    after: float = 0.6,
    tasks: int = 40,
    budget: BudgetConfig = BudgetConfig(),  # noqa: B008  # immutable
    finished: bool = True,
    engine: str = "openai",
) -> RunDirectory:
    """The run directory of `made`, whose models are of the type `engine`.

    `before` and `after` are the shares of its test tasks that were right.
    """
    resolved = {
        "lessons": CONFIG.model_dump(mode="json"),
        "budget": budget.limits,
        "engines": {"base": {"type": engine}},
        "tools": {},
    }
    run = RunDirectory.create(root, collect_info("lessons-made-up", 3, resolved), 'name = "lessons-made-up"\n')
    _write_journal(run.updates_path, made.updates)
    run.lessons_dir.mkdir()
    _write_journal(run.lessons_dir / "versions.jsonl", made.versions)
    run.ledger_dir.mkdir()
    _write_journal(run.ledger_dir / "spent.jsonl", _account(made.updates))
    for one in made.updates:
        run.trajectories.write(one.step, [rollout(task, index, one.step) for task in one.tasks for index in range(5)])
    if finished:
        _evaluate(run, "no lessons", 0, before, tasks)
        _evaluate(run, "with lessons", len(made.updates), after, tasks)
        run.set_status("finished", step=len(made.updates))
    return run


def view(made: MadeUp | None = None, **changes: Any) -> LessonsData:
    """What is shown of `made`, or of a run in which nothing has happened yet, with some of it replaced."""
    made = made or MadeUp(versions=[Version(number=1, by="start", lesson_set=LessonSet())])
    whole: dict[str, Any] = dict(
        run="runs/made-up",
        updates_planned=max(1, len(made.updates)),
        gated=True,
        learned_from="rollouts and their rewards",
        budget=BudgetConfig(),
        updates=made.updates,
        versions=made.versions,
        evaluations=[],
        compared=[],
        spent=made.updates[-1].spent if made.updates else Spent(),
        costs={},
    )
    return LessonsData(**(whole | changes))


def rollout(task: str, index: int, step: int) -> Trajectory:
    """One learning rollout, right in two of five cases."""
    right = (index + step) % 5 < 2
    turns = tuple(
        Turn(
            index=number,
            events=("action", "command", "observation"),
            action=Action(sub_goal=f"look up part {number}", tool=tool),
            command=Command(tool=tool, arguments={"query": f"part {number}"}),
            observation=Observation(status="ok" if right else "error", text="41" if right else "nothing found"),
        )
        for number, tool in enumerate(("search", "python") if right else ("search", "search", "search"), 1)
    )
    return Trajectory(
        id=f"{task}#{index}",
        task_id=task,
        question=f"How many towns of district {task} lie above 400 metres, and in which year was the oldest founded?",
        rollout_index=index,
        turns=turns,
        answer="41" if right else "I do not know",
        gold="41",
        reward=Score(value=float(right)),
    )


def _operations(draw: random.Random, step: int, lesson_set: LessonSet, count: int) -> tuple[list[Operation], int]:
    """Sound operations of one batch, and the number of the next new lesson."""
    made: list[Operation] = []
    number = lesson_set.next_number
    touched: set[str] = set()
    for index in range(count):
        origin = LessonOrigin(
            update=step,
            tasks=(f"t{index}", f"t{index + 3}"),
            trajectories=tuple(f"t{index}#{rollout}" for rollout in range(5)),
            model="gpt-4o-mini",
            why="the two right rollouts did it, the three wrong ones did not",
        )
        text = f"{draw.choice(ADVICE)} (Seen in update {step}, case {index + 1}.)"
        free = [one.id for one in lesson_set.lessons if one.id not in touched]
        kind = draw.choice(("add", "add", "add", "modify", "delete")) if free else "add"
        if kind == "add":
            made.append(
                Operation(
                    kind="add", id=f"L{number}", text=text, module=draw.choice(("planner", "executor")), origin=origin
                )
            )
            number += 1
        else:
            chosen = draw.choice(free)
            touched.add(chosen)
            made.append(
                Operation(kind=kind, id=chosen, text=text if kind == "modify" else "", module="", origin=origin)
            )
    return made, number


def _judged(draw: random.Random, operation: Operation, gate: bool) -> ChangeRecord:
    if not gate:
        return ChangeRecord(operation=operation, fate="accepted")
    mean = draw.gauss(0.01, 0.04)
    effect = Effect(
        mean=mean,
        interval=(mean - 0.05, mean + 0.05),
        pairs=96,
        helped=max(0, round(20 + 100 * mean)),
        harmed=max(0, round(20 - 100 * mean)),
        alone=draw.random() < 0.8,
    )
    fate = "accepted" if mean > 0.0 else "rejected" if mean < -0.03 else "pending"
    return ChangeRecord(operation=operation, fate=fate, effect=effect)


def _after(lesson_set: LessonSet, records: Sequence[ChangeRecord], step: int) -> LessonSet:
    lessons = {one.id: one for one in lesson_set.lessons}
    for record in records:
        one = record.operation
        if record.fate != "accepted":
            continue
        if one.kind == "delete":
            lessons.pop(one.id, None)
        elif one.kind == "add" or one.id in lessons:
            module = one.module or lessons[one.id].module
            lessons[one.id] = Lesson(
                id=one.id,
                text=one.text,
                module=module,
                origin=one.origin,
                used=50 * step,
                helped=record.effect.helped if record.effect else 0,
                harmed=record.effect.harmed if record.effect else 0,
                effect=record.effect,
            )
    return lesson_set.model_copy(update={"lessons": tuple(lessons.values())})


def _tests(records: Sequence[ChangeRecord]) -> tuple[Test, ...]:
    everything = tuple(range(len(records)))
    kept = tuple(place for place, one in enumerate(records) if one.fate == "accepted")
    whole = Test(
        name="whole",
        changes=everything,
        pairs=64,
        left_out=2,
        mean=-0.01,
        interval=(-0.06, 0.04),
        evidence=0.7,
        needed=4.8,
        verdict="not better",
    )
    better = Test(
        name="kept",
        changes=kept,
        pairs=112,
        mean=0.07,
        interval=(0.02, 0.12),
        evidence=5.1,
        needed=4.8,
        verdict="better" if kept else "undecided",
    )
    return whole, better


def _account(updates: Sequence[UpdateRecord]) -> list[Entry]:
    """Who used what, so that the sum is what the last update knows of."""
    total = updates[-1].spent if updates else Spent()
    return [
        Entry(number=0, phase="learning", spent=Spent(rollouts=total.rollouts)),
        Entry(number=1, phase="learning", role="planner", spent=Spent(calls=total.calls - 20, tokens=9)),  # a bound
        Entry(number=2, phase="learning", role="critic", spent=Spent(calls=20, tokens=1000, cost_usd=total.cost_usd)),
        Entry(
            number=1, phase="learning", role="planner", spent=Spent(calls=total.calls - 20, tokens=total.tokens - 1000)
        ),
    ]


def _evaluate(run: RunDirectory, policy: str, step: int, share: float, tasks: int) -> None:
    scores = {f"q{index}": [float(index * 7 % tasks < share * tasks)] for index in range(tasks)}
    result, trajectories = evaluated(scores, policy=policy, set_name="test", split="test", sampling="T=0.7", step=step)
    run.trajectories.write(result_name(result.set_name, result.sampling, step), trajectories)
    run.evaluations.append(result.model_copy(update={"prompt_tokens": 90_000, "cost_usd": 0.05}))


def _write_journal(path: Path, records: Sequence[UpdateRecord] | Sequence[Version] | Sequence[Entry]) -> None:
    with Journal(path) as journal:
        journal.append_many(records)
