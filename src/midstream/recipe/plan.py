"""Estimate a training step on given hardware, in each way that midstream trains: memory, seconds, what breaks first.

Arithmetic alone: nothing is run, and torch is not needed. Every number comes with its formula. `Assumed` has what a
data sheet does not say. docs/scale.md compares the estimates with measured steps on a CPU and with published runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from midstream.core.errors import UnsupportedError
from midstream.engines.local.settings import LocalModelConfig, TinyTextConfig
from midstream.recipe.cards import Card
from midstream.recipe.load import Load, reinforced
from midstream.recipe.memory import (
    GIB,
    SHAPES,
    WIDTHS,
    Part,
    Shape,
    divided,
    engine_parts,
    longest_reply,
    offloaded,
    peak,
    shape_of,
    token_bytes,
)
from midstream.recipe.schema import Recipe
from midstream.training.settings import LearnerConfig

Kind = Literal["one device", "torchrun", "Tinker", "verl"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumed:
    """What is assumed, not known: shares of the published peaks that a program reaches, and times of software."""

    compute: float = 0.4  # of the FLOP/s, in passes over many tokens
    memory: float = 0.6  # of the memory's bandwidth
    transfer: float = 0.7  # of the bandwidth between devices and to the host
    layer_s: float = 0.5e-3  # a layer of one decoding step in process: PyTorch launches each kernel from Python
    served_layer_s: float = 0.15e-3  # the same of a server, whose steps are captured graphs
    slots: int = 256  # requests that one replica of a server decodes at once, if its cache has room
    micro: int = 16_384  # tokens that a rank of verl holds in a pass


DEFAULT = Assumed()
_ROW_BYTES = 48  # of a token in verl's batches: ids, masks, log-probabilities, advantages
_SERVED: tuple[Kind, ...] = ("Tinker", "verl")  # verl divides all weights, so it takes no adapter


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a recipe asks of hardware. `sampled`: (most requests at once, new tokens of one), if sampled in process."""

    shape: Shape
    dtype: str
    learner: LearnerConfig
    load: Load
    minibatches: int = 1
    reference: bool = True  # whether the loss needs the log-probabilities of a reference policy
    sampled: tuple[int, int] | None = None
    waves: int = 1  # how often `rollout.concurrency` trajectories run one after another
    turn_s: float = 0.0  # seconds of tools and other modules in a turn
    on_card: bool = True
    engine: str = "policy"
    divisible: bool = True  # by FSDP2 (`training/ranks.py`)

    @property
    def trained(self) -> int:
        """Numbers that AdamW updates."""
        return self.shape.adapter(self.learner.lora.rank) if self.learner.lora else self.shape.parameters

    def forward(self, tokens: float, predicted: float, position: float) -> float:
        """Operations of a forward pass: two a weight and token, and attention to `position` tokens on average."""
        shape = self.shape
        trunk = shape.parameters - shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
        attention = 4 * shape.layers * shape.heads * shape.head_dim * position
        return tokens * (2 * trunk + attention) + predicted * 2 * shape.vocabulary * shape.hidden


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a step and the formula of its seconds."""

    name: str
    seconds: float
    formula: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to train: the bytes of its fullest device, and of the host; what breaks first; the phases of a step."""

    kind: Kind
    settings: dict[str, str]  # with which it fits, where the recipe has others
    bytes: int
    host: int
    fits: bool
    first: str
    parts: tuple[Part, ...]
    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        """Of a step."""
        return sum(phase.seconds for phase in self.phases)


def job_of(recipe: Recipe, load: Load, *, turn_s: float = 0.0) -> Job:
    """What the recipe's trained model asks. Raises `UnsupportedError` if its shape is not known, or nothing trains."""
    training, planner = reinforced(recipe), recipe.modules[recipe.trained].engine
    name = training.weights or planner or ""
    config: Any = recipe.engines[name].config if name in recipe.engines else None
    shape = engine_shape(config)
    if shape is None:
        raise UnsupportedError(
            f"{recipe.name}: the shape of its model is not known: {getattr(config, 'model', '') or name!r}",
            code="nothing-to-plan",
            fix=f"name a model directory, or one of {', '.join(SHAPES)}",
        )
    users = [module for module in recipe.modules.values() if module.engine == name]
    in_process = planner == name
    return Job(
        shape=shape, dtype=getattr(config, "dtype", "float32"), learner=recipe.learner, load=load,
        minibatches=training.minibatches, reference=training.loss.kl_coefficient > 0, turn_s=turn_s,
        sampled=(config.max_batch, longest_reply(recipe, users)) if in_process else None,
        waves=math.ceil(load.trajectories / recipe.rollout.concurrency),
        engine=name, on_card=getattr(config, "device", "cpu") != "cpu", divisible=not getattr(config, "tiny", False),
    )  # fmt: skip


