"""`midstream eval` from end to end: sets, directory, resume, tables, and how it says no."""

from __future__ import annotations

import json
import shutil
import signal
import tomllib
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.core.metrics import EvaluationResult
from midstream.engines.openai.providers import price_of
from midstream.recipe.inputs import recipe_changes, run_recipe
from midstream.report.progress import Progress
from midstream.runs import RunDirectory
from midstream.runs.journal import Records
from midstream.runs.segments import result_name
from support.errors import coded, printed
from support.question_server import RECIPE, QuestionServer

QUESTIONS = {f"Question {i:03d}: how much is {i} plus {i} ?": str(2 * i) for i in range(40)}


@pytest.fixture
def server():
    with QuestionServer(QUESTIONS) as server:
        yield server


@pytest.fixture
def recipe(server, tmp_path):
    path = tmp_path / "scripted.toml"
    path.write_text(RECIPE.format(base_url=server.base_url))
    return path


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path / "sums.jsonl", QUESTIONS)


def write_questions(path: Path, table: dict[str, str], count: int | None = None) -> Path:
    lines = [json.dumps({"question": question, "answer": answer}) for question, answer in table.items()]
    path.write_text("\n".join(lines[:count]) + "\n")
    return path


def run(capsys, *arguments):
    """(exit code, standard output, standard error) of one command."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def results(out: str) -> list[EvaluationResult]:
    return [EvaluationResult.model_validate(one) for one in json.loads(out)["evaluations"]]


def test_tasks_are_listed_with_score_answer_and_gold_answer(server, recipe, questions, tmp_path, capsys):
    listed = list(QUESTIONS)
    server.answers[listed[3]] = "no idea"
    server.broken.add(listed[7])
    root = tmp_path / "evaluation"
    run(capsys, "eval", recipe, "--tasks", questions, "--out", root, "--quiet")
    code, out, _ = run(capsys, "show", root, "--wrong")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if "#0" in line] == ["0", "-"]
    assert "not right: 2 runs" in out
    for text in (listed[3], "no idea", listed[7], "error "):
        assert text in " ".join(out.split()) + " "
    records = json.loads(run(capsys, "show", root, "--tasks", "--json")[1])
    assert [one["question"] for one in records] == listed
    assert [one["score"] for one in records[:9]] == [1, 1, 1, 0, 1, 1, 1, None, 1]
    assert (records[3]["answer"], records[3]["gold"], records[3]["set"]) == ("no idea", "6", "sums")
    assert run(capsys, "show", root, records[3]["id"])[0] == 0


def test_what_is_left_out_of_a_benchmark_is_said(recipe, tmp_path, capsys):
    row = {"Question": "one ?", "Final answer": "2", "Level": "1", "file_name": ""}
    path = tmp_path / "gaia.jsonl"
    path.write_text("\n".join(map(json.dumps, (row, row | {"Question": "two ?", "file_name": "a.png"}))))
    _, _, err = run(capsys, "eval", recipe, "--benchmark", f"gaia={path}", "--out", tmp_path / "e", "--quiet")
    assert "warning: gaia: 1 left out: " in " ".join(err.split())


@pytest.mark.matrix(1)
@pytest.mark.parametrize(
    ("status", "allowed", "count", "code"),
    [
        (401, 0, 8, "key-refused"),
        pytest.param(401, 80, 40, "key-refused", marks=pytest.mark.slow),
        (403, 0, 8, "key-refused"),
        (404, 0, 8, "model-not-found"),
    ],
)
def test_a_refused_key_or_model_stops_the_evaluation_at_once(
    server, recipe, questions, tmp_path, capsys, status, allowed, count, code
):
    server.refusal, server.allowed = status, allowed
    again = questions.with_name("again.jsonl")
    again.write_text(questions.read_text())
    root = tmp_path / "evaluation"
    key = ("--set", "engines.model.api_key_env=MIDSTREAM_TEST_KEY")
    words = ("--tasks", questions, "--tasks", again, "--count", str(count), "--out", root, "--quiet", *key)
    exit_code, _, err = run(capsys, "eval", recipe, *words)
    assert (exit_code, printed(err).code) == (1, code)
    assert f"midstream resume {root}" in err
    assert server.asked.total() < allowed + 40, "at most what was in flight"
    status_now = RunDirectory.open(root).status()
    assert (status_now.state, f"answered {status}" in status_now.message) == ("failed", True)
    server.refusal, kept = 0, server.answered.copy()
    assert run(capsys, "resume", root, "--quiet")[0] == 0
    assert [result.errors for result in RunDirectory.open(root).evaluations.read()] == [0, 0]
    repeated = server.answered.total() - kept.total()
    assert (repeated < 2 * count) == (allowed > 0), "what had ended is kept"


# -- what is counted -------------------------------------------------------------------------------------------------


def test_four_crashed_of_forty_lower_the_score_by_exactly_those(server, recipe, questions, tmp_path, capsys):
    """A quarter is answered wrongly, four fail for good: two of the right ones, two of the wrong ones."""
    listed = list(QUESTIONS)
    server.answers.update(dict.fromkeys(listed[:10], "no idea"))
    server.broken.update(listed[8:12])
    root = tmp_path / "evaluation"
    code, out, err = run(capsys, "eval", recipe, "--tasks", questions, "--out", root)
    assert code == 0, err
    [result] = RunDirectory.open(root).evaluations.read()
    assert (result.tasks, result.errors) == (40, 4)
    assert result.success == pytest.approx(0.70)  # 30 right answers, less the two of them that crashed
    assert result.success_without_errors == pytest.approx(28 / 36)
    assert "70.0%" in out
    assert "4 of 40 tasks without a result, counted as wrong (77.8% without them)" in " ".join(out.split())
    assert f"midstream resume {root} --retry-errors" in " ".join(out.split())


@pytest.mark.slow
def test_retried_errors_are_run_again_and_nothing_else_is(server, recipe, questions, tmp_path, capsys):
    broken = list(QUESTIONS)[:4]
    server.broken.update(broken)
    root = tmp_path / "evaluation"
    assert run(capsys, "eval", recipe, "--tasks", questions, "--out", root, "--quiet")[0] == 0
    server.broken.clear()
    server.asked.clear()
    code, out, _ = run(capsys, "resume", root, "--json", "--quiet")
    assert (code, results(out)[0].errors, server.asked) == (0, 4, {}), "nothing is run again by itself"
    code, out, _ = run(capsys, "resume", root, "--retry-errors", "--json", "--quiet")
    [result] = results(out)
    assert (code, result.errors, result.success) == (0, 0, 1.0)
    assert set(server.asked) == set(broken)
    assert (root / "results.jsonl").read_bytes() == b""


def test_all_sets_and_trials_are_run_and_shown(server, recipe, questions, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    other = write_questions(tmp_path / "more.jsonl", QUESTIONS, 4)
    root = tmp_path / "evaluation"
    words = ("eval", recipe, "--tasks", questions, "--tasks", other, "--count", "4", "--trials", "3", "--out", root)
    code, out, err = run(capsys, *words)
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    for expected in ("sums", "more", "4 x 3", "100.0%", "avg@k", "majority@k", "@2 100.0%", "guess 12 (100%)"):
        assert expected in out, expected
    assert "sums T=0.7: success 100.0%" in err, "by default at the planner's own temperature"
    found = {one.set_name: one for one in RunDirectory.open(root).evaluations.read()}
    assert [(one.tasks, one.trials, one.tool_use.calls) for one in found.values()] == [(4, 3, {"guess": 12})] * 2
    assert sum(server.answered.values()) == 24
    again = run(capsys, *words)
    assert (again[0], again[1]) == (0, out), "the same command again shows the same and runs nothing"
    assert sum(server.answered.values()) == 24
    code, shown, _ = run(capsys, "show", root)
    assert (code, shown) == (0, out)
    code, one, _ = run(capsys, "show", root, "eval-more-T0.7/" + found_id(root), "--json")
    assert (code, json.loads(one)["status"]) == (0, "ok")


def found_id(root: Path) -> str:
    return RunDirectory.open(root).trajectories.read("more-T0.7")[0].id


def test_the_directory_holds_everything(recipe, questions, tmp_path, capsys):
    root = tmp_path / "evaluation"
    options = ("--count", "5", "--temperature", "0.2", "--seed", "4", "--reward", "exact_match", "--out", root)
    code, out, _ = run(capsys, "eval", recipe, "--tasks", questions, *options, "--json", "--quiet")
    [result] = results(out)
    assert (code, result.sampling, result.metric, result.tasks) == (0, "T=0.2", "exact match", 5)
    table = tomllib.loads((root / "recipe.toml").read_text())
    assert table["seed"] == 4
    assert table["evaluation"]["temperatures"] == [0.2]
    assert [one["tasks"]["path"] for one in table["evaluation"]["sets"]] == [str(questions)]
    info = RunDirectory.open(root).info()
    assert info.evaluation is not None
    assert info.evaluation.tasks["sums"].startswith("5 tasks ")
    assert RunDirectory.open(root).status().state == "finished"
    assert {path.name for path in root.iterdir()} == {
        "evaluations.jsonl", "recipe.toml", "report.html", "results.jsonl", "run.json", "run.lock", "status.json",
        "trajectories",
    }  # fmt: skip
    assert [path.name for path in (root / "trajectories").iterdir()] == ["eval-sums-T0.2.jsonl.gz"]


def test_the_default_directory_is_named_after_the_recipe(recipe, questions, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "eval", recipe, "--tasks", questions, "--count", "1", "--quiet")[0] == 0
    [root] = (tmp_path / "runs").iterdir()
    assert root.name.startswith("eval-scripted-")


def test_a_runs_checkpoint_is_named_and_kept_to(finished_run, tmp_path, capsys):
    root = tmp_path / "evaluation"
    options = ("--count", "3", "--temperature", "0", "--out", root, "--quiet")
    assert run(capsys, "eval", finished_run, *options)[0] == 0
    info = RunDirectory.open(root).info().evaluation
    assert info is not None
    assert (info.run, info.step) == (str(finished_run), 10)
    assert f"step 10 of {finished_run}" in run(capsys, "show", root)[1]


def test_a_run_that_was_trained_again_in_place_is_refused(finished_run, tmp_path, capsys):
    trained, root = tmp_path / "run", tmp_path / "evaluation"
    shutil.copytree(finished_run, trained)
    options = ("--count", "3", "--temperature", "0", "--out", root, "--quiet")
    assert run(capsys, "eval", trained, *options)[0] == 0
    RunDirectory.open(root).set_status("interrupted")
    assert run(capsys, "resume", root, "--quiet")[0] == 0
    RunDirectory.open(root).set_status("interrupted")
    held = trained / "checkpoints" / "step-000010"
    RunDirectory.open(trained).checkpoints.save(10, lambda place: changed_copy(held, place))
    code, _, err = run(capsys, "resume", root, "--quiet")
    assert code == 2
    assert coded("inputs-changed", "step 10", trained, root)(printed(err))


def changed_copy(checkpoint: Path, place: Path) -> None:
    shutil.copytree(checkpoint, place, dirs_exist_ok=True)
    (place / "other").write_text("the weights are others\n")


def test_every_set_has_a_name_and_a_file_of_its_own(recipe, tmp_path, capsys):
    """Sets are called after their files, which may differ in a folder, or in what no file name of ours holds."""
    table, words = dict(list(QUESTIONS.items())[:8]), []
    names = ["a b", "a-b", "a=b", "ab", "validation", "x" * 240, "one/sums", "two/sums"]
    for name, question in zip(names, table, strict=True):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        words += ["--tasks", write_questions(path, {question: table[question]})]
    root = tmp_path / "evaluation"
    code, out, err = run(capsys, "eval", recipe, *words, "--out", root, "--json", "--quiet")
    assert code == 0, err
    sets = [one.set_name for one in results(out)]
    assert sets == [*names[:4], "validation.jsonl", names[5], "sums", "sums.jsonl"]
    kept = [RunDirectory.open(root).trajectories.read(result_name(name, "T=0.7")) for name in sets]
    assert [[one.question for one in trajectories] for trajectories in kept] == [[question] for question in table]


# -- benchmarks from files ---------------------------------------------------------------------------------------------

OPTIONS = ["A. a lamp", "B. a spade", "C. a comb", "D. a kettle"]
STAND_INS: dict[str, list[dict]] = {
    "bamboogle": [
        {"question": f"Who kept lighthouse {i} last?", "query": "", "answer": [f"Keeper {i}"], "pid": str(i)}
        for i in range(4)
    ],
    "hotpotqa": [
        {"question": f"Which river does bridge {i} cross?", "query": "", "answer": [f"River {i}"], "pid": str(i)}
        for i in range(4)
    ],
    "2wiki": [{"query": f"Who is older, Ann {i} or Bo?", "answer": f"Ann {i}", "pid": i} for i in range(4)],
    "musique": [{"query": f"When did mill {i} open?", "answer": f"May {i + 1}, 1820", "pid": i} for i in range(4)],
    "medqa": [
        {
            "question": f"Case {i}: what boils water?\n" + "\n".join(OPTIONS), "query": "", "answer": "a kettle",
            "options": OPTIONS, "pid": str(i),
        }
        for i in range(4)
    ],
    "gameof24": [
        {"question": [1, 1, 2, n], "query": f"Make 24 of [1, 1, 2, {n}].", "answer": [answer], "pid": str(n)}
        for n, answer in ((6, "(1+1)×2×6"), (7, "(1+2)×(1+7)"), (8, "(1+2)×1×8"), (9, "(1+2)×(9-1)"))
    ],
}  # fmt: skip
REPLIES = {"medqa": "D", "gameof24": None}


def test_benchmarks_of_every_form_are_evaluated_from_files(server, recipe, tmp_path, capsys):
    """Of each, three answers of four are right, by the reward that is the benchmark's own."""
    words: list[object] = []
    for name, rows in STAND_INS.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(rows))
        words += ["--benchmark", f"{name}={path}"]
        for number, row in enumerate(rows):
            question = row["query"] or row["question"].partition("\n")[0]
            gold = row["answer"] if isinstance(row["answer"], str) else row["answer"][0]
            server.answers[question] = "nobody knows" if number == 0 else REPLIES.get(name) or gold
    recipe.write_text(recipe.read_text() + '\n[reward]\ntype = "exact_match"\n')
    code, out, err = run(capsys, "eval", recipe, *words, "--out", tmp_path / "evaluation", "--json", "--quiet")
    assert code == 0, err
    found = {one.set_name: one for one in results(out)}
    assert {name: (one.success, one.errors) for name, one in found.items()} == dict.fromkeys(STAND_INS, (0.75, 0))
    assert {found[name].metric for name in ("bamboogle", "hotpotqa", "2wiki", "musique")} == {"exact match"}
    assert len({one.metric for one in found.values()}) == 3
    assert not any(one.judged for one in found.values())
    said = " ".join(err.split())
    assert "warning: medqa is scored by multiple choice" in said
    assert "bamboogle is scored" not in said  # by the recipe's own


