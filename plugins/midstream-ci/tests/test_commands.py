"""`midstream eval --require`, `compare --require` and `midstream score`, with the files that they write."""

import json
from dataclasses import replace

import pytest
from junitparser import Error, Failure, JUnitXml

import midstream as ms
from midstream.cli.main import main
from midstream.core.errors import RunError, UsageError
from midstream.evaluation.pairs import Member, compare_groups
from midstream.report.comparison import ComparedRun, GroupComparison
from midstream.report.evaluation import evaluated_trajectories
from midstream_ci.comparisons import decide_comparison, parse_comparison
from midstream_ci.guard import Guard
from midstream_ci.junit import evaluation_junit
from midstream_ci.score import score
from midstream_ci.summary import comparison_summary


@pytest.mark.parametrize(
    ("requirement", "code"), [("success >= 0.2", 0), ("success >= 0.95", 3), ("success >= 0.5", 4)]
)
def test_eval_ends_with_what_was_decided(project, evaluation, capsys, requirement, code):
    words = ["eval", str(project / "offline.toml"), "--out", str(evaluation.path), "--require", requirement]
    assert main([*words, "--json"]) == code
    output = capsys.readouterr()
    assert json.loads(output.out)["evaluations"][0]["tasks"] == 8
    assert requirement in output.err


def test_the_worst_outcome_counts(project, evaluation, capsys):
    words = ["eval", str(project / "offline.toml"), "--out", str(evaluation.path)]
    requirements = ["success >= 0.2", "success >= 0.5", "tokens <= 1"]
    assert main([*words, *(word for text in requirements for word in ("--require", text))]) == 3


@pytest.mark.parametrize("requirement", ["success", "no-regression"])
def test_a_wrong_requirement_is_found_before_anything_runs(project, tmp_path, requirement):
    with pytest.raises(SystemExit, check=lambda ended: ended.code == 2):
        main(["eval", str(project / "offline.toml"), "--out", str(tmp_path / "run"), "--require", requirement])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("requirement", ["other: success >= 0.5", "pass@4 >= 0.5"])
def test_what_the_evaluation_cannot_decide_is_found_before_anything_runs(
    project, evaluation, tmp_path, capsys, requirement
):
    for words in (["eval", str(project / "offline.toml")], ["score", str(evaluation.path), "--reward", "exact_match"]):
        assert main([*words, "--out", str(tmp_path / "run"), "--require", requirement]) == 2
        assert "error[requirement-invalid]" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def test_costs_without_a_price_are_refused_before_anything_runs(tmp_path, capsys):
    words = ["eval", "direct", "--model", "of-mine", "--base-url", "http://127.0.0.1:9/v1", "--tasks", "none.jsonl"]
    assert main([*words, "--out", str(tmp_path / "run"), "--require", "cost_usd <= 2"]) == 2
    assert "has no price" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["eval", "offline.toml"], ["compare", "a", "b"], ["score", "a"]])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, capsys, command):
    for files in (["--junit", str(tmp_path)], ["--junit", "made.xml", "--summary", "./made.xml"]):
        with pytest.raises(SystemExit, check=lambda ended: ended.code == 2):
            main([*command, *files])
        assert "argument --" in capsys.readouterr().err


def test_a_set_of_learned_tasks_is_known_only_afterwards(project, tmp_path):
    words = ["eval", str(project / "offline.toml"), "--out", str(tmp_path / "run"), "--quiet"]
    assert main([*words, "--require", "test-learned: success >= 0.5"]) == 2
    assert (tmp_path / "run").exists()


def test_junit_has_a_case_for_each_task_and_requirement(project, evaluation, tmp_path):
    junit, summary = tmp_path / "made" / "tests.xml", tmp_path / "summary.md"
    words = ["eval", str(project / "offline.toml"), "--out", str(evaluation.path), "--require", "success >= 0.95"]
    assert main([*words, "--junit", str(junit), "--summary", str(summary)]) == 3
    tasks, requirements = JUnitXml.fromfile(str(junit))
    assert (tasks.tests, tasks.failures, tasks.errors) == (8, 6, 0)
    failed = [case for case in tasks if case.result]
    assert all(isinstance(case.result[0], Failure) and "gold" in case.result[0].message for case in failed)
    [case] = requirements
    assert case.result[0].message.startswith("fails")
    text = summary.read_text(encoding="utf-8")
    assert "success >= 0.95" in text
    assert "54.2%" in text
    assert evaluation.evaluations[0].set_name in text


