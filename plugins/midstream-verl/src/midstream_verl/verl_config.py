"""A recipe as verl's settings, without importing verl, and what of a recipe verl cannot do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue

from midstream.core.errors import UnsupportedError
from midstream.engines.local.settings import InProcessConfig, LocalModelConfig
from midstream.gateway.settings import SessionSettings
from midstream.recipe.schema import Recipe
from midstream.training.settings import LearnerConfig, TrainingConfig
from midstream_verl import RUN

if TYPE_CHECKING:
    from midstream.core.events import Listener
    from midstream.recipe.build import Build
    from midstream.runs import RunDirectory
    from midstream_verl.launch import VerlRun

TRAINER = "midstream"  # the name of the trainer that `verl_trainer.py` registers
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class VerlConfig(LearnerConfig):
    """verl on Ray: its servers sample and its workers update. What verl cannot do of the local settings is refused.

    Attributes:
        nodes: machines
        gpus_per_node: GPUs of each
        tensor_parallel: GPUs of one copy of the model that samples
        rollout: what samples: `vllm` or `sglang`, as verl has it
        context: the most tokens of prompt and reply together, and of a row
        verl: further settings of verl, by their names, e.g. `{ trainer.logger = ["console", "wandb"] }`; they win
    """

    elsewhere = True

    type: str = "verl"
    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=8, ge=1)
    tensor_parallel: int = Field(default=1, ge=1)
    rollout: Literal["vllm", "sglang"] = "vllm"
    context: int = Field(default=8192, ge=2)
    verl: dict[str, JsonValue] = Field(default_factory=dict)

    def plan(self, build: Build, root: Path) -> list[str]:
        """Return the words of verl's command line."""
        return [f"verl: {word}" for word in command_of(build.recipe, root)]

    def session(self, build: Build) -> Callable[[RunDirectory, Listener], VerlRun]:
        """Check the recipe, and return what starts verl, or continues its run."""
        from midstream_verl.launch import session_of

        return session_of(build)


def refuse(recipe: Recipe) -> TrainingConfig:
    """Refuse what verl cannot do; returns the recipe's training.

    Raises `UnsupportedError` with the reason and a fix.
    """
    for what, cause, fix in _refused(recipe):
        raise UnsupportedError(what, code="cluster-unsupported", cause=cause, fix=fix)
    assert recipe.training is not None
    return recipe.training


