"""The feedback filter: which votes hold a text back, the file of votes, learning with it, and an agent's answers."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.api import evaluate, resume
from midstream.cli.main import main
from midstream.core.agent import RunContext
from midstream.core.errors import UsageError
from midstream.core.metrics import Spent, ToolUse
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.evaluation.session import JournalStore
from midstream.lessons.commit import UpdateRecord, read_updates
from midstream.lessons.lesson_set import LessonSet
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe, parse_recipe
from midstream.report.trajectory import end_rows
from midstream.rollout import Environment, rollout
from midstream.runs import RunDirectory
from midstream.runs.feedback import read_feedback
from midstream_extra.filtered import FilteredAgent
from midstream_extra.votes import HELD_BACK, Vote, VoteFile, Votes, read_votes, vote_guard
from support.errors import coded
from support.learned import LESSONS, write_run
from support.lesson_sessions import die, differences, killed_after, learn
from support.rollouts import StubReward
from support.viewing import viewing

BAD = "Guess a number that a tool could look up."
Value = Literal["for", "against"]


def vote(text: str = BAD, value: Value = "against", *, run: str = "", lesson: str = "", **more: Any) -> Vote:
    return Vote(text=text, value=value, run=run, lesson=lesson, **more)


def of_runs(count: int, value: Value = "against", text: str = BAD) -> list[Vote]:
    """Votes on one text as a lesson of several runs."""
    return [vote(text, value, run=f"/{value}/{number}", lesson="L1") for number in range(count)]


def held_back(votes: Sequence[Vote], text: str = BAD, near: float = 0.85) -> bool:
    reason = vote_guard(votes, near)(text)
    assert reason is None or reason.startswith(HELD_BACK)
    return reason is not None


@pytest.fixture
def votes_at(tmp_path):
    """Makes files of votes, and closes them."""
    made: list[VoteFile] = []

    def make(name: str = "votes.sqlite", votes: Sequence[Vote] = ()) -> VoteFile:
        made.append(VoteFile(tmp_path / name))
        made[-1].add(votes)
        return made[-1]

    yield make
    for file in made:
        file.close()


# --- decisions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("against", "favor", "expected"),
    [(0, 0, False), (2, 0, False), (3, 0, True), (3, 2, True), (3, 3, False), (9, 3, False), (0, 3, False)],
)
def test_three_near_votes_against_hold_a_text_back_unless_three_for_are_as_near(against, favor, expected):
    assert held_back([*of_runs(against), *of_runs(favor, "for")]) is expected


def test_the_nearer_side_wins():
    nearer = [*of_runs(3, text=f"Remember: {BAD}"), *of_runs(3, "for")]
    farther = [*of_runs(3), *of_runs(3, "for", text=f"Remember: {BAD}")]
    assert not held_back(nearer, near=0.5)
    assert held_back(farther, near=0.5)


def test_votes_on_other_claims_do_not_count():
    assert not held_back(of_runs(5), "Never guess a number that a tool could look up.")
    assert not held_back(of_runs(5), "Round to 2 decimals.")


def test_the_reason_names_the_nearest_votes_first():
    votes = [*of_runs(1, text=f"Remember: {BAD}"), *(vote(run=f"/{name}") for name in "abc"), *of_runs(2, "for")]
    reason = vote_guard(votes, 0.5)(BAD)
    assert reason is not None
    assert reason.count(f"'{BAD}' (1.00)") == 3
    assert "Remember" not in reason


texts = st.sampled_from([BAD, f"Remember: {BAD}", f"{BAD} Always.", "Round to 2 decimals.", "Look it up."])
values = st.sampled_from(["for", "against"])
some_votes = st.lists(st.builds(vote, texts, values, run=st.integers(0, 30).map(str)), max_size=12).map(
    lambda votes: list({vote.item: vote for vote in votes}.values())
)


@given(some_votes, texts, st.sampled_from([0.3, 0.85, 1.0]), st.randoms())
def test_the_order_of_votes_does_not_matter(votes, text, near, chance: random.Random):
    shuffled = chance.sample(votes, len(votes))
    assert vote_guard(votes, near)(text) == vote_guard(shuffled, near)(text)


@given(some_votes, texts, st.sampled_from([0.3, 0.85, 1.0]), texts)
def test_a_vote_for_never_holds_back_and_a_vote_against_never_lets_pass(votes, text, near, other):
    before = held_back(votes, text, near)
    assert held_back([*votes, vote(other, "for", run="new")], text, near) <= before
    assert held_back([*votes, vote(other, "against", run="new")], text, near) >= before


# --- the file of votes ------------------------------------------------------------------------------------------------


def test_votes_on_one_item_are_one_and_the_last_one_counts(votes_at):
    file = votes_at(votes=[vote(), vote(BAD.upper()), vote(f" {BAD} "), vote(run="/a", lesson="L1")])
    assert [(found.run, found.value) for found in file.counted()] == [("", "against"), ("/a", "against")]
    assert not held_back(file.counted())
    file.add([vote(value="for"), vote(run="/a", lesson="L2"), vote(run="/b", lesson="L1")])
    assert [found.value for found in file.counted()] == ["against", "for", "against", "against"]
    assert held_back(file.counted())


def test_the_gate_does_not_vote_where_anybody_has(votes_at):
    gate = [vote(run="/a", lesson="L1", by="gate"), vote(value="for", run="/a", lesson="L2", by="gate")]
    file = votes_at(votes=gate)
    file.add(gate)
    file.add([vote(value="for", run="/a", lesson="L1")])
    file.add(gate)
    assert [(found.lesson, found.value, found.by) for found in file.counted()] == [
        ("L2", "for", "gate"),
        ("L1", "for", "person"),
    ]


def test_several_writers_lose_nothing(tmp_path, votes_at):
    votes_at()

    def write(number: int) -> None:
        file = VoteFile(tmp_path / "votes.sqlite")
        for lesson in range(20):
            file.add([vote(run=str(number), lesson=f"L{lesson}")])
        file.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(read_votes(tmp_path / "votes.sqlite")) == 80


def test_what_is_no_file_of_votes_is_refused(tmp_path):
    with pytest.raises(UsageError, check=coded("file-not-found")):
        read_votes(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()
    sqlite3.connect(tmp_path / "other.sqlite").execute("CREATE TABLE t (a)").connection.close()
    with pytest.raises(UsageError, check=coded("file-invalid")):
        VoteFile(tmp_path / "other.sqlite")


def test_an_update_that_is_repeated_has_the_votes_it_began_with(tmp_path, votes_at):
    file = votes_at(votes=of_runs(3))
    run = write_run(tmp_path / "run")
    run.ledger_dir.mkdir(exist_ok=True)
    reason = Votes(tmp_path / "votes.sqlite", run).guard()(BAD)
    assert reason is not None
    file.add(of_runs(5, "for"))
    again = Votes(tmp_path / "votes.sqlite", run)
    assert again.guard()(BAD) == reason
    tool_use = ToolUse(turns=0, errors=0, error_rate=0.0, share={})
    again.committed(
        UpdateRecord(
            step=1, epoch=1, tasks=(), groups=0, uniform=0, mean_reward=0.0, turns_mean=0.0, tool_use=tool_use,
            version=1, lessons=0, spent=Spent(),
        )
    )  # fmt: skip
    assert again.guard()(BAD) is None


# --- learning ---------------------------------------------------------------------------------------------------------


def settings(path: Path) -> dict[str, str]:
    return {"lessons.feedback": f'"{path}"'}


def essence(path: Path) -> list[tuple[str, str, str, int]]:
    return [(found.text, found.value, found.lesson, found.update) for found in read_votes(path) if found.by == "gate"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without the filter."""
    root = tmp_path_factory.mktemp("plain") / "run"
    learn(root)
    return root


