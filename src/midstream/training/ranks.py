"""The learner over several processes of torchrun, with FSDP2. Rank 0 leads; the others do what it announces.

Every rank computes the gradient of its own rows. During an update the weights are whole on each rank: FSDP2 gathers
them once before its passes, and one more pass, of a single token that adds zero, reduces the gradient afterwards. So
all ranks make the same collective calls, however many passes their rows take.

A checkpoint holds what `LocalLearner.save` writes, in the format of torch.distributed.checkpoint: each rank writes its
parts, and reads those that it needs. Any number of ranks reads what any number has written, one included. Of a 16-bit
model, the float32 masters of one process are the divided weights of several.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from midstream.core.errors import MidstreamError, TrainingError, UnsupportedError
from midstream.prefix_tree.attention import causal_lm
from midstream.prefix_tree.cost import Cost
from midstream.prefix_tree.tree import common_prefix
from midstream.training.learner import LocalLearner, any_sampled
from midstream.training.losses import PolicyLoss
from midstream.training.offload import StreamedAdamW
from midstream.training.passes import require_prompt
from midstream.training.protocols import LossStats, Row
from midstream.training.settings import LearnerConfig

P = ParamSpec("P")
T = TypeVar("T")

_GATHERED = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
_WHOLE = StateDictOptions(full_state_dict=True, strict=False)
_WAIT = timedelta(days=30)  # for rank 0 to announce the next update: rollouts take as long as they take


def on_every_rank(method: Callable[Concatenate[RankedLearner, P], T]) -> Callable[Concatenate[RankedLearner, P], T]:
    """A method that rank 0 announces before it runs it, so that the other ranks run it with the same arguments."""

    @wraps(method)
    def announced(self: RankedLearner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # The caller is a method that all ranks run already.
        if self.inside:
            return method(self, *args, **kwargs)
        self.inside = True
        try:
            with _losses():
                if self.rank == 0:
                    self.announce(method.__name__, *args, **kwargs)
                return method(self, *args, **kwargs)
        finally:
            self.inside = False

    return announced


@contextmanager
def _losses() -> Iterator[None]:
    """Raise a `TrainingError` where another rank does not answer any more."""
    try:
        yield
    except RuntimeError as failure:
        if not isinstance(failure, dist.DistError) and "gloo" not in str(failure):
            raise
        raise TrainingError(
            f"rank {dist.get_rank()} of {dist.get_world_size()} lost another rank",
            code="rank-lost",
            cause="its process ended: a kill, or too little memory",
            fix="look for its own message; then midstream resume RUN --nproc N",
        ) from failure


class RankedLearner(LocalLearner):
    """A `LocalLearner` whose rows, weights, gradient and moments are divided among the ranks.

    Every rank makes one, within `joined`; then rank 0 calls its methods as with any learner, while the others are
    in `serve`. `sampled`: an engine in this process samples from `model`; that is then a whole copy, on rank 0 alone,
    which `publish` brings up to date.

    Raises `UnsupportedError` for a model that changes its weights between steps, and for offload.
    """

    def __init__(self, model: PreTrainedModel, config: LearnerConfig, *, sampled: bool) -> None:
        self.rank, self.ranks, self.inside = dist.get_rank(), dist.get_world_size(), False
        self._announcements: Any = dist.new_group(backend="gloo", timeout=_WAIT)
        self.replica: PreTrainedModel | None = None
        per_role = config.lora is not None and config.lora.per_role
        if config.offload or per_role or hasattr(model, "before_step"):
            redrawn = "a model that changes its weights between steps (engine type tiny)"
            what = "learner.lora.per_role = true" if per_role else redrawn
            raise UnsupportedError(
                f"{'learner.offload = true' if config.offload else what} does not go with several processes",
                code="setting-conflict",
                cause="between updates no rank has whole weights; its share of them stays on its device",
                fix="leave out --nproc" + ", or set learner.offload = false" * config.offload,
            )
        # The masters are the divided weights themselves.
        super().__init__(model, config, masters=False)
        self._dtype, masters = model.dtype, config.has_masters(str(model.dtype).removeprefix("torch."))
        if sampled and self.rank == 0:
            self.replica, self.model = self.model, copy.deepcopy(self.model)
        _divide(self.model, masters=masters)
        if self.reference is not None:
            _divide(self.reference)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = self._fresh_optimizer()

    # -- between the ranks --------------------------------------------------------------------------------------------

    def announce(self, name: str, *args: object, **kwargs: object) -> None:
        """Rank 0: have the other ranks call the method `name`; "" ends their `serve`."""
        dist.broadcast_object_list([(name, args, kwargs)], src=0, group=self._announcements)

    def serve(self) -> None:
        """The other ranks: do what rank 0 announces, until it ends that.

        Raises `TrainingError` if a rank is lost.
        """
        while True:
            announced: list[Any] = [None]
            with _losses():
                dist.broadcast_object_list(announced, src=0, group=self._announcements)
            name, args, kwargs = announced[0]
            if not name:
                return
            try:
                getattr(self, name)(*args, **kwargs)
            except MidstreamError as error:
                if error.code == "rank-lost":
                    raise
                # Else every rank has raised it (`_of_all`), and rank 0 reports it.

    def _of_all(self, compute: Callable[[], T]) -> list[T]:
        """The result of every rank, in their order. An error of one is raised on all of them."""
        result: T | MidstreamError
        try:
            result = compute()
        except MidstreamError as error:
            result = error
        results: list[Any] = [None] * self.ranks
        dist.all_gather_object(results, result)
        for each in results:
            if isinstance(each, MidstreamError):
                raise each
        return results

    def _total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, on each."""
        dist.all_reduce(value)
        return value

    def _shares(self, rows: Sequence[Row]) -> list[list[int]]:
        shared = self.attention.backend is not None and (self.config.attention != "auto" or self.cost.counts)
        return shares(rows, self.ranks, self.cost, shared=shared)

    def _own(self, rows: Sequence[Row]) -> list[Row]:
        for row in rows:
            # Every rank checks all rows here: later, one would stop while the others wait for it.
            require_prompt(row)
        return [rows[i] for i in self._shares(rows)[self.rank]]

    # -- the learner --------------------------------------------------------------------------------------------------

    before_step = on_every_rank(LocalLearner.before_step)  # pyright: ignore[reportAssignmentType]
    # Each rank changes its own part, and restores what a run on any number of ranks has saved.
    optimizer_step = on_every_rank(LocalLearner.optimizer_step)  # pyright: ignore[reportAssignmentType]
    load = on_every_rank(LocalLearner.load)  # pyright: ignore[reportAssignmentType]

    @on_every_rank
    def rebase(self) -> None:
        """As in one process; the copy that is sampled from has the weights, too."""
        super().rebase()
        self.publish()

    @on_every_rank
    def forward_backward(self, rows: Sequence[Row], loss: PolicyLoss) -> LossStats:
        """As in one process: the gradient and the sums are over all rows."""
        own = self._own(rows)

        def compute() -> LossStats:
            if any_sampled(own):
                return super(RankedLearner, self).forward_backward(own, loss)
            with self.reference_policy() if loss.kl_coefficient else nullcontext():
                # This rank has no rows, but takes part in what the others gather.
                pass
            with self._accumulate():
                return LossStats()

        return LossStats.total(self._of_all(compute))

    @on_every_rank
    def logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> list[tuple[float, ...]]:
        """As in one process."""
        own = self._own(rows)
        with self.reference_policy() if reference else _gather(self.model):
            computed = self._of_all(lambda: super(RankedLearner, self).logprobs(own, reference=reference))
        by_row: dict[int, tuple[float, ...]] = {}
        for places, values in zip(self._shares(rows), computed, strict=True):
            by_row.update(zip(places, values, strict=True))
        return [by_row[i] for i in range(len(rows))]

    @on_every_rank
    def supervised_step(
        self, rows: Sequence[Row], learning_rate: float, prompt_weight: float = 0.0, *, shared: bool = False
    ) -> float:
        """As in one process."""
        own, update = self._own(rows), super().supervised_step
        # All ranks have the sum.
        return self._of_all(lambda: update(own, learning_rate, prompt_weight, shared=shared))[0]

    @on_every_rank
    def export_weights(self, directory: Path, state: Any = None) -> None:
        """Rank 0 writes what all hold."""
        state = get_model_state_dict(self.model, options=_GATHERED)
        if self.rank == 0:
            # Each tensor is written once: a tied head has two names. Masters are in float32, an adapter is always.
            own = [name for name, _ in self.model.named_parameters()]
            kind = None if self.config.lora else self._dtype
            super().export_weights(directory, {name: state[name].to(kind) for name in own if name in state})

    @on_every_rank
    def publish(self) -> None:
        """Bring the copy that is sampled from up to date."""
        state: Any = get_model_state_dict(self.model, options=_GATHERED)
        if self.replica is not None:
            self.replica.load_state_dict(state, strict=False)

    @on_every_rank
    def save(self, directory: Path) -> None:
        """Each rank writes its parts. A full disk shows as an `OSError`."""
        begun = bool(self.optimizer.state)
        with _own_errors():
            state = _state(self.model, self.reference, self.optimizer, self._prepared, begun=begun)
            save_parts(state, checkpoint_id=directory)

    def _load_whole(self, state: Mapping[str, Any]) -> None:
        """Divide what one process wrote among the ranks."""
        names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        other = state["model"].keys() ^ set(names)
        if other:
            raise KeyError(min(other))
        moments, groups = state["optimizer"]["state"], state["optimizer"]["param_groups"]
        # Taken out of the moments: torch would keep them whole on each rank.
        masters = {names[place]: kept.pop("master") for place, kept in moments.items() if "master" in kept}
        set_model_state_dict(self.model, {**state["model"], **masters}, options=_WHOLE)
        if self.reference is not None:
            set_model_state_dict(self.reference, state["reference"], options=_WHOLE)
        if moments:
            named = {
                "state": {names[place]: moments[place] for place in moments},
                "param_groups": [{**group, "params": [names[place] for place in group["params"]]} for group in groups],
            }
            set_optimizer_state_dict(self.model, self.optimizer, named, options=_WHOLE)
        self._prepared = state.get("prepared")

    # -- whole weights ------------------------------------------------------------------------------------------------

    @contextmanager
    def reference_policy(self) -> Iterator[PreTrainedModel]:
        """The reference policy, whole on each rank within the context.

        Outside an update, of rank 0 alone, it belongs to the copy that is sampled from: with LoRA, without its adapter.
        """
        if self.inside:
            with _gather(self.reference or self.model), super().reference_policy() as model:
                yield model
            return
        if self.replica is None or self.reference is not None:
            raise UnsupportedError(
                "the reference policy cannot be sampled from: its weights are divided among the ranks",
                code="setting-conflict",
                fix="train a LoRA adapter, or train in one process",
            )
        with self.replica.disable_adapter():  # type: ignore[operator]
            yield self.replica

    @contextmanager
    def _accumulate(self) -> Iterator[None]:
        """Where gradients are added up on each rank; at its end they become the sum over the ranks."""
        divided: Any = self.model
        divided.set_requires_gradient_sync(False)
        with _gather(self.model):
            try:
                yield
            finally:
                divided.set_requires_gradient_sync(True)
                (divided(input_ids=_token(self.model), use_cache=False).logits.sum() * 0).backward()


