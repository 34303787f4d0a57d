"""Several roles of AgentFlow are trained, each with a LoRA adapter of its own: in process and behind a server."""

from __future__ import annotations

import asyncio
import json
import shutil
from itertools import chain

import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file

from midstream.cli.main import main
from midstream.components.kinds import register
from midstream.core.engine import Request
from midstream.core.errors import EngineError
from midstream.core.trajectory import Message, Sampling
from midstream.engines.local.continuous import ContinuousLocal
from midstream.engines.local.engine import TransformersLocal
from midstream.engines.local.pretrained import load_model
from midstream.engines.openai.server import adapter_name
from midstream.runs import RunDirectory
from support.errors import coded, printed
from support.llm_server import LLMServer
from support.served_model import CalculatesConfig, ServedModel, save_model, write_recipe

ROLES = ("planner", "verifier")
SAMPLING = "{temperature=0.8,max_tokens=4}"
BOTH = [f'training.roles=["{ROLES[0]}","{ROLES[1]}"]', "learner.lora={rank=4,alpha=8,per_role=true}"]
VERIFIER = f'agent.verifier={{type="prompted",engine="policy",sampling={SAMPLING}}}'
IN_PROCESS = [
    VERIFIER,
    f"agent.planner.sampling={SAMPLING}",
    "tasks.families=['arith']",
    "tasks.countries=40",
    "reward.type=calculates",
    "training.steps=2",
    "seed=3",
    "agent.max_turns=1",
    "training.tasks_per_step=2",
    "training.minibatches=1",
    "training.group_size=3",
    "training.learning_rate=1e-2",
    "training.warmup_steps=1",
    "training.checkpoint_every=1",
    "training.validate_every=3",
    "evaluation.temperatures=[0.8]",
    "evaluation.validation={name='validation',split='validation',per_family=1}",
    "evaluation.sets=[{name='test',per_family=2,max_turns=1}]",
]


def options(*settings):
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture(scope="module", autouse=True)
def _calculates():
    register("reward", "calculates", CalculatesConfig)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("roles") / "model")


def train(out, model, *more):
    words = options(f"engines.policy.model={model}", *IN_PROCESS, *BOTH, *more)
    return main(["train", "flow-grpo-lora", "--out", str(out), "--quiet", *words])


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("roles-run") / "run"
    assert train(out, model) == 0
    return RunDirectory.open(out)


def newest(run):
    return torch.load(max(run.checkpoints.root.glob("step-*")) / "learner.pt", weights_only=True)


def lose_last_step(run):
    """As if the run had been killed before it saved its last checkpoint."""
    shutil.rmtree(max(run.checkpoints.root.glob("step-*")))
    run.set_status("interrupted", "killed")


def calls_of(run, step, role):
    return [call for one in run.trajectories.read(step) for call in one.calls if call.role == role]


def test_each_role_has_rows_and_an_adapter_that_learns(trained):
    metrics = trained.metrics.read()
    assert all(one.grad_norm > 0 for one in metrics)
    assert metrics[0].logprob_gap < 1e-4, "each row is computed with the adapter that sampled it"
    assert metrics[1].logprob_gap < 1e-4
    assert metrics[1].kl > 0
    assert metrics[1].tokens_by_role.keys() == {*ROLES}
    for role, tokens in metrics[1].tokens_by_role.items():
        assert 0 < tokens <= sum(len(call.completion_ids) for call in calls_of(trained, 2, role))
    found = [load_file(trained.policy_dir / role / "adapter_model.safetensors") for role in ROLES]
    assert found[0].keys() == found[1].keys()
    for own in found:
        assert any(tensor.abs().max() > 0 for name, tensor in own.items() if "lora_B" in name)
    assert any(not torch.equal(found[0][name], found[1][name]) for name in found[0] if "lora_B" in name)
    state = newest(trained)["model"]
    for role, own in zip(ROLES, found, strict=True):
        in_checkpoint = {name.replace(f".{role}", ""): one for name, one in state.items() if f".{role}." in name}
        assert in_checkpoint.keys() == own.keys()
        assert all(torch.equal(in_checkpoint[name], own[name]) for name in own)


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(trained, tmp_path):
    shutil.copytree(trained.root, tmp_path / "run")
    again = RunDirectory.open(tmp_path / "run")
    lose_last_step(again)
    assert main(["resume", str(again.root), "--quiet"]) == 0
    assert again.metrics.read() == trained.metrics.read()
    before, after = newest(trained), newest(again)
    assert all(torch.equal(after["model"][name], tensor) for name, tensor in before["model"].items())
    for place, kept in before["optimizer"]["state"].items():
        assert all(torch.equal(after["optimizer"]["state"][place][name], value) for name, value in kept.items())


