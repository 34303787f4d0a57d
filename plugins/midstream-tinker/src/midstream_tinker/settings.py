"""Settings of a model on a Tinker server, which need neither its SDK nor PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, model_validator

from midstream.components.component import Context, EngineConfig, Table
from midstream.components.kinds import agent_type, modules_of
from midstream.core.errors import RecipeError, UsageError
from midstream.core.trajectory import Sampling
from midstream.engines.openai.providers import LOOPBACK
from midstream.recipe.build import Build
from midstream.recipe.estimate import batches_of, requests_of
from midstream.recipe.files import merge
from midstream.recipe.memory import PROMPT_TOKENS
from midstream.recipe.schema import InterleavedConfig, Recipe
from midstream.training.losses import PolicyLoss
from midstream.training.settings import LearnerConfig, LoraConfig

if TYPE_CHECKING:
    from midstream_tinker.engine import TinkerEngine
    from midstream_tinker.learner import TinkerLearner

KEY = "TINKER_API_KEY"
_LOCAL_ONLY = ("chunk_tokens", "recompute_activations", "attention", "offload")
_ALPHA = 32  # the scale of Tinker's adapters is 32 / rank


def is_plain(loss: PolicyLoss) -> bool:
    """True if it is the clipped ratio alone, without KL, dual clip or a user's function: one pass computes it."""
    no_more = not loss.kl_coefficient and loss.dual_clip is None
    return type(loss) is PolicyLoss and loss.surrogate == "ppo" and no_more


class TinkerConfig(EngineConfig):
    """A model on a Tinker server, which samples from it and trains it.

    The key of the hosted service is in the environment variable TINKER_API_KEY.

    Attributes:
        model: the server's name of the base model
        base_url: the server's address; by default the hosted service
        tokenizer: a directory, or a name on the Hugging Face Hub; by default `model`
        chat_template_kwargs: settings of the chat template, such as `{ enable_thinking = false }`
        timeout_s: seconds of the longest wait for one answer, with all its repetitions by the SDK
        price_prompt_usd: dollars per million prompt tokens; a limit in dollars needs a price
        price_completion_usd: dollars per million sampled tokens
        price_train_usd: dollars per million tokens of a training pass, for the estimate of `--dry-run`
    """

    extra = "tinker"
    packages = ("tinker", "transformers")
    service = "tinker"

    model: str
    base_url: str | None = None
    tokenizer: str | None = None
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    timeout_s: float = Field(default=1800.0, gt=0)
    price_prompt_usd: float | None = Field(default=None, ge=0)
    price_completion_usd: float | None = Field(default=None, ge=0)
    price_train_usd: float = Field(default=0.0, ge=0)

    @property
    def api_key_env(self) -> str:
        """The variable with the key that the server wants; "" for a server on this machine."""
        return "" if self.base_url and urlsplit(self.base_url).hostname in LOOPBACK else KEY

    def build(self, context: Context) -> TinkerEngine:
        """Build it; nothing is asked or loaded."""
        from midstream_tinker.engine import TinkerEngine

        return TinkerEngine(self, context.name)


