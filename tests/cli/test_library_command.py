"""`midstream library`: what is shown, changed, refused; and the warning about lessons that no test has accepted."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.core.lessons import digest
from midstream.engines.simulated import SimulatedEngine
from midstream.practice.history import History
from midstream.practice.library import Lesson, Library, Origin, identity, marked, proven, render_modules
from midstream.practice.library_text import to_json, to_markdown
from midstream.recipe.check import check
from midstream.recipe.library import history, read
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory
from midstream.worlds.workshop.rules import make_rules
from support.practised import LESSONS, write_run

PROVEN = proven(LESSONS, "scripted (0123456789ab)")


@pytest.fixture
def run_path(tmp_path):
    return write_run(tmp_path / "run", versions=(Library(), PROVEN)).root


@pytest.fixture
def library(capsys, monkeypatch):
    """Run `midstream library ...`: (exit code, standard output in one line, standard error)."""
    monkeypatch.setenv("COLUMNS", "80")

    def go(*arguments):
        capsys.readouterr()
        code = main(["library", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), captured.err

    return go


def newest(path: Path) -> Library:
    return read(path)


# --- looking ----------------------------------------------------------------------------------------------------------


def test_every_lesson_is_shown_with_its_origin_counters_and_effect(library, run_path, capsys):
    code, out, err = library("show", run_path)
    assert (code, err) == (0, "")
    assert "2 lessons, about " in out
    assert "1 vetoed" in out
    assert "proven for scripted (0123456789ab)" in out
    effect = "effect +3.1 (-1.9 to +8.1) points, 64 pairs; used in 40 rollouts; helped 9, harmed 2"
    origin = "scripted, update 1; tasks t1 t2; rollouts t1#0 t1#1 it paid"
    assert f"L1 Look numbers up before you calculate. {effect} {origin}" in out
    assert "executor L2 Round to whole numbers." in out
    main(["library", "show", str(run_path)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_programs_and_editors_get_all_of_it(library, run_path, capsys):
    assert main(["library", "show", str(run_path), "--json"]) == 0
    assert capsys.readouterr().out == to_json(PROVEN)
    assert main(["library", "show", str(run_path), "--markdown"]) == 0
    assert capsys.readouterr().out == to_markdown(PROVEN)


def test_a_version_is_named_with_the_run(library, run_path):
    assert "no lessons" in library("show", f"{run_path}@1")[1]
    code, _, err = library("show", f"{run_path}@7")
    assert code == 2
    assert "has no version 7" in err
    assert "its versions are 1 to 2" in err


@pytest.mark.parametrize("action", ["show", "versions", "export"])
def test_what_holds_no_library_is_refused(library, tmp_path, action):
    (tmp_path / "empty").mkdir()
    for named in ("empty", "gone", "gone@3"):
        code, _, err = library(action, tmp_path / named, *([tmp_path / "x.md"] if action == "export" else []))
        assert (code, "\n  fix: " in err, "Traceback" in err) == (2, True, False)


def test_versions_say_who_made_them_and_what_they_changed(library, run_path):
    library("edit", run_path, "--delete", "L2", "--pin", "L1")
    _, out, _ = library("versions", run_path)
    assert "1 start 0 no 2 learning 1 2 yes 3 edit 1 no delete L2; pin L1" in out
    assert [one["by"] for one in json.loads(library("versions", run_path, "--json")[1])] == [
        "start",
        "learning",
        "edit",
    ]


def test_a_difference_names_every_change(library, run_path):
    library(
        "edit", run_path, "--modify", "L1", "Look it up.", "--delete", "L2", "--add", "Be brief.", "--release", "L4"
    )
    _, out, _ = library("diff", f"{run_path}@2", run_path)
    assert "+ L5 planner: Be brief. - L2 executor: Round to whole numbers. ~ L1 planner: Look numbers up" in out
    assert "planner: Look it up. L4 vetoed -> active" in out
    assert json.loads(library("diff", f"{run_path}@2", run_path, "--json")[1])["added"][0]["text"] == "Be brief."
    assert "hold the same lessons" in library("diff", run_path, f"{run_path}@3")[1]


# --- changing ---------------------------------------------------------------------------------------------------------


def test_an_edit_is_a_new_version_by_a_person_and_unproven(library, run_path):
    code, out, _ = library("edit", run_path, "--add", "  Be\nbrief. ", "--module", "executor")
    assert code == 0
    assert "run@3: 3 lessons" in out
    assert f"unproven now, because prompts have changed: midstream library validate {run_path}" in out
    added = newest(run_path).find("L5")
    assert added is not None
    assert (added.text, added.module, added.origin.source) == ("Be brief.", "executor", "person")
    assert (newest(run_path).proven_for, read(f"{run_path}@2")) == ("", PROVEN)


def test_a_pin_changes_no_prompt_and_so_no_proof(library, run_path):
    _, out, _ = library("edit", run_path, "--pin", "L1")
    assert "L1 active -> pinned" in out
    assert "unproven" not in out
    assert newest(run_path) == marked(PROVEN, "L1", "pinned")
    library("edit", run_path, "--veto", "L1")
    assert newest(run_path).proven_for == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("--delete", "L9"), "delete L9: there is no lesson 'L9'"),
        (("--modify", "L1", " "), "modify L1: it has no text"),
        (("--add", "x", "--module", "verifyer"), "no lessons for 'verifyer', only for planner, executor, verifier"),
        (("--pin", "L9"), "--pin L9: there is no such lesson"),
        (("--pin", "L1"), "L1 is marked twice"),
        (("--from", "gone.md"), "gone.md cannot be read"),
        (("--from", "gone.md", "--pin", "L1"), "--from stands beside other changes"),
    ],
)
def test_an_edit_that_cannot_be_made_changes_nothing(library, run_path, change, why):
    code, _, err = (
        library("edit", run_path, "--veto", "L1", *change)
        if "--from" not in change
        else library("edit", run_path, *change)
    )
    assert code == 2
    assert why in err
    assert newest(run_path) == PROVEN


def test_nothing_changed_is_no_version(library, run_path):
    assert "nothing is changed" in library("edit", run_path, "--release", "L1")[1]
    assert len(history(run_path).all()) == 2


def test_no_one_edits_while_the_run_learns(library, run_path):
    with RunDirectory.open(run_path).lock():
        code, _, err = library("edit", run_path, "--pin", "L1")
    assert code == 2
    assert "is in use" in err
    assert newest(run_path) == PROVEN


def test_a_module_is_for_changed_lessons_too(library, run_path):
    library("edit", run_path, "--modify", "L1", "Look it up.", "--module", "verifier")
    assert render_modules(newest(run_path)) == {
        "executor": "- Round to whole numbers.",
        "verifier": "- Look it up.",
    }


def test_the_file_that_is_made_for_people_is_the_library_itself(library, run_path):
    _, out, _ = library("edit", run_path / "library" / "library.json", "--add", "Be brief.")
    assert "run@3: 3 lessons" in out
    assert newest(run_path).find("L5") is not None


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_another_changed_meanwhile_is_not_undone(library, run_path, tmp_path, kind, monkeypatch):
    copy = tmp_path / "copy" if kind == "directory" else tmp_path / "copy.json"
    if kind == "directory":
        shutil.copytree(run_path / "library", copy)
    else:
        library("export", run_path, copy)
    script = tmp_path / "editor"
    run = f'"{sys.executable}" -c "from midstream.cli import main; main()"'
    other = f'{run} library edit "{copy}" --add "Of another." --quiet >&2'
    script.write_text(f'#!/bin/sh\necho "- Mine." >> "$1"\n{other}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", str(script))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, err = library("edit", copy)
    assert code == 2
    [draft] = tmp_path.glob("lessons-*.md")
    assert "has changed meanwhile" in err
    assert str(draft) in err
    assert "- Mine." in draft.read_text()
    assert newest(copy).lessons[-1].text == "Of another."


@pytest.mark.parametrize("named", ["run@1", "lessons.md"])
def test_what_cannot_hold_a_change_is_not_edited(library, run_path, tmp_path, named):
    (tmp_path / "lessons.md").write_text(to_markdown(LESSONS))
    code, _, err = library("edit", tmp_path / named, "--pin", "L1")
    assert code == 2
    assert "cannot be changed" in err


# --- in an editor -----------------------------------------------------------------------------------------------------


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """Make $EDITOR a program that replaces one text by another in the file it is given."""

    def be(old: str, new: str, code: int = 0) -> None:
        script = tmp_path / "editor"
        script.write_text(
            "#!/usr/bin/env python3\nimport pathlib, sys\npath = pathlib.Path(sys.argv[1])\n"
            f"path.write_text(path.read_text().replace({old!r}, {new!r}))\nsys.exit({code})\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("EDITOR", str(script))
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setenv("TMPDIR", str(tmp_path))

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return be


def test_an_editor_shows_the_markdown_and_its_changes_are_taken(library, run_path, editor, tmp_path):
    editor("- [L2] Round to whole numbers.", "- [L2 pinned] Round up.\n- Be brief.")
    code, out, _ = library("edit", run_path)
    assert code == 0
    assert (
        "+ L5 executor: Be brief. ~ L2 executor: Round to whole numbers. executor: Round up. L2 active -> pinned" in out
    )
    assert [(one.id, one.text, one.state) for one in newest(run_path).lessons][1] == ("L2", "Round up.", "pinned")
    assert list(tmp_path.glob("lessons-*")) == []


@pytest.mark.parametrize(
    ("old", "new", "exit_code", "why"),
    [
        ("[L2]", "[L1]", 0, ": L1 occurs twice"),
        ("Round to whole numbers.", "", 0, "modify L2: it has no text"),
        ("## executor", "## executer", 0, "no lessons for 'executer'"),
        ("Round", "Round", 1, "ended with 1"),
    ],
)
def test_a_draft_that_cannot_be_used_is_kept(library, run_path, editor, tmp_path, old, new, exit_code, why):
    editor(old, new, exit_code)
    code, _, err = library("edit", run_path)
    assert code == 2
    assert "nothing is changed: " in err
    assert why in err
    [draft] = tmp_path.glob("lessons-*.md")
    assert f"midstream library edit RUN --from {draft}" in err
    assert new in draft.read_text()
    assert newest(run_path) == PROVEN


def test_a_kept_draft_is_taken_up_again(library, run_path, tmp_path):
    draft = tmp_path / "draft.md"
    draft.write_text(to_markdown(PROVEN).replace("Round to whole numbers.", "Round up."))
    assert library("edit", run_path, "--from", draft)[0] == 0
    assert newest(run_path).lessons[1].text == "Round up."


@pytest.mark.parametrize("command", ["", "/no/such/editor"])
def test_without_an_editor_there_are_the_options(library, run_path, monkeypatch, command, tmp_path):
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", command)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, err = library("edit", run_path)
    assert (code, "Traceback" in err) == (2, False)
    assert "--from" in err


# --- back, together, out and in ---------------------------------------------------------------------------------------


def test_a_rollback_is_a_new_version_with_the_old_proof(library, run_path):
    library("edit", run_path, "--add", "Be brief.")
    code, out, _ = library("rollback", run_path, 2)
    assert code == 0
    assert "- L5 planner: Be brief." in out
    back = newest(run_path)
    assert (back.lessons, back.proven_for, back.next_number) == (PROVEN.lessons, PROVEN.proven_for, 6)
    assert history(run_path).all()[-1].note == "back to version 2"
    assert library("rollback", run_path, 9)[0] == 2


def test_no_lessons_need_no_proof(library, run_path):
    versions = History(run_path / "library")
    none = versions.add(Library(), by="edit").number
    versions.add(proven(LESSONS, "an agent"), by="learning")
    code, out, _ = library("rollback", run_path, none)
    assert code == 0
    assert "0 lessons" in out
    assert "unproven" not in out


def test_two_libraries_become_one(library, run_path, tmp_path):
    other = Library(
        lessons=(Lesson(id="L1", text="Quote names as they are written."), Lesson(id="L2", text="Never look twice.")),
        next_number=3,
    )
    (tmp_path / "other.json").write_text(to_json(other))
    merged = tmp_path / "merged.json"
    code, out, _ = library("merge", run_path, tmp_path / "other.json", "--out", merged)
    assert code == 0
    assert "L1 of the other is L5 here" in out
    assert "repeats L4: joined" in out
    assert [one.id for one in newest(merged).lessons] == ["L1", "L2", "L4", "L5"]
    assert newest(run_path) == PROVEN
    library("merge", run_path, tmp_path / "other.json")
    assert newest(run_path) == newest(merged)
    assert history(run_path).all()[-1].by == "merge"


def test_what_is_exported_comes_back_the_same(library, run_path, tmp_path):
    out = tmp_path / "lessons.json"
    assert library("export", run_path, out)[0] == 0
    assert newest(out) == PROVEN
    library("edit", out, "--delete", "L1")
    assert library("edit", run_path, "--from", out)[0] == 0
    assert [one.id for one in newest(run_path).lessons] == ["L2", "L4"]
    assert library("export", run_path, tmp_path / "lessons.md")[0] == 0
    assert (tmp_path / "lessons.md").read_text() == to_markdown(newest(run_path))
    code, _, err = library("export", run_path, tmp_path / "lessons.txt")
    assert code == 2
    assert "lessons.json or " in err


def test_a_file_brings_back_no_id_that_was_given_since(library, run_path, tmp_path):
    library("export", run_path, tmp_path / "old.json")
    library("edit", run_path, "--add", "Be brief.")
    library("edit", run_path, "--from", tmp_path / "old.json")
    assert newest(run_path) == PROVEN.model_copy(update={"next_number": 6})
    library("edit", run_path, "--add", "Be exact.")
    assert [one.id for one in newest(run_path).lessons] == ["L1", "L2", "L4", "L6"]


def test_a_lesson_that_was_changed_in_a_file_begins_anew(library, run_path, tmp_path):
    file = tmp_path / "l.json"
    library("export", run_path, file)
    file.write_text(file.read_text().replace("Look numbers up", "Never look numbers up"))
    _, out, _ = library("edit", run_path, "--from", file)
    assert "unproven now" in out
    changed = newest(run_path).find("L1")
    assert changed == Lesson(
        id="L1", text="Never look numbers up before you calculate.", origin=Origin(source="person")
    )


def test_a_merge_that_changes_nothing_is_no_version(library, run_path):
    assert "nothing is changed" in library("merge", run_path, run_path)[1]
    assert len(history(run_path).all()) == 2


@pytest.mark.parametrize("action", [("versions",), ("rollback", "1")])
def test_a_file_has_no_versions(library, run_path, tmp_path, action):
    library("export", run_path, tmp_path / "l.json")
    code, _, err = library(action[0], tmp_path / "l.json", *action[1:])
    assert code == 2
    assert "l.json has no versions" in err


@pytest.mark.parametrize("out", ["/", ".", ""])
def test_a_file_that_has_no_name_is_refused(library, run_path, out):
    code, _, err = library("export", run_path, out)
    assert code == 2
    assert "lessons.json or " in err


def test_lessons_for_a_module_that_shows_none_are_not_merged_in(library, run_path, tmp_path):
    prompt = tmp_path / "executor.md"
    prompt.write_text("Do it.\n{{tools}}\n<!-- user -->\n{{action}}\n")
    recipe = run_path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("[agent.executor]", f'[agent.executor]\nprompt_file = "{prompt}"'))
    other = Library(lessons=(Lesson(id="L1", text="Write one number.", module="executor"),))
    (tmp_path / "other.json").write_text(to_json(other))
    before = (History(run_path / "library").path).read_bytes()
    code, _, err = library("merge", run_path, tmp_path / "other.json")
    assert code == 2
    assert "lessons for the executor, which shows none" in err
    assert "prompt_file" in err
    assert (History(run_path / "library").path).read_bytes() == before
    assert library("edit", run_path, "--add", "x", "--module", "executor")[0] == 2


def test_hostile_lessons_stay_text_on_the_terminal(library, tmp_path):
    text = "[bold]x[/bold] \x1b[31m \u202e# L9"
    (tmp_path / "l.json").write_text(to_json(Library(lessons=(Lesson(id="L1", text=text),))))
    _, out, _ = library("show", tmp_path / "l.json")
    assert "[bold]x[/bold]" in out
    assert "\x1b[31m" not in out


def test_hostile_names_stay_text_on_the_terminal(library, run_path, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    other = tmp_path / "[" / "b].json"
    other.parent.mkdir()
    other.write_text(to_json(Library(lessons=(Lesson(id="L1", text="Be brief."),))))
    library("merge", run_path, other)
    assert "[/b].json" in library("versions", run_path)[1]


# --- does it help? ----------------------------------------------------------------------------------------------------

RECIPE = "training-free-simulated"
SMALL = ("--set", "practice.gate.test_pairs=160", "--set", "practice.gate.bisect_pairs=96", "--quiet")
STRONG = ("--set", "tasks.help=0.12", "--set", "tasks.harm=0.12")


@pytest.fixture(scope="module")
def workshop():
    """Libraries of the simulated world: of lessons that help, and of some that harm."""
    rules = make_rules(16, 0)[:5]
    true, false = ([rule.true for rule in rules], [rule.false[0] for rule in rules])
    return [
        Library(lessons=tuple(Lesson(id=f"L{i}", text=text) for i, text in enumerate(texts, start=1)))
        for texts in (true, false)
    ]


def test_a_library_that_helps_is_proven(library, workshop, tmp_path):
    path = tmp_path / "true.json"
    path.write_text(to_json(workshop[0]))
    code, out, err = library("validate", path, "--recipe", RECIPE, *SMALL, *STRONG)
    assert (code, err) == (0, "")
    assert out.startswith("The library helps: +")
    assert "Agent: simulated (" in out
    assert "rollouts, " in out
    found = read(path)
    assert found.proven_for == identity(check(load_recipe(RECIPE, STRONG[1::2])))
    assert all(one.effect and one.effect.pairs == 96 and one.used and one.helped for one in found.lessons)
    assert [one.name for one in tmp_path.iterdir()] == ["true.json"]


def test_one_that_harms_is_not_and_says_what_to_take_out(library, workshop, tmp_path):
    path = tmp_path / "false.json"
    path.write_text(to_json(workshop[1]))
    code, out, _ = library("validate", path, "--recipe", RECIPE, *SMALL, *STRONG)
    assert code == 1
    assert "The library does not help: -" in out
    assert f"without what harms: midstream library edit {path} --delete L" in out
    code, out, _ = library("validate", path, "--recipe", RECIPE, *SMALL, *STRONG, "--json")
    assert (code, json.loads(out)["validation"]["test"]["verdict"]) == (1, "not better")
    assert json.loads(out)["spent"]["rollouts"] > 0
    assert read(path).proven_for == ""


def test_a_validation_of_a_run_is_a_version_and_its_rollouts_stay(library, workshop, tmp_path):
    run = write_run(tmp_path / "run", versions=(workshop[0],), recipe=RECIPE)
    code, out, _ = library("validate", run.root, *SMALL)
    versions = history(run.root).all()
    assert [one.by for one in versions] == ["start", "validation"]
    assert versions[1].note == f"{'better' if code == 0 else 'undecided'} for {identity(run.info().resolved)}"
    assert "run@2, spent " in out
    kept = run.trajectories.read_evaluation("validation-2")
    assert f"spent {len(kept):,} rollouts" in out
    assert {one.lessons for one in kept} >= {"", digest(render_modules(workshop[0]))}
    assert not (run.root / "validation").exists()


def test_a_validation_that_was_stopped_goes_on_where_it_was(library, workshop, tmp_path, monkeypatch):
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
    assert library("validate", one, *SMALL)[0] in (0, 1)
    whole = len(asked)
    asked.clear()
    limit = whole // 2
    assert library("validate", two, *SMALL)[0] == 130
    assert len(history(two).all()) == 1
    limit = 0
    assert library("validate", two, *SMALL)[0] in (0, 1)
    assert read(two) == read(one)
    assert len(asked) < whole * 1.2


@pytest.mark.parametrize(
    ("lessons", "more", "why"),
    [
        ((), ("--recipe", RECIPE), "has no lessons"),
        ((Lesson(id="L1", text="x"),), (), "says of no agent that it should help"),
        ((Lesson(id="L1", text="x", module="verifier"),), ("--recipe", RECIPE), "lessons for the verifier"),
    ],
)
def test_what_cannot_be_tested_is_refused(library, tmp_path, lessons, more, why):
    path = tmp_path / "l.json"
    path.write_text(to_json(Library(lessons=lessons)))
    code, _, err = library("validate", path, *more)
    assert code == 2
    assert why in err


def test_a_validation_without_any_result_says_why(library, run_path):
    code, _, err = library("validate", run_path, *SMALL)
    assert code == 1
    assert "has a result on both sides; the first error:\nmodel: nothing answers at http://127.0.0.1:9/v1" in err
    assert "fix: see to that, then give the command again" in err


def test_a_dry_run_says_how_much_it_would_take(library, workshop, tmp_path):
    path = tmp_path / "l.json"
    path.write_text(to_json(workshop[0]))
    code, out, _ = library("validate", path, "--recipe", RECIPE, *SMALL, "--dry-run")
    assert code == 0
    assert out.endswith("# At most 320 rollouts to test the library, 192 for its lessons")
    assert path.read_text() == to_json(workshop[0])