def test_a_task_without_a_result_is_an_error_and_no_text_breaks_the_file(evaluation, monkeypatch):
    def broken(run, result):
        for trial in evaluated_trajectories(run, result):
            yield trial.model_copy(update={"status": "error", "reward": None, "answer": "a\x00\x1b]]>&<b"})

    monkeypatch.setattr("midstream_ci.junit.evaluated_trajectories", broken)
    [tasks] = JUnitXml.fromstring(evaluation_junit(evaluation.directory, []).encode())
    assert (tasks.tests, tasks.failures, tasks.errors) == (8, 0, 8)
    assert all(isinstance(case.result[0], Error) for case in tasks)


@pytest.fixture(scope="module")
def other(project):
    """The same agent, which guesses otherwise."""
    return ms.evaluate(str(project / "offline.toml"), out=project / "other", quiet=True, overrides=["seed=5"])


def compare_with_lost(monkeypatch, first, other, is_lost):
    """A comparison in which these runs of the other, by place, ended in an infrastructure error."""

    def broken(run, result):
        for place, trial in enumerate(evaluated_trajectories(run, result)):
            lost = run.root == other.path and is_lost(place)
            yield trial.model_copy(update={"status": "error", "reward": None}) if lost else trial

    for module in ("midstream.report.comparison", "midstream_ci.comparisons"):
        monkeypatch.setattr(f"{module}.evaluated_trajectories", broken)
    return ms.compare(first.path, other.path)