# -- resuming --------------------------------------------------------------------------------------------------------


def test_a_set_without_any_result_is_run_again_and_keeps_no_other_from_running(
    server, recipe, questions, tmp_path, capsys
):
    """The server was down for a while: exit code 1 and why; once it is up, the same directory resumes."""
    root, listed = tmp_path / "evaluation", list(QUESTIONS)
    lost = write_questions(tmp_path / "lost.jsonl", QUESTIONS, 5)
    later = write_questions(tmp_path / "later.jsonl", dict.fromkeys(listed[5:10], "1"))
    server.broken.update(listed[:5])
    code, out, err = run(capsys, "eval", recipe, "--tasks", lost, "--tasks", later, "--out", root, "--json", "--quiet")
    assert (code, out) == (1, "")
    assert coded("no-results", "all 5 runs on lost T=0.7", fix=f"midstream resume {root}")(printed(err))
    assert RunDirectory.open(root).status().state == "failed"
    shown = run(capsys, "show", root)[1]
    assert "resume with: midstream resume" in shown
    assert "later" in shown
    server.broken.clear()
    server.asked.clear()
    code, out, _ = run(capsys, "resume", root, "--json", "--quiet")
    assert (code, {one.set_name: one.success for one in results(out)}) == (0, {"later": 0.0, "lost": 1.0})
    assert set(server.asked) == set(listed[:5])


