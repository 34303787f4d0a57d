"""What `midstream export` writes, and that the readers of each format take it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream import api
from midstream.cli.main import main
from midstream.core.trajectory import Call, ErrorInfo, Message, Score, Trajectory, Turn
from midstream.runs import Journal, RunDirectory, results
from midstream.runs.info import EvaluationInfo, collect_info
from support.errors import raises
from support.spoken import ASKED, agent, chat, spoken, spoken_run

FORMATS = {"trl": "jsonl", "sft": "jsonl", "parquet": "parquet"}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return spoken_run(tmp_path / "run")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def written(run: RunDirectory, format: Any, **options: Any) -> Path:
    path = run.root.parent / f"{format}.{FORMATS[format]}"
    api.export(run, format, path, **options)
    return path


def test_trl_has_a_row_for_each_reply_of_a_run_that_is_no_evaluation_of_its_own(run):
    done = api.export(run, "trl", run.root.parent / "trl.jsonl")
    rows = lines(done.path)
    assert (done.rows, len(rows)) == (4, 4)
    assert done.left_out == {"from other parts of the run": 1, "ended in an error": 1}
    assert [(row["task_id"], row["label"], row["reward"]) for row in rows] == [
        ("t1", True, 1.0), ("t1", True, 1.0), ("t2", False, 0.5), ("t2", False, 0.5),
    ]  # fmt: skip
    assert [message["role"] for message in rows[1]["prompt"]] == ["system", "user", "assistant", "tool"]
    assert rows[1]["completion"] == [{"role": "assistant", "content": "It is 112."}]
    assert rows[1]["answer"] == "112"


def test_sft_holds_whole_conversations_of_successes_unless_all_are_wanted(run):
    done = api.export(run, "sft", run.root.parent / "sft.jsonl")
    [row] = lines(done.path)
    assert done.left_out["not successful"] == 1
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert row["task_id"] == "t1"
    every = api.export(run, "sft", run.root.parent / "all.jsonl", everything=True)
    assert [row["task_id"] for row in lines(every.path)] == ["t1", "t2"]


def test_evaluations_are_exported_by_the_name_of_their_part_or_as_the_run_that_they_are(run, tmp_path):
    [row] = lines(written(run, "sft", part="eval-*"))
    assert (row["part"], row["task_id"]) == ("eval-test-greedy-1", "held-out")
    info = collect_info("mine", 3, agent("mine"), EvaluationInfo())
    evaluation = RunDirectory.create(tmp_path / "e" / "run", info, "")
    with Journal(evaluation.results_path) as journal:  # one under way
        results.append(journal, "test-greedy", [spoken("a", 1.0), spoken("b", 0.0)])
    assert [row["task_id"] for row in lines(written(evaluation, "trl"))] == ["a", "a", "b", "b"]


def test_a_module_is_chosen_and_text_models_have_text(tmp_path):
    run = RunDirectory.create(tmp_path / "run", collect_info("mine", 3, agent("mine", "agentflow")), "")
    turn = Turn(
        index=1,
        calls=(
            Call(role="planner", prompt="Q ?", completion=" look"),
            Call(role="planner", prompt="Q ?", error=ErrorInfo(type="EngineError", message="gone")),
            chat(*ASKED, reply="{}", role="executor"),
        ),
    )
    run.trajectories.write(1, [Trajectory(id="a", task_id="a", turns=(turn,), reward=Score(value=1.0))])
    [row] = lines(written(run, "trl"))
    assert (row["prompt"], row["completion"]) == ("Q ?", " look")
    [row] = lines(written(run, "sft", module="executor"))
    assert row["messages"][-1] == {"role": "assistant", "content": "{}"}
    with raises("nothing-to-export", "judge"):
        api.export(run, "trl", tmp_path / "none.jsonl", module="judge")
    assert not (tmp_path / "none.jsonl").exists()


def test_a_reply_that_was_continued_in_place_is_one_row(tmp_path):
    run = RunDirectory.create(tmp_path / "run", collect_info("mine", 3, agent("mine")), "")
    begun = Message(role="assistant", content="<think>a</think><python>1</python><output>1</output>")
    first = Turn(index=1, calls=(chat(*ASKED, reply="<think>a</think><python>1</python>"),))
    calls = (chat(*ASKED, begun, reply="<answer>1</answer>"),)
    stream = Trajectory(id="a", task_id="a", turns=(first,), closing_calls=calls, reward=Score(value=1.0))
    run.trajectories.write(1, [stream])
    whole = {"role": "assistant", "content": begun.content + "<answer>1</answer>"}
    assert [row["messages"][2:] for row in lines(written(run, "sft"))] == [[whole]]
    assert [row["completion"] for row in lines(written(run, "trl"))][-1] == [whole]


def test_parquet_holds_every_trajectory_as_columns_and_whole(run):
    table = pytest.importorskip("pyarrow.parquet").read_table(written(run, "parquet")).to_pylist()
    assert [(row["part"], row["task_id"], row["status"]) for row in table] == [
        ("eval-test-greedy-1", "held-out", "ok"),
        ("step-000001", "t1", "ok"),
        ("step-000001", "t2", "ok"),
        ("step-000001", "t3", "error"),
    ]
    assert Trajectory.model_validate_json(table[1]["trajectory"]) == spoken("t1", 1.0)
    row = table[2]
    assert (row["reward"], row["turns"], row["calls"], row["tools"]) == (0.5, 1, 2, ["search"])
    assert (row["prompt_tokens"], row["completion_tokens"], row["duration_s"]) == (40, 10, 2.5)


def test_what_cannot_be_written_is_refused(run, tmp_path):
    written(run, "trl")
    with raises("file-exists"):
        written(run, "trl")
    with raises("file-format", ".parquet"):
        api.export(run, "parquet", tmp_path / "table.jsonl")
    with raises("unknown-name", "banana", "sft"):
        api.export(run, "banana", tmp_path / "x")
    with raises("nothing-to-export", "step-9*"):
        api.export(run, "sft", tmp_path / "sft.jsonl", part="step-9*")
    empty = RunDirectory.create(tmp_path / "empty", collect_info("mine", 3, agent("mine")), "")
    with raises("nothing-to-export", f"{empty.root} has nothing", "no trajectories"):
        api.export(empty, "sft", tmp_path / "sft.jsonl")


def test_the_command_says_what_it_wrote_and_left_out(run, tmp_path, capsys):
    assert main(["export", str(run.root), "--format", "sft", "--out", str(tmp_path / "a.jsonl"), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "1 row in" in said
    assert "1 trajectory left out: not successful" in said
    words = ["export", str(run.root), "--format", "sft", "--all", "--out", str(tmp_path / "b.jsonl"), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2


# --- read by those that the formats are for ---------------------------------------------------------------------------


def rows_of(path: Path, tmp_path: Path) -> Iterator[Any]:
    datasets = pytest.importorskip("datasets")
    return datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trl_reads_its_rows_and_conversations(run, tmp_path):
    data_utils = pytest.importorskip("trl.data_utils")
    from support.small_tokenizers import CHATML, byte_pairs

    tokenizer = byte_pairs(CHATML)
    replies = [data_utils.apply_chat_template(row, tokenizer) for row in rows_of(written(run, "trl"), tmp_path)]
    assert replies[1]["prompt"].endswith("<|im_start|>assistant\n")
    assert (replies[1]["completion"], replies[1]["label"]) == ("It is 112.<|im_end|>\n", True)
    [whole] = rows_of(written(run, "sft"), tmp_path)
    assert data_utils.is_conversational(whole)
    text = data_utils.apply_chat_template(whole, tokenizer)["text"]
    assert text.endswith(
        "<tool_response>\n105\n</tool_response><|im_end|>\n<|im_start|>assistant\nIt is 112.<|im_end|>\n"
    )
