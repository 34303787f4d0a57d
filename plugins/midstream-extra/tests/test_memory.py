"""Memory by formula, against models that PyTorch made: what an update takes is bounded and nearly so."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from midstream.prefix_tree.stages import stages_of
from midstream.prefix_tree.tree import tree_of
from midstream.recipe.memory import GIB, SHAPES, SLACK, WIDTHS, promised_bytes, shape_of, update_bytes
from midstream.recipe.schema import load_recipe
from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.offload import on_host
from midstream.training.protocols import Row
from midstream.training.settings import LearnerConfig, LoraConfig
from midstream_extra.memory import (
    Part,
    engine_parts,
    kept_bytes,
    offloaded,
    peak,
    sampling,
    token_bytes,
    update,
    weights,
)
from midstream_extra.ways import job_of
from support.live_bytes import DeviceBytes, LiveBytes
from support.tries import batches

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
LORA = LoraConfig(rank=4, alpha=8)
BYTES = {"float32": 4, "bfloat16": 2}
PROMPT, COMPLETION = 400, 48


def save_model(directory, vocabulary=1000, **settings):
    """A random Qwen2 of 2 million weights; returns its directory."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=128, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
        intermediate_size=512, tie_word_embeddings=True, **settings,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return directory


def make_learner(directory, dtype, config):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    return LocalLearner(model, config)


# -- an update -------------------------------------------------------------------------------------------------------


def row_of(prompt, completion):
    return Row(
        prompt_ids=tuple(prompt), completion_ids=tuple(completion), old_logprobs=(-6.0,) * len(completion),
        advantage=1.0, weight=1.0, kl_weight=1.0, temperature=0.5,
    )  # fmt: skip


def agent_rows(static=150):
    """Two tasks, three rollouts each, of three turns on a growing memory."""
    draw = random.Random(0)

    def ids(count):
        return draw.choices(range(1000), k=count)

    rows, instructions, tail = [], ids(static), ids(2)
    for _ in range(2):
        query = ids(10)
        for _ in range(3):
            memory: list[int] = []
            for _ in range(3):
                rows.append(row_of([*instructions, *query, *memory, *tail], ids(20)))
                memory += ids(15)
    return rows


def kept_by(learner):
    """Bytes that the forward pass of one row keeps for its backward pass, logits not counted, weights neither."""
    own = {parameter.untyped_storage().data_ptr() for parameter in learner.model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor):
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    row = row_of(range(1, PROMPT + 1), range(5, COMPLETION + 5))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.forward_backward([row], PolicyLoss(kl_coefficient=0.0))
    storages = [tensor.untyped_storage() for pointer, tensor in kept.items() if pointer not in own]
    return sum(storage.nbytes() for storage in storages) - COMPLETION * learner.model.config.vocab_size * 4


def taken_by(learner, rows):
    """Bytes that an update takes at its peak, besides what remains afterwards."""
    loss = PolicyLoss(kl_coefficient=0.1)
    learner.forward_backward(rows, loss)  # leaves the gradients, which are added to from here on
    with LiveBytes() as live:
        learner.forward_backward(rows, loss)
    return live.most


@pytest.fixture
def small_head(monkeypatch):
    """So few logits at a time that layers take most of the memory of a small model."""
    monkeypatch.setattr("midstream.training.passes.LOGITS", 64_000)
    monkeypatch.setattr("midstream_extra.memory.LOGITS", 64_000)


def estimated(directory, dtype, config):
    """The estimate of an update, besides what remains afterwards."""
    shape = shape_of(str(directory))
    assert shape is not None
    parts = update(shape, dtype, config)
    assert parts is not None
    return sum(part.bytes for part in parts if part.moment == "update")


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", ["rows", "cascade"])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
def test_what_the_backward_pass_keeps_is_the_formula(dtype, lora, attention, tmp_path):
    directory = save_model(tmp_path / "model")
    shape = shape_of(str(directory))
    assert shape is not None
    tokens = PROMPT + COMPLETION - 1  # the last one predicts nothing
    kept = kept_by(make_learner(directory, dtype, LearnerConfig(lora=lora, attention=attention)))
    expected = shape.layers * kept_bytes(shape, BYTES[dtype], lora=lora is not None)
    assert kept / tokens == pytest.approx(expected, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BYTES)
