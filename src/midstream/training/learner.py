"""The learner: forward, backward and AdamW on one process's weights, full or LoRA.

Rows share their prefixes: `passes.py` computes the trie of the batch, or padded rows where that is cheaper or the model
cannot attend over a trie.
"""

from __future__ import annotations

import copy
import ctypes
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch.nn import functional
from transformers import PreTrainedModel

from midstream.core.errors import CheckpointError, RecipeError, StorageError, TrainingError, UnsupportedError
from midstream.engines.adapters import adapter_of
from midstream.prefix_tree.cost import Cost
from midstream.prefix_tree.support import choose
from midstream.prefix_tree.tree import Tree, tree_of
from midstream.training.losses import PolicyLoss
from midstream.training.offload import StreamedAdamW, streamed_copy
from midstream.training.passes import (
    Chunk,
    PassPlan,
    at_least_single,
    head,
    hidden_states,
    padded_chunks,
    plan_of,
    recompute_layers,
    require_plain_head,
)
from midstream.training.protocols import LossStats, Row
from midstream.training.settings import LearnerConfig, LoraConfig

_RETURNED_FROM = 2**28  # bytes of weights


class LocalLearner:
    """A `training.protocols.Learner` over a model object that an in-process engine may share.

    The reference policy is a frozen copy of the weights at construction; with LoRA it is the model with its adapter
    switched off. What `offload.py` keeps in host memory changes no result. `masters`: train float32 copies of the
    weights, by default of 16-bit ones; `adapters` are the names of those of LoRA. Raises `UnsupportedError` if the
    model's logits are not its head on its last hidden states.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: LearnerConfig,
        *,
        masters: bool | None = None,
        adapters: Sequence[str] = ("default",),
    ) -> None:
        self.config = config
        self.masters = config.has_masters(str(model.dtype).removeprefix("torch.")) if masters is None else masters
        require_plain_head(model)
        self.model: PreTrainedModel = _with_lora(model, config.lora, adapters) if config.lora else model
        self.reference: PreTrainedModel | None = None
        if not config.lora:
            frozen = streamed_copy if config.offload else copy.deepcopy
            self.reference = frozen(self.model).requires_grad_(False)
        if config.recompute_activations:
            with warnings.catch_warnings():
                # The warning is of a name whose successor is not in every version we allow.
                warnings.simplefilter("ignore", FutureWarning)
                self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.attention = choose(self.model, config.attention)
        self.cost = Cost.of(self.model)
        # Of several adapters, only the one that computes requires a gradient.
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad or (config.lora and "lora_" in n)}
        self._trained, self.parameters = frozenset(trained), [*trained.values()]
        self.optimizer = self._fresh_optimizer()
        self._prepared: int | None = None  # the seed of the last `before_step`

    @property
    def why_unshared(self) -> str:
        """Why shared prefixes are computed for each row; "" if they are not, or if the recipe asks for rows."""
        return "" if self.attention.backend or self.config.attention == "rows" else self.attention.reason

    def before_step(self, seed: int) -> None:
        """Call `before_step(seed)` of policy and reference if they have it: it may change weights, alike in both.

        Does nothing for the seed of the call before: a checkpoint may hold weights prepared for the next step.
        """
        if seed == self._prepared:
            return
        self._prepared = seed
        for model in (self.model, self.reference):
            if hasattr(model, "before_step"):
                model.before_step(seed)  # type: ignore[operator, union-attr]

    def forward_backward(self, rows: Sequence[Row], loss: PolicyLoss) -> LossStats:
        """Add the gradient of the weighted loss over `rows`; how they are packed does not change it."""
        if not any_sampled(rows):
            return LossStats()
        tree, plan = self._plan(rows)
        batch = plan.batch
        # Flat tensors [_M] of the batch's tokens, on the device and in the type that log-probabilities have.
        like = at_least_single(torch.empty(0, device=self.model.device, dtype=self.model.dtype))
        choices = torch.from_numpy(batch.choices).to(like.device)
        recorded, advantages = batch.recorded(like), batch.advantages(like)
        weights = batch.per_token([row.weight for row in batch.rows], like)
        kl_weights = batch.per_token([row.kl_weight for row in batch.rows], like)
        reference = None
        if loss.kl_coefficient:
            with self.reference_policy() as model:
                reference = plan.logprobs(model)
        stats = LossStats(total_tokens=tree.total, unique_tokens=tree.unique)

        def of_tokens(tokens: torch.Tensor, logprobs: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
            """The loss of some tokens, which have these log-probabilities; counts it."""
            nonlocal stats
            result = loss.per_token(
                logprobs,
                recorded[tokens],
                None if reference is None else reference[choices[tokens]],
                advantages[tokens],
                weights[tokens],
                kl_weights[tokens],
                rows=rows,
            )
            total = result.loss.sum()
            require_finite(total.item(), "loss")
            stats = replace(
                stats,
                loss=stats.loss + total.item(),
                kl_sum=stats.kl_sum + result.kl.sum().item(),
                gap_sum=stats.gap_sum + (logprobs.detach() - recorded[tokens]).abs().sum().item(),
                clipped=stats.clipped + int(result.clipped.sum()),
                tokens=stats.tokens + len(tokens),
            )
            return total

        slopes: torch.Tensor | None = None

        def chunk_loss(chunk: Chunk, logprobs: torch.Tensor, entropies: torch.Tensor | None) -> torch.Tensor:
            nonlocal stats
            tokens = torch.from_numpy(chunk.tokens).to(logprobs.device)
            own = choices[tokens] - chunk.choices.start
            total = of_tokens(tokens, logprobs[own]) if slopes is None else (slopes[tokens] * logprobs[own]).sum()
            if entropies is None:
                return total
            bonus = loss.entropy_coefficient * (kl_weights[tokens] * entropies[own]).sum()
            stats = replace(
                stats,
                loss=stats.loss - bonus.item(),
                entropy_sum=stats.entropy_sum + entropies[own].sum().item(),
            )
            return total - bonus

        with self._accumulate():
            if loss.needs_rows:
                # The loss of whole rows first, from a pass without gradient; then its derivatives by the
                # log-probabilities go through the model, which is the chain rule.
                current = plan.logprobs(self.model)[choices].requires_grad_()
                rows_of = np.repeat(np.arange(len(batch.rows)), np.diff(batch.row_ends))
                every = torch.arange(len(choices), device=like.device)
                total = of_tokens(every, current, torch.from_numpy(rows_of).to(like.device))
                (slopes,) = torch.autograd.grad(total, current)
            plan.backward(self.model, chunk_loss, entropy=loss.entropy_coefficient > 0)
        return stats

    def optimizer_step(self, learning_rate: float) -> float:
        """Clip the gradient's norm, step, clear; returns the norm before clipping."""
        total: Any = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        # Of weights divided among ranks, the norm is divided, too.
        norm = (total.full_tensor() if hasattr(total, "full_tensor") else total).item()
        require_finite(norm, "gradient norm")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        if sys.platform == "linux" and sum(weights.nbytes for weights in self.parameters) >= _RETURNED_FROM:
            # glibc keeps freed memory: a process would grow from update to update.
            if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
                trim(0)
        return norm

    def logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> list[tuple[float, ...]]:
        """Log-probabilities of each row's completion tokens under the policy or the reference policy.

        As in a row's `old_logprobs`, tokens that were not sampled have 0.
        """
        if not any_sampled(rows):
            return [(0.0,) * len(row.completion_ids) for row in rows]
        _, plan = self._plan(rows)
        with self.reference_policy() if reference else nullcontext(self.model) as model:
            return plan.batch.by_row(plan.logprobs(model))

    def supervised_step(
        self, rows: Sequence[Row], learning_rate: float, prompt_weight: float = 0.0, *, shared: bool = False
    ) -> float:
        """One step of cross-entropy; returns the loss.

        Sampled tokens have weight 1, prompt tokens `prompt_weight`, text of the environment in between 0.
        With `shared`, what rows have in common is computed once, and prompt tokens have weight 0.
        """
        value = self._shared_cross_entropy(rows) if shared else self._cross_entropy(rows, prompt_weight)
        self.optimizer_step(learning_rate)
        return value

    def _shared_cross_entropy(self, rows: Sequence[Row]) -> float:
        """Add the gradient of the mean cross-entropy of sampled tokens; returns the loss."""
        plan = self._plan(rows)[1] if rows else None
        choices, value = plan.batch.choices if plan else (), 0.0
        count = self._total(torch.tensor(len(choices), device=self.model.device)).item()

        def chunk_loss(chunk: Chunk, logprobs: torch.Tensor, entropies: torch.Tensor | None) -> torch.Tensor:
            nonlocal value
            own = torch.from_numpy(choices[chunk.tokens] - chunk.choices.start).to(logprobs.device)
            loss = -logprobs[own].sum() / count
            require_finite(loss.item(), "supervised loss")
            value += loss.item()
            return loss

        with self._accumulate():
            if plan is not None:
                plan.backward(self.model, chunk_loss)
        return self._total(torch.tensor(value, dtype=torch.float64)).item()

    def _cross_entropy(self, rows: Sequence[Row], prompt_weight: float) -> float:
        """Add the gradient of the weighted cross-entropy of padded rows; returns the loss."""
        chunks = [
            _pad_weighted([rows[i] for i in chunk], prompt_weight, self.model.device)
            for chunk in padded_chunks([row.length for row in rows], self.config.chunk_tokens)
        ]
        sums = [weights.sum() for _, weights in chunks] or [torch.zeros((), device=self.model.device)]
        total, value = self._total(torch.stack(sums).sum()), 0.0
        with self._accumulate():
            for ids, weights in chunks:
                picked = weights[:, 1:] > 0
                with recompute_layers(self.model):
                    logits = head(self.model, hidden_states(self.model, ids[:, :-1])[picked])
                losses = functional.cross_entropy(at_least_single(logits), ids[:, 1:][picked], reduction="none")
                loss = (losses * weights[:, 1:][picked]).sum() / total
                require_finite(loss.item(), "supervised loss")
                loss.backward()
                value += loss.item()
        return self._total(torch.tensor(value, dtype=torch.float64)).item()

    def publish(self) -> None:
        """Nothing: an engine in this process samples from the learner's own model."""

    def export_weights(self, directory: Path, state: dict[str, torch.Tensor] | None = None) -> None:
        """Write the model (with LoRA: the adapter alone) in Hugging Face's format; `state` in place of its weights."""
        try:
            self.model.save_pretrained(directory, state_dict=state)
        except SafetensorError as failure:
            raise StorageError(
                f"the weights could not be written to {directory}: {failure}",
                code="write-failed",
                fix="make room on the disk, then resume the run",
            ) from failure

    def save(self, directory: Path) -> None:
        """Write trainable and reference weights and the optimizer's state."""
        state = {
            "model": {name: one for name, one in self.model.state_dict().items() if name in self._trained},
            "reference": self.reference.state_dict() if self.reference else None,
            "optimizer": self.optimizer.state_dict(),
            "prepared": self._prepared,
        }
        # The file is opened here, so that a full disk shows as an OSError.
        with (directory / "learner.pt").open("wb") as file:
            torch.save(state, file)

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote; `CheckpointError` if it is damaged, or belongs to another model."""
        try:
            # A run on a cluster leaves weights alone.
            if (directory / "config.json").exists():
                saved = type(self.model).from_pretrained(directory, dtype=self.model.dtype)
                self.model.load_state_dict(saved.state_dict())
            elif (directory / ".metadata").exists():
                # Imported where used: it takes half a second, for what only several ranks have written.
                from midstream.training.ranks import load_state

                self._prepared = load_state(directory, self.model, self.reference, self.optimizer)
            else:
                # To the host first: a device that holds one model and its optimizer need not have room for two. Nor
                # need the host: what is in its memory already is copied there from the file.
                mapped = self.config.offload
                path = directory / "learner.pt"
                self._load_whole(torch.load(path, map_location="cpu", weights_only=True, mmap=mapped))
        except (KeyError, RuntimeError, ValueError, OSError, EOFError, UnpicklingError) as failure:
            raise CheckpointError(
                f"{directory} does not fit the model, or is damaged: {failure}",
                code="checkpoint-unfit",
                fix="resume with the recipe in the run directory; or delete it, to resume from the one before",
            ) from failure

    def _load_whole(self, state: Mapping[str, Any]) -> None:
        other = state["model"].keys() ^ self._trained
        if other:
            raise KeyError(min(other))
        if not self.masters and any("master" in one for one in state["optimizer"]["state"].values()):
            raise KeyError("master")
        # Frozen weights are not in it.
        self.model.load_state_dict(state["model"], strict=False)
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._prepared = state.get("prepared")

    def rebase(self) -> None:
        """Make the present weights the reference policy and start with a fresh optimizer."""
        if self.reference is not None:
            self.reference.load_state_dict(self.model.state_dict())
        self.optimizer = self._fresh_optimizer()

    def _fresh_optimizer(self) -> torch.optim.AdamW:
        config = self.config
        settings: dict[str, Any] = {"lr": 0.0, "betas": config.betas, "weight_decay": config.weight_decay}
        if config.offload or self.masters:
            return StreamedAdamW(self.parameters, host=config.offload, masters=self.masters, **settings)
        return torch.optim.AdamW(self.parameters, **settings)

    # What a learner over several processes does more (`ranks.py`).

    def _accumulate(self) -> AbstractContextManager[None]:
        """Where gradients are added up; at its end they are the sums over all ranks."""
        return nullcontext()

    def _total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks."""
        return value

    @contextmanager
    def reference_policy(self) -> Iterator[PreTrainedModel]:
        """The reference policy as a model, for use within the context alone."""
        if self.reference is not None:
            yield self.reference
        else:
            with self.model.disable_adapter():  # type: ignore[operator]
                yield self.model

    def _plan(self, rows: Sequence[Row]) -> tuple[Tree, PassPlan]:
        """The trie of a batch, and how the batch is computed."""
        tree = tree_of([row.prompt_ids + row.completion_ids for row in rows])
        return tree, plan_of(rows, tree, self.attention, self.cost, self.config)