def _refused(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """What verl cannot do: what, why, and what to do instead."""
    training, learner = recipe.training, recipe.learner
    local = "leave out --learner verl"
    if training is None or recipe.lessons is not None:
        yield f"recipe {recipe.name!r} trains no weights", "verl updates weights and nothing else", local
        return
    if training.algorithm != "flow_grpo":
        cause = "midstream's plugin hands verl rows with advantages, not transcripts to imitate"
        yield f"training.algorithm = {training.algorithm!r} on verl", cause, local
    if recipe.warm_start is not None:
        fix = "train without reinforcement first (--set training.steps=0), then name that run's policy/ as the model"
        yield "[warm_start] on verl", "verl begins with the weights of a model directory", fix
    if training.loss.type is not None:
        cause = "verl's workers compute the loss on other machines, which do not have its file"
        yield f"training.loss.type = {training.loss.type!r} on verl", cause, "use midstream's loss, or " + local
    if training.loss.surrogate == "gspo":
        cause = "in verl's workers midstream's loss sees tokens without the numbers of their rows"
        yield 'training.loss.surrogate = "gspo" on verl', cause, 'set training.loss.surrogate = "ppo", or ' + local
    if training.loss.entropy_coefficient:
        cause = "verl's workers hand midstream's loss the log-probabilities of tokens, not their distributions"
        fix = "set training.loss.entropy_coefficient = 0"
        yield f"training.loss.entropy_coefficient = {training.loss.entropy_coefficient:g} on verl", cause, fix
    if len(training.roles) > 1:
        cause = "verl has one temperature and one limit of tokens for all rows"
        yield f"training.roles = {[*training.roles]} on verl", cause, "train one module, or " + local
    if training.resample_uniform:
        cause = "a step whose groups are all uniform has no rows, and verl makes no step without rows"
        yield "training.resample_uniform on verl", cause, "set training.resample_uniform = 0"
    if training.branching is not None:
        yield "training.branching on verl", "verl starts all trajectories of a group at once", "remove it, or " + local
    if training.decay_steps:
        cause = "verl's learning rates are constant or a cosine after the warm-up"
        yield f"training.decay_steps = {training.decay_steps} on verl", cause, "set training.decay_steps = 0"
    if learner.attention not in ("auto", "rows"):
        cause = "verl computes each row for itself; it has no attention over a prefix tree"
        yield f"learner.attention = {learner.attention!r} on verl", cause, 'set learner.attention = "auto"'
    if learner.lora is not None:
        cause = "midstream does not take over an adapter that verl has trained"
        yield "[learner.lora] on verl", cause, "remove [learner.lora]: verl divides all weights over its GPUs"
    if recipe.budget is not None and recipe.budget.limits:
        cause = "the budget is counted where midstream starts each request; a limit could not end verl cleanly"
        yield "[budget] on verl", cause, "remove [budget]; trainer.total_training_steps is training.steps"
    yield from _refused_engines(recipe, training)


def _refused_engines(recipe: Recipe, training: TrainingConfig) -> Iterator[tuple[str, str, str]]:
    policy = recipe.modules[recipe.trained]
    engine = recipe.engines.get(policy.engine or "")
    config = engine.config if engine is not None else None
    if training.weights is not None:
        cause = "verl serves and trains one model, the planner's"
        yield (
            "training.weights on verl",
            cause,
            "name the model as the planner's own engine, and remove training.weights",
        )
    elif engine is None or engine.type not in ("transformers_local", "tiny_text"):
        what = f"engine type {engine.type!r}" if engine is not None else "no engine"
        fix = f'give agent.{recipe.trained} an engine of type "transformers_local" with the model\'s directory or name'
        yield f"the trained module has {what}", "verl loads its model from a directory in Hugging Face's format", fix
    elif isinstance(config, LocalModelConfig) and (Path(config.model) / "adapter_config.json").is_file():
        yield "a LoRA adapter as the model on verl", "verl starts a new adapter", "merge it into the model first"
    for name, module in recipe.modules.items():
        if module.engine in (None, policy.engine):
            continue
        if isinstance(recipe.engines[module.engine or ""].config, InProcessConfig):
            cause = "verl's servers hold the trained model alone, and its driver has no GPU"
            fix = "give it the planner's engine, or one that is served (type openai_compatible)"
            yield f"agent.{name} asks engine {module.engine!r} in process", cause, fix
    if isinstance(policy.config, SessionSettings):
        cause = "the gateway that it asks is in verl's driver, whose address is not known before it starts"
        yield (
            "an agent of another program on verl",
            cause,
            "write the agent as a Python function, or leave out --learner",
        )
    if recipe.serve.models:
        yield "serve.models on verl", "verl serves the trained model alone", "remove [serve.models]"


# midstream evaluates, draws the tasks (verl's own data are places for them), makes the groups and their advantages, and
# the old log-probabilities are those recorded at sampling.
_FIXED: dict[str, Any] = {
    "trainer.v1.trainer_mode": TRAINER,
    "trainer.project_name": "midstream",
    "trainer.logger": ["console"],
    "trainer.val_before_train": False,
    "trainer.test_freq": -1,
    "trainer.max_actor_ckpt_to_keep": 2,
    "trainer.resume_mode": "auto",
    "data.custom_cls.path": "pkg://midstream_verl.verl_trainer",
    "data.custom_cls.name": "Places",
    "data.dataloader_num_workers": 0,
    "data.shuffle": False,
    "algorithm.adv_estimator": "grpo",  # without a critic
    "algorithm.rollout_correction.bypass_mode": True,
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.shuffle": False,
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant",
    "actor_rollout_ref.actor.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
    "actor_rollout_ref.ref.strategy": "fsdp2",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
    "++actor_rollout_ref.rollout.agent.agent_loop_manager_class": "midstream_verl.verl_trainer.Rollouts",
}


def command_of(recipe: Recipe, root: Path) -> list[str]:
    """The words of verl's command line for a run in `root`. Raises `UnsupportedError` for what verl cannot do."""
    refuse(recipe)
    model = getattr(recipe.engines[recipe.modules[recipe.trained].engine or ""].config, "model", "")
    if not model:
        model = str(root.absolute() / "verl" / "model")  # of `_write_model`
    elif os.path.isdir(model):
        model = os.path.abspath(model)
    return words(settings(recipe, root.absolute(), model))


def settings(recipe: Recipe, root: Path, model: str) -> dict[str, Any]:
    """verl's settings for a recipe that `refuse` lets pass, by their dotted names.

    `root` is the absolute path of the run directory and `model` that of the model, or its name on the hub. Settings of
    `learner.verl` come last. A name that begins with "++" may be missing in verl's own configuration.
    """
    training, learner = refuse(recipe), recipe.learner
    assert isinstance(learner, VerlConfig)
    sampling: Any = getattr(recipe.modules[recipe.trained].config, "sampling", None)
    reply = sampling.max_tokens if sampling else 1
    ranks = learner.nodes * learner.gpus_per_node
    rollout = "actor_rollout_ref.rollout."
    found = _FIXED | {
        "hydra.run.dir": str(root / "verl" / "hydra"),
        "trainer.nnodes": learner.nodes,
        "trainer.n_gpus_per_node": learner.gpus_per_node,
        "trainer.total_training_steps": training.steps,
        "trainer.total_epochs": training.steps + 1,  # `Places` is one step long
        "trainer.experiment_name": recipe.name,
        "trainer.save_freq": training.checkpoint_every,
        "trainer.default_local_dir": str(root / "verl" / "checkpoints"),
        "data.train_batch_size": ranks,
        "data.max_prompt_length": learner.context - reply,
        "data.max_response_length": reply,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.actor.ppo_mini_batch_size": ranks,  # replaced at each step, from its rows
        rollout + "name": learner.rollout,
        rollout + "temperature": sampling.temperature if sampling else 1.0,
        rollout + "tensor_model_parallel_size": learner.tensor_parallel,
        rollout + "max_model_len": learner.context,
        "++ray_kwargs.ray_init.runtime_env.env_vars." + RUN: str(root),
        **_of_update(recipe, training, longest=max(learner.chunk_tokens, learner.context)),
    }
    own = dict(_flat(learner.verl))
    return {name: value for name, value in found.items() if name.lstrip("+") not in own} | {
        f"++{name}": value for name, value in own.items()
    }


def _of_update(recipe: Recipe, training: TrainingConfig, *, longest: int) -> dict[str, Any]:
    """verl's settings of workers and optimizer; `longest` is the most tokens of a micro-batch."""
    learner, actor, reference = recipe.learner, "actor_rollout_ref.actor.", "actor_rollout_ref.ref."
    dtype = getattr(recipe.engines[recipe.modules[recipe.trained].engine or ""].config, "dtype", "float32")
    # Without this, verl computes in bfloat16 whatever the model's type.
    precision = {"param_dtype": _DTYPES[dtype], "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return {
        "actor_rollout_ref.model.enable_gradient_checkpointing": learner.recompute_activations,
        actor + "use_kl_loss": training.loss.kl_coefficient > 0,  # so that verl has a reference policy
        actor + "kl_loss_coef": training.loss.kl_coefficient,
        actor + "ppo_max_token_len_per_gpu": longest,
        actor + "optim.lr": training.learning_rate,
        actor + "optim.lr_warmup_steps": training.warmup_steps if training.warmup_steps > 1 else 0,
        actor + "optim.betas": list(learner.betas),
        actor + "optim.weight_decay": learner.weight_decay,
        actor + "optim.clip_grad": learner.max_grad_norm,
        actor + "fsdp_config.model_dtype": "fp32",  # with all weights trained, it updates float32 copies
        actor + "fsdp_config.dtype": dtype,
        actor + "fsdp_config.optimizer_offload": learner.offload,
        f"++{actor}fsdp_config.mixed_precision": precision,
        reference + "log_prob_max_token_len_per_gpu": longest,
        reference + "fsdp_config.model_dtype": _DTYPES[dtype],
        reference + "fsdp_config.dtype": dtype,
        reference + "fsdp_config.param_offload": learner.offload,
        f"++{reference}fsdp_config.mixed_precision": precision,
        "actor_rollout_ref.rollout.dtype": dtype,
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": longest,
    }


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables by their dotted names."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def words(found: Mapping[str, Any]) -> list[str]:
    """Settings as words of a command line, as Hydra reads them."""
    return [f"{name}={_value(value)}" for name, value in found.items()]


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_value, value)) + "]"
    # In Hydra's quoted strings only quotes, and backslashes before them, are escaped.
    return '"' + str(value).replace('"', '\\"') + '"'


def learning_rate(training: TrainingConfig, step: int) -> float:
    """The learning rate that verl's schedule uses at `step`, from 1: its linear warm-up begins with 0."""
    rise = (step - 1) / training.warmup_steps if training.warmup_steps > 1 else 1.0
    return training.learning_rate * min(1.0, rise)