def engine_shape(config: Any) -> Shape | None:
    """The shape of an engine's model in process; None if it is not known."""
    if isinstance(config, LocalModelConfig):
        return shape_of(config.model)
    if isinstance(config, TinyTextConfig) or getattr(config, "tiny", False):
        # Both have as many key-value heads as heads and an inner width of 3; the tiny one's vocabulary is its world's.
        return Shape(
            hidden=config.hidden_size, layers=config.layers, heads=config.heads, kv_heads=config.heads,
            intermediate=3 * config.hidden_size, head_dim=config.hidden_size // config.heads, tied=True,
            vocabulary=1024 if isinstance(config, TinyTextConfig) else 500,
        )  # fmt: skip
    return None


# -- the seconds of a step ---------------------------------------------------------------------------------------------


def _sampling(
    job: Job, card: Card, assumed: Assumed, *, replicas: float, tensor: int = 1, room: float | None
) -> list[Phase]:
    """Prefill, decoding, tools. `replicas` of a model, each on `tensor` devices; `room`: bytes of a server's cache."""
    load, shape = job.load, job.shape
    dtype = job.dtype if room is None else "bfloat16"
    rate, bandwidth = tensor * card.rate(dtype) * assumed.compute, tensor * card.bandwidth * 1e9 * assumed.memory
    operations, tokens = job.forward(load.prefilled, 0, load.context), load.sampled / replicas
    if room is None and job.sampled is not None:  # in process: a batch takes as long as the longest of its replies
        steps, layer_s = load.longest * math.ceil(load.trajectories / job.sampled[0]), assumed.layer_s
    else:
        held = (room or 0.0) / (load.context * shape.kv_bytes(WIDTHS[dtype]))
        at_once = max(1.0, min(assumed.slots, held, load.trajectories / replicas))
        steps, layer_s = max(load.longest, tokens / at_once), assumed.served_layer_s
    batch, held_bytes = tokens / steps, shape.parameters * WIDTHS[dtype]
    launch, read = shape.layers * layer_s, held_bytes / bandwidth
    compute, cache = (
        batch * job.forward(1, 1, 0) / rate,
        batch * load.context * shape.kv_bytes(WIDTHS[dtype]) / bandwidth,
    )
    on = f"{replicas:g} x " if replicas > 1 else ""
    return [
        Phase("prefill", operations / replicas / rate, f"{_tera(operations)} TFLOP / ({on}{_tera(rate)} TFLOP/s)"),
        Phase(
            "decoding",
            steps * (launch + max(read, compute) + cache),
            f"{steps:,.0f} steps of {batch:,.1f} rows x ({launch * 1e3:.3g} ms launch + "
            f"max({read * 1e3:.3g} ms weights, {compute * 1e3:.3g} ms products) + {cache * 1e3:.3g} ms cache)",
        ),
        Phase(
            "tools and other modules",
            job.waves * load.turns * job.turn_s,
            f"{job.waves} waves x {load.turns:.3g} turns x {job.turn_s:g} s",
        ),
    ]  # fmt: skip


def _update(job: Job, card: Card, assumed: Assumed, tokens: float, *, ranks: int, extra: float = 0) -> list[Phase]:
    """Reference, passes, AdamW. `tokens` of the slowest rank; `extra`: forward passes that this way adds."""
    load, learner = job.load, job.learner
    rate, bandwidth = card.rate(job.dtype) * assumed.compute, card.bandwidth * 1e9 * assumed.memory
    operations = job.forward(tokens, load.sampled / min(ranks, load.rows), load.row / 2)
    backward = 1 if learner.lora else 2  # of a frozen weight only the gradient of its input is computed
    passes = 1 + backward + learner.recompute_activations
    state = 4 if learner.masters or learner.lora else WIDTHS[job.dtype]
    moved = 7 * state * job.trained / ranks * job.minibatches

    def of(times: float) -> tuple[float, str]:
        text = f"{times:g} x a forward pass of {tokens:,.0f}: {_tera(times * operations)} TFLOP / {_tera(rate)} TFLOP/s"
        return times * operations / rate, text

    return [
        Phase("log-probabilities", *of(job.reference + extra)),
        Phase("update", *of(passes)),
        Phase("AdamW", moved / bandwidth, f"7 reads and writes: {_gb(moved)} / {_gb(bandwidth)}/s"),
    ]


def _moved(name: str, count: float, rate: float, assumed: Assumed, why: str) -> Phase:
    """A transfer of `count` bytes at a published `rate` in GB/s."""
    rate *= 1e9 * assumed.transfer
    return Phase(name, count / rate, f"{why}: {_gb(count)} / {_gb(rate)}/s")


