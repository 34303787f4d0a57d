"""A learner on a Tinker server: this process computes the loss, the server the model's passes, its gradient and AdamW.

The server knows a few losses; midstream's are sent through two of them:

- With KL, dual clip or a loss of your own: `forward` gives the log-probabilities, `PolicyLoss.per_token` their gradient
  g = dL / d log-probability, and a loss that is linear in the log-probabilities takes it back as its weights, -g.
- Otherwise the server's `ppo` is the same loss, with advantage * weight as its advantage: one pass in place of two.

Both need a gradient that the server adds up over tokens and rows. A server may divide it, as SkyRL's JAX backend does
by the weights of a row and by the number of rows. So `Passes.division` tries two rows on a model that is thrown away.
"""

from __future__ import annotations

import io
import json
import tarfile
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import safe_open

from midstream.core.errors import CheckpointError, EngineError, UnsupportedError
from midstream.prefix_tree.tree import tree_of
from midstream.training.learner import require_finite
from midstream.training.losses import PolicyLoss
from midstream.training.protocols import LossStats, Row
from midstream_tinker.engine import TinkerEngine
from midstream_tinker.settings import TinkerLearnerConfig, is_plain

STATE = "tinker.json"  # a checkpoint's file: the names of what the server keeps
EPS = 1e-8  # AdamW's, as PyTorch's default
Array = np.ndarray[Any, np.dtype[np.float64]]


class Passes:
    """What a learner asks of a server: models, passes over rows, steps. `rank` is that of the models' adapters."""

    def __init__(self, engine: TinkerEngine, rank: int) -> None:
        self.engine, self.rank = engine, rank

    def new_model(self) -> Any:
        """The client of a new model, which is the base model until its first step."""
        # Like peft's "all-linear", which leaves out the head.
        return self.engine.ask(
            "make a LoRA adapter",
            lambda: self.engine.service.create_lora_training_client(
                self.engine.config.model, self.rank, seed=0, train_unembed=False
            ),
        )

    def run(self, client: Any, kind: Literal["forward", "forward_backward"], data: Any, *loss: Any) -> list[Array]:
        """The log-probabilities of each row's targets, [tokens - 1] each."""
        answer = self.engine.ask(kind.replace("_", " and "), lambda: getattr(client, kind)(data, *loss))
        return [output["logprobs"].to_numpy().astype(np.float64) for output in answer.loss_fn_outputs]

    def logprobs(self, client: Any, rows: Sequence[Row]) -> list[Array]:
        """The log-probabilities of each row's targets."""
        zeros = [np.zeros(row.length - 1) for row in rows]
        return self.run(client, "forward", _data(rows, weights=zeros), "cross_entropy")

    def ppo(self, client: Any, rows: Sequence[Row], loss: PolicyLoss) -> list[Array]:
        """Add the gradient of a loss without KL, in one pass."""
        old = [[row.old_logprobs[place] for place in _drawn(row)] for row in rows]
        scales = [row.weight for row in rows]
        if self.division == "mean":
            scales = [scale * (row.length - 1) * len(rows) for row, scale in zip(rows, scales, strict=True)]
        scaled = [value * scale for row, scale in zip(rows, scales, strict=True) for value in _advantages(row)]
        data = _data(
            rows,
            logprobs=_per_target(rows, np.concatenate(old)),
            advantages=_per_target(rows, np.array(scaled)),
        )
        clip = {"clip_low_threshold": 1 - loss.clip_low, "clip_high_threshold": 1 + loss.clip_high}
        return self.run(client, "forward_backward", data, "ppo", clip)

    def send(
        self,
        client: Any,
        rows: Sequence[Row],
        gradient: Sequence[Array],
        current: Sequence[Array] | None = None,
        division: Literal["sum", "mean"] | None = None,
    ) -> Sequence[Array]:
        """Add a gradient, dL / d log-probability of each row's targets; returns the log-probabilities.

        `division` is the server's. Where it takes means over a row's targets and over rows, their numbers are
        multiplied in, and the loss is importance sampling at ratio 1: its divisors are the targets, not the weights,
        whose sum may be zero or negative.
        """
        division = division or self.division
        if division == "sum":
            data = _data(rows, weights=[-each for each in gradient])
            return self.run(client, "forward_backward", data, "cross_entropy")
        current = current or self.logprobs(client, rows)
        advantages = [-each * len(each) * len(rows) for each in gradient]
        data = _data(rows, logprobs=current, advantages=advantages)
        return self.run(client, "forward_backward", data, "importance_sampling")

    def step(self, client: Any, **adam: float) -> Mapping[str, float]:
        """Make a step of AdamW with these settings; returns what the server reports of it."""
        import tinker

        answer = self.engine.ask("step", lambda: client.optim_step(tinker.AdamParams(**adam)))
        return answer.metrics or {}

    @cached_property
    def division(self) -> Literal["sum", "mean"]:
        """How the server adds up a gradient, by the change of a row's log-probability after steps of plain descent.

        A row with weights 1, then the same row and a longer one that begins with it, both with weights 3 on the first
        row's tokens: a sum is 6 times the gradient. A mean over weights, tokens or rows is less than 4 times.
        """
        size, wanted = 16, 0.4
        special = self.engine.tokenizer.all_special_ids
        ids = [token for token in range(len(self.engine.tokenizer)) if token not in special][: 4 * size]
        short, long = _probe_row(ids[: size + 1]), _probe_row(ids)
        ratios = {}
        for division in ("sum", "mean"):
            client, rate = self.new_model(), 1e-6
            # Longer steps until the change stands out from rounding, and not so long that the model is another one.
            while (change := self._descent(client, rate, [short], 1.0, size, division)) < wanted / 2 and rate < 1e6:
                rate *= min(16.0, max(2.0, wanted / max(change, 1e-9)))
            ratios[division] = self._descent(client, rate, [short, long], 3.0, size, division) / max(change, 1e-9)
            if 4.8 < ratios[division] < 7.2:
                return division
        raise UnsupportedError(
            f"{self.engine.name}: the server does not add up gradients over tokens and rows: a batch with 6 times the "
            f"gradient of a row moved it {ratios['sum']:.2f} times as far ({ratios['mean']:.2f} times, if means are "
            "multiplied out)",
            code="gradient-divided",
            fix="report it with the name and version of the server; train with [learner] on a device here",
        )

    def _descent(
        self,
        client: Any,
        rate: float,
        rows: Sequence[Row],
        weight: float,
        size: int,
        division: Literal["sum", "mean"],
    ) -> float:
        """The rise of the first row's log-probability by a step along its gradient; all rows weigh its `size` targets.

        With an `eps` far above the gradient, AdamW's step is the gradient times learning_rate / eps.
        """
        gradient = [np.where(np.arange(row.length - 1) < size, -weight, 0.0) for row in rows]
        before = self.send(client, rows, gradient, division=division)[0].sum()
        eps = 1e6
        self.step(client, learning_rate=rate * eps, beta1=0.0, beta2=0.0, eps=eps)
        return float(self.logprobs(client, rows[:1])[0].sum() - before)


