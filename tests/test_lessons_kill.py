"""Killed at every write, a lesson run ends as if nobody had killed it, and no model is asked twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from midstream.core.agent import lessons_digest
from midstream.lessons.approval import read_approvals
from midstream.lessons.commit import History, read_updates
from midstream.lessons.lesson_set import render_modules
from midstream.recipe.check import resolve
from midstream.recipe.files import to_toml
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory
from support.lesson_sessions import SMALL, TINY, counting, die, differences, killed_after, learn, trajectories
from support.served_workshop import served_workshop

LONGEST_WAIT_S = 60.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody kills: where it is, its requests, and its writes, with and without the budget's."""
    root = tmp_path_factory.mktemp("lessons") / "whole"
    written = {}
    for every_write in (False, True):
        with pytest.MonkeyPatch.context() as patch, counting(patch) as asked:
            place = root if every_write else root.with_name("first")
            with killed_after(patch, place, 10**9, every_write=every_write) as written[every_write]:
                learn(place, small=TINY)
    fates = [[change.fate for change in one.changes] for one in read_updates(RunDirectory(root))]
    assert fates == [["accepted"], ["pending", "pending"]]
    return root, asked.calls, written


@pytest.fixture(autouse=True)
def no_power_cut(monkeypatch):
    """A killed process loses nothing that it wrote: waiting for the disk, hundreds of times, would show nothing."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def killed_after_write(count, whole, root, monkeypatch):
    """Kill a run right after its write number `count`, resume it, and compare it with the run that was not killed."""
    expected, calls, written = whole
    with counting(monkeypatch) as asked:
        with killed_after(monkeypatch, root, count):
            assert die(root, small=TINY)
        assert learn(root, small=TINY) == ""
    name = written[False][count - 1]
    assert (name, differences(expected, root), asked.calls) == (name, [], calls)


def test_killed_after_the_last_write_of_a_file_no_model_is_asked_twice(whole, tmp_path, monkeypatch):
    """The last write of two files of the run; the budget's are within a request or a rollout, which is then lost."""
    names = whole[2][False]
    assert {"ledger/rollouts.jsonl", "ledger/replies.jsonl", "ledger/update.json", "updates.jsonl"} < set(names)
    begun = names.index("run.json") + 1  # before it there is no run
    last = {name: count for count, name in enumerate(names, start=1) if count >= begun}
    for name in ("ledger/replies.jsonl", "updates.jsonl"):
        killed_after_write(last[name], whole, tmp_path / str(last[name]), monkeypatch)