def test_recomputed_activations_leave_the_layers_inputs(dtype, tmp_path):
    directory = save_model(tmp_path / "model")
    shape = shape_of(str(directory))
    assert shape is not None
    config = LearnerConfig(lora=LORA, recompute_activations=True)
    inputs = shape.layers * shape.hidden * BYTES[dtype]
    kept = kept_by(make_learner(directory, dtype, config)) / (PROMPT + COMPLETION - 1)
    one_layer = kept_bytes(shape, BYTES[dtype], lora=True)
    assert inputs <= kept <= token_bytes(shape, BYTES[dtype], config) == inputs + 2 * one_layer
    assert one_layer > inputs / shape.layers


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
def test_padded_rows_take_at_most_the_estimate(lora, recompute, small_head, tmp_path):
    directory = save_model(tmp_path / "model")
    config = LearnerConfig(lora=lora, recompute_activations=recompute, attention="rows", chunk_tokens=640)
    bound = estimated(directory, "float32", config)
    taken = taken_by(make_learner(directory, "float32", config), agent_rows()[:6])
    assert taken <= bound <= 1.5 * taken


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
def test_a_whole_trie_takes_at_most_the_estimate(lora, recompute, small_head, tmp_path):
    """It forks soon, so that it goes whole, and takes nearly twice its budget."""
    directory = save_model(tmp_path / "model")
    config = LearnerConfig(lora=lora, recompute_activations=recompute, attention="cascade", chunk_tokens=350)
    bound = estimated(directory, "float32", config)
    taken = taken_by(make_learner(directory, "float32", config), agent_rows(static=10))
    assert taken <= bound <= 3 * taken


@pytest.mark.slow
@pytest.mark.parametrize("chunk_tokens", [150, 300, 700], ids=["three trunks", "two trunks", "one trunk"])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_stages_on_trunks_take_at_most_the_estimate(recompute, chunk_tokens, small_head, tmp_path):
    directory = save_model(tmp_path / "model")
    config = LearnerConfig(recompute_activations=recompute, attention="cascade", chunk_tokens=chunk_tokens)
    bound = estimated(directory, "float32", config)
    assert taken_by(make_learner(directory, "float32", config), agent_rows()) <= bound


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "chunk_tokens"), [("rows", 640), ("cascade", 350)])
def test_half_precision_takes_at_most_the_estimate(attention, chunk_tokens, small_head, tmp_path):
    directory = save_model(tmp_path / "model")
    config = LearnerConfig(lora=LORA, attention=attention, chunk_tokens=chunk_tokens)
    bound = estimated(directory, "bfloat16", config)
    taken = taken_by(make_learner(directory, "bfloat16", config), agent_rows(static=10))
    assert taken <= bound <= 3 * taken


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
def test_a_large_vocabulary_is_made_a_piece_at_a_time(lora, monkeypatch, tmp_path):
    monkeypatch.setattr("midstream.training.passes.LOGITS", 2**20)
    monkeypatch.setattr("midstream_extra.memory.LOGITS", 2**20)
    directory = save_model(tmp_path / "model", vocabulary=30_000)
    config = LearnerConfig(lora=lora, attention="rows", chunk_tokens=110, recompute_activations=True)
    rows = [row_of(range(50), range(i, 50 + i)) for i in range(4)]
    bound, taken = estimated(directory, "float32", config), taken_by(make_learner(directory, "float32", config), rows)
    assert bound < 100 * 30_000 * 12, "all heads at once would take more"
    assert taken <= bound <= 2 * taken


def most_held(stage):
    """Tokens of a stage and the most that stages on it hold."""
    return stage.end - stage.start + max(map(most_held, stage.below), default=0)


