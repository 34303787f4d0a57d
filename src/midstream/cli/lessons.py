"""`midstream lessons`: look at what an agent has learned, compare versions, roll back, edit, validate.

Only `validate` asks a model. Every change makes a new version of a run's lesson set: nothing is lost, and `rollback`
undoes it. A change of what prompts show makes the lesson set unproven.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from midstream import api
from midstream.cli import options as shared
from midstream.components.kinds import modules_of
from midstream.core.errors import MidstreamError, UsageError
from midstream.core.events import Phase, RunEvent
from midstream.core.texts import EXAMPLES
from midstream.lessons.access import EditableLessons, editable_lessons, history, read
from midstream.lessons.approval import decide, read_approvals
from midstream.lessons.editing import edited, to_draft, to_json
from midstream.lessons.lesson_set import LessonSet, render_modules, split
from midstream.lessons.operations import Rules, diff
from midstream.process import build_for
from midstream.recipe.check import resolve
from midstream.recipe.files import to_toml
from midstream.recipe.inputs import run_recipe
from midstream.recipe.lesson_sessions import validation_settings
from midstream.recipe.lessons import check_shown, shows_lessons
from midstream.recipe.overrides import AgentChanges, LearningChanges, agent_recipe, validation_recipe
from midstream.recipe.prompts import formats, prompts_of
from midstream.report.blocks import code, text
from midstream.report.draw import show
from midstream.report.lesson_set import diff_blocks, lesson_set_blocks, size_of, validation_blocks, versions_table
from midstream.report.lessons import waiting
from midstream.report.numbers import spent_text
from midstream.report.progress import progress
from midstream.runs import RunDirectory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `lessons`, each with its arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    where = "a lesson run, one version of its lesson set (RUN@VERSION), or a file"
    changed = "a lesson run, or a .json file"

    def action(
        name: str, function: Callable[[argparse.Namespace], int], text: str, named: str, metavar: str = "LESSONS"
    ) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text)
        made.add_argument("named", metavar=metavar, help=named)
        made.set_defaults(run_action=function)
        shared.add(made, *shared.OUTPUT)
        return made

    action("show", show_lessons, "every lesson: where it came from, what it did", where)
    action("versions", list_versions, "every version of a run's lesson set, and what made it", "lesson run", "RUN")
    action("diff", show_diff, "what one lesson set has and another has not", where).add_argument(
        "other", metavar="OTHER", help="as the first, e.g. runs/p@2 runs/p@5"
    )
    text = "return to a version; those in between stay on record"
    action("rollback", roll_back, text, "lesson run", "RUN").add_argument(
        "number", type=int, metavar="VERSION", help="its number, as `versions` lists them"
    )
    action("edit", edit_lessons, "change lessons in an editor ($VISUAL, $EDITOR)", changed)

    action("waiting", show_waiting, "changes that passed the gate and wait for a person", "lesson run", "RUN")
    for name, verdict in (("approve", "yes"), ("reject", "no")):
        made = action(name, decide_on, f"say {verdict} to changes that wait", "lesson run", "RUN")
        made.add_argument("ids", nargs="*", metavar="ID", help="of a lesson (default: all that wait)")
        made.set_defaults(verdict=verdict)

    text = "the prompts with these lessons, for a program without midstream"
    made = action("export", export_prompts, text, "a lesson or training run, or a recipe", "RUN")
    made.add_argument("--format", choices=formats(), default="text", help="default: %(default)s")

    text = "does it help this agent? measured against none, lesson by lesson"
    validate = action("validate", validate_lessons, text, changed)
    validate.add_argument("--recipe", default=None, help="the agent of this recipe (default: the run's own)")
    shared.add(validate, *shared.SERVER, "--serve-with", "--tools", "--tasks", "--reward", "--unsafe")
    shared.add_recording(validate)
    shared.add(validate, *shared.RECIPE)


def run(options: argparse.Namespace) -> int:
    """Run `midstream lessons ACTION`."""
    return options.run_action(options)


def show_lessons(options: argparse.Namespace) -> int:
    """Print every lesson."""
    found = read(options.named)
    if options.json:
        print(to_json(found), end="")
    else:
        show(lesson_set_blocks(f"{options.named}: {size_of(found)}", found))
    return 0


def export_prompts(options: argparse.Namespace) -> int:
    """Print the prompts of the agent."""
    changes: AgentChanges = {}
    recipe = agent_recipe(api.opened(options.named, changes)[0], **changes)
    with build_for(recipe, {}) as build:
        prompts = prompts_of(build)
    print(formats()["json" if options.json else options.format](prompts), end="")
    return 0


def list_versions(options: argparse.Namespace) -> int:
    """Print every version of a run's lesson set."""
    path = Path(options.named)
    if path.is_file():
        raise _no_versions(path)
    found = history(path).all()
    if not found:
        read(path)  # raises: there is no lesson set
    record = [version.model_dump(mode="json", exclude={"lesson_set"}) for version in found]
    return shared.show(options, record, [versions_table(found)])