def test_a_crash_between_a_sets_trajectories_and_its_numbers_costs_no_run(
    server, recipe, questions, tmp_path, capsys, monkeypatch
):
    def crash(self, result):
        raise SystemExit(9)

    root = tmp_path / "evaluation"
    words = ("eval", recipe, "--tasks", questions, "--count", "6", "--out", root, "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(Records, "append", crash)
        with pytest.raises(SystemExit):
            run(capsys, *words)
    [path] = (root / "trajectories").iterdir()
    before, asked = path.read_bytes(), server.asked.copy()
    code, out, _ = run(capsys, "resume", root, "--json", "--quiet")
    assert (code, results(out)[0].success, server.asked) == (0, 1.0, asked)
    assert path.read_bytes() == before


def test_ctrl_c_keeps_what_has_ended_and_prints_how_to_resume(server, recipe, questions, tmp_path, capsys, monkeypatch):
    root, show, count = tmp_path / "evaluation", Progress.__call__, 20
    words = ("eval", recipe, "--tasks", questions, "--count", str(count), "--set", "rollout.concurrency=4")

    stopped = []

    def stop_at_ten(self, event):
        show(self, event)
        if self.set_done >= 10 and not stopped:  # several may end in one turn of the loop
            stopped.append(event)
            signal.raise_signal(signal.SIGINT)

    # A shell starts what it runs in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "__call__", stop_at_ten)
        code, _, err = run(capsys, *words, "--out", root, "--quiet")
    signal.signal(signal.SIGINT, before)
    assert code == 130
    assert f"midstream resume {root}" in " ".join(err.split())
    directory = RunDirectory.open(root)
    assert directory.status().state == "interrupted"
    done = [json.loads(line)["trajectory"] for line in (root / "results.jsonl").read_text().splitlines()]
    assert 10 <= len(done) < count
    assert f"under way: sums-T0.7, {len(done)} runs so far" in run(capsys, "show", root)[1]
    assert run(capsys, "show", root, done[7]["id"])[0] == 0, "one that has ended can be looked at before its set has"
    server.answered.clear()
    code, out, _ = run(capsys, "resume", root, "--json", "--quiet")
    assert (code, results(out)[0].success) == (0, 1.0)
    assert not {one["question"] for one in done} & set(server.answered)
    assert len(server.answered) == count - len(done)


# -- how it says no --------------------------------------------------------------------------------------------------


def test_other_settings_or_other_tasks_are_refused(recipe, questions, finished_run, tmp_path, capsys):
    root = tmp_path / "evaluation"
    words = ("eval", recipe, "--tasks", questions, "--count", "5", "--out", root, "--quiet")
    assert run(capsys, *words)[0] == 0
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    code, _, err = run(capsys, *words, "--trials", "2")
    assert code == 2
    assert coded("run-exists", root, "evaluation.trials: 1 | 2")(printed(err))
    code, _, err = run(capsys, "eval", finished_run, "--out", root, "--quiet")
    assert code == 2
    assert coded("run-exists", root)(printed(err))
    assert "evaluation.trials" not in err
    code, _, err = run(capsys, "eval", recipe, "--tasks", questions, "--out", finished_run, "--quiet")
    assert code == 2
    assert coded("run-exists", finished_run)(printed(err))
    code, _, err = run(capsys, "eval", root, "--quiet")
    assert code == 2
    assert coded("wrong-kind-of-run", root)(printed(err))
    code, _, err = run(capsys, "resume", finished_run, "--retry-errors", "--quiet")
    assert code == 2
    assert coded("option-without-effect", finished_run, "--retry-errors")(printed(err))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_question_that_changed_under_its_id_is_refused(server, recipe, questions, tmp_path, capsys):
    root = tmp_path / "evaluation"
    server.broken.add(next(iter(QUESTIONS)))
    assert run(capsys, "eval", recipe, "--tasks", questions, "--out", root, "--quiet")[0] == 0
    write_questions(questions, {question.replace("much", "many"): answer for question, answer in QUESTIONS.items()})
    code, _, err = run(capsys, "resume", root, "--retry-errors", "--quiet")
    assert code == 2
    assert coded("inputs-changed", "'sums'", fix="restore them")(printed(err))


REFUSED = {
    "no file": (["--tasks", "TMP/nowhere.jsonl"], "file-not-found", "nowhere.jsonl", ""),
    "no benchmark": (["--benchmark", ""], "empty-value", "''", "leave the option out"),
    "an unknown benchmark": (["--benchmark", "bambogle"], "unknown-benchmark", "bambogle", ""),
    "none at all": (["--tasks", "SUMS", "--count", "0"], "recipe-invalid", "count = 0", "--set"),
    "more than there are": (["--tasks", "SUMS", "--count", "41"], "too-few-tasks", "41", "40"),
    "no trial": (["--tasks", "SUMS", "--trials", "0"], "recipe-invalid", "trials = 0", "--set"),
    "below zero": (["--tasks", "SUMS", "--temperature", "-1"], "recipe-invalid", "-1", ""),
    "an unknown reward": (
        ["--tasks", "SUMS", "--reward", "magic"],
        "unknown-type",
        "reward.type = 'magic'",
        "exact_match",
    ),
    "two sets of one name": (["--tasks", "SUMS", "--tasks", "SUMS"], "recipe-invalid", "sums", ""),
    "names that some disks take for one": (
        ["--set", 'evaluation.sets=[{name="A"}, {name="a"}]'],
        "recipe-invalid",
        "A, a",
        "",
    ),
    "a name of another encoding": (
        ["--tasks", "caf\udce9.jsonl"],
        "not-utf-8",
        "'caf\\udce9.jsonl'",
        "rename the file",
    ),
    "an unknown tool": (["--tasks", "SUMS", "--tools", "telepathy"], "unknown-tool", "'telepathy'", "name some of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_leaves_nothing_behind(case, recipe, questions, tmp_path, capsys):
    arguments, kind, value, fix = REFUSED[case]
    places = {"TMP": str(tmp_path), "SUMS": str(questions)}
    arguments = [places.get(word, word.replace("TMP", str(tmp_path))) for word in arguments]
    code, out, err = run(capsys, "eval", recipe, *arguments, "--out", tmp_path / "evaluation", "--quiet")
    assert (code, out) == (2, ""), err
    assert coded(kind, value, fix=fix)(printed(err))
    assert "Traceback" not in err
    assert not (tmp_path / "evaluation").exists()


def test_a_run_needs_no_other_file_for_its_tools(tmp_path, capsys, monkeypatch):
    """A tool's file is gone, and the working directory is another: the run's copy serves. Nothing answers at port 9."""
    write_questions(tmp_path / "q.jsonl", QUESTIONS, 1)
    mine, elsewhere, root = tmp_path / "mine.py", tmp_path / "elsewhere", tmp_path / "run"
    mine.write_text('def words(text: str) -> int:\n    """Count words."""\n    return len(text.split())\n')
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    server = ["--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--set", "engines.model.max_attempts=1"]
    started = ["eval", "direct", "--tasks", "q.jsonl", "--tools", "mine.py:words", *server]
    assert coded("no-results")(printed(run(capsys, *started, "--out", root, "--quiet")[2]))
    mine.unlink()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("MIDSTREAM_TRUST", "")
    assert coded("code-not-trusted")(printed(run(capsys, "resume", root, "--quiet")[2]))
    assert coded("no-results")(printed(run(capsys, "resume", root, "--quiet", "--trust")[2]))
    assert "words" in (root / "recipe.toml").read_text()


@pytest.mark.slow
def test_a_run_keeps_the_prices_that_it_began_with(server, questions, tmp_path, capsys, monkeypatch):
    """A new list is no other setting, also of a run from before a list had its model."""
    path = tmp_path / "scripted.toml"
    path.write_text(RECIPE.format(base_url=server.base_url).replace('model = "scripted"', 'model = "gpt-4o"'))
    words = ("eval", path, "--tasks", questions, "--count", "2", "--json")
    with monkeypatch.context() as patch:
        patch.setattr("midstream.engines.openai.providers.price_list", lambda: {})
        code, _, err = run(capsys, *words, "--out", tmp_path / "unpriced")
    assert (code, "prices  " in err) == (0, False)
    code, out, err = run(capsys, *words, "--out", tmp_path / "priced")
    cost = results(out)[0].cost_usd
    assert (code, cost > 0, "prices  model $2.5 + $10 a million tokens (midstream's prices of 20" in err) == (
        0,
        True,
        True,
    )
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "__call__", lambda self, event: signal.raise_signal(signal.SIGINT))
        assert run(capsys, *words, "--out", tmp_path / "interrupted")[0] == 130
    later = {"openai": {"as_of": "2026-11-01", "models": {"gpt-4o": [1000.0, 1000.0]}}}
    monkeypatch.setattr("midstream.engines.openai.providers.price_list", lambda: later)
    for name, spent in {"unpriced": 0, "priced": cost}.items():
        recorded = RunDirectory.open(tmp_path / name)
        assert recipe_changes(recorded) == []
        assert run(capsys, "resume", tmp_path / name, "--quiet")[0] == 0
        code, out, _ = run(capsys, *words, "--out", tmp_path / name)
        assert (code, results(out)[0].cost_usd) == (0, spent)
    assert price_of(run_recipe(recorded).engines["model"].config) == (2.5, 10)
    code, out, _ = run(capsys, *words, "--out", tmp_path / "interrupted")
    assert (code, results(out)[0].cost_usd) == (0, cost)
    _, out, err = run(capsys, *words, "--out", tmp_path / "mine")
    assert results(out)[0].cost_usd > 10 * cost
    assert "midstream's prices of 2026-11-01" in err
    out = run(capsys, "eval", path, "--tasks", questions, "--dry-run")[1]
    prices = "(midstream's prices of 2026-11-01 for openai; 127.0.0.1 may have others)"
    assert f"Prices: model $1000 + $1000 a million tokens {prices}" in out


def test_a_step_of_a_run_is_evaluated(finished_run, tmp_path, capsys):
    steps = RunDirectory(finished_run).checkpoints.steps()
    out = tmp_path / "evaluation"
    code, _, errors = run(capsys, "eval", f"{finished_run}@{steps[0]}", "--count", 2, "--out", out, "--quiet")
    assert code == 0, errors
    assert (RunDirectory(out).info().evaluation.step, steps[0] < steps[-1]) == (steps[0], True)
    code, _, errors = run(capsys, "eval", f"{finished_run}@{steps[-1]}", "--count", 2, "--out", out, "--quiet")
    assert "error[run-exists]" in errors
    code, _, errors = run(capsys, "eval", f"{finished_run}@77", "--out", tmp_path / "other", "--quiet")
    assert code
    assert "error[no-checkpoint]" in errors
    assert f"{finished_run}@{steps[0]}" in errors
