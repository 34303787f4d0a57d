"""What `midstream export` writes, and that the readers of each format take it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream import api
from midstream.cli.main import main
from midstream.core.trajectory import (
    Action,
    Call,
    Command,
    ErrorInfo,
    Message,
    Observation,
    Score,
    Trajectory,
    Turn,
    Usage,
    Verdict,
)
from midstream.exports.traces import atif, otel
from midstream.runs import Journal, RunDirectory, results
from midstream.runs.info import EvaluationInfo, collect_info
from support import fake_run
from support.errors import raises

FORMATS = {"trl": "jsonl", "sft": "jsonl", "verl": "parquet", "parquet": "parquet", "atif": "", "otel": "jsonl"}
ASKED = (Message(role="system", content="Use tools."), Message(role="user", content="How high is Amberbank plus 7 ?"))


def chat(*messages: Message, reply: str, role: str = "policy", **fields: Any) -> Call:
    usage = Usage(prompt_tokens=20, completion_tokens=5, cost_usd=0.25)
    sent = {"model": "m-1", "base_url": "http://models.example:8000/v1"}
    return Call(role=role, messages=messages, completion=reply, usage=usage, sent=sent, finish_reason="stop", **fields)


def spoken(name: str, reward: float, **fields: Any) -> Trajectory:
    """A chat model that calls a tool and answers: its second request continues the first."""
    called = Message(role="assistant", content='<tool_call>{"name": "search"}</tool_call>')
    found = Message(role="tool", content="105")
    turn = Turn(
        index=1,
        events=("call", "action", "command", "observation"),
        action=Action(sub_goal="look it up", tool="search"),
        command=Command(tool="search", arguments={"query": "Amberbank"}),
        observation=Observation(status="ok", text="105", duration_s=0.5),
        verdict=Verdict(result_valid=True, memory_sufficient=True),
        calls=(chat(*ASKED, reply=called.content),),
    )
    return Trajectory(
        id=f"{name}#0",
        task_id=name,
        family="add",
        question=ASKED[1].content,
        agent="interleaved",
        turns=(turn,),
        closing_calls=(chat(*ASKED, called, found, reply="It is 112."),),
        answer="112",
        final="It is 112.",
        gold="112",
        reward=Score(value=reward, parts={"answer": reward}),
        stop_reason="answered",
        started_at=1_700_000_000.0,
        duration_s=2.5,
        **fields,
    )


def agent(name: str, kind: str = "interleaved") -> dict[str, Any]:
    return {"name": name, "agent": {"type": kind}}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A training run: a step with a success, a failure and a lost run, and an evaluation."""
    run = RunDirectory.create(tmp_path / "run", collect_info("mine", 3, agent("mine")), "")
    lost = spoken("t3", 0.0, status="error", error=ErrorInfo(type="EngineError", message="gone"))
    run.trajectories.write(1, [spoken("t1", 1.0), spoken("t2", 0.5), lost])
    run.trajectories.write("test-greedy-1", [spoken("held-out", 1.0)])
    return run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def written(run: RunDirectory, format: Any, **options: Any) -> Path:
    path = run.root.parent / f"{format}.{FORMATS[format]}".rstrip(".")
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


def test_verl_has_a_row_for_each_task_with_the_mean_reward_of_its_runs(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run = RunDirectory.create(tmp_path / "run", collect_info("mine", 3, agent("mine")), "")
    dialogue = spoken("t9", 1.0).model_copy(update={"gold": None})
    run.trajectories.write(1, [spoken("t1", 1.0), spoken("t1", 0.0), spoken("t2", 0.5), dialogue])
    done = api.export(run, "verl", tmp_path / "tasks.parquet")
    assert (done.rows, done.left_out) == (2, {"without a question with an answer": 1})
    first, second = parquet.read_table(done.path).to_pylist()
    assert first["prompt"] == [{"role": "user", "content": ASKED[1].content}]
    assert (first["data_source"], first["ability"]) == ("midstream/mine", "add")
    assert first["reward_model"] == {"style": "rule", "ground_truth": "112"}
    assert (first["extra_info"]["attempts"], first["extra_info"]["reward_mean"]) == (2, 0.5)
    assert (second["extra_info"]["index"], second["extra_info"]["split"]) == (1, "train")


def test_atif_has_a_step_for_each_turn():
    document = atif("step-000001", spoken("t1", 1.0))
    assert [(step["step_id"], step["source"]) for step in document["steps"]] == [
        (1, "user"),
        (2, "agent"),
        (3, "agent"),
    ]
    called = document["steps"][1]
    assert called["tool_calls"] == [
        {"tool_call_id": "call-1", "function_name": "search", "arguments": {"query": "Amberbank"}}
    ]
    assert called["observation"]["results"][0]["content"] == "105"
    assert (called["metrics"]["prompt_tokens"], called["llm_call_count"], called["model_name"]) == (20, 1, "m-1")
    assert document["steps"][2]["message"] == "It is 112."
    assert document["final_metrics"]["total_completion_tokens"] == 10
    assert document["extra"]["reward"] == 1.0


def test_a_trace_has_a_span_for_each_call_and_tool_whose_time_is_that_of_the_run():
    [spans] = [
        scope["spans"]
        for resource in otel("run", "step-000001", spoken("t1", 1.0))["resourceSpans"]
        for scope in resource["scopeSpans"]
    ]
    assert [span["name"] for span in spans] == [
        "invoke_agent interleaved",
        "chat m-1",
        "execute_tool search",
        "chat m-1",
    ]
    root, *below = spans
    assert {span["parentSpanId"] for span in below} == {root["spanId"]}
    assert len({span["spanId"] for span in spans}) == 4
    assert len({span["traceId"] for span in spans}) == 1
    times = [int(time) for span in below for time in (span["startTimeUnixNano"], span["endTimeUnixNano"])]
    assert times == sorted(times)
    assert times[3] - times[2] == pytest.approx(0.5e9, abs=1000)
    assert (times[0], times[-1]) == (int(root["startTimeUnixNano"]), pytest.approx(int(root["endTimeUnixNano"])))
    about = {item["key"]: item["value"] for item in spans[1]["attributes"]}
    assert about["gen_ai.usage.output_tokens"] == {"intValue": "5"}
    assert about["server.address"] == {"stringValue": "models.example"}
    assert json.loads(about["gen_ai.output.messages"]["stringValue"])[0]["finish_reason"] == "stop"
    [event] = root["events"]
    assert event["attributes"][1] == {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 1.0}}