def show_diff(options: argparse.Namespace) -> int:
    """Print what one lesson set has and another has not."""
    found = diff(read(options.named), read(options.other))
    shown = diff_blocks(found, f"{options.named} and {options.other} hold the same lessons")
    return shared.show(options, found.model_dump(mode="json"), shown)


def show_waiting(options: argparse.Namespace) -> int:
    """Print the changes that wait for a person, each with its text against the present one."""
    said = read_approvals(RunDirectory.open(Path(options.named)))
    parts = waiting(said) if said.waiting else [text("no change waits for a person", "soft")]
    return shared.show(options, [change.model_dump(mode="json") for change in said.waiting], parts)


def decide_on(options: argparse.Namespace) -> int:
    """Approve or reject changes that wait."""
    run = RunDirectory.open(Path(options.named))
    found, made = decide(run, options.ids, options.verdict)
    ids = [change.operation.id for change in found]
    said = f"{options.action}: {' '.join(ids)}" if ids else "no change waits for a person"
    resume = f"midstream resume {shlex.quote(options.named)}"
    later = f"the run at work takes it before its next update or at its end, otherwise: {resume}"
    parts = [text(said), text(later if made is None and options.verdict == "yes" else "", "warn")]
    parts += [text(f"{run.root}@{version.number}; {version.note}".removesuffix("; ")) for version in made or ()]
    if made and (after := made[-1].lesson_set).rendered and not after.proven_for:
        parts.append(text(f"unproven as it is: midstream lessons validate {shlex.quote(options.named)}", "warn"))
    return shared.show(options, {"verdict": options.verdict, "ids": ids, "applied": made is not None}, parts)


def roll_back(options: argparse.Namespace) -> int:
    """Make a new version that equals an old one."""
    with editable_lessons(options.named) as place:
        if not place.path.is_dir():
            raise _no_versions(place.path)
        version = history(place.path).rollback(options.number)
    return _print_change(options, place.lesson_set, version.lesson_set, f"{place.path}@{version.number}")


def _no_versions(path: Path) -> UsageError:
    return UsageError(f"{path} has no versions", code="wrong-kind-of-run", fix="name a lesson run, not a file")