class RoleLearner(LocalLearner):
    """A learner with an adapter for each role, which computes the rows of that role.

    The gradients of all rows are clipped together, and one step of AdamW changes the adapters that had rows. Rows of
    different roles share no prefixes. The reference policy is the model without adapters.
    """

    def forward_backward(self, rows: Sequence[Row], loss: PolicyLoss) -> LossStats:
        """Add the gradients of every adapter over the rows of its role."""
        update = super().forward_backward
        return LossStats.total([update([rows[place] for place in own], loss) for own in self._by_role(rows)])

    def logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> list[tuple[float, ...]]:
        """As in `LocalLearner`, each row under the adapter of its role."""
        compute, found = super().logprobs, {}
        for own in self._by_role(rows):
            found |= zip(own, compute([rows[place] for place in own], reference=reference), strict=True)
        return [found[place] for place in range(len(rows))]

    def _by_role(self, rows: Sequence[Row]) -> Iterator[list[int]]:
        """The places of each role's rows, while its adapter is the one that computes."""
        for role in dict.fromkeys(row.role for row in rows):
            self.model.set_adapter(adapter_of(role))
            yield [place for place, row in enumerate(rows) if row.role == role]


def any_sampled(rows: Sequence[Row]) -> bool:
    """Return whether the policy drew any token of them."""
    return any(any(row.sampled) if row.sampled else row.completion_ids for row in rows)


