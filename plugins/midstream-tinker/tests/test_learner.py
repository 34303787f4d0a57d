"""A learner on a Tinker server equals one in this process: same rows, same losses, same weights, same resumption."""

from __future__ import annotations

import asyncio
import json
import warnings
from contextlib import ExitStack
from dataclasses import replace
from itertools import product

import pytest
import torch

pytest.importorskip("tinker", reason="the extra tinker is not installed: pip install -e '.[train,dev]'")

from midstream.core.engine import Request
from midstream.core.errors import CheckpointError, EngineError, RefusedError, UnsupportedError
from midstream.core.trajectory import Sampling
from midstream.engines.local.pretrained import load_model
from midstream.training.learner import LocalLearner
from midstream.training.losses import PolicyLoss
from midstream.training.protocols import Row
from midstream.training.settings import LearnerConfig, LoraConfig
from midstream_tinker.engine import TinkerEngine
from midstream_tinker.learner import STATE, TinkerLearner
from midstream_tinker.settings import TinkerConfig, TinkerLearnerConfig
from support.exact import ragged_rows
from support.hf_models import save_chat_model
from tinker_server import TinkerServer

LORA, CLIP, RATE = LoraConfig(rank=4, alpha=32), 0.5, 5e-3
PLAIN = PolicyLoss(clip_low=0.2, clip_high=0.3, kl_coefficient=0.0)
WITH_KL = PolicyLoss(clip_low=0.2, clip_high=0.3, dual_clip=1.5, kl_coefficient=0.3)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("tinker") / "model", "qwen3")


ENGINES: list[TinkerEngine] = []  # of a test, closed at its end


@pytest.fixture
def serve(directory):
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(TinkerServer(directory, **options))
        while ENGINES:
            asyncio.run(ENGINES.pop().close())


def engine_of(server, directory, **settings):
    config = TinkerConfig(model="tiny", base_url=server.url, tokenizer=str(directory), **settings)
    ENGINES.append(TinkerEngine(config, "policy"))
    return ENGINES[-1]


def served_learner(server, directory, **settings):
    config = {"type": "tinker", "lora": LORA, "max_grad_norm": CLIP, "weight_decay": 0.01, **settings}
    return TinkerLearner(engine_of(server, directory), TinkerLearnerConfig.model_validate(config))


def local_learner(directory, **settings):
    model, _ = load_model(str(directory), "float32", "cpu")
    config = {"lora": LORA, "max_grad_norm": CLIP, "weight_decay": 0.01, **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return LocalLearner(model, LearnerConfig.model_validate(config))


def batches(directory):
    """Three batches of awkward rows at temperature 1, sampled by a policy near the first weights."""
    local, found = local_learner(directory), []
    for seed in range(3):
        rows = [replace(row, temperature=1.0) for row in ragged_rows(seed)][seed::2]
        draw = torch.Generator().manual_seed(seed)
        for row, values in zip(rows, local.logprobs(rows), strict=True):
            noise = 0.2 * torch.randn(len(values), generator=draw)
            old = tuple(value + shift if value else 0.0 for value, shift in zip(values, noise.tolist(), strict=True))
            found.append((seed, replace(row, old_logprobs=old)))
    return [[row for number, row in found if number == seed] for seed in range(3)]


def weights(server, learner):
    """The adapter of a learner's model on the server."""
    parameters = server.models[learner.client.model_id].parameters
    return {name: p.detach() for name, p in parameters.items()}


def largest_difference(server, served, local):
    own = dict(local.model.named_parameters())
    return max((value - own[name]).abs().max().item() for name, value in weights(server, served).items())


def move(learner, rows, loss=WITH_KL):
    stats = learner.forward_backward(rows, loss)
    return stats, learner.optimizer_step(RATE)


@pytest.fixture(scope="module")
def three_batches(directory):
    return batches(directory)


@pytest.mark.parametrize(
    ("division", "loss", "steps", "most"),
    [
        ("sum", WITH_KL, 1, 4),
        *(pytest.param(*one, 3, None, marks=pytest.mark.slow) for one in product(("sum", "rows"), (PLAIN, WITH_KL))),
    ],
)
def test_steps_equal_the_local_learners(serve, directory, three_batches, division, loss, steps, most):
    server = serve(division=division)
    served, local = served_learner(server, directory), local_learner(directory)
    for rows in (batch[:most] for batch in three_batches[:steps]):
        (there, norm), (here, own_norm) = move(served, rows, loss), move(local, rows, loss)
        assert there.loss == pytest.approx(here.loss, abs=1e-5)
        assert there.kl_sum == pytest.approx(here.kl_sum, abs=1e-4)
        assert (there.clipped, there.tokens) == (here.clipped, here.tokens)
        assert (there.total_tokens, there.unique_tokens) == (here.total_tokens, here.unique_tokens)
        assert norm == pytest.approx(own_norm, rel=1e-4)
        assert norm > CLIP  # the server's clip takes part
        assert largest_difference(server, served, local) < 1e-5
        for reference in (False, True):
            pairs = zip(
                served.logprobs(rows, reference=reference), local.logprobs(rows, reference=reference), strict=True
            )
            assert max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True)) < 1e-5
    assert server.applied["optim_step"] - steps < 15  # the others are of the probe