def edit_lessons(options: argparse.Namespace) -> int:
    """Open the lessons as TOML in the person's editor; a draft that cannot be used is kept."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not command:
        what, fix = "no editor is named: VISUAL and EDITOR are not set", "EDITOR=nano midstream lessons edit RUN"
        raise UsageError(what, code="missing-option", fix=fix)
    with editable_lessons(options.named) as place:
        number, name = tempfile.mkstemp(suffix=".toml", prefix="lessons-")
        os.close(number)
        draft = Path(name)
        draft.write_text(to_draft(place.lesson_set), encoding="utf-8")
        try:
            done = subprocess.run([*shlex.split(command), str(draft)], check=False)
            if done.returncode:
                raise UsageError(f"the editor {command!r} ended with {done.returncode}", code="editor-failed")
            after, where = _save(place, draft.read_text(encoding="utf-8-sig"))
        except (MidstreamError, OSError, UnicodeDecodeError) as failure:
            raise UsageError(
                f"nothing is changed: {getattr(failure, 'what', failure)}",
                code=getattr(failure, "code", "") or "editor-failed",
                fix=f"your text is kept; correct it, then EDITOR='cp {draft}' midstream lessons edit {options.named}",
            ) from failure
        draft.unlink()
    return _print_change(options, place.lesson_set, after, where)


def _save(place: EditableLessons, text: str) -> tuple[LessonSet, str]:
    """Keep the lesson set as a person's TOML has it; returns it and its name."""
    agent = run_recipe(place.run).agent if place.run else None
    every = modules_of("agentflow" if agent is None else agent.type)
    showing = [name for name in every if agent is None or shows_lessons(agent, name)]
    held = [lesson.module for lesson in place.lesson_set.lessons if "." in lesson.module]
    modules = [*dict.fromkeys([*showing, *(name + EXAMPLES for name in showing), *held])]
    changed, outcomes = edited(place.lesson_set, text, Rules(modules=modules, subsets=False))
    for outcome in outcomes:
        if outcome.refused:
            operation = outcome.operation
            raise UsageError(
                f"{operation.kind} {operation.id or repr(operation.text[:60])}: {outcome.refused}",
                code="lessons-text-invalid",
            )
    if agent is not None:
        check_shown(agent, render_modules(changed), str(place.path))
    found = diff(place.lesson_set, changed)
    if found.empty:
        return place.lesson_set, str(place.path)
    marks = {"pinned": "pin", "vetoed": "veto", "active": "release"}
    note = "; ".join(f"{marks[lesson.state]} {lesson.id}" for _, lesson in found.marked)
    operations = [outcome.operation for outcome in outcomes]
    return changed, place.save(changed, by="edit", operations=operations, note=note)


def validate_lessons(options: argparse.Namespace) -> int:
    """Test the lesson set; returns 0 if it helps the agent, 1 if no test shows that."""
    changes = shared.changes(LearningChanges, options)
    if options.dry_run:
        with editable_lessons(options.named) as place:
            recipe = validation_recipe(place, options.recipe, **changes)
        gate, _ = validation_settings(recipe)
        print(to_toml(resolve(recipe)))
        most = f"{2 * gate.test_pairs:,} rollouts to test the lesson set, {2 * gate.bisect_pairs:,} for its lessons"
        print(f"# At most {most}")
        return 0
    with shared.spinner("validating", silent=options.quiet) as status, progress(quiet=options.quiet) as listener:

        def listen(event: RunEvent) -> None:
            if isinstance(event, Phase) and status is not None:
                status.update(event.text)
            else:
                listener(event)

        tested = api.validate_lessons(
            options.named,
            options.recipe,
            unsafe=options.unsafe,
            record=options.record,
            replay=options.replay,
            listener=listen,
            **changes,
        )
    record = {"lessons": tested.where, "agent": tested.agent, "validation": tested.found.model_dump(mode="json")}
    record |= {"spent": tested.spent.model_dump(), "notes": tested.notes}
    parts = validation_blocks(tested.lesson_set, tested.found, tested.agent)
    parts += [text(f"warning: {note}", "warn") for note in tested.notes]
    parts.append(code(f"{tested.where}, spent {spent_text(tested.spent)}"))
    if harmful := [name for name, effect in tested.found.effects.items() if effect.interval[1] < 0]:
        command = f"midstream lessons edit {shlex.quote(str(split(tested.where)[0]))}"
        parts.append(code(f"to delete what harms ({', '.join(harmful)}): {command}"))
    shared.show(options, record, parts)
    return 0 if tested.found.test.verdict == "better" else 1


def _print_change(options: argparse.Namespace, before: LessonSet, after: LessonSet, where: str) -> int:
    found = diff(before, after)
    record = {"lessons": where, "changed": found.model_dump(mode="json"), "notes": [], "proven_for": after.proven_for}
    parts = [*diff_blocks(found, "nothing is changed"), code(f"{where}: {size_of(after)}")]
    if before.proven_for and not after.proven_for and after.rendered:
        fix = f"midstream lessons validate {shlex.quote(str(split(where)[0]))}"
        parts += [text("unproven now, because prompts have changed:", "warn"), code(f"  {fix}")]
    return shared.show(options, record, parts)
