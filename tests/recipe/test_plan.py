"""A plan's formulas by hand, its memory against `recipe/memory.py`, and how it must change with hardware and tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.core.errors import UnsupportedError
from midstream.core.metrics import StepMetrics, ToolUse
from midstream.recipe.cards import card_of, cards
from midstream.recipe.load import load_like, load_of
from midstream.recipe.memory import GIB, SHAPES, divided, engine_parts, memory_lines, offloaded, peak
from midstream.recipe.overrides import LearningChanges, changed_recipe
from midstream.recipe.plan import DEFAULT, job_of, ways
from midstream.recipe.schema import load_recipe

H100 = card_of("H100")[2]


def recipe(name: str = "agentflow-7b", *overrides: str):
    return changed_recipe(name, **LearningChanges(overrides=list(overrides)))


def job(name: str = "agentflow-7b", *overrides: str, **tokens):
    found = recipe(name, *overrides)
    return job_of(found, load_of(found, **tokens))


def way(job, kind: str, gpus: int = 8, card=H100, **more):
    return next(way for way in ways(job, card, gpus, **more) if way.kind == kind)


def phases(way) -> dict[str, float]:
    return {phase.name: phase.seconds for phase in way.phases}


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_tokens_of_turn_rows_by_hand():
    load = load_of(recipe(), turns=2, prompt=100, completion=10, observed=20)
    # 32 tasks x 8: prompts of 100 and 120 tokens, each with a reply of 10.
    assert (load.trajectories, load.rows, load.sampled) == (256, 512, 256 * 20)
    assert load.all == 256 * (110 + 130)
    assert load.unique == 32 * 100 + 256 * (2 * 10 + 20)
    assert load.prefilled == 32 * 100 + 256 * 20
    assert load.longest == 3 * 2048  # the recipe's most, whatever the means are


def test_tokens_of_streams_by_hand():
    load = load_of(recipe("search-r1-7b"), prompt=100, completion=10, observed=20)
    assert load.turns == 5  # four searches and the answer
    assert load.all == 2560 * (100 + 5 * 10 + 4 * 20)
    assert load.unique == 512 * 100 + 2560 * (5 * 10 + 4 * 20)
    assert load.longest == 5 * 500


def test_rows_over_ranks_share_less():
    load = load_of(recipe(), turns=1, prompt=100, completion=10)
    assert load.unique_of(1) == load.unique == 32 * 100 + 256 * 10
    assert load.unique_of(64) == (load.unique + 32 * 100) / 64  # 32 tasks are cut once more
    assert load.unique_of(1000) == load.unique_of(256)  # the rest has no row
    assert load.unique_of(200) == (load.unique + 168 * 100) / 200 * (2 * 200 / 256)  # the slowest has two of 1.28


def test_a_run_gives_its_tokens_for_the_trajectories_of_the_recipe():
    step = StepMetrics(
        step=1, policy_version=0, reward_mean=0.5, trajectories=64, rows=128, prompt_tokens=12_800, total_tokens=14_080,
        completion_tokens=1280, unique_tokens=5000, tool_use=ToolUse(turns=128),
    )  # fmt: skip
    load = load_like(recipe(), [step, step])
    assert (load.rows, load.turns, load.prompt) == (512, 2, 100)
    assert (load.sampled, load.all, load.unique) == (4 * 1280, 4 * 14_080, 4 * 5000)
    assert load.longest == 2 * 20  # twice the mean
    with pytest.raises(UnsupportedError) as refused:
        load_like(recipe(), [step.model_copy(update={"total_tokens": 0})])
    assert refused.value.code == "no-counts"


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [(), ("learner.offload=all",), ("learner.lora.rank=16",)])
def test_one_device_has_the_memory_of_a_dry_run(overrides):
    found = recipe("agentflow-7b", *overrides)
    parts = engine_parts(SHAPES["Qwen2.5-7B"], "float32", found.learner, sampled=(32, 2048), on_card=True)
    assert parts is not None
    planned = way(job("agentflow-7b", *overrides), "one device", card=H100.model_copy(update={"memory": 1000}))
    assert (planned.bytes, planned.host) == (peak(parts), offloaded(parts))
    assert f"{planned.bytes / GIB:.1f} GB  at the peak" in "\n".join(memory_lines(found, training=True))


def test_what_fits_needs_the_least_change_of_settings():
    assert way(job(), "one device").settings == {"learner.offload": "all"}
    small = card_of("L40S")[2]
    refused = way(job(), "one device", card=small)
    assert (refused.fits, refused.settings, refused.first) == (False, {}, "memory: AdamW")
    large = H100.model_copy(update={"memory": 200})
    assert way(job(), "one device", card=large).settings == {}


def test_settings_are_those_in_which_a_way_differs_from_the_recipe():
    large = H100.model_copy(update={"memory": 1000})
    offloaded = job("agentflow-7b", "learner.offload=all")
    assert way(offloaded, "one device", card=large).settings == {}
    assert way(offloaded, "torchrun", card=large).settings == {"learner.offload": "none"}  # FSDP2 refuses it
    assert way(job("agentflow-7b", "learner.parallel=ddp"), "torchrun", card=large).settings == {}
    assert way(job("flow-grpo-tiny"), "torchrun").settings == {"learner.parallel": "ddp"}  # its embeddings are redrawn


def test_ranks_divide_all_but_the_weights_and_gradient_of_an_update():
    parts = engine_parts(SHAPES["Qwen2.5-7B"], "float32", recipe().learner, sampled=None, on_card=False)
    assert parts is not None
    count = 4 * SHAPES["Qwen2.5-7B"].parameters
    eight = {part.name: (part.bytes, part.moment) for part in divided(parts, 8, replica=False)}
    assert eight["weights, a share"] == (count // 8, "always")
    assert eight["AdamW, a share"] == (2 * count // 8, "always")
    assert eight["gradient"] == eight["weights, gathered"] == (count, "update")
    assert eight["gradient, a share"] == (count // 8, "step")
    whole = [peak(divided(parts, ranks, replica=False)) for ranks in (2, 8, 64)]
    assert whole == sorted(whole, reverse=True)
    assert peak(divided(parts, 8, replica=True)) == whole[1] + count


def test_ranks_hold_masters_in_place_of_weights():
    learner = recipe("agentflow-7b", "learner.masters=true", "engines.policy.dtype=bfloat16").learner
    parts = engine_parts(SHAPES["Qwen2.5-7B"], "bfloat16", learner, sampled=None, on_card=False)
    assert parts is not None
    held = {part.name: part.bytes for part in divided(parts, 8, replica=False)}
    count = SHAPES["Qwen2.5-7B"].parameters
    assert "weights, a share" not in held
    assert held["masters, a share"] == held["AdamW's step, a share"] == 4 * count // 8
    assert (held["weights, gathered"], held["gradient"]) == (2 * count, 4 * count)


def test_verl_divides_everything():
    eight, sixty_four = (way(job(), "verl", gpus) for gpus in (8, 64))
    count = SHAPES["Qwen2.5-7B"].parameters
    by_name = {part.name: part.bytes for part in eight.parts}
    assert by_name["weights, gradient, AdamW"] == 16 * count / 8
    assert eight.fits
    assert sixty_four.bytes < eight.bytes


# -- seconds -----------------------------------------------------------------------------------------------------------


def test_seconds_of_an_update_by_hand():
    planned = phases(way(job(), "one device", card=H100.model_copy(update={"memory": 1000})))
    shape, load = SHAPES["Qwen2.5-7B"], job().load
    trunk = 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944 + 2 * 3584 + 3584 + 2 * 512) + 3584
    assert trunk == shape.parameters - 2 * 152_064 * 3584
    attention = 4 * 28 * 3584 * load.all / load.rows / 2
    forward = load.unique * (2 * trunk + attention) + load.sampled * 2 * 152_064 * 3584
    assert planned["log-probabilities"] == pytest.approx(forward / (67e12 * 0.4))
    assert planned["update"] == pytest.approx(4 * forward / (67e12 * 0.4))  # one pass is computed again
    assert planned["AdamW"] == pytest.approx(7 * 4 * shape.parameters / (3350e9 * 0.6))
    assert "offload" not in planned


def test_seconds_of_decoding_by_hand():
    asked = job("agentflow-7b", turns=1, prompt=1000, completion=512)
    planned = phases(way(asked, "one device", card=H100.model_copy(update={"memory": 1000})))
    steps, rows = 3 * 2048 * 8, 256 * 512 / (3 * 2048 * 8)  # 8 batches of 32, each as long as the longest
    read = 4 * SHAPES["Qwen2.5-7B"].parameters / (3350e9 * 0.6)
    cache = rows * (1000 + 256) * SHAPES["Qwen2.5-7B"].kv_bytes(4) / (3350e9 * 0.6)
    assert planned["decoding"] == pytest.approx(steps * (28 * DEFAULT.layer_s + read + cache))


def test_the_longest_trajectory_bounds_a_rollout_on_any_number_of_gpus():
    planned = [phases(way(job(), "verl", gpus))["decoding"] for gpus in (8, 64, 1000, 4000)]
    step_s = 28 * DEFAULT.served_layer_s + 2 * SHAPES["Qwen2.5-7B"].parameters / (3350e9 * 0.6)
    assert planned == sorted(planned, reverse=True)
    assert planned[-1] == pytest.approx(3 * 2048 * step_s, rel=0.02)  # its cache is read on top
    # Where tokens are many, a replica decodes 256 rows at once.
    many = phases(way(job("agentflow-7b", "training.tasks_per_step=4096"), "verl", 8))["decoding"]
    assert many > 4096 * 8 * 3 * 512 / 8 / DEFAULT.slots * step_s


def test_offload_costs_its_transfers():
    away = job("agentflow-7b", "learner.offload=all")
    count, chunks = 4 * SHAPES["Qwen2.5-7B"].parameters, -(-away.load.unique // 4096)
    assert phases(way(away, "one device"))["offload"] == pytest.approx((4 * count + chunks * count) / (64e9 * 0.7))


def test_tools_take_their_time_once_a_turn_and_wave():
    slow = replace(job(), turn_s=10.0, waves=2)
    assert phases(way(slow, "verl"))["tools and other modules"] == 2 * 3 * 10


@pytest.mark.parametrize("kind", ["torchrun", "verl"])
@settings(max_examples=25, deadline=None)
@given(gpus=st.integers(2, 512), more=st.integers(2, 4))
def test_more_gpus_never_make_an_update_slower_or_take_more_memory(kind, gpus, more):
    few, many = way(job(), kind, gpus), way(job(), kind, gpus * more)
    assert phases(many)["AdamW"] < phases(few)["AdamW"]
    # A rank more may cut a task once more, and leave ranks with a row more than the mean.
    assert phases(many)["update"] <= phases(few)["update"] * 1.05
    if few.settings == many.settings:
        assert many.bytes <= few.bytes


@settings(max_examples=25, deadline=None)
@given(completion=st.integers(16, 1024), more=st.integers(1, 1024))
def test_longer_replies_take_longer_everywhere(completion, more):
    short, long = (job(completion=length) for length in (completion, completion + more))
    for kind in ("one device", "torchrun", "Tinker", "verl"):
        assert way(short, kind).seconds < way(long, kind).seconds


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["half", "single", "bandwidth", "pcie", "link"]), st.floats(1.1, 4.0))
def test_faster_hardware_is_never_slower(what, factor):
    faster = H100.model_copy(update={what: getattr(H100, what) * factor})
    for before, after in zip(ways(job(), H100, 8), ways(job(), faster, 8), strict=True):
        assert after.seconds <= before.seconds


def test_gpus_without_a_row_are_named():
    assert way(job(), "verl", 1000).first == "232 GPUs have no row"


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_gpus_are_read_and_wrong_ones_refused():
    assert card_of("8xH100")[:2] == (8, "H100")
    assert card_of("a100")[:2] == (1, "A100-80GB")
    assert card_of("2xRTX4090") == (2, "RTX4090", cards()["RTX4090"])
    for wrong in ("8xH10", "xH100", "0xH100", "-1xH100", "8", "", "9" * 5000 + "xH100", "\u00b2xH100"):
        with pytest.raises(UnsupportedError) as refused:
            card_of(wrong)
        assert refused.value.code == "unknown-gpu"
    with pytest.raises(UnsupportedError, match="did you mean 'RTX4090'"):
        card_of("8xRTX4091")


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("training-free-simulated", ()),
        ("agentflow-7b", ("engines.policy.model=somebody/unknown",)),
        ("agentflow-7b", ("learner.lora.target=q_proj",)),
        ("flow-grpo-tiny", ("training.algorithm=supervised",)),
    ],
)
def test_what_has_no_plan_is_refused(name, overrides):
    with pytest.raises(UnsupportedError) as refused:
        ways(job(name, *overrides), H100, 8)
    assert refused.value.code == "nothing-to-plan"


@pytest.mark.parametrize("name", ["flow-grpo-tiny", "text-tiny", "artist-tiny", "flow-grpo-lora", "own-agent-tiny"])
def test_recipes_that_train_have_a_plan(name):
    found = load_recipe(name)
    assert all(each.seconds > 0 for each in ways(job_of(found, load_of(found)), H100, 8))