def test_the_policy_directory_answers_as_the_run_did(trained, model, tmp_path, capsys):
    """`eval RUN` loads the checkpoint, `eval RECIPE` the exported adapters; both as at the end of training."""
    [recorded] = [one for one in trained.evaluations.read() if one.set_name == "test" and one.step == 2]
    capsys.readouterr()
    assert main(["eval", str(trained.root), "--json", "--quiet", "--out", str(tmp_path / "of-run")]) == 0
    [of_run] = json.loads(capsys.readouterr().out)["evaluations"]
    words = options(*IN_PROCESS, *BOTH, f"engines.policy.model={trained.policy_dir}")
    assert main(["eval", "flow-grpo-lora", "--json", "--quiet", "--out", str(tmp_path / "exported"), *words]) == 0
    [of_policy] = json.loads(capsys.readouterr().out)["evaluations"]
    same = json.loads(recorded.model_dump_json(exclude={"policy", "seed", "step"}))
    assert {name: of_run[name] for name in same} == {name: of_policy[name] for name in same} == same
    sampled = [
        [(call.role, call.completion_ids) for one in part for call in one.calls if call.role in ROLES]
        for name in ("of-run", "exported")
        for part in RunDirectory.open(tmp_path / name).trajectories.parts().values()
    ]
    assert sampled[0] == sampled[1]
    assert {role for role, _ in sampled[0]} == {*ROLES}


def test_solve_answers_with_the_adapters_of_a_run(trained, capsys):
    assert main(["solve", "What is 1 plus 1 ?", "--planner", str(trained.root), "--json"]) == 0
    answered = json.loads(capsys.readouterr().out)
    versions = {call["policy_version"] for turn in answered["turns"] for call in turn["calls"]}
    assert versions == {2}


def test_the_adapters_are_trained_further(trained, model, tmp_path):
    more = (f"engines.policy.model={trained.policy_dir}", "training.steps=1", "evaluation.at=none")
    assert train(tmp_path / "run", model, *more) == 0
    [metrics] = RunDirectory.open(tmp_path / "run").metrics.read()
    assert metrics.kl > 1e-4, "the reference policy is the model without them"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["training.roles=[]", "agent.verifier={type='form'}"], "training.roles = []"),
        (["warm_start={file='replies.jsonl'}"], "transcripts to imitate"),
        (["learner.lora.per_role=false", "engines.policy.model=POLICY"], "has the adapters planner, verifier"),
        (["learner.lora.rank=8", "engines.policy.model=POLICY"], "engine's adapter 4 and 8 of planner, verifier"),
    ],
)
def test_what_does_not_fit_is_refused(settings, words, trained, model, tmp_path, capsys):
    settings = [one.replace("POLICY", str(trained.policy_dir)) for one in settings]
    assert train(tmp_path / "run", model, *settings) == 2
    assert coded("setting-conflict", words)(printed(capsys.readouterr().err))


# -- behind a server ---------------------------------------------------------------------------------------------------


class BothSampled(ServedModel):
    """The verifier, too, is sampled from the model."""

    def __call__(self, body):
        if isinstance(body.get("prompt"), list):
            with self._lock:
                return self._plan(body)
        return super().__call__(body)


@pytest.fixture(scope="module")
def over_http(model, tmp_path_factory):
    """(the run directory, the server)."""
    root = tmp_path_factory.mktemp("roles-http")
    served = BothSampled(model)
    with LLMServer(served) as server:
        served.adapters = server.adapters
        recipe = write_recipe(root, server.base_url, model)
        small = [
            "training.steps=2",
            "training.checkpoint_every=1",
            "training.tasks_per_step=2",
            "training.group_size=3",
            "evaluation.at=none",
            "seed=3",
            "agent.max_turns=1",
        ]
        words = options(VERIFIER, *BOTH, *small)
        assert main(["train", str(recipe), "--out", str(root / "run"), "--quiet", *words]) == 0
        yield RunDirectory.open(root / "run"), server


def test_a_request_names_the_newest_adapter_of_its_role(over_http):
    run, server = over_http
    assert max(one.logprob_gap for one in run.metrics.read()) < 1e-4
    assert [one.policy_version for one in run.metrics.read()] == [0, 1]
    by_role = {role: {call.sent["model"] for call in calls_of(run, 2, role)} for role in ROLES}
    [path] = (run.root / "adapters").glob("version-1-*")
    assert by_role == {role: {adapter_name(path / role)} for role in ROLES}
    [newest] = (run.root / "adapters").glob("version-2-*")
    assert {*server.adapters.values()} == {str(newest / role) for role in ROLES}, "older ones are unloaded"


def test_a_resumed_run_asks_the_same_adapters(over_http, tmp_path):
    run, _ = over_http
    before = [[call.sent["model"] for call in calls_of(run, 2, role)] for role in ROLES]
    metrics = run.metrics.read()
    lose_last_step(run)
    assert main(["resume", str(run.root), "--quiet"]) == 0
    assert [[call.sent["model"] for call in calls_of(run, 2, role)] for role in ROLES] == before
    assert run.metrics.read() == metrics


# -- an agent of another program ---------------------------------------------------------------------------------------

