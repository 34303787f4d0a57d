"""Whether a recipe's training fits given GPUs, in each way that midstream trains: memory by formula, nothing is run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from midstream.core.errors import UnsupportedError, did_you_mean
from midstream.engines.local.settings import LocalModelConfig
from midstream.recipe.memory import GIB, SHAPES, Shape, longest_reply, shape_of
from midstream.recipe.schema import Recipe
from midstream.training.settings import LearnerConfig
from midstream_extra.memory import Part, engine_parts, largest, offloaded, peak, token_bytes

Kind = Literal["one device", "torchrun", "verl"]

CARDS = {
    "B200": 180, "H200": 141, "H100": 80, "H20": 96, "A100-80GB": 80, "A100-40GB": 40, "L40S": 48, "A40": 48, "L4": 24,
    "RTX4090": 24, "RTX3090": 24,
}  # GB  # fmt: skip
_USABLE = 0.95  # of a card's memory; the rest is the driver's, the libraries' and lost between blocks
_PER_NODE = 8  # GPUs that a server divides one model over
_MICRO = 16_384  # tokens that a rank of verl holds in a pass
_DIVIDED = ("weights", "masters", "AdamW", "AdamW's step", "reference policy", "LoRA adapter")  # among FSDP2's ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a recipe asks of hardware. `sampled`: (most requests at once, new tokens of one), if sampled in process."""

    shape: Shape
    dtype: str
    learner: LearnerConfig
    roles: int = 1  # that are trained
    reference: bool = True  # whether the loss needs the log-probabilities of a reference policy
    sampled: tuple[int, int] | None = None
    on_card: bool = True
    engine: str = "policy"
    divisible: bool = True  # by FSDP2 (`training/ranks.py`)


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to train: the bytes of its fullest device and of the host, what they are, and whether they fit."""

    kind: Kind
    settings: dict[str, str]  # with which it fits, where the recipe has others
    bytes: int
    host: int
    fits: bool
    parts: tuple[Part, ...]


def gpus_of(text: str) -> tuple[int, str]:
    """The number and name of "8xH100" or "H100". Raises `UnsupportedError` for a GPU that is not in `CARDS`."""
    count, sign, name = text.rpartition("x")
    known = {each.casefold(): each for each in CARDS}
    found = known.get(name.casefold(), known.get(f"{name}-80gb".casefold()))  # "A100" is the larger one
    if found is None or (sign and not re.fullmatch("0*[1-9][0-9]{0,8}", count)):
        raise UnsupportedError(
            f"unknown GPUs: {text!r}",
            code="unknown-gpu",
            fix=f"{did_you_mean(name, CARDS)}write a number and a name, e.g. 8xH100; known: {', '.join(CARDS)}",
        )
    return int(count or 1), found


def job_of(recipe: Recipe) -> Job:
    """What the trained model asks. Raises `UnsupportedError` if its layers are not known, or nothing is trained."""
    training, planner = recipe.training, recipe.modules[recipe.trained].engine
    if training is None or training.algorithm == "supervised":
        raise UnsupportedError(
            f"{recipe.name} trains no weights by reinforcement",
            code="nothing-to-plan",
            fix="name a recipe whose [training] has algorithm = flow_grpo: midstream list recipes",
        )
    name = training.weights or planner or ""
    config: Any = recipe.engines[name].config if name in recipe.engines else None
    shape = engine_shape(config)
    if shape is None:
        raise UnsupportedError(
            f"{recipe.name}: the shape of its model is not known: {getattr(config, 'model', '') or name!r}",
            code="nothing-to-plan",
            fix=f"name a model directory, or one of {', '.join(SHAPES)}",
        )
    if recipe.learner.lora and recipe.learner.lora.target != "all-linear":
        raise UnsupportedError(
            f"learner.lora.target = {recipe.learner.lora.target!r}: its layers are not known",
            code="nothing-to-plan",
            fix='plan with --set learner.lora.target="all-linear"',
        )
    users = [module for module in recipe.modules.values() if module.engine == name]
    return Job(
        shape=shape, dtype=getattr(config, "dtype", "float32"), learner=recipe.learner,
        roles=len(recipe.trained_modules),
        reference=training.loss.kl_coefficient > 0,
        sampled=(config.max_batch, longest_reply(recipe, users)) if planner == name else None,
        engine=name, on_card=getattr(config, "device", "cpu") != "cpu", divisible=not getattr(config, "tiny", False),
    )  # fmt: skip


def engine_shape(config: Any) -> Shape | None:
    """The shape of an engine's model in process; None if it is not known."""
    if isinstance(config, LocalModelConfig):
        return shape_of(config.model)
    if getattr(config, "tiny", False):
        # Both have as many key-value heads as heads and an inner width of 3; the tiny one's vocabulary is its world's.
        return Shape(
            hidden=config.hidden_size, layers=config.layers, heads=config.heads, kv_heads=config.heads,
            intermediate=3 * config.hidden_size, head_dim=config.hidden_size // config.heads, tied=True,
            vocabulary=getattr(config, "vocabulary", 500),
        )  # fmt: skip
    return None


