"""A training run inside verl's driver: rollouts, records and evaluations, as in `training/session.py`.

This process alone writes the run directory's records. verl calls it before the first step, for each step's rows, and
when the servers have the step's weights.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from midstream.core.metrics import StepTiming
from midstream.engines.local.codec import TokenizerCodec
from midstream.evaluation.leakage import record_learned
from midstream.evaluation.run import every_set
from midstream.evaluation.session import JournalStore, evaluate_set
from midstream.recipe.build import Build
from midstream.recipe.inputs import run_recipe
from midstream.recipe.schema import Recipe
from midstream.report.progress import print_warnings
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write
from midstream.runs.lock import exclusive_lock
from midstream.training.flow_grpo import FlowGRPO, Sampled
from midstream.training.session import BEFORE, TRAINED
from midstream.training.settings import LearnerConfig
from midstream_verl import DRIVER_LOCK
from midstream_verl.engine import MadeEngineConfig, TokenClient, VerlEngine
from midstream_verl.rows import Output, idle_row, outputs_of
from midstream_verl.verl_config import VerlConfig, learning_rate

_STATE = "algorithm.json"  # next to verl's checkpoint of a step


class ClusterSession:
    """The session of the run at `root`; `client` samples from the model at `model`, whose tokenizer is loaded."""

    def __init__(self, root: Path, client: TokenClient, model: str) -> None:
        self._held = ExitStack()
        self._held.enter_context(exclusive_lock(root / "verl" / DRIVER_LOCK))  # until this process ends
        self.run = RunDirectory.open(root)
        self.recipe = run_recipe(self.run)
        self._runner = asyncio.Runner()  # one loop for the whole run: tools keep connections in it
        self.engine, build = self._build(client, model)
        self.build, self.training = build, self._training()
        self._store = JournalStore(self.run.results_path)
        self.algorithm = FlowGRPO(
            config=self.training,
            learner=None,  # type: ignore[arg-type]  # verl is the learner
            environment=build.environment(),
            source=build.source,
            publish=self._published,
            seed=self.recipe.seed,
            role=self.recipe.role,
        )
        self._sampled: tuple[Sampled, float, float] | None = None  # with its seconds, and when the step began

    def begin(self, step: int) -> None:
        """Continue after `step`, 0 to begin: drop records of later steps, and evaluate the weights to begin with."""
        self.run.rewind(step)
        if step:
            state = self.run.root / "verl" / "checkpoints" / f"global_step_{step}" / _STATE
            self.algorithm.load_state_dict(json.loads(state.read_text(encoding="utf-8")))
            return
        evaluation = self.recipe.evaluation
        if evaluation.at != "none":
            record_learned(self.run, "validation", self.build.set_tasks(evaluation.validation))
        if evaluation.at == "both":
            self._evaluate(BEFORE, 0, also_sets=True)

    def sample(self, step: int) -> list[Output]:
        """The rollouts of a step as rows for verl. Raises `MidstreamError`, e.g. if all of them failed."""
        started = time.perf_counter()
        self.engine.policy_version = step - 1
        sampled = self._runner.run(self.algorithm.sample(step))
        self._sampled = sampled, time.perf_counter() - started, started
        everyone = [trajectory for group in sampled.groups for trajectory in group.trajectories]
        rewards = {each.id: each.reward.value for each in everyone if each.reward is not None}
        rows = [batch.rows for batch in sampled.batches]
        return outputs_of(rows, rewards) or outputs_of([[idle_row(everyone, self.recipe.role)]], rewards)

    def record(self, step: int, sums: Mapping[str, float], updates: int, grad_norm: float) -> None:
        """Write a step down. `sums` are those of `policy_loss` over all rows of the step's `updates`."""
        assert self._sampled is not None
        sampled, rollout_s, started = self._sampled
        outcome = self.algorithm.outcome(step, sampled, [], [grad_norm], rollout_s=rollout_s)
        tokens = max(1.0, sums["tokens"])
        update = {
            "loss": sums["loss"] / updates,
            "kl": sums["kl_sum"] / tokens,
            "clip_fraction": sums["clipped"] / tokens,
            "logprob_gap": sums["gap_sum"] / max(1.0, sums["gap_tokens"]),
            "learning_rate": learning_rate(self.training, step),
        }
        metrics = outcome.metrics.model_copy(update=update)
        seconds = time.perf_counter() - started
        record_learned(self.run, "training", outcome.trajectories)
        self.run.trajectories.write(step, outcome.trajectories)
        self.run.metrics.append(metrics)
        self.run.timings.append(
            StepTiming(
                step=step,
                duration_s=seconds,
                rollout_s=rollout_s,
                update_s=seconds - rollout_s,
                tokens_per_s=(metrics.prompt_tokens + metrics.completion_tokens) / seconds,
            )
        )

    def saved(self, directory: Path) -> None:
        """Write what verl's checkpoint in `directory` needs besides weights and optimizer."""
        atomic_write(directory / _STATE, json.dumps(self.algorithm.state_dict()).encode())

    def evaluate(self, step: int) -> None:
        """Evaluate what is due once the servers have the weights of `step`."""
        evaluation, last = self.recipe.evaluation, step == self.training.steps
        if evaluation.at != "none" and (last or step % self.training.validate_every == 0):
            self.engine.policy_version = step
            self._evaluate(TRAINED, step, also_sets=last)

    def close(self) -> None:
        """Close tools and engines."""
        self._runner.run(self.build.close())
        self._runner.close()
        self._store.close()

    def _evaluate(self, policy: str, step: int, *, also_sets: bool) -> None:
        """Evaluate the validation set greedily, and the other sets."""
        evaluation = self.recipe.evaluation
        once = {"sets": (evaluation.validation,), "temperatures": (0.0,), "trials": 1}
        for config in (*([evaluation] if also_sets else []), evaluation.model_copy(update=once)):
            sets = every_set(
                config, self.build.set_tasks, self.build.environment, policy=policy, seed=self.recipe.seed, step=step
            )
            for chosen in sets:
                self._runner.run(evaluate_set(self.run, chosen, self._store, print_warnings))

    def _build(self, client: TokenClient, model: str) -> tuple[VerlEngine, Build]:
        """The recipe with verl's servers in place of the trained module's engine."""
        recipe = self.recipe
        name = recipe.modules[recipe.trained].engine or ""
        assert isinstance(recipe.learner, VerlConfig)
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        kwargs = getattr(recipe.engines[name].config, "chat_template_kwargs", None)
        codec = TokenizerCodec(tokenizer, name, kwargs, end_ids=_end_ids(tokenizer, model))
        engine = VerlEngine(client, codec, name=name, context=recipe.learner.context)
        made = recipe.engines[name].model_copy(update={"config": MadeEngineConfig(engine=engine)})
        return engine, Build(_with_engine(recipe, name, made), adapters=self.run.root / "adapters")

    def _training(self) -> Any:
        assert self.recipe.training is not None
        return self.recipe.training

    async def _published(self, step: int) -> None:
        """Nothing: verl has sent the weights to its servers."""


def _with_engine(recipe: Recipe, name: str, engine: Any) -> Recipe:
    return recipe.model_copy(update={"engines": {**recipe.engines, name: engine}, "learner": LearnerConfig()})


def _end_ids(tokenizer: Any, model: str) -> tuple[int, ...]:
    """Tokens that end a completion: the tokenizer's and those of the model's generation settings."""
    try:
        configured = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:  # a model may come without them
        configured = None
    ends = (tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured]))
    return tuple(dict.fromkeys(int(token) for token in ends if token is not None))