def test_what_cannot_be_written_is_refused(run, tmp_path):
    written(run, "trl")
    with raises("file-exists"):
        written(run, "trl")
    with raises("file-format", ".parquet"):
        api.export(run, "verl", tmp_path / "verl.jsonl")
    with raises("unknown-name", "banana", "sft"):
        api.export(run, "banana", tmp_path / "x")  # pyright: ignore[reportArgumentType]
    with raises("nothing-to-export", "step-9*"):
        api.export(run, "atif", tmp_path / "atif", part="step-9*")
    empty = RunDirectory.create(tmp_path / "empty", collect_info("mine", 3, agent("mine")), "")
    with raises("nothing-to-export", f"{empty.root} has no trajectories"):
        api.export(empty, "sft", tmp_path / "sft.jsonl")


def test_the_command_says_what_it_wrote_and_left_out(run, tmp_path, capsys):
    assert main(["export", str(run.root), "--format", "sft", "--out", str(tmp_path / "a.jsonl"), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "1 row in" in said
    assert "1 trajectory left out: not successful" in said
    words = ["export", str(run.root), "--format", "sft", "--all", "--out", str(tmp_path / "b.jsonl"), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2


def test_atif_has_a_file_for_each_id(run):
    ids = ["问题一", "问题二", "a/1", "a:1"]
    run.trajectories.write(2, [fake_run.solved().model_copy(update={"id": id}) for id in ids])
    names = {path.stem for path in written(run, "atif").rglob("*.json")}
    assert names >= {"问题一", "问题二", "a%2F1", "a%3A1"}


# --- read by those that the formats are for ---------------------------------------------------------------------------


@pytest.fixture
def mixed(run: RunDirectory) -> RunDirectory:
    """The run with everything that can be in a trajectory."""
    run.trajectories.write(2, [fake_run.solved(), fake_run.unsolved(), fake_run.lost(), fake_run.broken()])
    return run


def test_atif_is_read_by_its_models(mixed):
    models = pytest.importorskip("atif", reason="atif is not installed\nfix: pip install atif")
    files = sorted(written(mixed, "atif").rglob("*.json"))
    documents = [models.Trajectory.model_validate_json(file.read_text(encoding="utf-8")) for file in files]
    assert len(documents) == 8
    assert documents[1].steps[1].tool_calls[0].function_name == "search"


def test_traces_are_read_by_the_messages_of_opentelemetry(mixed):
    reason = "opentelemetry-proto is not installed\nfix: pip install opentelemetry-proto"
    trace_pb2 = pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2", reason=reason)
    json_format = pytest.importorskip("google.protobuf.json_format", reason=reason)

    def as_protobuf(value: Any) -> Any:
        """OTLP's JSON has ids as hexadecimal numbers, protobuf's as base64."""
        if isinstance(value, dict):
            ids = ("traceId", "spanId", "parentSpanId")
            return {
                key: base64.b64encode(bytes.fromhex(inner)).decode() if key in ids else as_protobuf(inner)
                for key, inner in value.items()
            }
        return [as_protobuf(inner) for inner in value] if isinstance(value, list) else value

    traces = [
        json_format.ParseDict(as_protobuf(line), trace_pb2.TracesData()).resource_spans[0].scope_spans[0].spans
        for line in lines(written(mixed, "otel"))
    ]
    assert len(traces) == 8
    assert all((len(span.trace_id), len(span.span_id)) == (16, 8) for spans in traces for span in spans)
    assert {span.name for spans in traces for span in spans} >= {"chat m-1", "execute_tool search"}


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_verl_reads_its_tasks(run, tmp_path):
    reason = "verl is not installed\nfix: pip install verl (its package needs ray, tensordict and hydra)"
    rl_dataset = pytest.importorskip("verl.utils.dataset.rl_dataset", reason=reason, exc_type=ImportError)
    omegaconf = pytest.importorskip("omegaconf")
    from support.small_tokenizers import CHATML, byte_pairs

    config = omegaconf.OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts_workers": 1})
    rows = rl_dataset.RLHFDataset(str(written(run, "verl")), byte_pairs(CHATML), config)
    batch = rl_dataset.collate_fn([rows[0], rows[1]])
    assert [model["ground_truth"] for model in batch["reward_model"]] == ["112", "112"]
    assert list(batch["raw_prompt"][0]) == [{"role": "user", "content": ASKED[1].content}]