class TestCompare:
    @pytest.mark.parametrize(
        ("requirement", "code"),
        [("no-regression", 0), ("better", 3), ("difference >= -1%", 0), ("difference >= 1%", 3)],
    )
    def test_an_evaluation_with_itself(self, evaluation, requirement, code):
        assert main(["compare", str(evaluation.path), str(evaluation.path), "--require", requirement]) == code

    def test_several_share_the_error(self, evaluation, other):
        comparison = ms.compare(evaluation.path, other.path)
        requirements = [parse_comparison(text) for text in ("no-regression", "difference >= -50%", "difference < 50%")]
        [alone] = decide_comparison(comparison, requirements[:1])
        several = decide_comparison(comparison, requirements)
        assert alone.interval == comparison.found[0].interval
        assert "95% interval" in alone.reason
        assert {decision.interval for decision in several} == {several[0].interval}
        assert several[0].interval[0] < alone.interval[0] < alone.interval[1] < several[0].interval[1]
        assert "98.33% interval" in several[0].reason

    @pytest.mark.parametrize("seeds", [(1, 2, 3), (4, 5, 6)])
    def test_several_share_the_error_of_groups(self, evaluation, seeds):
        def group(name, seeds, values):
            results = [evaluation.evaluations[0].model_copy(update={"success": value}) for value in values]
            pairs = zip(seeds, results, strict=True)
            return name, [Member(name=name, seed=seed, result=found, tasks=frozenset()) for seed, found in pairs]

        groups = group("a", (1, 2, 3), (0.5, 0.6, 0.55)), group("b", seeds, (0.6, 0.72, 0.7))
        usual, wider = compare_groups(*groups), compare_groups(*groups, comparisons=2)
        requirements = [parse_comparison("better"), parse_comparison("no-regression")]
        comparison = GroupComparison(groups={}, found=[usual])
        assert decide_comparison(comparison, requirements)[0].interval == pytest.approx(wider.interval)
        assert decide_comparison(comparison, requirements[:1])[0].interval == usual.interval

    @pytest.mark.parametrize(
        ("lost", "requirement", "outcome"),
        [
            (range(2, 8), "no-regression", "undecided"),
            (range(2, 8), "better", "undecided"),
            (range(2, 8), "difference >= -50%", "undecided"),
            (range(0), "no-regression", "holds"),
        ],
    )
    def test_lost_tasks_decide_nothing(self, evaluation, other, monkeypatch, lost, requirement, outcome):
        comparison = compare_with_lost(monkeypatch, evaluation, other, lambda place: place // 3 in lost)
        [decision] = decide_comparison(comparison, [parse_comparison(requirement)])
        assert decision.outcome == outcome
        assert ("6 tasks without a result" in decision.reason) == bool(lost)
        text = comparison_summary(comparison, [decision])
        assert text.count("6 tasks") == 2 * bool(lost)

    def test_lost_tasks_fail_a_test(self, evaluation, other, monkeypatch, tmp_path):
        compare_with_lost(monkeypatch, evaluation, other, lambda place: place >= 6)
        with pytest.raises(pytest.fail.Exception, match=r"undecided: no-regression .*6 tasks without a result"):
            Guard(tmp_path).assert_comparison(evaluation, other)

    def test_lost_runs_of_tasks_widen_the_interval(self, evaluation, other, monkeypatch):
        requirement = [parse_comparison("no-regression")]
        [whole] = decide_comparison(ms.compare(evaluation.path, other.path), requirement)
        comparison = compare_with_lost(monkeypatch, evaluation, other, lambda place: place % 3 == 0)
        [decision] = decide_comparison(comparison, requirement)
        assert "8 runs without a result" in decision.reason
        assert decision.interval[0] < whole.interval[0] < whole.interval[1] < decision.interval[1]

    @pytest.mark.parametrize(("errors", "outcome"), [(0, "fails"), (12, "undecided")])
    def test_lost_runs_of_groups_decide_nothing(self, evaluation, errors, outcome):
        [result] = evaluation.evaluations
        names, values = ("a", "b"), ((0.9, 0.91, 0.92), (0.5, 0.51, 0.53))
        members, runs = [], {}
        for name, successes in zip(names, values, strict=True):
            lost = errors if name == "b" else 0
            results = [result.model_copy(update={"success": value, "errors": lost}) for value in successes]
            members.append(
                (name, [Member(name=name, seed=s, result=r, tasks=frozenset()) for s, r in enumerate(results)])
            )
            key = result.set_name, result.sampling
            runs[name] = [
                ComparedRun(name=name, run=evaluation.directory, results={key: one}, refused=()) for one in results
            ]
        comparison = GroupComparison(groups=runs, found=[compare_groups(*members)])
        [decision] = decide_comparison(comparison, [parse_comparison("no-regression")])
        assert decision.outcome == outcome
        assert ("36 runs without a result" in decision.reason) == bool(errors)

    def test_a_set_that_the_other_lacks_is_undecided(self, evaluation, other):
        comparison = ms.compare(evaluation.path, other.path)
        [first, second] = comparison.runs
        [result] = evaluation.evaluations
        more = {**first.results, ("hard", "greedy"): result}
        comparison = replace(comparison, runs=[replace(first, results=more), second])
        decisions = decide_comparison(comparison, [parse_comparison("no-regression")])
        assert [decision.outcome for decision in decisions] == ["holds", "undecided"]
        assert decisions[1].of.endswith("hard greedy")
        assert "hard greedy" in comparison_summary(comparison, decisions)
        [named] = decide_comparison(comparison, [parse_comparison(f"{result.set_name}: no-regression")])
        assert named.outcome == "holds"
        assert named.interval == comparison.found[0].interval
        [hard] = decide_comparison(comparison, [parse_comparison("hard: better")])
        assert hard.outcome == "undecided"
        with pytest.raises(UsageError, check=lambda error: error.code == "requirement-invalid"):
            decide_comparison(comparison, [parse_comparison("none: better")])

    def test_equal_answers_of_own_functions_prove_little(self, tmp_path):
        own = tmp_path / "bots.py"
        own.write_text("async def one(task, session):\n    return '4'\n\ndef reply(messages): ...\n", encoding="utf-8")
        agent, engines = {"type": f"{own}:one", "engine": "mine"}, {"mine": {"type": f"{own}:reply"}}
        recipe, tasks = {"name": "own", "agent": agent, "engines": engines}, [{"question": "2 + 2?", "answer": "4"}]
        runs = [
            ms.evaluate(recipe, ms.tasks(tasks).test, reward="exact_match", out=tmp_path / name, quiet=True)
            for name in "ab"
        ]
        comparison = ms.compare(*runs)
        assert comparison.found[0].verdict == "the same"
        requirements = [parse_comparison(text) for text in ("difference >= -1%", "better", "no-regression")]
        found = [decision.outcome for decision in decide_comparison(comparison, requirements)]
        assert found == ["undecided", "undecided", "holds"]

    def test_a_difference_may_be_undecided(self, evaluation, other, tmp_path, capsys):
        junit, summary = tmp_path / "tests.xml", tmp_path / "summary.md"
        words = ["compare", str(evaluation.path), str(other.path), "--require", "difference >= 0", "--json"]
        assert main([*words, "--junit", str(junit), "--summary", str(summary)]) == 4
        output = capsys.readouterr()
        [pair] = json.loads(output.out)["compared"]
        differing, requirements = JUnitXml.fromfile(str(junit))
        assert differing.failures == pair["losses"]
        assert differing.tests == pair["losses"] + pair["wins"]
        assert requirements.failures == 1
        assert f"{100 * pair['difference']:+.1f}" in summary.read_text(encoding="utf-8")


class TestScore:
    def test_stored_answers_get_another_reward_without_a_request(self, project, evaluation, capsys, monkeypatch):
        before = [trial.answer for trial in evaluation.trajectories()]
        model = project / "stand_in.py"
        text = model.read_text(encoding="utf-8")
        model.write_text("def reply(messages):\n    raise RuntimeError('asked')\n", encoding="utf-8")
        words = ["score", str(evaluation.path), "--reward", f"{project / 'strict.py'}:odd"]
        words += ["--out", str(project / "odd")]
        try:
            assert main([*words, "--require", "success >= 0.1", "--json"]) == 0
        finally:
            model.write_text(text, encoding="utf-8")
        again = ms.Run(project / "odd")
        assert [trial.answer for trial in again.trajectories()] == before
        expected = [float(int(answer or 0) % 2) for answer in before]
        assert [trial.reward.value for trial in again.trajectories() if trial.reward] == expected
        assert again.evaluations[0].cost_usd == 0

    def test_scored_alike_it_is_the_same(self, project, evaluation):
        again = evaluation.score(f"{project / 'rewards.py'}:exact", out=project / "again", quiet=True)
        [pair] = ms.compare(evaluation, again).found
        assert pair.verdict == "the same"

    def test_a_reward_that_failed_is_made_up_for(self, project, tmp_path):
        reward = tmp_path / "bad.py"
        fails = "def bad(question):\n    if 'a' in question.split()[-1]: raise KeyError(question)\n    return 1.0\n"
        reward.write_text(fails, encoding="utf-8")
        recipe, overrides = str(project / "offline.toml"), ["rollout.max_attempts=1"]
        first = ms.evaluate(recipe, reward=f"{reward}:bad", out=tmp_path / "first", quiet=True, overrides=overrides)
        assert first.evaluations[0].errors > 0
        again = score(first, f"{project / 'rewards.py'}:exact", out=tmp_path / "again", quiet=True)
        assert again.evaluations[0].errors == 0
        assert again.evaluations[0].tasks == 8

    def test_what_a_strategy_made_is_scored_as_it_is(self, project, tmp_path):
        recipe, reward = str(project / "offline.toml"), f"{project / 'rewards.py'}:exact"
        first = ms.evaluate(recipe, strategy="dser:K=2,T=1", trials=1, out=tmp_path / "first", quiet=True)
        again = score(first, reward, out=tmp_path / "again", quiet=True)
        assert again.evaluations[0].success == first.evaluations[0].success

    def test_it_needs_a_finished_evaluation(self, tmp_path):
        with pytest.raises(RunError):
            score(tmp_path, "exact_match")