@given(batches(longest=24), st.integers(1, 100))
def test_stages_hold_at_most_the_estimated_tokens(sequences, chunk_tokens):
    tree = tree_of(sequences)
    over = max(0, max(map(len, sequences)) - SLACK * chunk_tokens * 3 // 4)  # a longer row goes alone
    assert max(map(most_held, stages_of(tree, chunk_tokens))) <= SLACK * chunk_tokens + over


@pytest.mark.matrix(1)
@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "lora"])
def test_gradient_and_moments_take_the_estimate(lora, tmp_path):
    """Every tensor that one step leaves behind, besides the model's own weights."""
    directory, config = save_model(tmp_path / "model"), LearnerConfig(lora=lora)
    shape = shape_of(str(directory))
    assert shape is not None
    learner = make_learner(directory, "bfloat16", config)
    for parameter in learner.parameters:
        parameter.grad = torch.ones_like(parameter, dtype=torch.float32)
    learner.optimizer.step()
    tensors = [parameter.grad for parameter in learner.parameters if parameter.grad is not None]
    tensors += [moment for state in learner.optimizer.state.values() for moment in state.values() if moment.dim()]
    tensors += [] if learner.reference is None else list(learner.reference.parameters())
    tensors += learner.parameters if lora else []
    parts = update(shape, "bfloat16", config)
    assert parts is not None
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == sum(
        part.bytes for part in parts if part.moment == "always"
    )


# -- offload -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_buckets(monkeypatch):
    """Buckets that are as small to the model below as the real ones are to a real model."""
    monkeypatch.setattr("midstream.training.offload.BUCKET", 20_000)
    monkeypatch.setattr("midstream_extra.memory.BUCKET", 20_000)


def two_steps(directory, dtype, config, monkeypatch):
    """Two whole steps of training: the bytes on the device at the peak, and in host memory after it.

    The process has one memory: on the device is what `training/offload.py` did not ask for as the host's.
    """
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    held = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    with DeviceBytes() as live:
        monkeypatch.setattr("midstream.training.offload.on_host", live.hosting(on_host))
        learner = LocalLearner(model, config)
        for _ in range(2):
            learner.forward_backward(agent_rows(static=10), PolicyLoss(kl_coefficient=0.1))
            learner.optimizer_step(1e-3)
        return held + live.most, live.host


def all_parts(directory, dtype, config):
    shape = shape_of(str(directory))
    assert shape is not None
    added = update(shape, dtype, config)
    assert added is not None
    return [weights(shape, dtype), *added]


@pytest.mark.slow
@pytest.mark.matrix(2)
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize(
    ("dtype", "lora"),
    [("float32", None), ("bfloat16", None), ("float32", LORA)],
    ids=["float32", "masters", "lora"],
)
def test_device_and_host_take_what_is_estimated(dtype, lora, offload, small_head, small_buckets, monkeypatch, tmp_path):
    """The host's bytes exactly; of the device a bound, which is near."""
    directory = save_model(tmp_path / "model")
    config = LearnerConfig(offload=offload, lora=lora, recompute_activations=True, attention="rows", chunk_tokens=120)
    parts = all_parts(directory, dtype, config)
    device, host = two_steps(directory, dtype, config, monkeypatch)
    assert host == offloaded(parts)
    assert device <= peak(parts) <= 1.5 * device


def test_offload_takes_off_the_device_what_it_adds_to_the_host(tmp_path):
    """By the formulas, in bytes that are there always."""
    directory, found = save_model(tmp_path / "model"), {}
    for offload in (False, True):
        parts = all_parts(directory, "bfloat16", LearnerConfig(offload=offload))
        found[offload] = (
            sum(part.bytes for part in parts if part.moment == "always" and not part.host), offloaded(parts)
        )  # fmt: skip
    assert len({sum(both) for both in found.values()}) == 1
    assert found[False][1] == 0


def test_an_update_of_unknown_layers_is_not_estimated():
    config = LearnerConfig(lora=LoraConfig(target="q_proj"))
    assert update(SHAPES["Qwen2.5-0.5B"], "float32", config) is None


# -- the whole -------------------------------------------------------------------------------------------------------


