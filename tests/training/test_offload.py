"""What is in host memory changes no result: the same weights to the bit, across settings and checkpoints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from midstream.core.engine import Request
from midstream.core.trajectory import Sampling
from midstream.engines.local.decoding import generate
from midstream.engines.local.prefill import Prefill
from midstream.training import offload as offload_module
from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.offload import StreamedAdamW, streamed_copy
from midstream.training.passes import head
from midstream.training.protocols import Row
from midstream.training.settings import LearnerConfig, LoraConfig
from midstream_worlds.tiny_model import attach_redraw
from support.errors import raises
from support.hf_models import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
LOSS = PolicyLoss(kl_coefficient=0.3)
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """Smaller than a matrix of the model, and no multiple of anything."""
    monkeypatch.setattr(offload_module, "BUCKET", 1000)


def make_model(dtype=torch.float32, layers=2, tied=True, device="cpu"):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=64, initializer_range=0.2, tie_word_embeddings=tied,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval().to(device=device, dtype=dtype)


def make_rows(count=6):
    draw = torch.Generator().manual_seed(0)
    prompt = tuple(torch.randint(2, 64, (7,), generator=draw).tolist())
    rows = []
    for i in range(count):
        completion = tuple(torch.randint(2, 64, (2 + i % 4,), generator=draw).tolist())
        rows.append(
            Row(
                prompt_ids=prompt + completion[:1], completion_ids=completion, old_logprobs=(-4.0,) * len(completion),
                advantage=(-1.0) ** i, weight=0.3, kl_weight=0.2,
            )
        )  # fmt: skip
    return rows


def run(learner, steps=3, rate=1e-2):
    """Steps' losses and norms; twice the rows of a step, so that gradients add up."""
    results = []
    for _ in range(steps):
        stats = [learner.forward_backward(rows, LOSS) for rows in (make_rows(), make_rows(3))]
        results.append((stats, learner.optimizer_step(rate)))
    return results


def state_of(learner):
    """Everything a learner has learned, as flat tensors by name."""
    tensors = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    for place, state in learner.optimizer.state_dict()["state"].items():
        tensors |= {f"{place}.{name}": tensor.clone() for name, tensor in state.items()}
    return tensors


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert not [name for name in one if not torch.equal(one[name].cpu(), other[name].cpu())]


# -- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.matrix(1)
@pytest.mark.parametrize("attention", ["rows", "cascade"])
@pytest.mark.parametrize("masters", [False, True], ids=["float32", "masters"])
def test_offload_changes_nothing_to_the_bit(masters, attention):
    """Losses, norms, weights, moments, masters and both policies' log-probabilities after three steps."""
    dtype, found = torch.bfloat16 if masters else torch.float32, []
    for setting in (False, True):
        config = LearnerConfig(offload=setting, weight_decay=0.1, attention=attention, recompute_activations=True)
        learner = LocalLearner(make_model(dtype), config)
        start = learner.model.lm_head.weight.detach().clone()
        results = run(learner)
        policies = [learner.logprobs(make_rows(), reference=reference) for reference in (False, True)]
        found.append((results, policies, state_of(learner)))
        assert policies[0] != policies[1]
        assert not torch.equal(start, learner.model.lm_head.weight)
    assert found[0][:2] == found[1][:2]
    assert_same(found[0][2], found[1][2])


