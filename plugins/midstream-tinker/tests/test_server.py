"""A real Tinker server trains: SkyRL's, with its JAX backend on CPU and a random Qwen3 of two layers.

`make test-tinker` makes its environment, and runs it there.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import PeftModel

from midstream.core.engine import Request
from midstream.core.errors import CheckpointError
from midstream.core.trajectory import Sampling
from midstream.engines.local.pretrained import load_model
from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.settings import LearnerConfig, LoraConfig
from midstream_tinker.engine import TinkerEngine
from midstream_tinker.learner import TinkerLearner
from midstream_tinker.settings import TinkerConfig, TinkerLearnerConfig
from support.exact import ragged_rows
from support.hf_models import save_chat_model

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("skyrl") is None, reason="needs SkyRL: make test-tinker"),
    # peft asks transformers by a name that is being retired; SkyRL and its libraries warn of their own.
    pytest.mark.filterwarnings("ignore"),
]
START_TIMEOUT_S, RATE = 180.0, 5e-3
LORA = LoraConfig(rank=4, alpha=32)
PLAIN = PolicyLoss(clip_low=0.2, clip_high=0.3, kl_coefficient=0.0)
WITH_KL = PolicyLoss(clip_low=0.2, clip_high=0.3, dual_clip=1.5, kl_coefficient=0.3)
UV = '#!/bin/sh\nwhile [ "$1" != -m ]; do shift; done\n"{python}" "$@"\n'


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("skyrl") / "model", "qwen3")


@contextmanager
def serving(directory, port=0):
    """A server of the model, whose database and states lie next to it; its address.

    SkyRL starts its engine as `uv run ... -m skyrl.tinker.engine`. A script in uv's place runs this Python instead.
    """
    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    uv = directory.parent / "uv"
    uv.write_text(UV.format(python=sys.executable))
    uv.chmod(0o755)
    config = '{"max_lora_adapters": 8, "max_lora_rank": 8, "train_micro_batch_size": 1}'
    command = [
        str(uv), "run", "-m", "skyrl.tinker.api", "--base-model", str(directory), "--backend", "jax",
        "--backend-config", config, "--checkpoints-base", str(directory.parent / "states"),
        "--database-url", f"sqlite:///{directory.parent / 'tinker.db'}", "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    path = f"{directory.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    # What the first server compiled, the second finds.
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(directory.parent / "jax")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    log = directory.parent / "skyrl.log"
    with log.open("a") as file:
        server = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        wait_until_healthy(server, f"http://127.0.0.1:{port}/api/v1/healthz", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def wait_until_healthy(server, address, log):
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    pytest.fail(f"no answer in {START_TIMEOUT_S:g} s: {log.read_text()[-3000:]}")


def learner_at(url, directory):
    engine = TinkerEngine(TinkerConfig(model=str(directory), base_url=url), "policy")
    # SkyRL's JAX backend does not clip gradients.
    return TinkerLearner(engine, TinkerLearnerConfig(type="tinker", lora=LORA, max_grad_norm=1e9, weight_decay=0.01))


def local_from(adapter, directory):
    """A learner in this process that starts from an adapter that the server exported."""
    base, _ = load_model(str(directory), "float32", "cpu")
    model: Any = PeftModel.from_pretrained(base, str(adapter), is_trainable=True).eval()
    # SkyRL computes query, key and value at once, and gate and up: their adapters have one A in common.
    layers: Any = model.base_model.model.model.layers
    for layer in layers:
        own, mlp = layer.self_attn, layer.mlp
        for first, other in ((own.q_proj, own.k_proj), (own.q_proj, own.v_proj), (mlp.gate_proj, mlp.up_proj)):
            assert torch.equal(first.lora_A.default.weight, other.lora_A.default.weight)
            other.lora_A.default.weight = first.lora_A.default.weight
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LocalLearner(model, LearnerConfig(lora=LORA, max_grad_norm=1e9, weight_decay=0.01))


def rows_of(seed, local):
    short = [row for row in ragged_rows(seed) if row.length <= 32]  # of one shape, for which JAX compiles once
    rows = [replace(row, temperature=1.0) for row in short][seed::3]
    found = local.logprobs(rows)
    # A ratio of exactly one lies on no edge of the clip.
    old = [tuple(0.9 * value for value in values) for values in found]
    return [replace(row, old_logprobs=values) for row, values in zip(rows, old, strict=True)]


def exported(learner, directory):
    """The adapter's weights as the server exports them."""
    learner.export_weights(directory)
    from safetensors.torch import load_file

    return load_file(directory / "adapter_model.safetensors")


def own_weights(local):
    found = local.model.named_parameters(remove_duplicate=False)
    return {name.replace(".default.", "."): p.detach() for name, p in found if p.requires_grad}


def largest_difference(learner, local, directory):
    there, here = exported(learner, directory), own_weights(local)
    assert there.keys() == here.keys()
    return max((there[name] - here[name]).abs().max().item() for name in here)


def test_three_steps_equal_the_local_learners_and_resume_from_the_named_state(directory, tmp_path):
    with serving(directory) as url:
        learner = learner_at(url, directory)
        learner.export_weights(tmp_path / "first")
        local = local_from(tmp_path / "first", directory)
        batches = [rows_of(seed, local) for seed in range(3)]
        for number, (rows, loss) in enumerate(zip(batches, (PLAIN, WITH_KL, WITH_KL), strict=True)):
            there, here = learner.forward_backward(rows, loss), local.forward_backward(rows, loss)
            assert there.loss == pytest.approx(here.loss, abs=1e-5)
            assert there.kl_sum == pytest.approx(here.kl_sum, abs=1e-4)
            norms = learner.optimizer_step(RATE), local.optimizer_step(RATE)
            assert norms[0] == pytest.approx(norms[1], rel=1e-3)
            assert largest_difference(learner, local, tmp_path / f"after-{number}") < 1e-5
            if number == 1:
                learner.save(tmp_path)
        assert learner.server.division == "mean"
        learner.publish()
        request = Request(role="planner", prompt_ids=(10, 11, 12), seed=3, sampling=Sampling(max_tokens=6))
        call = asyncio.run(learner.engine.sample(request))
        row = replace(batches[0][0], prompt_ids=call.prompt_ids, completion_ids=call.completion_ids, sampled=())
        assert call.logprobs == pytest.approx(local.logprobs([row])[0], abs=1e-4)
    with serving(directory) as url:  # another process, after a kill; the third step is lost
        again = learner_at(url, directory)
        again.load(tmp_path)
        again.forward_backward(batches[2], WITH_KL)
        again.optimizer_step(RATE)
        assert largest_difference(again, local, tmp_path / "resumed") < 1e-5
        (tmp_path / "tinker.json").write_text((tmp_path / "tinker.json").read_text().replace("midstream-", "gone-"))
        with pytest.raises(CheckpointError) as error:
            learner_at(url, directory).load(tmp_path)
        assert error.value.code == "state-gone"