@pytest.fixture(scope="module")
def voted(tmp_path_factory, plain):
    """A run of the same settings whose votes hold back a proposal of its second update; with the text."""
    root = tmp_path_factory.mktemp("voted")
    bad = read_updates(RunDirectory.open(plain))[1].changes[1].operation.text
    file = VoteFile(root / "votes.sqlite")
    file.add(of_runs(3, text=bad))
    file.close()
    learn(root / "run", settings(root / "votes.sqlite"))
    return root, bad


def test_votes_without_a_near_proposal_change_nothing_but_the_gate_votes(plain, tmp_path):
    learn(tmp_path / "run", settings(tmp_path / "votes.sqlite"))
    assert differences(plain, tmp_path / "run") == []
    found = read_votes(tmp_path / "votes.sqlite")
    assert {(one.by, one.run) for one in found} == {("gate", str(tmp_path / "run"))}
    fates = {
        change.operation.text: change.fate
        for record in read_updates(RunDirectory.open(plain))
        for change in record.changes
    }
    assert found
    assert all({"for": "accepted", "against": "rejected"}[one.value] == fates[one.text] for one in found)


def test_a_proposal_near_three_votes_against_is_held_back_untested(plain, voted):
    root, bad = voted
    records = read_updates(RunDirectory.open(root / "run"))
    refused = [outcome for record in records for outcome in record.proposed if outcome.refused.startswith(HELD_BACK)]
    assert {outcome.operation.text for outcome in refused} == {bad}
    assert all(change.operation.text != bad for record in records for change in record.changes)
    without, with_filter = (
        [record.event.fates["refused"] for record in each] for each in (read_updates(RunDirectory.open(plain)), records)
    )
    assert with_filter == [without[0], without[1] + 1]