def _divide(model: PreTrainedModel, *, masters: bool = False) -> None:
    """Divide a model's parameters among the ranks, layer by layer.

    With `masters` they are float32, gathered in the model's own type, and their gradients are summed in float32.
    """
    mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
    settings: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": False}
    if masters:
        settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=model.dtype, reduce_dtype=torch.float32)
    layers = set(causal_lm(model)._no_split_modules)
    for module in [each for each in model.modules() if type(each).__name__ in layers] + [model]:
        fully_shard(module.float() if masters else module, **settings)
    root: Any = model
    root.set_reshard_after_backward(False)
    for part in _parts(model):
        # The sum over the ranks is wanted; gloo cannot scale as it sums.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    with torch.no_grad(), _gather(model):
        # The whole model runs before the passes, because what runs first becomes FSDP2's root.
        model(input_ids=_token(model), use_cache=False)


def _parts(model: torch.nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def _gather(model: PreTrainedModel) -> Iterator[None]:
    """A divided model is whole on each rank within the context; every rank enters it."""
    parts = _parts(model)
    for part in parts:
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()


def _token(model: PreTrainedModel) -> torch.Tensor:
    return torch.zeros(1, 1, dtype=torch.long, device=model.device)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def load_state(
    directory: Path, model: torch.nn.Module, reference: torch.nn.Module | None, optimizer: torch.optim.Optimizer
) -> int | None:
    """Restore what the ranks of `RankedLearner.save` wrote, on any number of them, one included; returns `prepared`.

    Raises `KeyError`, `RuntimeError` or `ValueError` where it does not fit the model.
    """
    metadata = FileSystemReader(directory).read_metadata().state_dict_metadata
    # An optimizer without a step has no state; asking for it would make some, one step old.
    begun = any(name.startswith("optimizer.") for name in metadata)
    if begun and isinstance(optimizer, StreamedAdamW):
        optimizer.allocate()
    state = _state(model, reference, optimizer, None, begun=begun)
    moments = state["optimizer"]["state"] if begun else {}
    # The checkpoint has none, but float32 weights: the masters are those, and the model's own are rounded from them.
    masters = {name: kept.pop("master") for name, kept in moments.items() if "master" in kept}
    state["model"] |= masters
    other = {name for name in metadata if name.startswith("model.")} ^ {f"model.{name}" for name in state["model"]}
    if other:
        raise KeyError(min(other))
    with warnings.catch_warnings(), _own_errors():
        # One process needs no process group.
        warnings.filterwarnings("ignore", "torch.distributed is .* uninitialized")
        load_parts(state, checkpoint_id=directory, no_dist=not dist.is_initialized())
    set_model_state_dict(model, state["model"], options=_TRAINED)
    if reference is not None:
        set_model_state_dict(reference, state["reference"])
    for name, master in masters.items():
        moments[name]["master"] = master
    if begun:
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=_TRAINED)
    return state["prepared"]


