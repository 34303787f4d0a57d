"""The updates of a recorded run once more, by the learner of one process, from the trajectories alone."""

from __future__ import annotations

from itertools import groupby

import torch

from midstream.core.seeds import derive_seed
from midstream.engines.local.pretrained import load_model
from midstream.recipe.inputs import run_recipe
from midstream.runs import RunDirectory
from midstream.training.learner import LocalLearner
from midstream.training.rows import RowBatch, build_rows, split_minibatches
from midstream_verl.verl_config import learning_rate


def batches_of(run: RunDirectory, step: int) -> list[RowBatch]:
    """midstream's rows of a step, one batch a mini-batch."""
    recipe = run_recipe(run)
    assert recipe.training is not None
    seed = derive_seed(recipe.seed, "update", step)
    trajectories = list(run.trajectories.open(step))
    groups = [tuple(group) for _, group in groupby(trajectories, key=lambda trajectory: trajectory.task_id)]
    parts = split_minibatches(groups, min(recipe.training.minibatches, len(groups)), seed)
    return [build_rows(part, recipe.training, role=recipe.role, seed=seed) for part in parts]


def replayed(run: RunDirectory) -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """The weights after all recorded steps, and the gradient norms of each step's updates."""
    recipe = run_recipe(run)
    assert recipe.training is not None
    model, _ = load_model(str(run.root / "verl" / "model"), "float32", "cpu")
    learner, norms = LocalLearner(model, recipe.learner), []
    for step in (metrics.step for metrics in run.metrics.read()):
        own = []
        for batch in batches_of(run, step):
            if batch.rows:
                learner.forward_backward(batch.rows, recipe.training.loss)
                own.append(learner.optimizer_step(learning_rate(recipe.training, step)))
        norms.append(own)
    return model.state_dict(), norms