def test_without_a_gate_nobody_votes(tmp_path):
    learn(tmp_path / "run", {**settings(tmp_path / "votes.sqlite"), "lessons.gate.enabled": False})
    assert read_votes(tmp_path / "votes.sqlite") == ()


@pytest.mark.matrix(1)
@pytest.mark.parametrize(
    ("after", "more"),
    [("ledger/votes.jsonl", 0), ("ledger/update.json", 0), ("updates.jsonl", 0), ("updates.jsonl", 1)],
)
def test_a_killed_update_votes_once_and_by_the_votes_it_began_with(voted, tmp_path, monkeypatch, after, more):
    root, bad = voted
    for name in ("whole", "run"):
        file = VoteFile(tmp_path / f"{name}.sqlite")
        file.add(of_runs(3, text=bad))
        file.close()
    with killed_after(monkeypatch, tmp_path / "whole", 10**9) as written:
        learn(tmp_path / "whole", settings(tmp_path / "whole.sqlite"))
    _, second = [place for place, name in enumerate(written) if name == "ledger/votes.jsonl"]
    with killed_after(monkeypatch, tmp_path / "run", written.index(after, second) + more + 1):
        assert die(tmp_path / "run", settings(tmp_path / "run.sqlite"))
    file = VoteFile(tmp_path / "run.sqlite")
    file.add(of_runs(3, "for", text=bad))  # by people, meanwhile
    file.close()
    learn(tmp_path / "run", settings(tmp_path / "run.sqlite"))
    assert differences(root / "run", tmp_path / "run") == []
    assert essence(tmp_path / "run.sqlite") == essence(root / "votes.sqlite") != []


def test_a_run_that_is_resumed_elsewhere_keeps_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Build(load_recipe("lessons-simulated", ["lessons.feedback=.midstream/votes.sqlite"])) as build:
        assert build.resolved["lessons"]["feedback"] == str(tmp_path / ".midstream/votes.sqlite")
        assert parse_recipe(build.resolved).lessons == build.recipe.lessons.model_copy(
            update={"feedback": tmp_path / ".midstream/votes.sqlite"}
        )


# --- an agent's answers -----------------------------------------------------------------------------------------------


class Writer:
    """An agent that gives one answer."""

    name = "writer"

    def __init__(self, answer: str | None, reward: Score | None = None) -> None:
        self.answer, self.reward = answer, reward

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        return Trajectory(id=task.id, task_id=task.id, answer=self.answer, stop_reason="answered", reward=self.reward)

    async def close(self) -> None: ...