@pytest.mark.matrix(2)
@pytest.mark.parametrize("size", [64, 100, 1000, 10_000])
@pytest.mark.parametrize("host", [False, True])
def test_buckets_of_any_size_are_adamw(size, host, monkeypatch):
    """Parameters that share a bucket, fill several, and have no gradient; the engine sees that they changed."""
    monkeypatch.setattr(offload_module, "BUCKET", size)
    draw = torch.Generator().manual_seed(0)
    shapes = [(33, 17), (7,), (129, 65), (3000,), (4,)]
    ours, theirs = ([torch.nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    settings: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1}
    streamed = StreamedAdamW(ours, host=host, masters=False, **settings)
    plain = torch.optim.AdamW(theirs, **settings)
    for _ in range(5):
        for one, other in zip(ours[:-1], theirs[:-1], strict=True):
            one.grad = torch.randn(one.shape, generator=draw)
            other.grad = one.grad.clone()
        streamed.step()
        plain.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert [parameter._version > 0 for parameter in ours] == [True] * 4 + [False]
    assert ours[-1] not in streamed.state
    assert all(state["step"] == 5 for state in streamed.state.values())


@pytest.mark.matrix(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pair", [(False, True), (True, False), (True, True)], ids=str)
def test_a_checkpoint_resumes_with_another_setting_to_the_bit(pair, dtype, tmp_path):
    first, second = (LearnerConfig(offload=offload) for offload in pair)
    whole = LocalLearner(make_model(dtype), first)
    run(whole, 2)
    whole.rebase()
    run(whole, 2)
    whole.save(tmp_path)
    resumed = LocalLearner(make_model(dtype), second)
    run(resumed, 1)  # whatever it did before does not count
    resumed.load(tmp_path)
    assert run(resumed) == run(whole)
    assert_same(state_of(resumed), state_of(whole))
    assert resumed.logprobs(make_rows(), reference=True) == whole.logprobs(make_rows(), reference=True)
    maps = Path("/proc/self/maps")  # Linux
    assert not maps.exists() or str(tmp_path) not in maps.read_text(), "nothing is left that needs the file"


@pytest.mark.slow
def test_a_checkpoint_before_the_first_step_has_no_state_and_loads(tmp_path):
    LocalLearner(make_model(), LearnerConfig()).save(tmp_path)
    resumed = LocalLearner(make_model(), LearnerConfig(offload=True))
    run(resumed, 1)
    resumed.load(tmp_path)
    assert run(resumed) == run(LocalLearner(make_model(), LearnerConfig()))


@pytest.mark.parametrize("pair", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str)
def test_a_checkpoint_with_masters_and_one_without_are_not_each_others(pair, tmp_path):
    first, second = (LocalLearner(make_model(dtype), LearnerConfig()) for dtype in pair)
    run(first, 1)
    first.save(tmp_path)
    with raises("checkpoint-unfit", "master"):
        second.load(tmp_path)


def test_rebase_makes_the_present_policy_the_streamed_reference():
    learner = LocalLearner(make_model(), LearnerConfig(offload=True))
    run(learner, 1)
    rows = make_rows()
    assert learner.logprobs(rows, reference=True) != learner.logprobs(rows)
    learner.rebase()
    assert learner.logprobs(rows, reference=True) == learner.logprobs(rows)
    assert not learner.optimizer.state


@pytest.mark.slow
def test_with_lora_the_reference_is_the_model_and_only_the_optimizer_moves():
    found = []
    for offload in (False, True):
        learner = LocalLearner(make_model(), LearnerConfig(lora=LoraConfig(rank=2), offload=offload))
        assert learner.reference is None
        assert isinstance(learner.optimizer, StreamedAdamW) is offload
        found.append((run(learner), state_of(learner)))
    for results, state in found[1:]:
        assert results == found[0][0]
        assert_same(state, found[0][1])


# -- the reference policy --------------------------------------------------------------------------------------------


@pytest.mark.matrix(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_streamed_copy_computes_what_the_model_computes(family):
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    copied, ids = streamed_copy(model), torch.arange(1, 9)[None]
    with torch.no_grad():
        expected = model(ids).logits
        for parameter in model.parameters():
            parameter.zero_()  # the copy has its own
        assert torch.equal(copied(ids).logits, expected)
    assert isinstance(copied, type(model))
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert len(list(copied.parameters())) == len(list(model.parameters())), "tied weights are one"


def test_one_layer_at_a_time_is_away_from_its_place_and_all_come_back(monkeypatch):
    model = make_model(layers=3, tied=False)
    copied = streamed_copy(model)
    home = dict(copied.named_parameters())
    sizes = Counter()

    def watch(module, inputs, output=None):
        away = [each for name, each in copied.named_parameters() if each is not home[name]]
        sizes[sum(each.numel() for each in away)] += 1

    for module in copied.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(watch)
    with torch.inference_mode():
        copied(torch.arange(1, 9)[None])
    layer = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    assert sizes == {layer: 3 * 7, model.lm_head.weight.numel(): 1}
    monkeypatch.setattr(copied.model.layers[1].mlp, "forward", lambda hidden: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        copied(torch.arange(1, 9)[None])
    assert all(parameter is home[name] for name, parameter in copied.named_parameters())


def test_all_weights_come_to_the_models_device_and_return_to_the_host(monkeypatch):
    """On the device "meta", which refuses tensors of another one: a layer whose weights stayed would raise."""
    model, device = make_model(), torch.device("meta")
    model.model.rotary_emb.to(device)  # what are no weights stays on the device
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "device", device)
        copied = streamed_copy(model)
    assert copied.device == copied.model.device == device
    with torch.no_grad():  # part by part: transformers' mask looks at numbers, of which "meta" has none
        places = torch.zeros(2, 5, dtype=torch.long, device=device)
        hidden = copied.model.embed_tokens(places)
        angles = copied.model.rotary_emb(hidden, places)
        for layer in copied.model.layers:
            hidden = layer(hidden, attention_mask=None, position_embeddings=angles)
        assert head(copied, copied.model.norm(hidden)).device == device
    assert {parameter.device.type for parameter in copied.parameters()} == {"cpu"}


def test_the_streamed_reference_samples_and_notices_a_rebase():
    """An engine keeps prefixes of the weights that computed them; new ones must show."""
    request = Request(role="planner", prompt="", seed=3, sampling=Sampling(max_tokens=8))
    asked, found = [((5, 6, 7, 8, 9), request)], []
    for offload in (False, True):
        learner, prefill = LocalLearner(make_model(), LearnerConfig(offload=offload)), Prefill()
        for _ in range(2):
            with learner.reference_policy() as model:
                found.append(generate(model, asked, end_ids=(), prefill=prefill))
            run(learner, 2, rate=0.1)
            learner.rebase()
    assert found[:2] == found[2:]
    assert found[0] != found[1]


def test_what_a_model_does_before_a_step_is_alike_in_the_streamed_reference(tiny_model):
    found = []
    for offload in (False, True):
        model, _ = tiny_model()
        attach_redraw(model)
        learner = LocalLearner(model, LearnerConfig(offload=offload))
        learner.before_step(7)
        assert learner.reference is not None
        found.append((learner.model.state_dict(), learner.reference.state_dict()))
    assert_same(found[0][1], found[1][1])
    assert_same(*found[1])


# -- masters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [False, True])
def test_steps_that_bfloat16_loses_add_up_in_masters(host):
    """A hundred steps of 1e-4 from 1, where neighbors in bfloat16 are 0.004 apart below."""
    ours, theirs = (torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16)) for _ in range(2))
    single = torch.nn.Parameter(torch.ones(8))
    settings: dict[str, Any] = {"lr": 1e-4, "weight_decay": 0.0}
    masters = StreamedAdamW([ours], host=host, masters=True, **settings)
    others = [torch.optim.AdamW([parameter], **settings) for parameter in (theirs, single)]
    for _ in range(100):
        ours.grad, single.grad = torch.ones(8), torch.ones(8)
        theirs.grad = torch.ones(8, dtype=torch.bfloat16)
        for optimizer in (masters, *others):
            optimizer.step()
    assert torch.equal(theirs, torch.ones_like(theirs))
    assert torch.equal(masters.state[ours]["master"], single)
    assert torch.equal(ours, single.bfloat16())
    assert single[0].item() == pytest.approx(0.99, abs=1e-5)
    assert ours[0] < 1


def test_gradients_of_masters_add_up_in_single_precision():
    """In bfloat16, 1 and 2**-9 are 1."""
    learner = LocalLearner(make_model(torch.bfloat16), LearnerConfig())
    parameter = learner.parameters[0]
    for _ in range(2):
        parameter.sum().backward()
        (parameter.sum() * 2**-9).backward()
    assert parameter.grad is not None
    assert parameter.grad.dtype == torch.float32
    assert parameter.grad.flatten()[0].item() == 2 * (1 + 2**-9)


# -- a GPU -----------------------------------------------------------------------------------------------------------


@CUDA
@pytest.mark.parametrize("masters", [False, True])
def test_on_a_gpu_the_bits_are_the_same_and_the_state_is_page_locked(masters, tmp_path):
    dtype, found = torch.bfloat16 if masters else torch.float32, []
    for setting in (False, True):
        config = LearnerConfig(offload=setting, attention="rows")
        learner = LocalLearner(make_model(dtype, device="cuda"), config)
        found.append((run(learner), learner.logprobs(make_rows(), reference=True), state_of(learner)))
    assert found[0][:2] == found[1][:2]
    assert_same(found[0][2], found[1][2])
    assert learner.reference is not None
    assert learner.reference.device.type == "cuda"
    assert all(parameter.is_pinned() for parameter in learner.reference.parameters())
    assert all(state["exp_avg"].is_pinned() for state in learner.optimizer.state.values())
    learner.save(tmp_path)
    resumed = LocalLearner(make_model(dtype, device="cuda"), LearnerConfig(attention="rows"))
    resumed.load(tmp_path)
    assert run(resumed) == run(learner)