def _pad_weighted(rows: Sequence[Row], prompt_weight: float, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded ids and each token's weight in the supervised loss, [rows, longest] each; a first token has weight 0."""
    longest = max(row.length for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    weights = torch.zeros(len(rows), longest)
    for i, row in enumerate(rows):
        prompt = len(row.prompt_ids)
        ids[i, : row.length] = torch.tensor(row.prompt_ids + row.completion_ids)
        weights[i, 1:prompt] = prompt_weight
        weights[i, prompt : row.length] = torch.tensor(row.sampled, dtype=torch.float32) if row.sampled else 1.0
    return ids.to(device), weights.to(device)


def _with_lora(model: PreTrainedModel, config: LoraConfig, adapters: Sequence[str]) -> PreTrainedModel:
    from peft import LoraConfig as PeftConfig  # imported where used: it takes a second
    from peft import PeftModel, get_peft_model

    if hasattr(model, "before_step"):
        raise UnsupportedError(
            "a model that changes its weights between steps (engine type tiny) cannot be trained with LoRA",
            code="lora-unsupported",
            cause="it is trained in its embeddings, too, which adapters leave alone",
            fix="remove [learner.lora]",
        )
    # An adapter that is trained further keeps its rank and scale, and its own target modules.
    if isinstance(model, PeftModel):
        configs: Any = model.peft_config
        found = {name: (one.r, one.lora_alpha) for name, one in configs.items()}
        if found != dict.fromkeys(adapters, (config.rank, config.alpha)):
            rank, alpha = next(iter(found.values()))
            raise RecipeError(
                f"learner.lora has rank {config.rank} and alpha {config.alpha} of {', '.join(adapters)}, the engine's "
                f"adapter {rank} and {alpha} of {', '.join(found)}",
                code="setting-conflict",
                fix=f"set learner.lora = {{ rank = {rank}, alpha = {alpha} }}, per_role as it was, or name its base",
            )
        return model  # type: ignore[return-value]
    settings = PeftConfig(r=config.rank, lora_alpha=config.alpha, target_modules=config.target, task_type="CAUSAL_LM")
    with warnings.catch_warnings(), torch.random.fork_rng():
        # Half of an adapter starts random: equal runs must start equal.
        torch.manual_seed(0)
        # Peft asks transformers by a name that is being retired.
        warnings.simplefilter("ignore", FutureWarning)
        first, *others = adapters
        adapted = get_peft_model(model, settings, adapter_name=first)
        for name in others:
            adapted.add_adapter(name, settings)
        return adapted  # type: ignore[return-value]


def require_finite(value: float, what: str) -> None:
    """Raise `TrainingError` for a value that is infinite or no number."""
    if not math.isfinite(value):
        raise TrainingError(
            f"the {what} is {value}",
            code="not-finite",
            cause="the learning rate is too high, or a log-probability overflowed",
            fix="start again with a lower learning_rate, or lower it in the run's recipe.toml and resume",
        )