def filtered(answer: str | None, votes: Path) -> Trajectory:
    return asyncio.run(FilteredAgent(Writer(answer), votes).run(Task(id="t", question="?", answer=""), RunContext()))


def test_an_answer_near_three_votes_against_is_held_back_and_kept(tmp_path, votes_at):
    votes_at(votes=of_runs(3))
    found = filtered(BAD, tmp_path / "votes.sqlite")
    assert (found.answer, found.final, found.stop_reason, found.status) == (None, BAD, "ended", "ok")
    assert str(found.outcome["held_back"]).startswith(HELD_BACK)
    for answer in ("Look it up.", "", None):
        passed = Trajectory(id="t", task_id="t", answer=answer, stop_reason="answered")
        assert filtered(answer, tmp_path / "votes.sqlite") == passed


@pytest.mark.parametrize(("answer", "scored"), [(BAD, 0.0), ("Look it up.", 1.0)])
def test_a_held_back_answer_loses_the_reward_that_its_agent_gave(tmp_path, votes_at, answer, scored):
    votes_at(votes=of_runs(3))
    agent = FilteredAgent(Writer(answer, Score(value=1.0)), tmp_path / "votes.sqlite")
    environment = Environment(agent=agent, tools=(), engines={}, reward=StubReward())
    [group] = asyncio.run(rollout(environment, [Task(id="t", question="?", answer="4")], seed=0))
    assert group.trajectories[0].reward == Score(value=scored)


AGENT = """
def guess(question):
    return "Guess a number that a tool could look up." if "two" in question else "4"
"""


def table(place: Path) -> dict[str, Any]:
    (place / "agent.py").write_text(AGENT)
    return {
        "name": "filtered",
        "tasks": {"type": "gazetteer"},
        "agent": {"type": f"{place}/agent.py:guess"},
        "reward": {"type": "exact_match"},
        "evaluation": {
            "sets": [{"name": "test", "split": "test", "count": 2}],
            "strategy": f"filtered:votes={place}/votes.sqlite",
        },
    }


def test_a_strategy_names_the_file(tmp_path, votes_at):
    votes_at(votes=of_runs(3))
    with Build(parse_recipe(table(tmp_path))) as build:
        assert parse_recipe(build.resolved).evaluation == build.recipe.evaluation
        tasks = [Task(id=text, question=f"{text} plus 2 ?", answer="4") for text in ("two", "2")]
        groups = asyncio.run(rollout(build.environment(), tasks, seed=0))
    first, other = (group.trajectories[0] for group in groups)
    assert (first.answer, first.final, first.stop_reason) == (None, BAD, "ended")
    assert (other.answer, other.outcome) == ("4", {})
    assert [trajectory.reward and trajectory.reward.value for trajectory in (first, other)] == [0.0, 1.0]
    assert any("held_back" in row.text for row in end_rows(first))