@pytest.mark.parametrize("loss", [PLAIN, PolicyLoss(surrogate="gspo", kl_coefficient=0.0)])
def test_calls_of_a_row_may_have_advantages_of_their_own(serve, directory, three_batches, loss):
    server = serve()
    served, local = served_learner(server, directory), local_learner(directory)
    rows = []
    for row in three_batches[0][:3]:
        values = tuple(1.0 if place % 2 else -0.5 for place in range(len(row.completion_ids)))
        rows.append(replace(row, advantages=values))
    (there, norm), (here, own_norm) = move(served, rows, loss), move(local, rows, loss)
    assert there.loss == pytest.approx(here.loss, abs=1e-5)
    assert norm == pytest.approx(own_norm, rel=1e-4)
    assert largest_difference(server, served, local) < 1e-5


@pytest.mark.slow
def test_without_kl_one_pass_is_made(serve, directory, three_batches):
    server = serve()
    learner, rows = served_learner(server, directory), three_batches[0]
    assert learner.server.division == "sum"
    before = server.applied.copy()
    learner.forward_backward(rows, PLAIN)
    assert server.applied - before == {"forward_backward": 1}
    learner.forward_backward(rows, WITH_KL)
    assert server.applied - before == {"forward_backward": 2, "forward": 2}


@pytest.mark.slow
def test_supervised_steps_and_the_new_reference_equal_the_local_learners(serve, directory):
    server = serve(division="rows")
    served, local = served_learner(server, directory), local_learner(directory)
    for rows in batches(directory)[:2]:
        losses = [learner.supervised_step(rows, RATE, 0.1) for learner in (served, local)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert largest_difference(server, served, local) < 1e-5
    served.rebase()
    rows = batches(directory)[2]
    assert served.logprobs(rows, reference=True) == served.logprobs(rows)
    move(served, rows)
    assert served.logprobs(rows, reference=True) != served.logprobs(rows)


def test_a_server_that_divides_otherwise_is_refused(serve, directory, three_batches):
    learner = served_learner(serve(division="tokens"), directory)
    with pytest.raises(UnsupportedError, match="does not add up gradients") as error:
        learner.forward_backward(three_batches[0], PLAIN)
    assert error.value.code == "gradient-divided"


def test_a_temperature_other_than_one_is_refused(serve, directory, three_batches):
    learner = served_learner(serve(), directory)
    with pytest.raises(UnsupportedError, match=r"temperature 0\.7") as error:
        learner.forward_backward([replace(row, temperature=0.7) for row in three_batches[0]], PLAIN)
    assert error.value.code == "temperature-unsupported"


def test_rows_without_sampled_tokens_make_no_request(serve, directory):
    server = serve()
    row = Row(
        prompt_ids=(5, 6),
        completion_ids=(7,),
        sampled=(False,),
        old_logprobs=(0.0,),
        advantage=1,
        weight=1,
        kl_weight=1,
    )
    assert served_learner(server, directory).forward_backward([row], PLAIN).tokens == 0
    assert not server.requests


# -- the named state ---------------------------------------------------------------------------------------------------


def test_exported_weights_are_named_with_their_state(serve, directory, tmp_path):
    server = serve()
    learner = served_learner(server, directory)
    learner.export_weights(tmp_path / "policy")
    record = json.loads((tmp_path / "policy" / STATE).read_text())
    assert record["model"] == "tiny"
    assert record["weights"].startswith(f"tinker://{learner.client.model_id}/")
    assert {record["state"]} == server.states.keys()


@pytest.mark.slow
def test_a_learner_continues_from_the_named_state_on_a_server_that_restarted(serve, directory, tmp_path):
    server, local = serve(), local_learner(directory)
    first, second, third = batches(directory)
    learner = served_learner(server, directory)
    for each in (learner, local):
        move(each, first)
        move(each, second)
    learner.save(tmp_path)
    move(learner, third)  # lost with the first server
    assert server.states.keys() == {f"tinker://{learner.client.model_id}/weights/midstream-1"}
    restarted = serve(states=server.states)
    again = served_learner(restarted, directory)
    again.load(tmp_path)
    for each in (again, local):
        move(each, third)
    assert largest_difference(restarted, again, local) < 1e-5


def test_a_new_reference_is_part_of_the_state(serve, directory, three_batches, tmp_path):
    server = serve()
    first, second = (rows[:2] for rows in three_batches[:2])
    learner = served_learner(server, directory)
    learner.supervised_step(first, RATE)
    learner.rebase()
    move(learner, second)
    assert learner.logprobs(first, reference=True) != learner.logprobs(first)
    learner.save(tmp_path)
    again = served_learner(server, directory)
    again.load(tmp_path)
    for reference in (False, True):
        assert again.logprobs(first, reference=reference) == learner.logprobs(first, reference=reference)


def test_a_state_that_the_server_no_longer_has_is_named(serve, directory, tmp_path):
    learner = served_learner(serve(), directory)
    learner.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"tinker://.*midstream-1") as error:
        served_learner(serve(), directory).load(tmp_path)
    assert error.value.code == "state-gone"