class TinkerLearnerConfig(LearnerConfig):
    """The Tinker server of the trained engine, whose type is `tinker` too, trains a LoRA adapter.

    It has the settings `betas`, `weight_decay`, `max_grad_norm` and `lora.rank` (32 by default) of `[learner]`.
    """

    elsewhere = True
    service = "tinker"

    type: str = "tinker"
    lora: LoraConfig | None = LoraConfig(rank=32, alpha=_ALPHA)

    @model_validator(mode="after")
    def _server_decides(self) -> TinkerLearnerConfig:
        plain = LearnerConfig()
        changed = [name for name in _LOCAL_ONLY if getattr(self, name) != getattr(plain, name)]
        if self.lora is None or (self.lora.alpha, self.lora.target) != (_ALPHA, LoraConfig().target):
            changed.append("lora.alpha or lora.target")
        elif self.lora.per_role:
            changed.append("lora.per_role, and knows one adapter")
        if changed:
            raise ValueError(f"the server decides {changed[0]}: remove it")
        return self

    @classmethod
    def chosen(cls, table: Table, name: str) -> Table:
        """Return the table with the trained engine and the learner on a Tinker server, of the same model."""
        agent, training = table.get("agent", {}), dict(table.get("training") or {})
        trained = modules_of(agent_type(agent))[0]
        # An agent of your own is its one module.
        module = agent.get(trained, agent)
        trains = training.pop("weights", None) or module.get("engine")
        local = table.get("engines", {}).get(trains, {})
        if local.get("type") not in ("transformers_local", "tinker"):
            raise UsageError(
                f"--learner tinker: the trained engine {trains!r} is of type {local.get('type')!r}",
                code="not-trainable",
                fix="name a recipe whose trained engine is of type transformers_local or tinker",
            )
        old: Mapping[str, Any] = table.get("learner", {})
        learner = {key: old[key] for key in ("betas", "weight_decay", "max_grad_norm") if key in old}
        if lora := {key: value for key, value in old.get("lora", {}).items() if key in ("rank", "per_role")}:
            learner["lora"] = lora
        kept = ("model", "base_url", "tokenizer", "chat_template_kwargs")
        engine = {"type": "tinker", **{key: local[key] for key in kept if key in local}}
        asks = {"agent": {trained: {"engine": trains}} if trained in agent else {"engine": trains}}
        table = {key: value for key, value in table.items() if key not in ("learner", "training")}
        changes = {"engines": {trains: engine}, "learner": {"type": name, **learner}, "training": training}
        return merge(merge(table, asks), changes)

    def check_recipe(self, where: str, recipe: Recipe) -> None:
        """Check that the policy samples at temperature 1, and that the loss is one of log-probabilities alone."""
        super().check_recipe(where, recipe)
        coefficient = recipe.training.loss.entropy_coefficient if recipe.training else 0.0
        if coefficient:
            raise RecipeError(
                f"training.loss.entropy_coefficient = {coefficient:g} with a Tinker server",
                code="setting-conflict",
                cause="its passes give the log-probabilities of tokens, not the distributions that these came from",
                fix="--set training.loss.entropy_coefficient=0",
            )
        for module in {recipe.trained, *recipe.trained_modules} & recipe.modules.keys():
            sampling = getattr(recipe.modules[module].config, "sampling", None)
            if sampling is not None and sampling.temperature != 1:
                raise RecipeError(
                    f"agent.{module}.sampling.temperature = {sampling.temperature:g} with a Tinker server",
                    code="temperature-unsupported",
                    cause="it cannot be trained on: its passes compute log-probabilities at temperature 1 alone",
                    fix=f"--set agent.{module}.sampling.temperature=1",
                )

    def plan(self, build: Build, root: Path) -> list[str]:
        """Return what the updates of a run send to the server, where each row is computed whole."""
        recipe, training = build.recipe, build.recipe.training
        if training is None or training.algorithm != "flow_grpo":
            return []
        [batch] = [batch for batch in batches_of(build, training=True) if batch.learns]
        module, count = recipe.modules[recipe.trained], training.tasks_per_step * training.group_size
        calls = requests_of(recipe, replace(batch, count=count))[recipe.trained, module.engine or ""]
        new = calls * getattr(module.config, "sampling", Sampling()).max_tokens
        if isinstance(recipe.agent, InterleavedConfig):
            new = min(new, count * recipe.agent.max_tokens)
        # Of prompts, only instructions are known; all rows may have these in common, and no more is sure to be.
        whole, unique = calls * PROMPT_TOKENS + new, PROMPT_TOKENS + new
        loss = training.loss
        passes = 1 if is_plain(loss) else 2
        passes += bool(loss.kl_coefficient)
        lines = [
            f"A step's update on the Tinker server: {passes} x {whole:,} tokens, at most {new:,} of them new ones of "
            f"{calls:,} rows, and {PROMPT_TOKENS:,} of each prompt (an allowance; memory comes on top)",
            f"  {whole / unique:>12.1f}  times the {unique:,} tokens of rows that share their instructions; "
            "batches of agents had 4 to 14 times their unique tokens (benchmarks/README.md)",
        ]
        price = getattr(recipe.engines[module.engine or ""].config, "price_train_usd", 0.0)
        cost = training.steps * passes * whole * price / 1e6
        if price:
            lines.append(f"  All updates cost about {cost:,.2f} dollars at {price:g} a million tokens.")
        return lines

    def learner(self, student: TinkerEngine, *, sampled: bool) -> TinkerLearner:
        """Return the learner of the model on the student's server."""
        from midstream_tinker.learner import TinkerLearner

        return TinkerLearner(student, self)