def _one_device(job: Job, card: Card, assumed: Assumed) -> tuple[list[Part], list[Phase]]:
    phases = _sampling(job, card, assumed, replicas=1, room=None if job.sampled else card.memory * 1e9 / 4)
    phases += _update(job, card, assumed, job.load.unique, ranks=1)
    return _parts(job), phases + _offload(job, card, assumed, job.load.unique)


def _offload(job: Job, card: Card, assumed: Assumed, tokens: float) -> list[Phase]:
    """The transfers of `learner.offload`, if there are any, in an update of so many tokens."""
    learner, width, transferred = job.learner, WIDTHS[job.dtype], 0.0
    if learner.offloads_optimizer:
        state = 4 if learner.masters or learner.lora else width
        transferred += 2 * (2 + learner.masters) * state * job.trained * job.minibatches
    if learner.offloads_reference and job.reference:
        transferred += job.shape.parameters * width * math.ceil(tokens / learner.chunk_tokens)
    why = "moments in and out, reference once a chunk"
    return [_moved("offload", transferred, card.pcie, assumed, why)] if transferred else []


def _torchrun(job: Job, card: Card, assumed: Assumed, gpus: int, between: float) -> tuple[list[Part], list[Phase]]:
    """Rank 0 samples while the others wait. Each rank has its rows' own prefix tree, and an update's whole weights."""
    parts, width, fsdp2 = _parts(job), WIDTHS[job.dtype], job.learner.parallel == "fsdp2"
    if fsdp2:
        parts = divided(parts, gpus, replica=job.sampled is not None)
    phases = _sampling(job, card, assumed, replicas=1, room=None if job.sampled else card.memory * 1e9 / 4)
    tokens = job.load.unique_of(gpus)
    phases += _update(job, card, assumed, tokens, ranks=gpus if fsdp2 else 1) + _offload(job, card, assumed, tokens)
    # Weights are gathered for the update, the reference, the copy that is sampled from; DDP reduces to every rank.
    gathered = (2 + job.reference) * job.shape.parameters * width if fsdp2 else 0
    state = 4 if job.learner.masters or job.learner.lora else width
    count = (gathered + state * job.trained * (1 if fsdp2 else 2)) * job.minibatches * (gpus - 1) / gpus
    return parts, [*phases, _moved("collectives", count, between, assumed, "weights gathered, gradient reduced")]


