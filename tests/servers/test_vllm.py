"""A real vLLM server samples for training: its token ids, log-probabilities, adapters and errors.

    MIDSTREAM_VLLM_PYTHON=.venv-vllm/bin/python pytest tests/servers/test_vllm.py   (make test-vllm does both)

The server is vLLM's CPU build with a random model of one layer. Numbers that were measured are printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from midstream.cli.main import main
from midstream.components.kinds import register
from midstream.components.own_settings import OwnFunction
from midstream.core.agent import RunContext
from midstream.core.engine import Pin, Request, Weights
from midstream.core.errors import EngineError, PromptTooLongError
from midstream.core.trajectory import Message, Sampling, Trajectory
from midstream.engines.local.engine import TransformersLocal, generate
from midstream.engines.local.pretrained import load_model
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.engines.openai.server import adapter_name
from midstream.gateway.server import Gateway
from midstream.gateway.session_agent import GIVEN, FunctionSessionAgent
from midstream.gateway.settings import ServeConfig, SessionSettings
from midstream.runs import RunDirectory
from midstream.tools.local_search import Document, LocalSearch
from midstream.training.learner import RoleLearner
from midstream.training.settings import LearnerConfig
from midstream.training.settings import LoraConfig as LoraSettings
from midstream_worlds.atlas.loop import solve
from midstream_worlds.atlas.tasks import AtlasConfig
from support.llm_server import LLMServer
from support.served_model import CalculatesConfig, ServedModel, save_model, save_shipped_weights, write_recipe

PYTHON = os.environ.get("MIDSTREAM_VLLM_PYTHON")
START_TIMEOUT_S = 600.0
pytestmark = [
    pytest.mark.skipif(
        not PYTHON, reason="needs vLLM: make test-vllm, or set MIDSTREAM_VLLM_PYTHON to a Python with it"
    ),
    # peft asks transformers by a name that is being retired.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
WORDS = ("a red fox", "how high is the tower", "12 + 30", "zebra", "who knows", "Tool Name: python", "end")


@pytest.fixture(scope="module")
def show(request):
    """Writes a line to the terminal, captured or not."""
    plugins = request.config.pluginmanager

    def write(text):
        with plugins.get_plugin("capturemanager").global_and_fixture_disabled():
            plugins.get_plugin("terminalreporter").write_line(f"\n{text}")

    return write


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    """A model whose own sampling defaults would bend the distribution, as those of many instruct models do."""
    directory = save_model(tmp_path_factory.mktemp("vllm") / "model")
    defaults = json.loads((directory / "generation_config.json").read_text())
    defaults |= {"top_k": 2, "top_p": 0.5, "repetition_penalty": 1.5, "temperature": 0.1}
    (directory / "generation_config.json").write_text(json.dumps(defaults))
    return directory


@pytest.fixture(scope="module")
def url(model_directory, show):
    """The address of a vLLM that serves the model as "m"."""
    with serving(model_directory, show) as address:
        yield address


@contextmanager
def serving(directory, show, *more):
    """A server of a model as "m" that takes adapters; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(directory),
        "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--max-model-len", "2048", "--max-num-seqs", "32", "--enforce-eager", "--enable-lora", "--max-lora-rank", "8",
        "--logprobs-mode", "processed_logprobs", *more,
    ]  # fmt: skip
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    log = directory.parent / "vllm.log"
    with log.open("w") as file:
        server = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        show(f"vLLM answers after {wait_until_healthy(server, f'http://127.0.0.1:{port}/health', log):.0f} s")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(30)


