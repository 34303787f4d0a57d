"""A plan's memory, and how it must change with hardware."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.core.errors import UnsupportedError
from midstream.recipe.memory import SHAPES
from midstream.recipe.overrides import LearningChanges, changed_recipe
from midstream.recipe.schema import load_recipe
from midstream_extra.memory import engine_parts, offloaded, peak
from midstream_extra.ways import divided, gpus_of, job_of, ways

H100 = 80


def recipe(name: str = "agentflow-7b", *overrides: str):
    return changed_recipe(name, **LearningChanges(overrides=list(overrides)))


def job(name: str = "agentflow-7b", *overrides: str):
    return job_of(recipe(name, *overrides))


def way(job, kind: str, gpus: int = 8, card: int = H100):
    return next(way for way in ways(job, card, gpus) if way.kind == kind)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [(), ("learner.offload=true",), ("learner.lora.rank=16",)])
def test_one_device_has_the_memory_of_its_parts(overrides):
    found = recipe("agentflow-7b", *overrides)
    parts = engine_parts(SHAPES["Qwen2.5-7B"], "float32", found.learner, sampled=(32, 2048), on_card=True)
    assert parts is not None
    planned = way(job("agentflow-7b", *overrides), "one device", card=1000)
    assert (planned.bytes, planned.host) == (peak(parts), offloaded(parts))


def test_what_fits_needs_the_least_change_of_settings():
    assert way(job(), "one device").settings == {"learner.offload": "true"}
    refused = way(job(), "one device", card=48)
    assert (refused.fits, refused.settings) == (False, {})
    assert not way(job(), "torchrun").fits  # 79 of 80 GB
    large = 200
    assert way(job(), "one device", card=large).settings == {}


def test_settings_are_those_in_which_a_way_differs_from_the_recipe():
    large = 1000
    offloaded = job("agentflow-7b", "learner.offload=true")
    assert way(offloaded, "one device", card=large).settings == {}
    assert way(offloaded, "torchrun", card=large).settings == {"learner.offload": "false"}  # FSDP2 refuses it
    tiny = ways(job("flow-grpo-tiny"), 80, 8)  # its embeddings are redrawn
    assert "torchrun" not in {each.kind for each in tiny}


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
    learner = recipe("agentflow-7b", "engines.policy.dtype=bfloat16").learner
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


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(kind=st.sampled_from(["torchrun", "verl"]), gpus=st.integers(2, 512), more=st.integers(2, 4))
def test_more_gpus_never_take_more_memory(kind, gpus, more):
    few, many = way(job(), kind, gpus), way(job(), kind, gpus * more)
    if few.settings == many.settings:
        assert many.bytes <= few.bytes


def test_verl_is_offered_only_where_it_trains():
    assert [each.kind for each in ways(job("agentflow-7b", "learner.lora.rank=16"), 80, 8)] == [
        "one device",
        "torchrun",
    ]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_gpus_are_read_and_wrong_ones_refused():
    assert gpus_of("8xH100") == (8, "H100")
    assert gpus_of("a100") == (1, "A100-80GB")
    assert gpus_of("2xRTX4090") == (2, "RTX4090")
    for wrong in ("8xH10", "xH100", "0xH100", "-1xH100", "8", "", "9" * 5000 + "xH100", "\u00b2xH100"):
        with pytest.raises(UnsupportedError) as refused:
            gpus_of(wrong)
        assert refused.value.code == "unknown-gpu"
    with pytest.raises(UnsupportedError, match="did you mean 'RTX4090'"):
        gpus_of("8xRTX4091")


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("lessons-simulated", ()),
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
    assert all(each.fits for each in ways(job_of(found), H100, 8))
