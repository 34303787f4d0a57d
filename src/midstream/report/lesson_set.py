"""Lessons and lesson sets in blocks: what each lesson says, did and came from; versions, differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import unified_diff

from midstream.core.texts import kind_of
from midstream.lessons.approval import Waiting
from midstream.lessons.commit import Version
from midstream.lessons.gate import ChangeRecord
from midstream.lessons.lesson_set import Effect, Lesson, LessonOrigin, LessonSet, size, tokens
from midstream.lessons.operations import Diff
from midstream.lessons.validation import Validation
from midstream.report import blocks
from midstream.report.blocks import Block, Cell, cell, facts, heading, span_of, text
from midstream.report.numbers import counted, gain, gains

_NAMED = 4  # ids that are named; the others are counted


def points(effect: Effect) -> str:
    """An effect in percentage points with its 95 % interval: "+3.1 (-1.9 to +8.1)"."""
    return f"{gain(effect.mean)} ({gains(effect.interval)})"


def proven(lesson_set: LessonSet) -> str:
    """Whether the lesson set as it is was accepted by a test, in words."""
    if not lesson_set.rendered:
        return "empty"
    return f"proven for {lesson_set.proven_for}" if lesson_set.proven_for else "unproven: no test accepted it as it is"


def bundles(lesson_set: LessonSet) -> list[str]:
    """A line for each bundle of changes that a test accepted together: its effect, and the lessons there are of it."""
    effects = {lesson.id: lesson.effect for lesson in lesson_set.lessons if lesson.effect}
    lines = []
    for bundle in dict.fromkeys(effect.bundle for effect in effects.values() if effect.bundle):
        lessons = [name for name, effect in effects.items() if effect.bundle == bundle]
        tested = f"{gain(bundle.mean)} ({gains(bundle.interval)}) points, {counted(bundle.pairs, 'pair')}"
        others = len(bundle.changes) - len(lessons)
        more = f" and {counted(others, 'other change')}" if others else ""
        lines.append(f"tested together: {' '.join(lessons)}{more}: {tested}")
    return lines


def lesson_card(
    lesson: Lesson, span: float, *, more: Sequence[Block | None] = (), origin: bool = False, vote: bool = False
) -> Block:
    """A lesson with its state, its effect and its counters, `more` to open; with `origin` where it came from."""
    learned_in = f"update {lesson.origin.update}" if lesson.origin.update else ""
    where = {"person": "by a person", "imported": "imported"}.get(lesson.origin.source, learned_in)
    about = [] if origin else [lesson.module, where]
    about += [lesson.state] if lesson.state != "active" else []
    effect = "" if origin else "effect not measured"
    if lesson.effect is not None:
        effect = f"effect {points(lesson.effect)} points, {counted(lesson.effect.pairs, 'pair')}"
        effect += "" if lesson.effect.alone else ", measured only together with others"
        effect += ", accepted only as a part of its bundle" if lesson.effect.only_in_bundle else ""
    counts = [f"used in {counted(lesson.used, 'rollout')}"] if lesson.used else []
    counts += [f"helped {lesson.helped:,}, harmed {lesson.harmed:,}"] if lesson.helped or lesson.harmed else []
    used = ", ".join(counts)
    said = [", ".join(filter(None, about)), "; ".join(filter(None, (effect, used)))]
    said += [came_from(lesson.origin), lesson.origin.why] if origin else []
    drawn = lesson.effect and blocks.interval(lesson.effect.mean, lesson.effect.interval, span)
    struck = lesson.state == "vetoed"
    return blocks.card(lesson.id, lesson.text, said, struck=struck, interval=drawn, blocks=more, vote=vote)


def effect_span(measured: Sequence[Lesson | ChangeRecord | Waiting]) -> float:
    """The half-width of an axis that the effects of all lessons or changes fit on."""
    return span_of((each.effect.mean, each.effect.interval) for each in measured if each.effect)


def lesson_set_blocks(title: str, lesson_set: LessonSet) -> list[Block | None]:
    """Every lesson of a lesson set, by module, with its origin, counters and measured effect."""
    span = effect_span(lesson_set.lessons)
    found = [text(title, "strong"), text(proven(lesson_set), "up" if lesson_set.proven_for else "warn")]
    found += [text(line) for line in bundles(lesson_set)]
    for module in dict.fromkeys(lesson.module for lesson in lesson_set.lessons):
        lessons = [lesson for lesson in lesson_set.lessons if lesson.module == module]
        found += [heading(module), blocks.cards([lesson_card(lesson, span, origin=True) for lesson in lessons])]
    return found if lesson_set.lessons else [*found, text("no lessons")]


def size_of(lesson_set: LessonSet) -> str:
    """What prompts hold of a lesson set, and how long that is: "5 lessons, 1 text, about 120 tokens"."""
    kinds = Counter(kind_of(lesson.module) for lesson in lesson_set.rendered)
    length = size(lesson_set) + sum(tokens(each.text) for each in lesson_set.rendered if kind_of(each.module) == "text")
    held = ", ".join(counted(count, kind) for kind, count in kinds.items()) or "0 lessons"
    words = f"{held}, about {counted(length, 'token')}"
    vetoed = sum(lesson.state == "vetoed" for lesson in lesson_set.lessons)
    return f"{words}; {vetoed} vetoed" if vetoed else words


def came_from(origin: LessonOrigin) -> str:
    """Who wrote a lesson, and from what."""
    names = {"learned": origin.model or "learned", "person": "a person", "recipe": "the recipe"}
    who = names.get(origin.source, origin.source)
    parts = [f"{who}, update {origin.update}" if origin.update else who]
    for ids, noun in ((origin.tasks, "task"), (origin.trajectories, "rollout")):
        if ids:
            more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
            parts.append(f"{noun}{'s' if len(ids) > 1 else ''} {' '.join(ids[:_NAMED])}{more}")
    return "; ".join(parts)


def diff_blocks(found: Diff, none: str) -> list[Block | None]:
    """What leads from one lesson set to another; `none` is said where nothing does."""
    if found.empty:
        return [text(none, "soft")]

    def line(lesson: Lesson, tone: str) -> Cell:
        return cell(f"{lesson.module}: {lesson.text}", tone)

    rows = [(f"+ {lesson.id}", line(lesson, "up")) for lesson in found.added]
    rows += [(f"- {lesson.id}", line(lesson, "down")) for lesson in found.deleted]
    long: list[Block | None] = []
    for old, new in found.modified:
        if "\n" in old.text + new.text:
            lines = [*unified_diff(old.text.splitlines(), new.text.splitlines(), lineterm="")][3:]
            long += [text(f"~ {new.id} {new.module}", "strong"), blocks.difference(lines)]
        else:
            rows += [(f"~ {new.id}", line(old, "down")), ("", line(new, "up"))]
    rows += [(f"  {new.id}", f"{old.state} -> {new.state}") for old, new in found.marked]
    return [facts(rows) if rows else None, *long]


def versions_table(versions: Sequence[Version]) -> Block | None:
    """Every version of a lesson set: who made it, what it holds, what it changed."""
    rows = []
    for version in versions:
        by = f"{version.by} {version.update}" if version.update else version.by
        changes = [f"{operation.kind} {operation.id}" for operation in version.operations if operation.kind != "keep"]
        changes += [version.note] if version.note else []
        numbers = [str(version.number), str(len(version.lesson_set.rendered))]
        rows.append([*numbers, by, "yes" if version.lesson_set.proven_for else "no", ", ".join(changes)])
    return blocks.table("", ("version", "lessons", "by", "proven", "changes"), rows, left=0, last=3)


def validation_blocks(lesson_set: LessonSet, found: Validation, agent: str) -> list[Block | None]:
    """Whether a lesson set helps an agent, how sure that is, and what each lesson does."""
    test, lost = found.test, found.test.left_out + found.halves_left_out
    helps = {"better": "helps", "not better": "does not help", "undecided": "is not shown to help"}[test.verdict]
    mean = points(Effect(mean=test.mean, interval=test.interval, pairs=test.pairs))
    said = f"The lesson set {helps}: {mean} points over {counted(test.pairs, 'pair')} of rollouts"
    left_out = f"; {counted(lost, 'pair')} left out, without a result" if lost else ""
    rows: list[list[Cell]] = []
    for lesson in lesson_set.rendered:
        if effect := found.effects.get(lesson.id):
            low, high = effect.interval
            shown = cell(points(effect), "up" if low > 0 else "down" if high < 0 else "")
            rows.append([lesson.id, shown, str(effect.helped), str(effect.harmed), lesson.text])
    evidence = f"Evidence {test.evidence:.1f} of the {test.needed:.1f} that are needed (natural logarithms)"
    heads = ("lesson", "effect (95% interval)", "helped", "harmed", "text")
    return [
        text(said, "up" if test.verdict == "better" else "warn"),
        text(f"Agent: {agent}. {evidence}{left_out}."),
        blocks.table("", heads, rows, last=1),
    ]