@pytest.mark.slow
def test_killed_after_every_write_no_model_is_asked_twice(whole, tmp_path, monkeypatch):
    names = whole[2][False]
    for count in range(names.index("run.json") + 1, len(names) + 1):
        killed_after_write(count, whole, tmp_path / str(count), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("every", [67, pytest.param(11, marks=pytest.mark.slow)])
def test_killed_within_a_request_only_what_was_under_way_is_asked_again(every, whole, tmp_path, monkeypatch):
    expected, calls, written = whole
    names = written[True]
    for count in range(names.index("run.json") + 2, len(names) + 1, every):
        root = tmp_path / str(count)
        with counting(monkeypatch) as asked:
            with killed_after(monkeypatch, root, count, every_write=True):
                assert die(root, small=TINY)
            learn(root, small=TINY)
        assert calls <= asked.calls <= calls + 3  # at most the turns of one rollout
        assert trajectories(root) == trajectories(expected)
        same = [record.model_copy(update={"spent": None}) for record in read_updates(RunDirectory(expected))]
        assert [record.model_copy(update={"spent": None}) for record in read_updates(RunDirectory(root))] == same
        assert History(root / "lessons").current() == History(expected / "lessons").current()


@pytest.mark.slow
def test_killed_again_and_again(whole, tmp_path, monkeypatch):
    expected, calls, _ = whole
    root, deaths = tmp_path / "run", 0
    with counting(monkeypatch) as asked:
        for _ in range(60):
            with killed_after(monkeypatch, root, 9):
                if not die(root, small=TINY):
                    break
            deaths += 1
        else:
            raise AssertionError("it never ended")
    assert deaths > 5
    assert differences(expected, root) == []
    assert asked.calls == calls


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signal 9")
@pytest.mark.parametrize("records", [(30,), pytest.param((5, 30, 45, 20), marks=pytest.mark.slow)])
def test_a_real_kill_through_real_servers_with_faults(tmp_path, records):
    """The command line, an agent and a reflector over HTTP at 30 % faults, killed after so many more records."""
    changes = {**SMALL, "rollout.concurrency": 8, "tasks.test": 20}
    with served_workshop(changes, 0.3) as served:
        kill_and_compare(tmp_path, changes | served, records)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signal 9")
def test_a_real_kill_while_changes_wait_for_a_person(tmp_path):
    """Nothing is used without a yes; one by command is used by the resumed process."""
    changes = {**SMALL, "lessons.approval": '"person"', "rollout.concurrency": 8, "tasks.test": 20}
    with served_workshop(changes) as served:
        kill_and_compare(tmp_path, changes | served, (5, 50, 15))
        for name in ("whole", "killed"):
            assert read_approvals(RunDirectory(tmp_path / name)).waiting
            shown = {
                one.lessons
                for part, found in trajectories(tmp_path / name).items()
                if "gate" not in part
                for one in found
            }
            assert shown == {""}
        first, root = read_updates(RunDirectory(tmp_path / "whole"))[0], tmp_path / "later"
        killed_with_nine(["train", str(tmp_path / "recipe.toml"), "--out", str(root)], root, "updates.jsonl")
        run_to_the_end(["lessons", "approve", str(root)])
        run_to_the_end(["resume", str(root)])
        # At once, or, where the kill was in the middle of an update, after it.
        approved = next(version for version in History(root / "lessons").all() if version.by == "approval")
        assert len(approved.operations) == len(first.changes)
        shown = {
            part: {one.lessons for one in found} for part, found in trajectories(root).items() if "gate" not in part
        }
        digest = lessons_digest(render_modules(approved.lesson_set))
        assert shown["step-000001"] == {""}
        assert shown["step-000002"] in ({""}, {digest})
        assert {digest} in shown.values()


def kill_and_compare(tmp_path, changes, records):
    recipe = load_recipe("lessons-simulated", [f"{key}={value}" for key, value in changes.items()])
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(resolve(recipe)))
    run_to_the_end(["train", str(path), "--out", str(tmp_path / "whole")])
    root, kills = tmp_path / "killed", 0
    for count in records:
        command = ["resume", str(root)] if (root / "run.json").exists() else ["train", str(path), "--out", str(root)]
        kills += killed_with_nine(command, root, count)
    run_to_the_end(["resume", str(root)])
    assert kills >= min(len(records), 3)
    lesson_sets = [(run / "lessons" / "lessons.json").read_bytes() for run in (tmp_path / "whole", root)]
    assert lesson_sets[0] == lesson_sets[1]
    assert trajectories_but_failures(tmp_path / "whole") == trajectories_but_failures(root)
    assert [result.errors for result in RunDirectory(root).evaluations.read()] == [0, 0]


def trajectories_but_failures(root):
    """Which attempts of a request failed, and what that took, differs from process to process."""

    def plain(one):
        found = one.model_dump(mode="json", exclude={"request_failures", "attempts", "earlier_errors"})
        text = json.dumps(found, sort_keys=True)
        return json.loads(
            text, object_hook=lambda table: {k: v for k, v in table.items() if k not in ("failures", "sent")}
        )

    return {name: list(map(plain, found)) for name, found in trajectories(root).items()}


def start(words):
    command = [sys.executable, "-m", "midstream", *words, "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def run_to_the_end(words):
    process = start(words)
    _, errors = process.communicate(timeout=LONGEST_WAIT_S)
    assert process.returncode == 0, errors


def killed_with_nine(words, root, records):
    """Kill the process once so many more records are on disk, or the file has one; false if it ended first."""
    journals = [root / "ledger/rollouts.jsonl", root / "ledger/replies.jsonl", root / "updates.jsonl"]
    if isinstance(records, str):
        journals, records = [root / records], 1

    def size():
        return sum(path.read_bytes().count(b"\n") for path in journals if path.exists())

    process, seen, before, began = start(words), 0, size(), time.monotonic()
    try:
        while process.poll() is None and seen < records:
            if time.monotonic() - began > LONGEST_WAIT_S:
                raise AssertionError(f"no {records} records")
            now = size()
            seen, before = seen + max(0, now - before), now
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode != 0