class TinkerLearner:
    """A LoRA adapter on the server of `engine`, which samples from what it publishes (`training.protocols.Learner`).

    The reference policy is the base model, or the weights at the last `rebase`: a second, frozen model on the server,
    so that policy and reference are computed by the same code. Every method that asks the server raises `EngineError`.
    """

    why_unshared = "a Tinker server shares no prefixes"

    def __init__(self, engine: TinkerEngine, config: TinkerLearnerConfig) -> None:
        assert config.lora is not None  # of `learner.type = "tinker"`
        self.engine, self.config = engine, config
        self.server = Passes(engine, config.lora.rank)
        self._reference_state: str | None = None  # the name of a frozen state; None: the base model
        self._names = 0  # of states saved under this client
        self._published = False  # the engine samples from the newest weights

    # -- models on the server -----------------------------------------------------------------------------------------

    @cached_property
    def client(self) -> Any:
        """The SDK's client of the model that is trained."""
        return self.server.new_model()

    @cached_property
    def _reference(self) -> Any:
        """The client of the reference policy."""
        if self._reference_state is None:  # an adapter that was never updated changes nothing
            return self.server.new_model()
        state = self._reference_state
        return self.engine.ask(
            "restore the reference policy", lambda: self.engine.service.create_training_client_from_state(state)
        )

    # -- gradients ----------------------------------------------------------------------------------------------------

    def before_step(self, seed: int) -> None:
        """Nothing: a served model does not change its weights between steps."""

    def forward_backward(self, rows: Sequence[Row], loss: PolicyLoss) -> LossStats:
        """Add the gradient of the weighted loss over `rows`; their temperature is 1."""
        rows = [row for row in rows if _places(row)]
        if not rows:
            return LossStats()
        if warm := {row.temperature for row in rows} - {1.0}:
            raise UnsupportedError(
                f"rows sampled at temperature {min(warm):g} cannot be trained on a Tinker server",
                code="temperature-unsupported",
                cause="its passes compute log-probabilities at temperature 1",
                fix="set the trained module's sampling.temperature = 1",
            )
        one_pass = is_plain(loss)
        current = self.server.ppo(self.client, rows, loss) if one_pass else self.server.logprobs(self.client, rows)
        reference = self.server.logprobs(self._reference, rows) if loss.kl_coefficient else None
        new = torch.from_numpy(_sampled(rows, current)).requires_grad_(not one_pass)
        old = torch.tensor([row.old_logprobs[place] for row in rows for place in _drawn(row)], dtype=new.dtype)
        weights, kl_weights = (
            torch.tensor([getattr(row, name) for row in rows for _ in _drawn(row)], dtype=new.dtype)
            for name in ("weight", "kl_weight")
        )
        advantages = torch.tensor([value for row in rows for value in _advantages(row)], dtype=new.dtype)
        rows_of = torch.repeat_interleave(torch.tensor([len(_drawn(row)) for row in rows]))
        result = loss.per_token(
            new,
            old,
            None if reference is None else torch.from_numpy(_sampled(rows, reference)),
            advantages,
            weights,
            kl_weights,
            rows=rows_of if loss.needs_rows else None,
        )
        total = result.loss.sum()
        require_finite(total.item(), "loss")
        if not one_pass:
            [gradient] = torch.autograd.grad(total, new)
            self.server.send(self.client, rows, _per_target(rows, gradient.numpy()), current)
        tree = tree_of([row.prompt_ids + row.completion_ids for row in rows])
        return LossStats(
            loss=total.item(),
            kl_sum=result.kl.sum().item(),
            gap_sum=(new.detach() - old).abs().sum().item(),
            clipped=int(result.clipped.sum()),
            tokens=len(new),
            total_tokens=tree.total,
            unique_tokens=tree.unique,
        )

    def optimizer_step(self, learning_rate: float) -> float:
        """Clip the gradient, step, clear; returns the norm before clipping, or 0 if the server does not report it."""
        config = self.config
        metrics = self.server.step(
            self.client,
            learning_rate=learning_rate,
            beta1=config.betas[0],
            beta2=config.betas[1],
            eps=EPS,
            weight_decay=config.weight_decay,
            grad_clip_norm=config.max_grad_norm,
        )
        self._published = False
        norm = next((value for name, value in metrics.items() if "grad_norm" in name), 0.0)
        require_finite(norm, "gradient norm")
        return norm

    def logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> list[tuple[float, ...]]:
        """Log-probabilities of each row's completion tokens under the policy or the reference policy; others have 0."""
        if not rows:
            return []
        found = self.server.logprobs(self._reference if reference else self.client, rows)
        out = []
        for row, values in zip(rows, found, strict=True):
            whole = [0.0] * len(row.completion_ids)
            for drawn, place in zip(_drawn(row), _places(row), strict=True):
                whole[drawn] = float(values[place])
            out.append(tuple(whole))
        return out

    def supervised_step(
        self, rows: Sequence[Row], learning_rate: float, prompt_weight: float = 0.0, *, shared: bool = False
    ) -> float:
        """One step of cross-entropy; returns the loss. `shared` changes nothing here; weights as in `LocalLearner`."""
        weights: list[Array] = []
        for row in rows:
            weights.append(np.full(row.length - 1, 0.0 if shared else prompt_weight))
            weights[-1][len(row.prompt_ids) - 1 :] = row.sampled or 1.0
        total = sum(each.sum() for each in weights)
        current = self.server.send(self.client, rows, [-each / total for each in weights])
        loss = -sum(float(each @ values) for each, values in zip(weights, current, strict=True)) / total
        require_finite(loss, "supervised loss")
        self.optimizer_step(learning_rate)
        return loss

    # -- weights ------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Have the engine sample from the newest weights."""
        if not self._published:
            self.engine.sampler = self.engine.ask(
                "publish weights", lambda: self.client.save_weights_and_get_sampling_client()
            )
            self._published = True

    def rebase(self) -> None:
        """Make the present weights the reference policy and start with a fresh optimizer."""
        self._reference_state = state = self._save_state()
        vars(self).pop("_reference", None)
        self._use(
            self.engine.ask("reset the optimizer", lambda: self.engine.service.create_training_client_from_state(state))
        )

    def save(self, directory: Path) -> None:
        """Have the server keep weights and optimizer; the directory gets their name."""
        record = {
            "model": self.engine.config.model,
            "rank": self.server.rank,
            "state": self._save_state(),
            "reference": self._reference_state,
        }
        (directory / STATE).write_text(json.dumps(record, indent=1), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Continue from the state that `save` named. Raises `CheckpointError` if the server no longer has it."""
        record = _record(directory)
        of_recipe = {"model": self.engine.config.model, "rank": self.server.rank}
        if different := [name for name, value in of_recipe.items() if record.get(name) != value]:
            raise CheckpointError(
                f"{directory} has {different[0]} {record.get(different[0])!r}, the recipe {of_recipe[different[0]]!r}",
                code="checkpoint-unfit",
                fix="resume with the recipe in the run directory",
            )
        state = record["state"]
        try:
            self._use(
                self.engine.ask(
                    f"restore {state}",
                    lambda: self.engine.service.create_training_client_from_state_with_optimizer(state),
                )
            )
        except EngineError as failure:
            if failure.retryable:  # it may have it, and is not there
                raise
            raise CheckpointError(
                f"the server does not give the state {state} back: {failure.what}",
                code="state-gone",
                cause="it was deleted or has expired, or the address or account is another one than when it was saved",
                fix="restore the server's storage, or start over with another --out",
            ) from failure
        self._reference_state = record["reference"]
        vars(self).pop("_reference", None)

    def export_weights(self, directory: Path) -> None:
        """Write the adapter in peft's format, if the server lets it be downloaded, and its name in any case."""
        directory.mkdir(parents=True, exist_ok=True)
        name = self._new_name()
        path = self.engine.ask("save weights", lambda: self.client.save_weights_for_sampler(name)).path
        record = {"model": self.engine.config.model, "weights": path, "state": self._save_state()}
        (directory / STATE).write_text(json.dumps(record, indent=1), encoding="utf-8")
        run = path.removeprefix("tinker://").split("/")[0]
        from tinker.lib.public_interfaces.rest_client import RestClient

        if hasattr(RestClient, "get_checkpoint_archive_url"):  # of older SDKs; newer: tinker checkpoint download
            with suppress(EngineError):
                rest = self.engine.ask("ask for weights", lambda: self.engine.service.create_rest_client())
                link = self.engine.ask("ask for weights", lambda: rest.get_checkpoint_archive_url(run, name))
                with urllib.request.urlopen(link.url) as answer, tarfile.open(fileobj=io.BytesIO(answer.read())) as tar:
                    tar.extractall(directory, filter="data")
                _name_modules(directory)

    def _use(self, client: Any) -> None:
        self.client, self._names, self._published = client, 0, False

    def _save_state(self) -> str:
        name = self._new_name()
        return self.engine.ask("save its state", lambda: self.client.save_state(name)).path

    def _new_name(self) -> str:
        self._names += 1
        return f"midstream-{self._names}"


def _drawn(row: Row) -> list[int]:
    """The places of a row's sampled tokens in its completion."""
    return [place for place in range(len(row.completion_ids)) if not row.sampled or row.sampled[place]]


def _advantages(row: Row) -> list[float]:
    """The advantages of a row's sampled tokens."""
    return [row.advantages[place] if row.advantages else row.advantage for place in _drawn(row)]


def _places(row: Row) -> list[int]:
    """The places of a row's sampled tokens among its targets, which are all tokens but the first."""
    return [place + len(row.prompt_ids) - 1 for place in _drawn(row)]


def _sampled(rows: Sequence[Row], values: Sequence[Array]) -> Array:
    """The values of all rows' sampled tokens, in one array, from those of their targets."""
    return np.concatenate([each[_places(row)] for row, each in zip(rows, values, strict=True)])


def _per_target(rows: Sequence[Row], flat: Array) -> list[Array]:
    """The values of each row's targets, 0 for prompts and what the environment appended; the inverse of `_sampled`."""
    out, start = [], 0
    for row in rows:
        places = _places(row)
        out.append(np.zeros(row.length - 1))
        out[-1][places] = flat[start : start + len(places)]
        start += len(places)
    return out


def _data(rows: Sequence[Row], **inputs: Sequence[Array]) -> list[Any]:
    """The SDK's form of rows, with a loss's `inputs` of each target."""
    from tinker import Datum, ModelInput

    data = []
    for number, row in enumerate(rows):
        ids = [*row.prompt_ids, *row.completion_ids]
        values: Any = {name: each[number].astype(np.float32) for name, each in inputs.items()}
        targets = np.array(ids[1:], dtype=np.int64)
        data.append(
            Datum(model_input=ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": targets} | values)
        )
    return data


def _probe_row(ids: Sequence[int]) -> Row:
    """A row whose targets are all tokens but the first."""
    zeros = (0.0,) * (len(ids) - 1)
    return Row(
        prompt_ids=tuple(ids[:1]), completion_ids=tuple(ids[1:]), old_logprobs=zeros, advantage=0, weight=0, kl_weight=0
    )


def _name_modules(directory: Path) -> None:
    """Write into an adapter's configuration which modules it has: SkyRL leaves that open, and peft would guess two."""
    path = directory / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    with safe_open(directory / "adapter_model.safetensors", "pt") as weights:
        names = weights.keys()
    config["target_modules"] = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in names})
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def _record(directory: Path) -> dict[str, Any]:
    try:
        return json.loads((directory / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as failure:
        raise CheckpointError(
            f"{directory} names no state on a Tinker server",
            code="checkpoint-unfit",
            cause="it is of a run with another learner",
            fix="resume with the recipe in the run directory",
        ) from failure