def _served(
    job: Job, card: Card, assumed: Assumed, gpus: int, per_node: int, between: float
) -> tuple[list[Part], list[Phase]]:
    """verl, or a Tinker server on the same GPUs: bfloat16 passes over all tokens, float32 state, all of it divided."""
    shape, load = job.shape, job.load
    learner = job.learner.model_copy(update={"masters": True, "offload": "none", "recompute_activations": True})
    job = replace(job, dtype="bfloat16", learner=learner, sampled=None)
    weights, half = 2 * shape.parameters, card.memory * GIB / 2  # verl's `gpu_memory_utilization` is 0.5
    tensor = 1
    while weights / tensor > 0.8 * half and tensor < per_node:  # the rest is vLLM's cache
        tensor *= 2
    state, pass_bytes = 16 * job.trained, token_bytes(shape, 2, learner) + 6 * shape.vocabulary
    frozen = 4 * shape.parameters * (job.reference or learner.lora is not None)
    parts = [
        Part("weights, gradient, AdamW", -(-state // gpus), f"16 x {job.trained:,} / {gpus} (float32)"),
        Part("reference or frozen weights", -(-frozen // gpus), f"4 x {shape.parameters:,} / {gpus} (float32)"),
        Part("two layers, gathered", 4 * shape.largest, f"2 x 2 x {shape.largest:,}", "update"),
        Part("activations, logits", assumed.micro * pass_bytes, f"{assumed.micro:,} tokens x {pass_bytes:,}", "update"),
        Part("vLLM", max(round(half), -(-weights // tensor)), f"half a card; weights over {tensor}", "sampling"),
    ]
    replicas = max(1.0, min(gpus / tensor, load.trajectories))
    phases = _sampling(job, card, assumed, replicas=replicas, tensor=tensor, room=max(1.0, tensor * half - weights))
    ranks = min(gpus, load.rows)
    tokens = load.all / load.rows * math.ceil(load.rows / ranks)
    phases += _update(job, card, assumed, tokens, ranks=gpus, extra=1)  # the old log-probabilities once more
    passes = max(job.minibatches, math.ceil(tokens / assumed.micro))
    moved = (gpus - 1) / gpus * weights * passes * (5 + job.reference)  # 3 or 4 times gathered, reduced in float32
    network = _moved("collectives", moved, between, assumed, f"{passes} passes gather each layer, beyond their time")
    hidden = sum(phase.seconds for phase in phases if phase.name in ("log-probabilities", "update"))
    padded = load.rows * (load.prompt + max(load.longest, load.all / load.rows)) * _ROW_BYTES
    return parts, [
        *phases,
        replace(network, seconds=max(0.0, network.seconds - hidden)),
        _moved("weight sync", weights, between, assumed, "bfloat16 weights to the servers"),
        _moved("controller", padded, card.network, assumed, f"padded rows, {_ROW_BYTES} bytes a token"),
    ]


def _parts(job: Job) -> list[Part]:
    parts = engine_parts(job.shape, job.dtype, job.learner, sampled=job.sampled, on_card=job.on_card)
    assert parts is not None  # `ways` has seen to it
    return parts


def ways(job: Job, card: Card, gpus: int, per_node: int = 8, assumed: Assumed = DEFAULT) -> list[Way]:
    """Each way on these GPUs; where the job's own settings do not fit, with the first of others that do.

    Raises `UnsupportedError` for a LoRA target whose layers are unknown.
    """
    if job.learner.lora and job.learner.lora.target != "all-linear":
        raise UnsupportedError(
            f"learner.lora.target = {job.learner.lora.target!r}: its layers are not known",
            code="nothing-to-plan",
            fix='plan with --set learner.lora.target="all-linear"',
        )
    nodes, per_node = math.ceil(gpus / per_node), min(gpus, per_node)
    between = card.network if nodes > 1 else card.link or card.pcie
    away = replace(job, learner=job.learner.model_copy(update={"offload": "all"}))
    masters = job.learner.lora is None
    alone = [job, away, _with_masters(away)] if masters else [job, away]
    found = [[_way("one device", each, job, card, 1, _one_device(each, card, assumed)) for each in alone]]
    if gpus > 1:
        found.append([
            _way("torchrun", each, job, card, gpus, _torchrun(each, card, assumed, gpus, between))
            for each in _ranked(job, masters=masters)
        ])  # fmt: skip
    served = _served(job, card, assumed, gpus, per_node, between)
    kinds = _SERVED if job.learner.lora is None else _SERVED[:1]
    found += [[_way(kind, job, job, card, gpus, served)] for kind in kinds]
    return [next((way for way in candidates if way.fits), candidates[0]) for candidates in found]


def _ranked(job: Job, *, masters: bool) -> list[Job]:
    """What several processes accept of the job's settings: FSDP2 without offload, or else DDP."""
    if job.learner.parallel == "ddp" or not job.divisible:
        return [replace(job, learner=job.learner.model_copy(update={"parallel": "ddp"}))]
    here = replace(job, learner=job.learner.model_copy(update={"offload": "none"}))
    return [here, _with_masters(here)] if masters else [here]


def _with_masters(job: Job) -> Job:
    return replace(job, dtype="bfloat16", learner=job.learner.model_copy(update={"masters": True}))


def _way(kind: Kind, job: Job, asked: Job, card: Card, gpus: int, computed: tuple[list[Part], list[Phase]]) -> Way:
    """The way, with what breaks first: a part that is too large, else GPUs without rows, else the longest phase.

    `asked`: the job with the recipe's own settings.
    """
    parts, phases = computed
    taken, fits = peak(parts), peak(parts) <= card.memory * GIB
    if kind == "Tinker":  # the model and its controller are the server's, whether they fit there or not
        phases = phases[:-1]
    total = sum(phase.seconds for phase in phases)
    slowest = max(phases, key=lambda phase: phase.seconds)
    if not fits:
        largest = max((part for part in parts if not part.host), key=lambda part: part.bytes)
        first = f"memory: {largest.name}"
    elif gpus > job.load.rows:
        first = f"{gpus - math.floor(job.load.rows)} GPUs have no row"
    else:
        first = f"{slowest.name}, {slowest.seconds / total:.0%}"
    new, old = ({"learner.offload": each.learner.offload, "learner.parallel": each.learner.parallel,
                 "learner.masters": str(each.learner.masters).lower(), f"engines.{each.engine}.dtype": each.dtype}
                for each in (job, asked))  # fmt: skip
    settings = {key: value for key, value in new.items() if value != old[key]}
    if kind == "Tinker":
        taken, parts = 0, []
    return Way(
        kind=kind, settings=settings, bytes=taken, host=offloaded(parts), fits=fits, first=first, parts=tuple(parts),
        phases=tuple(phases),
    )  # fmt: skip


def _tera(operations: float) -> str:
    return f"{operations / 1e12:,.4g}"


def _gb(count: float) -> str:
    """Of a transfer: GB are 1e9 bytes, as on data sheets."""
    return f"{count / 1e9:,.3g} GB"