def wait_until_healthy(server, address, log):
    started = time.monotonic()
    while server.poll() is None and time.monotonic() - started < START_TIMEOUT_S:
        try:
            if httpx2.get(address).status_code == 200:
                return time.monotonic() - started
        except httpx2.TransportError:
            time.sleep(0.5)
    pytest.fail(f"vLLM did not start:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def local(model_directory):
    """The same weights in process."""
    return TransformersLocal(*load_model(str(model_directory), "float32", "cpu"), name="weights")


def engine_for(url, **settings):
    return OpenAICompatibleEngine(
        OpenAIConfig(**{"model": "m", "base_url": url, "token_ids": True} | settings), "policy"
    )


def chat(text, seed=0, temperature=0.8, max_tokens=12):
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    messages = (Message(role="system", content="be brief"), Message(role="user", content=text))
    return Request(role="planner", messages=messages, sampling=sampling, seed=seed)


def ask(engine, *requests):
    async def run():
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    return asyncio.run(run())


def served_models(url):
    return [one["id"] for one in httpx2.get(f"{url}/models").json()["data"]]


def gap_of(model, call):
    """The largest |our log-probability - recorded one| of a call, at its sampling temperature (greedy: at 1)."""
    with torch.no_grad():
        logits = model(torch.tensor([call.prompt_ids + call.completion_ids])).logits[0, len(call.prompt_ids) - 1 : -1]
    own = (logits / (call.sampling.temperature or 1.0)).log_softmax(-1)
    own = own.gather(1, torch.tensor(call.completion_ids)[:, None])[:, 0]
    return (own - torch.tensor(call.logprobs)).abs().max().item()


# --- tokens and log-probabilities -------------------------------------------------------------------------------------


def test_what_the_server_sent_is_what_is_stored(url, local):
    """Chats, token ids in, and a stream of either: all of one seed are one sample, stored as the wire had it."""
    request = chat(WORDS[0], seed=3)
    body = {
        "model": "m", "messages": [one.wire() for one in request.messages], "temperature": 0.8, "top_p": 1.0,
        "seed": 3, "max_tokens": 12, "logprobs": True, "return_token_ids": True, "top_k": 0, "min_p": 0.0,
        "repetition_penalty": 1.0,
    }  # fmt: skip
    raw = httpx2.post(f"{url}/chat/completions", json=body, timeout=300).json()
    [choice] = raw["choices"]
    calls = []
    for stream in (False, True):
        for codec in (None, local.codec):
            engine = engine_for(url, stream=stream)
            engine.codec = codec
            calls += ask(engine, request)
    assert len(choice["token_ids"]) > 1
    for call in calls:
        assert list(call.prompt_ids) == raw["prompt_token_ids"] == local.codec.encode(request)
        assert list(call.completion_ids) == choice["token_ids"]
        assert list(call.logprobs) == [one["logprob"] for one in choice["logprobs"]["content"]]
        assert call.completion == choice["message"]["content"]
        assert (call.usage.prompt_tokens, call.finish_reason) == (len(call.prompt_ids), choice["finish_reason"])


def test_log_probabilities_are_those_of_the_local_model(url, local, show):
    """Of the whole distribution at the sampling temperature, though the model's generation_config asks for others."""
    engine = engine_for(url)
    engine.codec = local.codec
    requests = [
        chat(text * (1 + 20 * (i % 3)), seed=i, temperature=t) for i, text in enumerate(WORDS) for t in (0.7, 1)
    ]
    calls = ask(engine, *requests)
    gaps = [gap_of(local.model, call) for call in calls]
    tokens, longest = sum(len(one.logprobs) for one in calls), max(len(one.prompt_ids) for one in calls)
    show(f"{tokens} tokens, prompts of up to {longest}: largest |local - recorded| {max(gaps):.2e}")
    assert len({one.completion_ids for one in calls}) > 3
    assert max(gaps) < 1e-5


# --- adapters ---------------------------------------------------------------------------------------------------------


def adapter(model_directory, seed, rank=4):
    """(the base model with a random adapter, what exports that adapter)."""
    base, _ = load_model(str(model_directory), "float32", "cpu")
    torch.manual_seed(seed)
    settings = LoraConfig(r=rank, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = get_peft_model(base, settings).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return model, lambda directory: model.save_pretrained(directory)


def test_after_a_hand_over_the_server_samples_as_the_local_adapter(url, local, model_directory, tmp_path, show):
    """Greedy tokens change exactly as the adapter's do, also to other weights of one version, as after a resume."""
    requests = [chat(text, temperature=0.0) for text in WORDS]
    engine, frozen = engine_for(url), engine_for(url)
    engine.codec = local.codec
    greedy, largest = [], 0.0
    for version, seed in [(0, 1), (1, 2), (1, 3), (2, 4)]:
        model, export = adapter(model_directory, seed)
        asyncio.run(engine.use_weights(Weights(version=version, codec=local.codec, export=export, directory=tmp_path)))
        calls = ask(engine, *requests)
        prompts = [(tuple(local.codec.encode(one)), one) for one in requests]
        expected = [ids for ids, _ in generate(model, prompts, end_ids=local.codec.end_ids)]
        assert [call.completion_ids for call in calls] == expected
        assert {call.policy_version for call in calls} == {version}
        largest = max(largest, *(gap_of(model, call) for call in calls))
        greedy.append(expected)
        models = served_models(url)
        assert len(models) == 2, "the base model and the newest adapter"
        assert [call.policy_version for call in ask(frozen, requests[0])] == [None]
    show(f"four adapters, {len(WORDS)} greedy completions each: equal; largest |local - recorded| {largest:.2e}")
    assert largest < 1e-5
    assert all(one != other for i, one in enumerate(greedy) for other in greedy[:i])
    assert len(list(tmp_path.iterdir())) == 2
    asyncio.run(engine.drop_adapter(tmp_path / max(path.name for path in tmp_path.iterdir())))
    assert served_models(url) == ["m"]


def test_each_role_samples_with_an_adapter_of_its_own(url, local, model_directory, tmp_path, show):
    """One hand-over loads the adapters of all roles; their requests, sent together, get what the local model draws."""
    roles, largest = ("planner", "verifier"), 0.0
    base, _ = load_model(str(model_directory), "float32", "cpu")
    learner = RoleLearner(base, LearnerConfig(lora=LoraSettings(rank=4, alpha=8, per_role=True)), adapters=roles)
    engine = engine_for(url)
    requests = [replace(chat(text, temperature=0.0), role=role) for text in WORDS for role in roles]
    for version in range(2):
        torch.manual_seed(version)
        with torch.no_grad():
            for name, parameter in zip(learner._trained, learner.parameters, strict=True):
                if "lora_B" in name:
                    parameter.normal_(std=0.3)
        weights = Weights(version=version, codec=local.codec, export=learner.export_weights, directory=tmp_path)
        asyncio.run(engine.use_weights(weights))
        calls = ask(engine, *requests)
        [path] = tmp_path.glob(f"version-{version}-*")
        assert sorted(served_models(url)) == ["m", *sorted(adapter_name(path / role) for role in roles)]
        for role in roles:
            model, own = TransformersLocal(base, local.tokenizer), [one for one in requests if one.role == role]
            prompts = [(tuple(local.codec.encode(one)), one) for one in own]
            drawn = [ids for ids, _ in generate(model.with_adapter(role), prompts, end_ids=local.codec.end_ids)]
            answered = [call for call in calls if call.role == role]
            assert [call.completion_ids for call in answered] == drawn
            assert {call.sent["model"] for call in answered} == {adapter_name(path / role)}
            largest = max(largest, *(gap_of(base, call) for call in answered))
        assert [one.completion_ids for one in calls[::2]] != [one.completion_ids for one in calls[1::2]]
    show(f"two roles, two versions, {len(requests)} greedy completions each: equal; largest gap {largest:.2e}")
    assert largest < 1e-5
    asyncio.run(engine.drop_adapter(path))
    assert served_models(url) == ["m"]


@pytest.fixture(scope="module")
def url_of_three(model_directory, show):
    """The address of a vLLM whose batches may have three adapters."""
    with serving(model_directory, show, "--max-loras", "3") as address:
        yield address


def test_three_versions_sample_at_once_each_as_its_own_adapter(url_of_three, local, model_directory, tmp_path, show):
    """Requests that name their version, sent together, get its greedy tokens and log-probabilities."""
    engine, models = engine_for(url_of_three), {}
    engine.codec, engine.kept = local.codec, 3
    for version in range(4):
        models[version], export = adapter(model_directory, seed=version)
        weights = Weights(version=version, codec=local.codec, export=export, directory=tmp_path)
        asyncio.run(engine.use_weights(weights))
    assert len(served_models(url_of_three)) == 4, "the base model and the last three adapters"
    requests = [replace(chat(text, temperature=0.0), pin=Pin(step=9, version=v)) for text in WORDS for v in (1, 2, 3)]
    calls = ask(engine, *requests)
    expected = []
    for request in requests:
        prompt = [(tuple(local.codec.encode(request)), request)]
        expected += [ids for ids, _ in generate(models[request.pin.version], prompt, end_ids=local.codec.end_ids)]
    assert [call.completion_ids for call in calls] == expected
    assert [call.policy_version for call in calls] == [request.pin.version for request in requests]
    assert all(len({*expected[i : i + 3]}) > 1 for i in range(0, len(expected), 3))
    largest = max(gap_of(models[call.policy_version], call) for call in calls)
    show(f"three versions, {len(requests)} greedy completions: equal; largest |local - recorded| {largest:.2e}")
    assert largest < 1e-5
    for path in tmp_path.iterdir():
        asyncio.run(engine.drop_adapter(path))


def test_rollouts_two_steps_ahead(url_of_three, model_directory, other_modules, tmp_path, monkeypatch, show):
    """Each trajectory has the log-probabilities of the version of its batch, of three that are served."""
    use, most = OpenAICompatibleEngine.use_adapter, 0

    async def use_and_keep(self, version, path):
        nonlocal most
        shutil.copytree(path, tmp_path / "kept" / str(version), dirs_exist_ok=True)
        await use(self, version, path)
        most = max(most, sum("version-" in name for name in served_models(url_of_three)))

    monkeypatch.setattr(OpenAICompatibleEngine, "use_adapter", use_and_keep)
    recipe = write_recipe(tmp_path, other_modules, model_directory, policy_url=url_of_three)
    changes = [
        "training.asynchrony.staleness=2",
        "training.steps=6",
        "training.learning_rate=1e-2",
        "evaluation.at=none",
    ]
    words = [word for one in changes for word in ("--set", one)]
    assert main(["train", str(recipe), "--out", str(tmp_path / "run"), "--quiet", *words]) == 0
    run, largest, others = RunDirectory.open(tmp_path / "run"), 0.0, 0.0
    assert [one.policy_version for one in run.metrics.read()] == [0, 0, 0, 1, 2, 3]
    assert most >= 3
    for step, version in enumerate((0, 0, 0, 1, 2, 3), start=1):
        calls = [call for one in run.trajectories.read(step) for call in one.calls if call.role == "planner"]
        assert {call.policy_version for call in calls} == {version}

        def model_of(number):
            path = tmp_path / "kept" / str(number)
            return PeftModel.from_pretrained(load_model(str(model_directory), "float32", "cpu")[0], path).eval()

        own, next_one = model_of(version), model_of(version + 1)
        largest = max(largest, *(gap_of(own, call) for call in calls))
        others = max(others, *(gap_of(next_one, call) for call in calls))
    show(f"largest |its version's - recorded| {largest:.2e}, |the next version's - recorded| {others:.2e}")
    assert largest < 1e-5 < others


def test_adapters_that_cannot_be_loaded_say_why(url, local, model_directory, tmp_path):
    with pytest.raises(EngineError, match="No adapter found") as caught:
        asyncio.run(engine_for(url).use_adapter(1, tmp_path / "nothing"))
    assert "shared disk" in caught.value.fix
    _, export = adapter(model_directory, seed=1, rank=16)
    with pytest.raises(EngineError, match="rank 16 is greater") as caught:
        asyncio.run(
            engine_for(url).use_weights(Weights(version=1, codec=local.codec, export=export, directory=tmp_path))
        )
    assert "--max-lora-rank" in caught.value.fix
    assert served_models(url) == ["m"]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_wrong_model_name_is_final(url):
    with pytest.raises(EngineError, match="does not exist") as caught:
        ask(engine_for(url, model="unknown"), chat("hello"))
    assert not caught.value.retryable
    assert "/models" in caught.value.fix


@pytest.mark.parametrize("ids_in", [False, True])
def test_a_prompt_that_is_too_long_is_named(url, local, ids_in):
    engine = engine_for(url)
    engine.codec = local.codec if ids_in else None
    # The server counts words that are shorter than the engine's rough count allows for; token ids are counted here.
    with pytest.raises(PromptTooLongError, match="context of 2048" if ids_in else "maximum context length is 2048"):
        ask(engine, chat("hi " * 2500))


# --- a server of the run's own ----------------------------------------------------------------------------------------


def test_solve_starts_the_server_itself_and_ends_it(model_directory, tmp_path, monkeypatch, capsys):
    program = tmp_path / "vllm"  # that of the CPU build looks for a distribution called vllm
    words = f'{PYTHON} -m vllm.entrypoints.openai.api_server --model "$model" "$@"'
    program.write_text(f'#!/bin/sh\nshift; model="$1"; shift\nexec {words}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--model", str(model_directory), "--base-url", f"http://127.0.0.1:{port}/v1", "--serve-with", "vllm"]
    changes = ["agent.max_turns=1", "engines.model.serve=--dtype float32 --max-model-len 2048 --enforce-eager"]
    changes += [f"agent.{role}.sampling={{max_tokens=12}}" for role in ("planner", "executor", "verifier", "generator")]
    assert main(["solve", "Why ?", *options, "--json", *(word for one in changes for word in ("--set", one))]) == 0
    trajectory = Trajectory.model_validate_json(capsys.readouterr().out)
    assert (trajectory.status, trajectory.request_failures) == ("ok", 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def other_modules(model_directory, monkeypatch):
    """The address of executor, verifier and generator."""
    register("reward", "calculates", CalculatesConfig)
    with LLMServer(ServedModel(model_directory)) as server:
        yield server.base_url


def test_three_steps_of_training(url, model_directory, other_modules, tmp_path, show):
    recipe = write_recipe(tmp_path, other_modules, model_directory, policy_url=url)
    options = ["--quiet", "--set", "training.steps=3", "--set", "training.learning_rate=1e-2"]
    assert main(["train", str(recipe), "--out", str(tmp_path / "run"), *options]) == 0
    run = RunDirectory.open(tmp_path / "run")
    metrics = run.metrics.read()
    for one in metrics:
        show(
            f"step {one.step}: version {one.policy_version}, reward {one.reward_mean:.3f}, loss {one.loss:+.2e}, "
            f"gradient {one.grad_norm:.2f}, kl {one.kl:.2e}, logprob_gap {one.logprob_gap:.2e}"
        )
    assert [one.policy_version for one in metrics] == [0, 1, 2]
    assert [one.trajectories_error for one in metrics] == [0, 0, 0]
    assert max(one.logprob_gap for one in metrics) < 1e-5, "a version late, it would be the size of an update"
    assert min(one.grad_norm for one in metrics) > 0
    assert metrics[-1].kl > 1e-3
    assert all(torch.isfinite(torch.tensor([one.loss, one.kl])).all() for one in metrics)
    for step in (1, 2, 3):
        planned = [call for one in run.trajectories.read(step) for call in one.calls if call.role == "planner"]
        assert {call.policy_version for call in planned} == {step - 1}
    kept = sorted((run.root / "adapters").glob("version-*"))
    assert [path.name.split("-")[1] for path in kept] == ["2", "3"]
    before, after = ((path / "adapter_model.safetensors").read_bytes() for path in kept)
    assert before != after
    assert served_models(url) == ["m", adapter_name(kept[-1])]
    trained = PeftModel.from_pretrained(load_model(str(model_directory), "float32", "cpu")[0], kept[-1]).eval()
    served = engine_for(url)
    asyncio.run(served.use_adapter(3, kept[-1]))
    assert gap_of(trained, ask(served, chat(WORDS[1]))[0]) < 1e-5
    asyncio.run(served.drop_adapter(kept[-1]))


def test_two_steps_of_training_two_roles(url, model_directory, other_modules, tmp_path, show):
    recipe = write_recipe(tmp_path, other_modules, model_directory, policy_url=url)
    verifier = 'agent.verifier={type="prompted",engine="policy",sampling={temperature=0.8,max_tokens=4}}'
    roles = ['training.roles=["planner","verifier"]', "learner.lora.per_role=true", verifier, "evaluation.at=none"]
    words = [word for one in (*roles, "training.steps=2", "training.learning_rate=1e-2") for word in ("--set", one)]
    assert main(["train", str(recipe), "--out", str(tmp_path / "run"), "--quiet", *words]) == 0
    run = RunDirectory.open(tmp_path / "run")
    for one in run.metrics.read():
        show(f"step {one.step}: {one.rows} rows, gradient {one.grad_norm:.2f}, logprob_gap {one.logprob_gap:.2e}")
        assert one.trajectories_error == 0
        assert one.logprob_gap < 1e-5
    calls = [call for one in run.trajectories.read(2) for call in one.calls if call.role in ("planner", "verifier")]
    [path] = (run.root / "adapters").glob("version-1-*")
    asked = {(call.role, call.sent["model"]) for call in calls}
    assert asked == {(role, adapter_name(path / role)) for role in ("planner", "verifier")}
    [newest] = (run.root / "adapters").glob("version-2-*")
    asyncio.run(engine_for(url).drop_adapter(newest))


def test_other_base_weights_than_the_servers_are_refused(url, other_modules, tmp_path, capsys, show):
    recipe = write_recipe(tmp_path, other_modules, save_model(tmp_path / "other", seed=1), policy_url=url)
    assert main(["train", str(recipe), "--out", str(tmp_path / "run"), "--quiet"]) == 1
    err = capsys.readouterr().err
    show(err)
    assert "from the recorded ones" in err
    assert RunDirectory.open(tmp_path / "run").metrics.read() == []


# --- the weights that come with midstream -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    return save_shipped_weights(tmp_path_factory.mktemp("text") / "model")


@pytest.fixture(scope="module")
def text_url(text_model, show):
    with serving(text_model, show, "--enable-auto-tool-choice", "--tool-call-parser", "hermes") as address:
        yield address


def settings_of(text_model, text_url):
    engine = f'engines.policy={{type="openai_compatible",provider="vllm",base_url="{text_url}",model="m"'
    small = ["tasks.regions=1", 'evaluation.sets=[{name="test",split="test",per_family=2}]', "learner.threads=1"]
    weights = [f'engines.weights={{type="transformers_local",model="{text_model}"}}', 'training.weights="weights"']
    return small, [f"{engine},token_ids=true}}", *weights, "learner.lora={rank=4}"]


def run_text(command, out, *settings):
    words = [word for setting in settings for word in ("--set", setting)]
    assert main([command, "text-tiny", "--out", out, "--quiet", *words]) == 0
    return RunDirectory.open(Path(out))


def test_the_shipped_weights_answer_behind_it_as_they_do_here(text_model, text_url, tmp_path, monkeypatch, capsys):
    """The same tokens of every call of `eval`, and the same answer of `solve`."""
    monkeypatch.chdir(tmp_path)
    small, served = settings_of(text_model, text_url)
    greedy = [*small, "agent.policy.sampling.temperature=0", "evaluation.temperatures=[0.0]"]
    found = []
    for out, more in (("here", ()), ("served", served)):
        [part] = run_text("eval", out, *greedy, *more).trajectories.parts().values()
        found.append([(one.answer, [(c.prompt_ids, c.completion_ids) for c in one.calls]) for one in part])
    assert found[0] == found[1]
    assert len(found[0]) == 16
    capsys.readouterr()
    words = [word for setting in (*greedy, *served) for word in ("--set", setting)]
    assert main(["solve", "What is 45 plus 17?", "--recipe", "text-tiny", "--json", *words]) == 0
    assert Trajectory.model_validate_json(capsys.readouterr().out).answer == "62"


def test_a_step_trains_the_shipped_weights_behind_it(text_model, text_url, tmp_path, monkeypatch, show):
    monkeypatch.chdir(tmp_path)
    small, served = settings_of(text_model, text_url)
    few = ["training.steps=2", "training.tasks_per_step=4", "training.group_size=4", "training.minibatches=1"]
    run = run_text("train", "run", *small, *served, *few, "evaluation.sets=[]", "evaluation.validation.per_family=1")
    for one in run.metrics.read():
        show(f"step {one.step}: reward {one.reward_mean:.2f}, logprob_gap {one.logprob_gap:.2e}, {one.rows} rows")
        assert one.trajectories_error == 0
        assert one.logprob_gap < 1e-5
        assert one.policy_version == one.step - 1


# --- through the gateway ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids_in", [False, True])
def test_the_gateway_changes_no_token_and_passes_native_calls_on(text_model, text_url, tmp_path, show, ids_in):
    """An agent of another program calls tools: its calls hold what the server sampled, whichever way it was asked."""
    local = TransformersLocal(*load_model(str(text_model), "float32", "cpu"), name="weights")
    engine = engine_for(text_url)
    engine.codec = local.codec if ids_in else None
    sampled = []

    class Listening:
        name, token_exact = "policy", True

        async def sample(self, request):
            sampled.append(await engine.sample(request))
            return sampled[-1]

        async def close(self):
            await engine.close()

    source = AtlasConfig(regions=1).build(None)
    tasks = source.fixed("test", seed=3, families=["lookup"], count=4)
    tool = LocalSearch.from_documents(Document(id=name, text=text) for name, text in source.documents())

    async def run():
        gateway = Gateway(ServeConfig())
        settings = SessionSettings(sampling=Sampling(temperature=0.8, max_tokens=110))
        agent = FunctionSessionAgent(OwnFunction("agent", "loop:solve", solve, GIVEN, "an agent"), settings, gateway)
        context = RunContext(engines={"policy": Listening()}, tools=[tool], seed=5)
        try:
            return [await agent.run(task.without_answer(), context) for task in tasks]
        finally:
            await gateway.close()
            await tool.close()
            await engine.close()

    trajectories = asyncio.run(run())
    calls = [call for trajectory in trajectories for call in trajectory.calls]
    assert [(one.prompt_ids, one.completion_ids, one.logprobs) for one in calls] == [
        (one.prompt_ids, one.completion_ids, one.logprobs) for one in sampled
    ]
    assert max(gap_of(local.model, call) for call in calls) < 1e-4
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert {turn.action.tool for turn in turns} >= {"local_search"}
    assert all(turn.observation for turn in turns[:1])
    show(f"{len(calls)} calls, {len(turns)} of tools; ids {'in and ' if ids_in else ''}out: verbatim")