def test_a_resumed_evaluation_has_the_votes_it_began_with(tmp_path, votes_at, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = votes_at(votes=of_runs(3))
    recipe = table(tmp_path)
    recipe["evaluation"]["strategy"] = "filtered:votes=votes.sqlite"
    (tmp_path / "agent.py").write_text(f"def guess(question):\n    return {BAD!r}\n")

    def die(*ended: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(JournalStore, "keep", die)
        with pytest.raises(KeyboardInterrupt):
            evaluate(recipe, out=tmp_path / "run")
    file.add(of_runs(3, "for"))
    monkeypatch.chdir(tmp_path.parent)
    run = resume(tmp_path / "run").directory
    results = run.evaluations.read()
    assert [result.stop_reasons for result in results] == [{"ended": 2}] * 2  # at both temperatures
    assert not (run.root / "strategy").exists()


def test_a_filter_without_votes_is_refused_before_any_work(tmp_path):
    with pytest.raises(UsageError, check=coded("file-not-found")):
        evaluate(table(tmp_path), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- people -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_path(tmp_path):
    return write_run(tmp_path / "run", versions=(LessonSet(), LESSONS)).root


@pytest.fixture
def vote_command(capsys, monkeypatch):
    """Run `midstream vote ...`: (exit code, standard output in one line, standard error)."""
    monkeypatch.setenv("COLUMNS", "80")

    def go(*arguments):
        capsys.readouterr()
        code = main(["vote", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, " ".join(captured.out.split()), captured.err

    return go


def test_people_vote_on_lessons_and_texts_and_see_what_counts(vote_command, run_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, shown, _ = vote_command("against", run_path, "L1")
    assert code == 0
    assert "against person run L1 Look numbers up before you calculate." in shown
    assert vote_command("against", "Round  always.", "--project", ".midstream/votes.sqlite")[0] == 0
    assert vote_command("for", run_path, "L1")[0] == 0
    found = json.loads(vote_command("list", "--json")[1])
    assert [(vote["text"], vote["value"], vote["lesson"], vote["run"]) for vote in found] == [
        ("Round always.", "against", "", ""),
        ("Look numbers up before you calculate.", "for", "L1", str(run_path)),
    ]
    assert "against person Round always." in vote_command("list", run_path)[1]


def test_a_vote_on_a_run_with_a_file_of_its_own_goes_there(vote_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "own.sqlite"
    run = write_run(tmp_path / "run", versions=(LessonSet(), LESSONS))
    record = json.loads(run.info_path.read_text())
    record["resolved"]["lessons"]["feedback"] = str(place)
    run.info_path.write_text(json.dumps(record))
    assert json.loads(vote_command("for", run.root, "L2", "--json")[1])["votes"] == str(place)
    assert not (tmp_path / ".midstream").exists()
    assert [vote["lesson"] for vote in json.loads(vote_command("list", run.root, "--json")[1])] == ["L2"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("for", "RUN", "L9"), "unknown-name"),
        (("for", " "), "empty-value"),
        (("for", "none.json", "L1"), "file-not-found"),
        (("list",), "file-not-found"),
    ],
)
def test_a_vote_on_nothing_is_refused(vote_command, run_path, tmp_path, monkeypatch, arguments, problem):
    monkeypatch.chdir(tmp_path)
    code, _, error = vote_command(*(run_path if argument == "RUN" else argument for argument in arguments))
    assert code != 0
    assert problem in error
    assert not (tmp_path / ".midstream").exists()


def test_a_thumb_on_a_lesson_is_a_vote_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run")
    votes = Path(".midstream/votes.sqlite")
    with viewing(run.root) as client:
        client.post("run/run/feedback", {"lesson": "L1", "vote": "down", "note": "too vague"})
        client.post("run/run/feedback", {"lesson": "L2", "vote": "up", "note": ""})
        client.post("run/run/feedback", {"lesson": "L9", "vote": "up"}, status=404)
        [against, favor] = read_votes(votes)
        assert (against.lesson, against.value, against.by, against.run) == ("L1", "against", "person", str(run.root))
        assert (favor.lesson, favor.value) == ("L2", "for")
        # The same as by hand: another vote on the same item.
        assert main(["vote", "for", str(run.root), "L1"]) == 0
        assert {vote.lesson: vote.value for vote in read_votes(votes)} == {"L2": "for", "L1": "for"}
        assert read_feedback(run.root)["", "", "L1"].vote == "up"
        client.post("run/run/feedback", {"lesson": "L1", "vote": "up", "note": "better"})  # it stands already
        client.post("run/run/feedback", {"lesson": "L2", "vote": ""})
        assert {vote.lesson: vote.value for vote in read_votes(votes)} == {"L1": "for"}
    file = VoteFile(votes)
    file.add([favor.model_copy(update={"by": "gate"})])  # a person took a vote back: the gate has none on it
    file.close()
    assert {vote.lesson for vote in read_votes(votes)} == {"L1"}
    assert RunDirectory(run.root).status().state == "finished"