def test_one_case_calculated_by_hand():
    """Qwen2.5-1.5B-Instruct in bfloat16, a LoRA adapter of rank 16, 4,096 tokens recomputed."""
    config = LearnerConfig(lora=LoraConfig(rank=16), recompute_activations=True, chunk_tokens=4096)
    shape = SHAPES["Qwen2.5-1.5B"]
    parts = update(shape, "bfloat16", config)
    assert parts is not None
    found = {part.name: part.bytes for part in [weights(shape, "bfloat16"), *parts]}
    rank_sums = 2 * (1536 + 1536) + 2 * (1536 + 256) + 3 * (1536 + 8960)  # q and o; k and v; gate, up and down
    layer = 2 * (2 * 1536 + 2 * 256)  # attention: query, result, key, value
    layer += 2 * 1536 * 4 + 6 * 1536 * 4 + 8960 * 4  # two norms; seven adapters' inputs, all in float32
    layer += 3 * 8960 * 2  # gate, its activation, up
    assert found == {
        "weights": 2 * 1_543_714_304,
        "LoRA adapter": 28 * 16 * rank_sums * 16,
        "reference policy": 0,
        "activations": 2 * 4096 * (28 * 1536 * 2 + 2 * layer),
        # Trunks of three quarters, kept with their gradient, and once as their passes left them.
        "shared prefixes": 3 * 6144 * 28 * 2 * 256 * 2,
        "logits": 2**25 * 12,
    }
    assert sampling(shape, "bfloat16", 2, 24).bytes == 2 * (1024 * 28 * 2 * 2 * 128 * 2 + 151_936 * 32)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("attention", ["rows", "cascade"])
@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("dtype", BYTES)
def test_the_line_of_a_dry_run_bounds_these_parts(dtype, lora, attention, recompute):
    config = LearnerConfig(lora=lora, attention=attention, recompute_activations=recompute, chunk_tokens=4096)
    for shape in SHAPES.values():
        parts = {part.name: part.bytes for part in update(shape, dtype, config) or []}
        exact = sum(parts.get(name, 0) for name in ("activations", "shared prefixes", "logits", "the head's gradient"))
        assert exact <= update_bytes(shape, dtype, config) <= 3 * exact


def test_moments_follow_one_another():
    def part(moment, count):
        return Part(name="x", bytes=count, formula="", moment=moment)

    parts = [part("always", 10), part("update", 5), part("update", 4), part("step", 8), part("sampling", 7)]
    assert peak(parts) == 19
    assert peak(parts[:1]) == 10


# -- what recipes promise ----------------------------------------------------------------------------------------------

RECIPES = Path(__file__).parents[2] / "midstream-benchmarks" / "src" / "midstream_benchmarks" / "recipes"


def parts_of(name, *overrides):
    """A recipe, the parts of its trained model, and the bytes of a further token of a row that goes alone."""
    recipe = load_recipe(name, overrides)
    job = job_of(recipe)
    parts = engine_parts(job.shape, job.dtype, job.learner, sampled=job.sampled, on_card=True)
    width = WIDTHS[job.dtype]
    assert parts is not None
    return recipe, parts, token_bytes(job.shape, width, job.learner) + 3 * job.shape.kv_bytes(width)


@pytest.mark.parametrize("name", ["agentflow-1.5b-24gb", "agentflow-7b-80gb"])
def test_the_longest_row_fits_with_the_server_on_the_card(name):
    text = (RECIPES / f"{name}.toml").read_text()
    share = float(re.findall(r"--gpu-memory-utilization ([\d.]+)", text)[0])
    longest = int(re.findall(r"--max-model-len (\d+)", text)[0])
    recipe, parts, token = parts_of(name)
    row = token * (longest - SLACK * recipe.learner.chunk_tokens * 3 // 4)
    assert peak(parts) + row <= (1 - share) * (promised_bytes(name) or 0)


def test_all_weights_fit_one_card_as_the_recipe_says():
    """Both commands of its first lines: their bytes, and the longest row that still fits."""
    text = (RECIPES / "agentflow-7b.toml").read_text().replace("\\\n#", "")
    commands = re.findall(
        r"^#   midstream train agentflow-7b (--set.*?) # ([\d.]+) GB of the card, ([\d.]+) GB", text, re.M
    )
    [rows] = re.findall(r"room for one of ([\d,]+), the second for one of ([\d,]+)", text)
    assert len(commands) == 2
    for (options, card, host), longest in zip(commands, rows, strict=True):
        recipe, parts, token = parts_of("agentflow-7b", *options.replace("--set", "").split())
        assert (f"{peak(parts) / GIB:.1f}", f"{offloaded(parts) / GIB:.1f}") == (card, host)
        row = token * (int(longest.replace(",", "")) - SLACK * recipe.learner.chunk_tokens * 3 // 4)
        assert 70 * GIB < peak(parts) + row < 80 * GIB
