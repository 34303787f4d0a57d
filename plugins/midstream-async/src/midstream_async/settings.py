"""Settings of rollouts that run ahead of training. Importing them needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from pydantic import Field

from midstream.components.component import ComponentConfig, Context
from midstream.core.errors import RecipeError

# From which on a clip holds nothing back: a ratio of 10 is a token that became ten times as likely.
_UNCLIPPED = 9.0


class AheadConfig(ComponentConfig):
    """Settings of both kinds.

    Attributes:
        staleness: the most steps that rollouts are ahead, S. 0 waits for each step
        decoupled: clip the ratio to the weights before the update, not to those that sampled, and multiply a token's
            advantage by min(w, bound), where w is the ratio of these two (decoupled PPO, arXiv 2110.00641, with the
            truncation of arXiv 2505.24298). Costs one more forward pass, as `mask` does
        mask: leave out `tokens` with w outside [1/bound, bound], or rows (`sequences`) whose geometric mean of w is
        bound: of w, above 1
        probe_every: steps between two measurements of `gradient_cosine`, which compute an eighth of the rows twice and
            hold a second gradient; 0 for none
    """

    staleness: int = Field(default=1, ge=0)
    decoupled: bool = False
    mask: Literal["none", "tokens", "sequences"] = "none"
    bound: float = Field(default=2.0, gt=1)
    probe_every: int = Field(default=10, ge=0)

    def check_recipe(self, where: str, recipe: Any) -> None:
        """Refuse what cannot run ahead, and losses without a clip. Raises `RecipeError`."""
        training, loss = recipe.training, recipe.training.loss
        why = fix = ""
        if training.algorithm != "flow_grpo":
            why, fix = f'training.algorithm = "{training.algorithm}"', "leave the table out"
        elif recipe.lessons is not None:
            why, fix = "[lessons], which change between the steps", "learn weights or lessons: learn = ..."
        elif recipe.learner.elsewhere:
            why, fix = f'learner.type = "{recipe.learner.type}"', "use the learner of midstream"
        elif recipe.continuous and recipe.engines[recipe.trained_engine].config.in_process:
            why = "an engine in process that answers each request as it comes"
            fix = 'set serve.batching and rollout.batching to "lockstep"; no strategy, no reflector in this process'
        elif self.staleness and (loss.type is not None or loss.clip_high > _UNCLIPPED):
            why = f"a loss that is not clipped ({loss.type or f'clip_high = {loss.clip_high:g}'})"
            fix = f"set {where}.staleness = 0, or lower training.loss.clip_high"
        if why:
            raise RecipeError(f"{where} with {why}", code="setting-conflict", fix=fix)


class PipelineConfig(AheadConfig):
    """While a step trains, the rollouts of the next `staleness` steps run; a step always trains on the same ones.

    Batch k, the rollouts of step k, is sampled wholly by version max(0, k - 1 - staleness) of the weights, and steps
    train on batches in order. So neither the share of short rollouts nor the result of a run depends on timing.
    """

    def build(self, context: Context) -> Callable[..., Any]:
        """What makes the algorithm, given the arguments of `FlowGRPO`."""
        from midstream_async.pipeline import Pipeline
        from midstream_async.versions import versions_of

        build = context.build
        return partial(Pipeline, ahead=self, versions=versions_of(build, self.staleness), directory=build.adapters)


class StreamConfig(AheadConfig):
    """Rollouts run all the time, and a step trains on the oldest groups that have ended; such a run does not repeat.

    For a server with rollouts of very different length. No trajectory is older than `staleness` steps, and each of its
    calls has the newest weights of its time.
    """

    staleness: int = Field(default=1, ge=1)

    def check_recipe(self, where: str, recipe: Any) -> None:
        """Refuse also a model in this process, and groups that are drawn again."""
        super().check_recipe(where, recipe)
        why = fix = ""
        if recipe.engines[recipe.trained_engine].config.in_process:
            why, fix = "a model in this process", "use `pipeline`, or serve the model"
        elif recipe.training.resample_uniform:
            why, fix = "training.resample_uniform", "leave it out: groups follow one another anyway"
        if why:
            raise RecipeError(f'{where}.type = "stream" with {why}', code="setting-conflict", fix=fix)

    def build(self, context: Context) -> Callable[..., Any]:
        """What makes the algorithm, given the arguments of `FlowGRPO`."""
        from midstream_async.stream import Stream
        from midstream_async.versions import versions_of

        return partial(Stream, ahead=self, versions=versions_of(context.build, self.staleness))
