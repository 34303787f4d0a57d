"""A library on the terminal: each lesson with where it came from and what it did; its versions; what differs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from midstream.practice.commit import Version
from midstream.practice.library import Effect, Lesson, Library, Origin, size
from midstream.practice.operations import Diff
from midstream.practice.validation import Validation
from midstream.report.numbers import counted, visible
from midstream.report.practice_data import points, proven

_NAMED = 4  # ids that are named; the others are counted
_STYLES = {"active": "", "pinned": "bold", "vetoed": "dim strike"}


def library_screen(title: str, library: Library) -> Group:
    """Every lesson of a library, by module, with its origin, counters and measured effect."""
    parts: list[RenderableType] = [
        Text(visible(title), "bold"),
        Text(visible(proven(library)), "green" if library.proven_for else "yellow"),
    ]
    for module in dict.fromkeys(lesson.module for lesson in library.lessons):
        rows = _grid()
        for lesson in (each for each in library.lessons if each.module == module):
            facts = [
                Text(visible(line), "dim")
                for line in (_measured(lesson), came_from(lesson.origin), lesson.origin.why)
                if line
            ]
            rows.add_row(visible(lesson.id), Group(Text(visible(lesson.text), _STYLES[lesson.state]), *facts))
        parts += [Text(), Text(visible(module), "bold cyan"), rows]
    if not library.lessons:
        parts += [Text(), Text("no lessons")]
    return Group(*parts)


def size_of(library: Library) -> str:
    """How many lessons prompts hold, and how long they are: "5 lessons, about 120 tokens"."""
    vetoed = len(library.lessons) - len(library.rendered)
    return f"{counted(len(library.rendered), 'lesson')}, about {counted(size(library), 'token')}" + (
        f"; {vetoed} vetoed" if vetoed else ""
    )


def _measured(lesson: Lesson) -> str:
    """What a lesson did, and how a person marked it."""
    parts = [lesson.state] if lesson.state != "active" else []
    if lesson.effect is not None:
        together = "" if lesson.effect.alone else " together with others"
        parts.append(f"effect {points(lesson.effect)} points{together}, {counted(lesson.effect.pairs, 'pair')}")
    if lesson.used:
        parts.append(f"used in {counted(lesson.used, 'rollout')}")
    if lesson.helped or lesson.harmed:
        parts.append(f"helped {lesson.helped:,}, harmed {lesson.harmed:,}")
    return "; ".join(parts)


def came_from(origin: Origin) -> str:
    """Who wrote a lesson, and from what."""
    who = {"learned": origin.model or "learned", "person": "a person", "imported": "imported"}[origin.source]
    parts = [f"{who}, update {origin.update}" if origin.update else who]
    for ids, noun in ((origin.tasks, "task"), (origin.trajectories, "rollout")):
        if ids:
            more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
            parts.append(f"{noun}{'s' if len(ids) > 1 else ''} {' '.join(ids[:_NAMED])}{more}")
    return "; ".join(parts)


def diff_screen(found: Diff, none: str) -> RenderableType:
    """What leads from one library to another; `none` is said where nothing does."""
    if found.empty:
        return Text(visible(none), "dim")

    def line(lesson: Lesson, style: str) -> Text:
        return Text(visible(f"{lesson.module}: {lesson.text}"), style)

    rows = _grid()
    for lesson in found.added:
        rows.add_row(Text(f"+ {lesson.id}", "green"), line(lesson, "green"))
    for lesson in found.deleted:
        rows.add_row(Text(f"- {lesson.id}", "red"), line(lesson, "red"))
    for old, new in found.modified:
        rows.add_row(Text(f"~ {new.id}", "yellow"), Group(line(old, "red"), line(new, "green")))
    for old, new in found.marked:
        rows.add_row(Text(f"  {new.id}", "yellow"), Text(f"{old.state} -> {new.state}"))
    return rows


def versions_screen(versions: Sequence[Version]) -> Table:
    """Every version of a library: who made it, what it holds, what it changed."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("version", "by", "lessons", "proven"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("version", "lessons") else "left")
    table.add_column("changes")
    for version in versions:
        by = f"{version.by} {version.update}" if version.update else version.by
        yes = "yes" if version.library.proven_for else "no"
        ids: dict[str, list[str]] = {}
        for operation in version.operations:
            if operation.kind != "keep":
                ids.setdefault(operation.kind, []).append(operation.id)
        changes = [f"{kind} {' '.join(some)}" for kind, some in ids.items()]
        changes += [version.note] if version.note else []
        lessons = str(len(version.library.rendered))
        table.add_row(str(version.number), by, lessons, yes, Text(visible("; ".join(changes))))
    return table


def validation_screen(library: Library, found: Validation, agent: str) -> Group:
    """Whether a library helps an agent, how sure that is, and what each lesson does."""
    test, lost = found.test, found.test.left_out + found.halves_left_out
    helps = {"better": "helps", "not better": "does not help", "undecided": "is not shown to help"}[test.verdict]
    mean = points(Effect(mean=test.mean, interval=test.interval, pairs=test.pairs))
    said = f"The library {helps}: {mean} points over {counted(test.pairs, 'pair')} of rollouts"
    left_out = f"; {counted(lost, 'pair')} left out, without a result" if lost else ""
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    for name in ("lesson", "effect (95% interval)", "helped", "harmed"):
        rows.add_column(name, no_wrap=True, justify="left" if name[0] in "le" else "right")
    rows.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for lesson in library.rendered:
        if effect := found.effects.get(lesson.id):
            texts = (points(effect), str(effect.helped), str(effect.harmed), Text(visible(lesson.text)))
            # Green where the interval is above 0, red where it is below.
            style = "green" if effect.interval[0] > 0 else "red" if effect.interval[1] < 0 else ""
            rows.add_row(lesson.id, *texts, style=style)
    evidence = f"Evidence {test.evidence:.1f} of the {test.needed:.1f} that are needed (natural logarithms)"
    return Group(
        Text(visible(said), "green" if test.verdict == "better" else "yellow"),
        Text(visible(f"Agent: {agent}. {evidence}{left_out}.")),
        Text(),
        rows,
    )


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    return grid
