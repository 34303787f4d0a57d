"""What passed the gate waits for a person: it is used after a yes, never before, and each decision counts once."""

from __future__ import annotations

import multiprocessing
import shutil

import pytest

from midstream.core.agent import lessons_digest
from midstream.core.errors import UsageError
from midstream.core.events import Note, UpdateFinished
from midstream.lessons.approval import Approval, apply, decide, read_approvals, settle
from midstream.lessons.commit import History, read_updates
from midstream.lessons.lesson_set import render_modules
from midstream.runs import RunDirectory
from midstream.runs.journal import Records
from support.errors import coded
from support.lesson_sessions import SMALL, TINY, counting, differences, killed_after, learn, trajectories
from support.lesson_sessions import die as dies
from support.lesson_sets import marked

PERSON = {"lessons.approval": '"person"'}
MORE = {**SMALL, "lessons.tasks": 9}  # three updates


def copied(whole, place):
    shutil.copytree(whole, place)
    run = RunDirectory(place)
    run.set_status("finished")
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run to its end without a decision: where it is, its requests, its notes."""
    root, notes = tmp_path_factory.mktemp("approval") / "run", []
    with pytest.MonkeyPatch.context() as patch, counting(patch) as asked:
        learn(root, PERSON, listener=lambda event: notes.append(event.text) if isinstance(event, Note) else None)
    return root, asked.calls, notes


@pytest.fixture
def run(whole, tmp_path):
    return copied(whole[0], tmp_path / "run")


def versions(run):
    return History(run.lessons_dir).all()


def ids(changes):
    return [change.operation.id for change in changes]


def used(root):
    """The lessons of all rollouts but the gate's, which alone try what is proposed."""
    return {name: {one.lessons for one in found} for name, found in trajectories(root).items() if "gate" not in name}


def test_nothing_is_used_before_a_yes(whole):
    root, _, notes = whole
    run, [first, _] = RunDirectory(root), read_updates(RunDirectory(root))
    assert [change.fate for change in first.changes] == ["waiting", "waiting"]
    assert (first.event.fates["waiting"], first.event.fates["accepted"]) == (2, 0)
    assert all(change.effect for change in first.changes)
    assert first.pending == ()
    assert set().union(*used(root).values()) == {""}
    assert all(not version.lesson_set.rendered for version in versions(run))
    said = read_approvals(run)
    assert ids(said.waiting)[:2] == [change.operation.id for change in first.changes]
    assert said.waiting[0].tests == first.tests
    assert said.waiting[0].diff == (f"+{said.waiting[0].operation.text}",)
    assert f"{len(said.waiting)} changes wait for a person: midstream lessons waiting {root}" in notes


def test_a_yes_to_all_of_an_update_is_proven_as_if_the_gate_alone_had_decided(run, tmp_path):
    learn(tmp_path / "gated", {"budget.updates": 1})
    [first, *_] = read_updates(run)
    before = [change.operation.id for change in first.changes]
    decided, made = decide(run, before[:1], "yes")
    assert (ids(decided), [version.by for version in made or ()]) == (before[:1], ["approval"])
    newest = versions(run)[-1]
    assert (newest.by, newest.update, newest.lesson_set.proven_for) == ("approval", 1, "")
    assert ids(decide(run, before[1:], "yes")[0]) == before[1:]
    newest, gated = versions(run)[-1].lesson_set, versions(RunDirectory(tmp_path / "gated"))[-1].lesson_set
    assert render_modules(newest) == render_modules(gated) != {}
    assert newest.proven_for == gated.proven_for != ""
    assert [lesson.effect for lesson in newest.lessons] == [lesson.effect for lesson in gated.lessons]
    with pytest.raises(UsageError, check=coded("unknown-name")):
        decide(run, before[:1], "no")
    count = len(versions(run))
    assert apply(run) == []  # again nothing
    assert len(versions(run)) == count


def test_what_a_person_has_changed_since_stays_as_it_is(run):
    name = ids(read_approvals(run).waiting)[0]
    history = History(run.lessons_dir)
    decide(run, [name], "yes")
    history.add(marked(history.get().lesson_set, name, "pinned"), by="edit")
    # As if the approval of a change of this lesson came now.
    lines = run.updates_path.read_text().replace('"fate":"waiting"', '"fate":"rejected"')
    changed = (
        lines.splitlines()[0]
        .replace('"kind":"add"', '"kind":"modify"')
        .replace('"fate":"rejected"', '"fate":"waiting"')
    )
    run.updates_path.write_text(changed.replace('"step":1', '"step":3') + "\n")
    assert read_approvals(run).waiting[0].changed
    before = run.approvals_path.read_bytes()
    with pytest.raises(UsageError, check=coded("lessons-changed")):
        decide(run, [name], "yes")
    # It still waits, and a no is taken.
    assert (run.approvals_path.read_bytes(), apply(run)) == (before, [])
    decide(run, [name], "no")
    assert name not in ids(read_approvals(run).waiting)


