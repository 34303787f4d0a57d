"""All four modules as prompted engines over HTTP, through train, eval and solve; training stays on-policy by LoRA."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from midstream.cli.main import main
from midstream.components.kinds import register
from midstream.core.trajectory import Trajectory
from midstream.engines.local.pretrained import load_model
from midstream.runs import RunDirectory
from midstream.training.learner import LocalLearner
from support.errors import coded, printed
from support.llm_server import AgentFlowReplies, LLMServer
from support.served_model import CALCULATE, CalculatesConfig, ServedModel, save_model, write_recipe


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def served(model_directory):
    model = ServedModel(model_directory)
    with LLMServer(model) as server:
        model.adapters = server.adapters
        yield server


@pytest.fixture(scope="module")
def trained(served, model_directory, tmp_path_factory):
    """(run directory, per update the recorded and the learner's own log-probabilities of every row)."""
    root = tmp_path_factory.mktemp("http")
    updates = []
    inner = LocalLearner.forward_backward

    def spy(self, rows, loss):
        updates.append(([row.old_logprobs for row in rows], self.logprobs(rows)))
        return inner(self, rows, loss)

    with pytest.MonkeyPatch.context() as patch:
        register("reward", "calculates", CalculatesConfig)
        patch.setattr(LocalLearner, "forward_backward", spy)
        recipe = write_recipe(root, served.base_url, model_directory)
        assert main(["train", str(recipe), "--out", str(root / "run"), "--quiet"]) == 0
        yield RunDirectory.open(root / "run"), updates


def calls_of(trajectories, role):
    return [call for one in trajectories for call in one.calls if call.role == role]


def test_all_four_modules_speak_over_http(trained):
    run, _ = trained
    trajectories = [one for step in range(1, 5) for one in run.trajectories.read(step)]
    assert {one.status for one in trajectories} == {"ok"}
    roles = Counter((call.role, call.engine) for one in trajectories for call in one.calls)
    turns = sum(len(one.turns) for one in trajectories)
    acted = sum(turn.command is not None for one in trajectories for turn in one.turns)
    assert roles == {
        ("planner", "policy"): turns,
        ("executor", "server"): acted,
        ("verifier", "server"): turns,
        ("generator", "server"): len(trajectories),
    }
    assert 0 < acted <= turns
    assert all(call.messages for one in trajectories for call in one.calls)


def test_planner_calls_carry_what_the_server_sampled(trained, model_directory):
    """Before the first update the learner's weights are the served ones: its log-probabilities are the recorded."""
    run, _ = trained
    model, tokenizer = load_model(str(model_directory), "float32", "cpu")
    calls = calls_of(run.trajectories.read(1), "planner")
    for call in calls:
        with torch.no_grad():
            ids = torch.tensor([call.prompt_ids + call.completion_ids])
            logits = model(ids).logits[0, len(call.prompt_ids) - 1 : -1] / 0.8
        own = logits.log_softmax(-1).gather(1, torch.tensor(call.completion_ids)[:, None])[:, 0]
        assert call.logprobs == pytest.approx(own.tolist(), abs=1e-4)
        messages = [message.wire() for message in call.messages]
        assert list(call.prompt_ids) == tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        spoken = [one for one in call.completion_ids if one != tokenizer.eos_token_id]
        assert call.completion == tokenizer.decode(spoken)
    assert not calls_of(run.trajectories.read(1), "verifier")[0].completion_ids


def test_every_update_is_on_policy(trained):
    """The server sampled from the weights as they were after the update before: adapters arrive, and in time."""
    run, updates = trained
    assert len(updates) == 4
    for recorded, own in updates:
        for old, new in zip(recorded, own, strict=True):
            assert old == pytest.approx(new, abs=1e-3)
    assert [one.clip_fraction for one in run.metrics.read()] == [0.0] * 4
    assert max(one.logprob_gap for one in run.metrics.read()) < 1e-4


def test_the_policy_version_advances_with_its_adapter(trained, served):
    run, _ = trained
    for step in range(1, 5):
        assert {call.policy_version for call in calls_of(run.trajectories.read(step), "planner")} == {step - 1}
    loads = [body["lora_path"] for body in served.bodies if "lora_path" in body and str(run.root) in body["lora_path"]]
    versions = [path.rsplit("/", 1)[1].split("-")[1] for path in dict.fromkeys(loads)]
    assert versions == ["0", "1", "2", "3", "4"]
    asked = Counter(body["model"] for body in served.bodies if "model" in body)
    names = {body["lora_name"] for body in served.bodies if body.get("lora_path") in loads}
    assert len(names) == 5
    assert all(asked[name] > 0 for name in names)
    assert asked["m"] > 0  # the other modules never use the adapter
    planned = [body for body in served.bodies if body.get("model") in names]
    assert all(isinstance(body["prompt"], list) for body in planned), "token ids in: no chat template but the learner's"


def test_only_the_newest_adapter_stays_on_the_server_and_two_on_disk(trained, served):
    run, _ = trained
    mine = [path for path in served.adapters.values() if path.startswith(str(run.root / "adapters" / "version-"))]
    assert [path.rsplit("/", 1)[1].split("-")[1] for path in mine] == ["4"]
    kept = sorted(path.name.split("-")[1] for path in (run.root / "adapters").glob("version-*"))
    assert kept == ["3", "4"]


def test_the_adapter_changes_what_is_sampled(trained):
    run, _ = trained
    first, last = run.metrics.read()[0], run.metrics.read()[-1]
    assert first.grad_norm > 0
    assert last.tool_use.share.get("python", 0) > first.tool_use.share.get("python", 0) + 0.1
    assert last.reward_mean > first.reward_mean
    assert last.kl > 0


def test_the_run_holds_adapters_and_no_copy_of_the_model(trained, model_directory):
    run, _ = trained
    assert (run.policy_dir / "adapter_model.safetensors").is_file()
    assert not (run.policy_dir / "model.safetensors").exists()
    state = torch.load(run.checkpoints.root / "step-000004" / "learner.pt", weights_only=True)
    assert all("lora_" in name for name in state["model"])
    assert state["reference"] is None


def test_eval_asks_the_trained_adapter(trained, tmp_path, capsys):
    run, _ = trained
    capsys.readouterr()
    assert main(["eval", str(run.root), "--json", "--quiet", "--out", str(tmp_path / "evaluation")]) == 0
    [result] = json.loads(capsys.readouterr().out)["evaluations"]
    [recorded] = [one for one in run.evaluations.read() if one.set_name == "test" and one.step == 4]
    assert {**result, "policy": ""} == {**json.loads(recorded.model_dump_json()), "policy": "", "seed": result["seed"]}


def test_solve_asks_the_trained_adapter(trained, capsys):
    run, _ = trained
    capsys.readouterr()
    assert main(["solve", "What is 45 plus 17 ?", "--planner", str(run.root), "--json", "--temperature", "0.8"]) == 0
    trajectory = Trajectory.model_validate_json(capsys.readouterr().out)
    assert {call.policy_version for call in trajectory.calls if call.role == "planner"} == {4}
    assert trajectory.answer == "2"


def test_solve_and_eval_on_any_server(tmp_path, capsys):
    """A server that gives text alone: all four modules of the prompted recipe, two turns, an answer."""
    replies = AgentFlowReplies(tool="python", arguments={"code": "45 + 17"}, turns=2, answer="62")
    with LLMServer(replies) as server:
        address = ["--base-url", server.base_url, "--model", "some-model", "--json"]
        assert main(["solve", "What is 45 plus 17 ?", *address]) == 0
        trajectory = Trajectory.model_validate_json(capsys.readouterr().out)
        assert {body["model"] for body in server.bodies} == {"some-model"}
        named = [
            "--set",
            f"engines.model.base_url={server.base_url}",
            "--set",
            "evaluation.sets=[{name='test',per_family=1}]",
        ]
        assert main(["eval", "gazetteer-prompted", "--json", "--quiet", "--out", str(tmp_path / "run"), *named]) == 0
        [result] = json.loads(capsys.readouterr().out)["evaluations"]
    assert (trajectory.answer, trajectory.stop_reason, len(trajectory.turns)) == ("62", "verified", 2)
    assert [turn.observation.text for turn in trajectory.turns] == ["62", "62"]
    assert [call.role for call in trajectory.calls] == ["planner", "executor", "verifier"] * 2 + ["generator"]
    assert (result["errors"], result["turns_mean"], result["tasks"]) == (0, 2.0, 7)


# -- servers that cannot be trained on --------------------------------------------------------------------------------


def refused(recipe, root, capsys):
    """Exit code and words of a training that must not start."""
    capsys.readouterr()
    code = main(["train", str(recipe), "--out", str(root), "--quiet"])
    return code, capsys.readouterr().err


@pytest.fixture
def calculates(monkeypatch):
    register("reward", "calculates", CalculatesConfig)


def test_training_without_token_ids_is_refused(tmp_path, served, model_directory, capsys, calculates):
    recipe = write_recipe(tmp_path, served.base_url, model_directory, token_ids=False)
    code, err = refused(recipe, tmp_path / "run", capsys)
    assert code == 2
    assert coded("not-trainable", "engine 'policy'", fix="token_ids = true")(printed(err))


def test_a_server_that_gives_no_token_ids_is_refused(tmp_path, model_directory, capsys, calculates):
    def text_only(body):
        return {
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": CALCULATE}}]
        }

    with LLMServer(text_only) as server:
        recipe = write_recipe(tmp_path, server.base_url, model_directory)
        code, err = refused(recipe, tmp_path / "run", capsys)
    assert code == 2
    assert coded("token-ids-missing", "prompt: none", fix="vllm serve")(printed(err))


def test_a_server_that_is_down_stops_the_run(tmp_path, model_directory, capsys, calculates):
    with LLMServer(lambda body: "nothing") as server:
        recipe = write_recipe(tmp_path, server.base_url, model_directory)
    code, err = refused(recipe, tmp_path / "run", capsys)
    assert code == 1
    assert coded("endpoint-unreachable", server.base_url)(printed(err))