AGENT = """
import aiohttp

from midstream.components.agent_record import Outcome


async def solve(task, session):
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {session.api_key}"}) as client:

        async def post(url, **body):
            async with client.post(url, json=body, raise_for_status=True) as answer:
                return await answer.json()

        async def ask(model, text):
            asked = {"model": model, "messages": [{"role": "user", "content": text}]}
            return await post(f"{session.base_url}/chat/completions", **asked)

        plan = await ask("planner", task.question)
        text = plan["choices"][0]["message"]["content"] or ""
        await post(f"{session.anthropic_base_url}/reward", call=plan["id"], reward=float("python" in text) - 0.5)
        final = await ask("writer.v1", f"{task.question} {text}")
    return Outcome(answer=final["choices"][0]["message"]["content"] or "none", reward=float("python" in text))
"""
RECIPE = """
name = "by-name"
seed = 1
tasks = {{ type = "gazetteer", families = ["arith"], countries = 40 }}
reward = {{ type = "exact_match" }}
serve.parser = "none"

[agent]
type = "{agent}:solve"
engine = "policy"
sampling = {{ temperature = 0.8, max_tokens = 4 }}

[engines.policy]
type = "transformers_local"
model = "{model}"

[learner]
lora = {{ rank = 4, alpha = 8 }}

[training]
steps = 2
tasks_per_step = 2
group_size = 4
minibatches = 1
learning_rate = 1e-2
warmup_steps = 1
roles = {{ planner = {{}}, "writer.v1" = {{ share = 0.5, kl = 0.0 }} }}

[evaluation]
at = "none"
validation = {{ name = "validation", split = "validation", per_family = 1 }}
"""


def by_name(root, model, *more):
    (root / "agent.py").write_text(AGENT)
    (root / "by-name.toml").write_text(RECIPE.format(agent=root / "agent.py", model=model))
    return main(["train", str(root / "by-name.toml"), "--out", str(root / "run"), "--quiet", *options(*more)])


@pytest.mark.parametrize("per_role", [False, True])
def test_the_models_that_an_agent_asks_by_name_are_roles(per_role, model, tmp_path):
    assert by_name(tmp_path, model, f"learner.lora.per_role={str(per_role).lower()}") == 0
    run = RunDirectory.open(tmp_path / "run")
    metrics = run.metrics.read()
    assert max(one.logprob_gap for one in metrics) < 1e-4
    assert metrics[0].grad_norm > 0
    for one in run.trajectories.read(1):
        planned, wrote = one.calls
        assert (planned.role, wrote.role) == ("planner", "writer.v1")
        assert (planned.reward, wrote.reward) == (one.reward.value - 0.5, None)
    found = sorted(path.parent.name for path in run.policy_dir.rglob("adapter_config.json"))
    assert found == (["planner", "writer_v1"] if per_role else ["policy"])


def test_names_that_are_trained_are_those_of_the_roles(model, tmp_path, capsys):
    assert by_name(tmp_path, model, "serve.models={other={engine='policy',train=true}}") == 2
    words = ("serve.models.other.train = true", "planner", "writer.v1")
    assert coded("setting-conflict", *words)(printed(capsys.readouterr().err))


# -- engines in this process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("continuous", [False, True])
def test_a_sample_depends_on_its_role_and_not_on_what_is_sampled_with_it(continuous, trained, model):
    """Together with requests of the other role and of the reference policy, or alone: the same tokens."""
    engine = TransformersLocal(*load_model(str(trained.policy_dir), "float32", "cpu"))
    base = TransformersLocal(*load_model(str(model), "float32", "cpu"))
    asked = ContinuousLocal(engine) if continuous else engine

    def request(role, order):
        messages = (Message(role="user", content=f"how high is the tower {order}"),)
        return Request(role=role, messages=messages, sampling=Sampling(max_tokens=5), seed=order, order=order)

    requests = [request(role, 2 * number + place) for number in range(3) for place, role in enumerate(ROLES)]

    async def sample():
        if not continuous:
            for order in range(len(requests) + 1):
                engine.join(order)
        references = [] if continuous else [engine.sample(request("executor", len(requests)), reference=True)]
        together = await asyncio.gather(*map(asked.sample, requests), *references)
        for order in range(len(requests) + 1):
            engine.leave(order)
        alone = [await asked.sample(one) for one in requests]
        plain = [await base.sample(request("executor", len(requests)))] * len(references)
        await asked.close()
        return together, alone + plain

    together, alone = asyncio.run(sample())
    assert [one.completion_ids for one in together] == [one.completion_ids for one in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    with pytest.raises(EngineError, check=coded("unknown-role", "'policy'")):
        asyncio.run(engine.sample(request("policy", 0)))


def test_sampling_with_an_adapter_leaves_the_gradients_to_the_learner(trained):
    engine = TransformersLocal(*load_model(str(trained.policy_dir), "float32", "cpu"))
    engine.model.set_adapter("planner")
    engine.with_adapter("verifier")
    layers = [layer for layer in engine.model.modules() if isinstance(layer, BaseTunerLayer)]
    assert {*chain(*(layer.active_adapters for layer in layers))} == {"verifier"}
    learning = [name for name, weights in engine.model.named_parameters() if weights.requires_grad]
    assert learning
    assert all("planner" in name for name in learning)