def test_a_yes_while_the_run_is_at_work_is_used_from_the_next_update(tmp_path):
    root, said = tmp_path / "run", []

    def listen(event):
        if isinstance(event, UpdateFinished) and event.update == 1:
            said.append(decide(RunDirectory(root), [], "yes"))

    learn(root, PERSON, small=MORE, listener=listen)
    run = RunDirectory(root)
    [(changes, made)] = said
    assert (len(changes), made) == (2, None)
    approved = next(version for version in versions(run) if version.by == "approval")
    assert approved.operations == tuple(change.operation for change in changes)
    shown, found = lessons_digest(render_modules(approved.lesson_set)), used(root)
    assert found["step-000001"] == found["eval-test-T0.7-0"] == {""}
    assert found["step-000002"] == found["step-000003"] == found["eval-test-T0.7-3"] == {shown}


def test_an_interrupted_update_ends_with_the_lessons_that_it_began_with(tmp_path, monkeypatch):
    with killed_after(monkeypatch, tmp_path / "whole", 10**9) as written:
        learn(tmp_path / "whole", PERSON, small=MORE)
    root = tmp_path / "run"
    begun = written.index("ledger/rollouts.jsonl", written.index("updates.jsonl") + 3) + 1
    with killed_after(monkeypatch, root, begun):
        assert dies(root, PERSON, small=MORE)
    run = RunDirectory(root)
    for change in read_approvals(run).waiting:
        said = Approval(update=change.update, lesson=change.operation.id, verdict="yes")
        Records(run.approvals_path, Approval).append(said)
    learn(root, PERSON, small=MORE)
    assert read_updates(run)[:2] == read_updates(RunDirectory(tmp_path / "whole"))[:2]
    approved = next(version for version in versions(run) if version.by == "approval")
    found = used(root)
    assert (found["step-000002"], found["step-000003"]) == (
        {""},
        {lessons_digest(render_modules(approved.lesson_set))},
    )


def test_what_is_rejected_never_comes_back(tmp_path):
    root, rejected = tmp_path / "run", []

    def listen(event):
        if isinstance(event, UpdateFinished):
            rejected.extend(decide(RunDirectory(root), [], "no")[0])

    learn(root, PERSON, small=MORE, listener=listen)
    updates = read_updates(RunDirectory(root))
    texts = [change.operation.text for update in updates for change in update.changes if change.fate == "waiting"]
    assert texts == [change.operation.text for change in rejected]
    assert len(texts) == len(set(texts)) > 0
    reasons = {one.refused for update in updates[1:] for one in update.proposed}
    assert any("which a person rejected" in reason for reason in reasons)
    assert set().union(*used(root).values()) == {""}


def yes(root):
    decide(RunDirectory(root), [], "yes")


def test_two_yes_at_once_count_once(run):
    context = multiprocessing.get_context("fork")
    people = [context.Process(target=yes, args=(run.root,)) for _ in range(2)]
    for person in people:
        person.start()
    for person in people:
        person.join(30)
    assert [person.exitcode for person in people] == [0, 0]
    decisions = Records(run.approvals_path, Approval).read()
    assert len({(one.update, one.lesson) for one in decisions}) == len(decisions) > 1
    approved = [version for version in versions(run) if version.by == "approval"]
    assert sum(len(version.operations) for version in approved) == len(decisions)


def test_a_yes_that_nothing_has_applied_is_applied_once(run):
    [change, *_] = read_approvals(run).waiting
    said = Approval(update=change.update, lesson=change.operation.id, verdict="yes")
    Records(run.approvals_path, Approval).append(said)
    Records(run.approvals_path, Approval).append(said.model_copy(update={"verdict": "no"}))
    assert ids(read_approvals(run).approved) == [change.operation.id]
    assert [version.by for version in settle(run) or ()] == ["approval"]
    assert settle(run) == []
    assert [version.by for version in versions(run)].count("approval") == 1
    assert read_approvals(run).approved == []


def test_killed_while_changes_wait_it_ends_as_if_it_had_not(tmp_path, monkeypatch):
    with counting(monkeypatch) as asked, killed_after(monkeypatch, tmp_path / "whole", 10**9) as written:
        learn(tmp_path / "whole", PERSON, small=TINY)
    calls = asked.calls
    first = written.index("updates.jsonl") + 1
    for count in (first, first + 6):
        root = tmp_path / str(count)
        with counting(monkeypatch) as asked:
            with killed_after(monkeypatch, root, count):
                assert dies(root, PERSON, small=TINY)
            assert read_approvals(RunDirectory(root)).waiting
            learn(root, PERSON, small=TINY)
        assert (differences(tmp_path / "whole", root), asked.calls) == ([], calls)
        assert not RunDirectory(root).approvals_path.exists()