def test_a_checkpoint_of_another_adapter_or_learner_does_not_fit(serve, directory, tmp_path):
    server = serve()
    served_learner(server, directory).save(tmp_path)
    with pytest.raises(CheckpointError, match="rank 4, the recipe 8") as error:
        served_learner(server, directory, lora=LoraConfig(rank=8)).load(tmp_path)
    assert error.value.code == "checkpoint-unfit"
    (tmp_path / STATE).unlink()
    with pytest.raises(CheckpointError, match="names no state") as error:
        served_learner(server, directory).load(tmp_path)
    assert error.value.code == "checkpoint-unfit"


# -- sampling ----------------------------------------------------------------------------------------------------------


def sampled(engine, count, **sampling):
    async def all_of_them():
        requests = [
            Request(role="planner", prompt_ids=(10, 11, 12), seed=seed, sampling=Sampling(max_tokens=6, **sampling))
            for seed in range(count)
        ]
        return await asyncio.gather(*map(engine.sample, requests), return_exceptions=True)

    return asyncio.run(all_of_them())


def test_the_engine_samples_from_what_was_published(serve, directory, three_batches):
    server = serve()
    learner, local = served_learner(server, directory), local_learner(directory)
    rows = three_batches[0][:2]
    for each in (learner, local):
        move(each, rows)
    learner.publish()
    learner.publish()
    assert server.applied["save_weights_for_sampler"] == 1
    calls = sampled(learner.engine, 4)
    assert len({call.completion_ids for call in calls}) > 1
    for call in calls:
        row = replace(rows[0], prompt_ids=call.prompt_ids, completion_ids=call.completion_ids, sampled=())
        [expected] = local.logprobs([row])
        assert call.logprobs == pytest.approx(expected, abs=1e-4)
        assert call.usage.completion_tokens == len(call.completion_ids)


def test_a_stop_string_ends_a_sample_wherever_the_server_cuts(serve, directory):
    engine = engine_of(serve(), directory)  # this server knows ids alone
    [whole] = sampled(engine, 1)
    stop = engine.codec.decode(whole.completion_ids[2:3])
    [cut] = sampled(engine, 1, stop=(stop,))
    end = next(n for n in range(1, 7) if stop in engine.codec.decode(whole.completion_ids[:n]))
    assert cut.completion_ids == whole.completion_ids[:end]
    assert len(cut.logprobs) == end
    assert stop not in cut.completion


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_third_of_failed_requests_loses_nothing_and_applies_nothing_twice(serve, directory):
    server, calm = serve(faults=0.3), serve()
    learner, other = served_learner(server, directory), served_learner(calm, directory)
    for each in (learner, other):
        for rows in batches(directory)[:2]:
            move(each, rows)
        each.publish()
    calls, expected = sampled(learner.engine, 40), sampled(other.engine, 40)
    assert [call.completion_ids for call in calls] == [call.completion_ids for call in expected]
    assert min(server.failed.values()) > 5
    assert server.applied == calm.applied
    assert learner.logprobs(batches(directory)[0]) == other.logprobs(batches(directory)[0])


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [(401, RefusedError, "key-refused"), (403, RefusedError, "key-refused"), (400, EngineError, "endpoint-failed")],
)
def test_a_refusal_is_an_error_of_the_engine(serve, directory, status, kind, code):
    [error] = sampled(engine_of(serve(refuse=status), directory), 1)
    assert type(error) is kind
    assert error.code == code
    assert not error.retryable
    assert "refused by the test" in str(error)


def test_a_server_that_gives_no_answer_is_an_error_of_the_engine(serve, directory):
    [error] = sampled(engine_of(serve(refuse=503), directory, timeout_s=1.0), 1)
    assert type(error) is EngineError
    assert error.code == "endpoint-failed"
    assert error.retryable


def test_without_a_key_the_hosted_service_is_not_asked(monkeypatch, directory, tmp_path):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where the SDK would find a stored one
    engine = TinkerEngine(TinkerConfig(model="Qwen/Qwen3-8B", tokenizer=str(directory)), "policy")
    [error] = sampled(engine, 1)
    assert type(error) is RefusedError
    assert error.code == "missing-key"
    assert "export TINKER_API_KEY=" in error.fix