def _state(
    model: torch.nn.Module,
    reference: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer,
    prepared: int | None,
    *,
    begun: bool,
) -> dict[str, Any]:
    state: dict[str, Any] = {"model": get_model_state_dict(model, options=_TRAINED), "prepared": prepared}
    if reference is not None:
        state["reference"] = get_model_state_dict(reference)
    if begun:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer, options=_TRAINED)
    return state


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise what a rank met, in place of torch's exception, which no `except Exception` catches."""
    try:
        yield
    except CheckpointException as error:
        first: Any = next(iter(error.failures.values()))
        raise first[0] from error


# -- which rank computes which rows ------------------------------------------------------------------------------------


def shares(rows: Sequence[Row], ranks: int, cost: Cost, *, shared: bool) -> list[list[int]]:
    """Divide rows among ranks, so that the rank with the most work has as little as possible; places, by rank.

    Work is operations: of tokens, attention pairs and predicted tokens, what rows of a rank share counted once
    (`shared`; else equal rows once). Rows stay in the order of their trie, where neighbors share the most, so a task's
    subtree is on one rank but where it is cut to relieve the slowest one, which computes the task's prompt again.
    """
    sequences = [row.prompt_ids + row.completion_ids for row in rows]
    order = sorted(range(len(rows)), key=lambda i: sequences[i])
    arrays = [np.asarray(sequences[i], np.int64) for i in order]
    common = [0, *(common_prefix(a, b) for a, b in pairwise(arrays))][: len(rows)]
    if not shared:
        common = [0 if length < len(array) else length for length, array in zip(common, arrays, strict=True)]

    def work(place: int, known: int) -> int:
        """Operations of a row whose first `known` tokens are computed already."""
        row, length = rows[order[place]], len(arrays[place])
        sampled = row.sampled or (True,) * len(row.completion_ids)
        predicted = sum(sampled[max(0, known - len(row.prompt_ids)) :])
        pairs = (length * (length + 1) - known * (known + 1)) // 2
        return (length - known) * cost.token + pairs * cost.pair + predicted * cost.predicted

    alone = [work(place, 0) for place in range(len(order))]
    after = [work(place, common[place]) for place in range(len(order))]

    def cut(most: float) -> list[list[int]]:
        """Neighbors together up to `most` of work a share."""
        found: list[list[int]] = []
        left = 0.0
        for place, index in enumerate(order):
            if found and after[place] <= left:
                found[-1].append(index)
                left -= after[place]
            else:
                found.append([index])
                left = most - alone[place]
        return found

    low, high = max(alone, default=0), sum(alone)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(cut(middle)) <= ranks else (middle + 1, high)
    found = [sorted(places) for places in cut(low)]
    return found + [[] for _ in range(ranks - len(found))]