def ways(job: Job, card_gb: int, gpus: int) -> list[Way]:
    """Each way on these GPUs; where the job's own settings do not fit, with the first of others that do."""
    away = replace(job, learner=job.learner.model_copy(update={"offload": True}))
    whole = job.learner.lora is None
    alone = [job, away, replace(away, dtype="bfloat16")] if whole else [job, away]
    found = [[_way("one device", each, job, card_gb, _parts(each)) for each in alone]]
    if gpus > 1 and job.divisible:
        found.append([
            _way("torchrun", each, job, card_gb, _torchrun(each, gpus)) for each in _ranked(job)
        ])  # fmt: skip
    if whole:  # verl trains no adapter here
        found.append([_way("verl", job, job, card_gb, _verl(job, card_gb, gpus))])
    return [next((way for way in candidates if way.fits), candidates[0]) for candidates in found]


def _parts(job: Job) -> list[Part]:
    parts = engine_parts(job.shape, job.dtype, job.learner, sampled=job.sampled, on_card=job.on_card, roles=job.roles)
    assert parts is not None  # `job_of` has seen to it
    return parts


def _torchrun(job: Job, gpus: int) -> list[Part]:
    """Rank 0 also samples; during an update each rank holds whole weights."""
    return divided(_parts(job), gpus, replica=job.sampled is not None)


def divided(parts: list[Part], ranks: int, *, replica: bool) -> list[Part]:
    """What one of `ranks` holds of `engine_parts` with FSDP2, as `training/ranks.py` divides it (docs/scale.md).

    `replica`: of rank 0 where the engine samples in process: a whole copy that it samples from.
    """
    held = {part.name: part for part in parts}
    whole, found = held["weights"], list[Part]()
    for part in parts:
        share = replace(
            part, name=f"{part.name}, a share", bytes=-(-part.bytes // ranks), formula=f"1/{ranks} of: {part.formula}"
        )
        if part.name == "gradient":  # whole while the passes add to it, then each rank's share of the sum
            found += [replace(part, moment="update"), replace(share, moment="step")]
        elif part.name == "weights" and "masters" in held:
            pass  # the masters are the divided weights themselves
        elif part.name == "AdamW's step" and "masters" in held:  # so its step is that of weights in float32
            found.append(replace(share, bytes=-(-held["masters"].bytes // ranks), formula="temporary values"))
        else:
            found.append(share if part.name in _DIVIDED else part)
    found.append(Part("weights, gathered", whole.bytes, whole.formula, "update"))
    return [*found, Part("copy that is sampled from", whole.bytes, whole.formula)] if replica else found


def _verl(job: Job, card_gb: int, gpus: int) -> list[Part]:
    """bfloat16 passes, float32 state; all of it is divided."""
    shape = job.shape
    learner = job.learner.model_copy(update={"offload": False, "recompute_activations": True})
    weights, half = 2 * shape.parameters, card_gb * GIB / 2  # verl's `gpu_memory_utilization` is 0.5
    tensor = 1
    while weights / tensor > 0.8 * half and tensor < min(gpus, _PER_NODE):  # the rest is vLLM's cache
        tensor *= 2
    state, pass_bytes = 16 * shape.parameters, token_bytes(shape, 2, learner) + 6 * shape.vocabulary
    frozen = 4 * shape.parameters * job.reference
    return [
        Part("weights, gradient, AdamW", -(-state // gpus), f"16 x {shape.parameters:,} / {gpus} (float32)"),
        Part("reference weights", -(-frozen // gpus), f"4 x {shape.parameters:,} / {gpus} (float32)"),
        Part("two layers, gathered", 4 * largest(shape), f"2 x 2 x {largest(shape):,}", "update"),
        Part("activations, logits", _MICRO * pass_bytes, f"{_MICRO:,} tokens x {pass_bytes:,}", "update"),
        Part("vLLM", max(round(half), -(-weights // tensor)), f"half a card; weights over {tensor}", "sampling"),
    ]


def _ranked(job: Job) -> list[Job]:
    """What several processes accept of the job's settings: FSDP2 without offload."""
    here = replace(job, learner=job.learner.model_copy(update={"offload": False}))
    return [here, replace(here, dtype="bfloat16")] if job.learner.lora is None else [here]


def _way(kind: Kind, job: Job, asked: Job, card_gb: int, parts: list[Part]) -> Way:
    """The way; `asked` is the job with the recipe's own settings."""
    new, old = ({"learner.offload": str(each.learner.offload).lower(),
                 f"engines.{each.engine}.dtype": each.dtype}
                for each in (job, asked))  # fmt: skip
    settings = {key: value for key, value in new.items() if value != old[key]}
    taken = peak(parts)
    return Way(
        kind=kind,
        settings=settings,
        bytes=taken,
        host=offloaded(parts),
        fits=taken <= _USABLE * card_gb * GIB,
        parts=tuple(parts),
    )
