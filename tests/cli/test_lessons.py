"""`midstream lessons`: what is shown, changed, refused; and the warning about lessons that no test has accepted."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from midstream import api
from midstream.cli.main import main
from midstream.core.agent import lessons_digest
from midstream.core.errors import UsageError
from midstream.lessons.access import editable_lessons, find_lesson, history, read
from midstream.lessons.commit import History
from midstream.lessons.editing import to_draft, to_json
from midstream.lessons.lesson_set import (
    Bundle,
    Effect,
    Lesson,
    LessonOrigin,
    LessonSet,
    identity,
    proven,
    render_modules,
)
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory
from midstream_worlds.simulated import SimulatedEngine
from midstream_worlds.workshop.models import make_rules
from support.errors import coded, printed
from support.learned import LESSONS, write_run, write_waiting
from support.lesson_sets import marked

PROVEN = proven(LESSONS, "scripted (0123456789ab)")


@pytest.fixture
def run_path(tmp_path):
    return write_run(tmp_path / "run", versions=(LessonSet(), PROVEN)).root


@pytest.fixture
def lesson_set(capsys, monkeypatch):
    """Run `midstream lessons ...`: (exit code, standard output in one line, standard error)."""
    monkeypatch.setenv("COLUMNS", "80")

    def go(*arguments):
        capsys.readouterr()
        code = main(["lessons", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), captured.err

    return go


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """Make $EDITOR a program that replaces one text by another in the file it is given."""

    def be(old: str, new: str, code: int = 0) -> None:
        script = tmp_path / "editor"
        script.write_text(
            f"#!{sys.executable} -IS\nimport pathlib, sys\npath = pathlib.Path(sys.argv[1])\n"
            f"path.write_text(path.read_text().replace({old!r}, {new!r}))\nsys.exit({code})\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("EDITOR", str(script))

    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return be


@pytest.fixture
def edit(lesson_set, editor):
    """`edit(path, old, new)` edits a lesson set in such an editor; returns as `lessons` does."""

    def go(path, old, new):
        editor(old, new)
        return lesson_set("edit", path)

    return go


def newest(path: Path) -> LessonSet:
    return read(path)


def table(text: str, **values: str) -> str:
    return "\n".join(("[[lessons]]", *(f'{key} = "{value}"' for key, value in values.items()), f'text = "{text}"', ""))


FIRST = table("Look numbers up before you calculate.", id="L1", module="planner", state="active")
SECOND = table("Round to whole numbers.", id="L2", module="executor", state="active")
BRIEF = table("Be brief.", module="executor")


# --- looking ----------------------------------------------------------------------------------------------------------


def test_every_lesson_is_shown_with_its_origin_counters_and_effect(lesson_set, run_path, capsys):
    code, out, err = lesson_set("show", run_path)
    assert (code, err) == (0, "")
    assert "2 lessons, about " in out
    assert "1 vetoed" in out
    assert "proven for scripted (0123456789ab)" in out
    effect = "effect +3.1 (-1.9 to +8.1) points, 64 pairs; used in 40 rollouts, helped 9, harmed 2"
    origin = "scripted, update 1; tasks t1 t2; rollouts t1#0 t1#1 it paid"
    assert f"L1 Look numbers up before you calculate. {effect} {origin}" in out
    assert "executor L2 Round to whole numbers." in out
    main(["lessons", "show", str(run_path)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_bundle_is_shown_with_its_effect_and_what_only_it_has_shown(lesson_set, tmp_path):
    bundle = Bundle(changes=("L1", "L2", "L3"), mean=0.146, interval=(0.03, 0.26), pairs=32)
    surely = Effect(mean=0.05, interval=(0.01, 0.09), pairs=64, bundle=bundle)
    unsure = Effect(mean=0.02, interval=(-0.02, 0.06), pairs=64, bundle=bundle)
    lessons = (Lesson(id="L1", text="Look.", effect=surely), Lesson(id="L2", text="Act.", effect=unsure))
    (tmp_path / "l.json").write_text(to_json(LessonSet(lessons=lessons)))
    _, out, _ = lesson_set("show", tmp_path / "l.json")
    assert "tested together: L1 L2 and 1 other change: +14.6 (+3.0 to +26.0) points, 32 pairs" in out
    assert out.count("accepted only as a part of its bundle") == 1
    assert "+2.0 (-2.0 to +6.0) points, 64 pairs, accepted only as a part of its bundle" in out


def test_programs_get_all_of_it(lesson_set, run_path, capsys):
    assert main(["lessons", "show", str(run_path), "--json"]) == 0
    assert capsys.readouterr().out == to_json(PROVEN)


def test_a_version_is_named_with_the_run(lesson_set, run_path):
    assert "no lessons" in lesson_set("show", f"{run_path}@1")[1]
    code, _, err = lesson_set("show", f"{run_path}@7")
    assert code == 2
    assert coded("no-lessons", "version 7", "1 to 2")(printed(err))


@pytest.mark.parametrize("action", ["show", "versions"])
def test_what_holds_no_lesson_set_is_refused(lesson_set, tmp_path, action):
    (tmp_path / "empty").mkdir()
    for named in ("empty", "gone", "gone@3"):
        code, _, err = lesson_set(action, tmp_path / named)
        assert (code, "\n  fix: " in err, "Traceback" in err) == (2, True, False)


def test_versions_say_who_made_them_and_what_they_changed(lesson_set, edit, run_path):
    edit(run_path, f"{FIRST}\n{SECOND}", FIRST.replace("active", "pinned"))
    _, out, _ = lesson_set("versions", run_path)
    assert "1 0 start no 2 2 learning 1 yes 3 1 edit no delete L2, pin L1" in out
    assert [one["by"] for one in json.loads(lesson_set("versions", run_path, "--json")[1])] == [
        "start",
        "learning",
        "edit",
    ]


def test_a_difference_names_every_change(lesson_set, edit, run_path):
    edit(run_path, FIRST, table("Look it up.", id="L1") + table("Be brief."))
    edit(run_path, SECOND, "")
    edit(run_path, 'state = "vetoed"', "")
    _, out, _ = lesson_set("diff", f"{run_path}@2", run_path)
    assert "+ L5 planner: Be brief. - L2 executor: Round to whole numbers. ~ L1 planner: Look numbers up" in out
    assert "planner: Look it up. L4 vetoed -> active" in out
    assert json.loads(lesson_set("diff", f"{run_path}@2", run_path, "--json")[1])["added"][0]["text"] == "Be brief."
    assert "hold the same lessons" in lesson_set("diff", run_path, f"{run_path}@5")[1]


# --- editing ----------------------------------------------------------------------------------------------------------


def test_an_edit_is_a_new_version_by_a_person_and_unproven(edit, run_path, tmp_path):
    code, out, _ = edit(run_path, SECOND, SECOND + BRIEF.replace("Be brief.", "  Be  brief. "))
    assert code == 0
    assert "run@3: 3 lessons" in out
    assert f"unproven now, because prompts have changed: midstream lessons validate {run_path}" in out
    added = newest(run_path).find("L5")
    assert added is not None
    assert (added.text, added.module, added.origin.source) == ("Be brief.", "executor", "person")
    assert (newest(run_path).proven_for, read(f"{run_path}@2")) == ("", PROVEN)
    assert list(tmp_path.glob("lessons-*")) == []


def test_a_pin_changes_no_prompt_and_so_no_proof(edit, run_path):
    _, out, _ = edit(run_path, FIRST, FIRST.replace("active", "pinned"))
    assert "L1 active -> pinned" in out
    assert "unproven" not in out
    assert newest(run_path) == marked(PROVEN, "L1", "pinned")
    edit(run_path, '"pinned"', '"vetoed"')
    assert newest(run_path).proven_for == ""


def test_text_and_mark_change_together(edit, run_path):
    _, out, _ = edit(run_path, SECOND, table("Round up.", id="L2", state="pinned") + BRIEF)
    assert (
        "+ L5 executor: Be brief. ~ L2 executor: Round to whole numbers. executor: Round up. L2 active -> pinned" in out
    )
    assert [(one.id, one.text, one.state) for one in newest(run_path).lessons][1] == ("L2", "Round up.", "pinned")


def test_nothing_changed_is_no_version(edit, run_path):
    assert "nothing is changed" in edit(run_path, "x", "x")[1]
    assert len(history(run_path).all()) == 2


def test_no_one_edits_while_the_run_learns(edit, run_path):
    with RunDirectory.open(run_path).lock():
        code, _, err = edit(run_path, FIRST, BRIEF)
    assert code == 2
    assert coded("run-in-use", run_path)(printed(err))
    assert newest(run_path) == PROVEN


def test_the_file_that_the_next_version_overwrites_is_not_edited(lesson_set, run_path, monkeypatch):
    monkeypatch.setenv("VISUAL", "true")
    code, _, err = lesson_set("edit", run_path / "lessons" / "lessons.json")
    assert code == 2
    assert coded("lessons-read-only", fix="lesson run")(printed(err))


@pytest.mark.slow
def test_what_another_process_changed_is_not_undone(lesson_set, tmp_path, monkeypatch):
    copy = tmp_path / "copy.json"
    copy.write_text(to_json(PROVEN))
    first, second = tmp_path / "first", tmp_path / "second"
    run = f'"{sys.executable}" -c "from midstream.cli.main import main; main()"'
    mine, other = ('\n[[lessons]]\ntext = "Mine."\n', '\n[[lessons]]\ntext = "Of another."\n')
    append = "#!/bin/sh\nprintf '%s' '{}' >> \"$1\"\n"
    first.write_text(append.format(mine) + f'VISUAL="{second}" {run} lessons edit "{copy}" --quiet >&2\n')
    second.write_text(append.format(other))
    for script in (first, second):
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", str(first))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, err = lesson_set("edit", copy)
    assert code == 2
    [draft] = [path for path in tmp_path.glob("lessons-*.toml") if "Mine." in path.read_text()]
    assert err.startswith("error[lessons-changed]: ")
    assert str(draft) in err
    assert newest(copy).lessons[-1].text == "Of another."


def test_a_file_that_another_process_changed_is_not_written_over(tmp_path):
    path = tmp_path / "lessons.json"
    path.write_text(to_json(PROVEN))
    with editable_lessons(str(path)) as lesson_set:
        other = marked(PROVEN, PROVEN.lessons[0].id, "pinned")
        path.write_text(to_json(other))
        with pytest.raises(UsageError, check=coded("lessons-changed", path)):
            lesson_set.save(PROVEN, by="edit")
    assert read(path) == other


@pytest.mark.parametrize("named", ["run@1", "lessons.toml"])
def test_what_cannot_hold_a_change_is_not_edited(edit, run_path, tmp_path, named):
    (tmp_path / "lessons.toml").write_text(to_draft(LESSONS))
    code, _, err = edit(tmp_path / named, FIRST, BRIEF)
    assert code == 2
    assert err.startswith("error[lessons-read-only]: ")


def test_a_lesson_set_that_is_not_there_is_not_found(edit, tmp_path):
    code, _, err = edit(tmp_path / "nosuch", FIRST, BRIEF)
    assert code == 2
    assert err.startswith("error[file-not-found]: ")


@pytest.mark.parametrize(
    ("old", "new", "exit_code", "kind", "value"),
    [
        ("L2", "L1", 0, "lessons-text-invalid", "L1 occurs twice"),
        ("L2", "L9", 0, "lessons-text-invalid", "L9"),
        ("Round to whole numbers.", "", 0, "lessons-text-invalid", "modify L2:"),
        ('"executor"', '"executer"', 0, "lessons-text-invalid", "'executer'"),
        ("Round", "Round", 1, "editor-failed", "/editor'"),
    ],
)
def test_a_draft_that_cannot_be_used_is_kept(lesson_set, run_path, editor, tmp_path, old, new, exit_code, kind, value):
    editor(old, new, exit_code)
    code, _, err = lesson_set("edit", run_path)
    assert code == 2
    [draft] = tmp_path.glob("lessons-*.toml")
    assert coded(kind, value, fix=f"EDITOR='cp {draft}' midstream lessons edit {run_path}")(printed(err))
    assert new in draft.read_text()
    assert newest(run_path) == PROVEN


def test_a_kept_draft_is_taken_up_again(lesson_set, run_path, tmp_path, monkeypatch):
    draft = tmp_path / "draft.toml"
    draft.write_text(to_draft(PROVEN).replace("Round to whole numbers.", "Round up."))
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"cp {draft}")
    assert lesson_set("edit", run_path)[0] == 0
    assert newest(run_path).lessons[1].text == "Round up."


@pytest.mark.parametrize(("command", "error"), [("", "missing-option"), ("/no/such/editor", "editor-failed")])
def test_without_an_editor_nothing_is_edited(lesson_set, run_path, monkeypatch, command, error, tmp_path):
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", command)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, err = lesson_set("edit", run_path)
    assert (code, err.startswith(f"error[{error}]: ")) == (2, True)
    assert newest(run_path) == PROVEN


def test_lessons_for_a_module_that_shows_none_are_refused(edit, run_path, tmp_path):
    prompt = tmp_path / "executor.md"
    prompt.write_text("Do it.\n{{tools}}\n<!-- user -->\n{{action}}\n")
    recipe = run_path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("[agent.executor]", f'[agent.executor]\nprompt_file = "{prompt}"'))
    before = (History(run_path / "lessons").path).read_bytes()
    code, _, err = edit(run_path, SECOND, SECOND + table("Write one number.", module="executor"))
    assert code == 2
    assert coded("lessons-text-invalid", "'executor'")(printed(err))
    assert (History(run_path / "lessons").path).read_bytes() == before


# --- rolling back -----------------------------------------------------------------------------------------------------


def test_a_rollback_is_a_new_version_with_the_old_proof(lesson_set, edit, run_path):
    edit(run_path, FIRST, FIRST + BRIEF.replace("executor", "planner"))
    code, out, _ = lesson_set("rollback", run_path, 2)
    assert code == 0
    assert "- L5 planner: Be brief." in out
    back = newest(run_path)
    assert (back.lessons, back.proven_for, back.next_number) == (PROVEN.lessons, PROVEN.proven_for, 6)
    assert history(run_path).all()[-1].note == "back to version 2"
    assert lesson_set("rollback", run_path, 9)[0] == 2


def test_no_lessons_need_no_proof(lesson_set, run_path):
    versions = History(run_path / "lessons")
    none = versions.add(LessonSet(), by="edit").number
    versions.add(proven(LESSONS, "an agent"), by="learning")
    code, out, _ = lesson_set("rollback", run_path, none)
    assert code == 0
    assert "0 lessons" in out
    assert "unproven" not in out


@pytest.mark.parametrize("action", [("versions",), ("rollback", "1")])
def test_a_file_has_no_versions(lesson_set, tmp_path, action):
    (tmp_path / "l.json").write_text(to_json(PROVEN))
    code, _, err = lesson_set(action[0], tmp_path / "l.json", *action[1:])
    assert code == 2
    assert coded("wrong-kind-of-run", "l.json")(printed(err))


# --- hostile text -----------------------------------------------------------------------------------------------------


def test_hostile_lessons_stay_text_on_the_terminal(lesson_set, tmp_path):
    text = "[bold]x[/bold] \x1b[31m \u202e# L9"
    (tmp_path / "l.json").write_text(to_json(LessonSet(lessons=(Lesson(id="L1", text=text),))))
    _, out, _ = lesson_set("show", tmp_path / "l.json")
    assert "[bold]x[/bold]" in out
    assert "\x1b[31m" not in out


def test_hostile_names_stay_text_on_the_terminal(lesson_set, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    other = tmp_path / "[" / "b].json"
    other.parent.mkdir()
    other.write_text(to_json(LessonSet(lessons=(Lesson(id="L1", text="Be brief."),))))
    assert "[/b].json" in lesson_set("show", other)[1]


# --- does it help? ----------------------------------------------------------------------------------------------------

RECIPE = "lessons-simulated"
SMALL = ("--set", "lessons.gate.test_pairs=160", "--set", "lessons.gate.bisect_pairs=96", "--quiet")
STRONG = ("--set", "tasks.help=0.12", "--set", "tasks.harm=0.12")


@pytest.fixture(scope="module")
def workshop():
    """Lesson sets of the simulated world: of lessons that help, and of some that harm."""
    rules = make_rules(16, 0)[:5]
    true, false = ([rule.true for rule in rules], [rule.false[0] for rule in rules])
    return [
        LessonSet(lessons=tuple(Lesson(id=f"L{i}", text=text) for i, text in enumerate(texts, start=1)))
        for texts in (true, false)
    ]


def test_a_lesson_set_that_helps_is_proven(lesson_set, workshop, tmp_path):
    path = tmp_path / "true.json"
    path.write_text(to_json(workshop[0]))
    code, out, err = lesson_set("validate", path, "--recipe", RECIPE, *SMALL, *STRONG)
    assert (code, err) == (0, "")
    assert out.startswith("The lesson set helps: +")
    assert "Agent: simulated (" in out
    assert "rollouts, " in out
    found = read(path)
    assert found.proven_for == identity(resolve(load_recipe(RECIPE, STRONG[1::2])))
    assert all(one.effect and one.effect.pairs == 96 and one.used and one.helped for one in found.lessons)
    assert [one.name for one in tmp_path.iterdir()] == ["true.json"]


@pytest.mark.slow
def test_one_that_harms_is_not_and_says_what_to_take_out(lesson_set, workshop, tmp_path):
    path = tmp_path / "false.json"
    path.write_text(to_json(workshop[1]))
    harmful = (*STRONG, "--set", "tasks.harm=0.2")  # each lesson's harm is then seen in so few rollouts
    code, out, _ = lesson_set("validate", path, "--recipe", RECIPE, *SMALL, *harmful)
    assert code == 1
    assert "The lesson set does not help: -" in out
    assert "to delete what harms (L" in out
    assert f"): midstream lessons edit {path}" in out
    code, out, _ = lesson_set("validate", path, "--recipe", RECIPE, *SMALL, *harmful, "--json")
    assert (code, json.loads(out)["validation"]["test"]["verdict"]) == (1, "not better")
    assert json.loads(out)["spent"]["rollouts"] > 0
    assert read(path).proven_for == ""


@pytest.mark.slow
def test_a_validation_of_a_run_is_a_version_and_its_rollouts_stay(lesson_set, workshop, tmp_path):
    run = write_run(tmp_path / "run", versions=(workshop[0],), recipe=RECIPE)
    code, out, _ = lesson_set("validate", run.root, *SMALL)
    versions = history(run.root).all()
    assert [one.by for one in versions] == ["start", "validation"]
    assert versions[1].note == f"{'better' if code == 0 else 'undecided'} for {identity(run.info().resolved)}"
    assert "run@2, spent " in out
    kept = run.trajectories.read("validation-2")
    assert f"spent {len(kept):,} rollouts" in out
    assert {one.lessons for one in kept} >= {"", lessons_digest(render_modules(workshop[0]))}
    assert not (run.root / "validation").exists()


@pytest.mark.slow
def test_a_validation_that_was_stopped_continues_where_it_was(lesson_set, workshop, tmp_path, monkeypatch):
    one, two = (write_run(tmp_path / name, versions=(workshop[0],), recipe=RECIPE).root for name in "ab")
    asked = []
    sample = SimulatedEngine.sample

    async def counted(self, request):
        asked.append(request)
        if len(asked) == limit:
            raise KeyboardInterrupt
        return await sample(self, request)

    monkeypatch.setattr(SimulatedEngine, "sample", counted)
    limit = 0
    assert lesson_set("validate", one, *SMALL)[0] in (0, 1)
    whole = len(asked)
    asked.clear()
    limit = whole // 2
    assert lesson_set("validate", two, *SMALL)[0] == 130
    assert len(history(two).all()) == 1
    limit = 0
    assert lesson_set("validate", two, *SMALL)[0] in (0, 1)
    assert read(two) == read(one)
    assert len(asked) < whole * 1.2


@pytest.mark.parametrize(
    ("lessons", "more", "kind"),
    [
        ((), ("--recipe", RECIPE), "empty-lessons"),
        ((Lesson(id="L1", text="x"),), (), "missing-option"),
        ((Lesson(id="L1", text="x", module="verifier"),), ("--recipe", RECIPE), "lessons-not-shown"),
    ],
)
def test_what_cannot_be_tested_is_refused(lesson_set, tmp_path, lessons, more, kind):
    path = tmp_path / "l.json"
    path.write_text(to_json(LessonSet(lessons=lessons)))
    code, _, err = lesson_set("validate", path, *more)
    assert code == 2
    assert coded(kind, path)(printed(err))


def test_a_validation_without_any_result_says_why(lesson_set, run_path):
    code, _, err = lesson_set("validate", run_path, *SMALL)
    assert code == 1
    assert coded("no-results", "none of 32 pairs", "http://127.0.0.1:9/v1")(printed(err))


def test_a_dry_run_says_how_much_it_would_take(lesson_set, workshop, tmp_path):
    path = tmp_path / "l.json"
    path.write_text(to_json(workshop[0]))
    code, out, _ = lesson_set("validate", path, "--recipe", RECIPE, *SMALL, "--dry-run")
    assert code == 0
    assert out.endswith("# At most 320 rollouts to test the lesson set, 192 for its lessons")
    assert path.read_text() == to_json(workshop[0])


# --- what waits for a person ------------------------------------------------------------------------------------------


def test_a_text_of_the_recipe_is_shown(lesson_set, tmp_path):
    text = Lesson(id="L1", module="planner.prompt", text="Plan.", origin=LessonOrigin(source="recipe"))
    (tmp_path / "l.json").write_text(to_json(LessonSet(lessons=(text,))))
    assert "L1 Plan. the recipe" in lesson_set("show", tmp_path / "l.json")[1]


def test_what_waits_is_listed_and_decided(lesson_set, tmp_path):
    run = write_waiting(tmp_path / "run")
    code, out, err = lesson_set("waiting", run.root)
    assert (code, err) == (0, "")
    for part in (
        "L5 planner add +5.0 (+1.0 to +9.0) 32",
        "-Look numbers up before you calculate. +Look numbers up, then calculate.",
        "gate, whole 2 changes together, +10.0",
        "units were lost",
    ):
        assert part in out, part
    listed = json.loads(lesson_set("waiting", run.root, "--json")[1])
    assert [(each["operation"]["id"], each["place"], each["diff"][-1][0]) for each in listed] == [
        ("L5", "planner", "+"), ("L1", "planner", "+"),
    ]  # fmt: skip
    code, _, err = lesson_set("approve", run.root, "L9")
    assert (code, "unknown-name" in err) == (2, True)
    unproven = f"unproven as it is: midstream lessons validate {run.root}"
    assert lesson_set("approve", run.root, "L1")[:2] == (0, f"approve: L1 {run.root}@3 {unproven}")
    code, out, _ = lesson_set("reject", run.root)
    assert (code, out) == (0, "reject: L5")
    for action in ("waiting", "approve", "reject"):
        assert "no change waits for a person" in lesson_set(action, run.root)[1]
    code, out, _ = lesson_set("versions", run.root)
    assert "approval 2" in out
    assert find_lesson(str(run.root), "L1").text == "Look numbers up, then calculate."
    assert newest(run.root).find("L5") is None


def test_a_yes_is_left_to_a_run_at_work_or_to_its_resumption(lesson_set, tmp_path, monkeypatch):
    run = write_waiting(tmp_path / "run")
    with run.lock():
        code, out, _ = lesson_set("approve", run.root)
        assert (code, "the run at work takes it before its next update or at its end" in out) == (0, True)
        assert len(history(run.root).all()) == 2
    api.resume(run.root)
    assert [version.by for version in history(run.root).all()][2:] == ["approval"]
    assert newest(run.root).find("L5")
    assert run.evaluations.read() == []  # as after an edit
