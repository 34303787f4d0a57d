"""Settings of training. No torch: recipes are validated where it is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from midstream.components.component import Component, ComponentConfig, Table, Wrappers
from midstream.components.kinds import config_class
from midstream.components.tables import located, parse_component, validate
from midstream.core.data import Settings
from midstream.core.errors import RecipeError, UnsupportedError, did_you_mean
from midstream.core.seeds import Seed
from midstream.engines.adapters import adapter_of
from midstream.training.losses import PolicyLoss

LOGITS = 2**25  # how many numbers a policy update's head makes at a time
BUCKET = 2**26  # how many numbers an optimizer that streams its state updates at a time
Baseline = Literal["group_mean", "leave_one_out"]
Turns = Literal["calls", "merged"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class LoraConfig(Settings):
    """Low-rank adapters instead of full weights.

    Attributes:
        rank: the adapters' rank
        alpha: the adapters' scale is alpha / rank
        target: peft's `target_modules`
        per_role: an adapter for each of `training.roles`, `policy/ROLE` of the run; all get one step together
    """

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    target: str = "all-linear"
    per_role: bool = False


class LearnerConfig(ComponentConfig):
    """Settings of the local learner: AdamW in one process, or in several (`--nproc`). The base of other learners.

    Attributes:
        type: `local`, or a learner of an installed package, which `--learner` chooses
        betas: of AdamW
        weight_decay: of AdamW
        max_grad_norm: the largest norm of the gradient
        chunk_tokens: about how many tokens one backward pass holds (padded rows: padded tokens); changes memory, not
            results
        recompute_activations: gradient checkpointing: a fraction of the memory, about a third more time, the same
            gradient
        attention: how shared prefixes are computed once: `auto`, a back end of `prefix_tree/attention.py`, or `rows`
            (padded)
        lora: see `learner.lora`; without it all weights are trained
        offload: keep the reference policy and AdamW's state in host memory, and bring them to the device a piece at a
            time; the results are the same to the bit
        threads: CPU threads of PyTorch; by default 1 for a `tiny` model (repeats bit for bit), else all cores, or
            OMP_NUM_THREADS
    """

    elsewhere: ClassVar[bool] = False  # the weights are in another process, or on a server
    service: ClassVar[str] = ""  # the server that holds the weights; the trained engine has the same

    type: str = "local"
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    chunk_tokens: int = Field(default=6000, ge=1)
    recompute_activations: bool = False
    attention: Literal["auto", "rows", "dense", "gather", "cascade", "varlen", "flex"] = "auto"
    lora: LoraConfig | None = None
    offload: bool = False
    threads: int | None = Field(default=None, ge=1, le=1024)

    @classmethod
    def chosen(cls, table: Table, name: str) -> Table:
        """Return a recipe's table with this learner, registered as `name`, as `--learner` of `train` does."""
        return {**table, "learner": {**table.get("learner", {}), "type": name}}

    def check_recipe(self, where: str, recipe: Any) -> None:
        """Check that each role can have an adapter of its own: transcripts that are imitated train one."""
        super().check_recipe(where, recipe)
        roles, imitates = recipe.training.roles, recipe.warm_start or recipe.training.algorithm == "supervised"
        differ = len({adapter_of(role) for role in roles} - {"default"}) == len(roles) > 0
        if self.lora is not None and self.lora.per_role and (imitates or not differ):
            raise RecipeError(
                f"{where}.lora.per_role = true with "
                + ("transcripts to imitate" if imitates else f"training.roles = {[*roles]}"),
                code="setting-conflict",
                fix="name roles that differ in a letter or digit, without warm_start and supervised learning",
            )

    def plan(self, build: Any, root: Path) -> list[str]:
        """Return more lines for a dry run of a run in `root`."""
        return []

    def learner(self, student: Any, *, sampled: bool) -> Any:
        """Return the learner of a student's weights; `sampled`: the student is what samples from them."""
        from torch import distributed

        from midstream.training.learner import LocalLearner, RoleLearner
        from midstream.training.ranks import RankedLearner

        per_role = self.lora is not None and self.lora.per_role
        if student.adapters and not per_role:
            raise RecipeError(
                f"engine {student.name!r} has the adapters {', '.join(student.adapters)}, which no step would change",
                code="setting-conflict",
                fix="set learner.lora.per_role = true, or name the directory of one of them as the model",
            )
        if distributed.is_available() and distributed.is_initialized():
            learner = RankedLearner(student.model, self, sampled=sampled)
        elif per_role:
            learner = RoleLearner(student.model, self, adapters=student.adapters)
        else:
            learner = LocalLearner(student.model, self)
        student.reference_policy = learner.reference_policy
        return learner

    def session(self, build: Any) -> Callable[[Any, Any], Any] | None:
        """Return a function that makes the session to use in place of midstream's own; None to use midstream's."""
        return None

    def has_masters(self, dtype: str) -> bool:
        """True if float32 copies of all weights are trained: in 16 bits, AdamW's small steps would be lost."""
        return self.lora is None and dtype in ("bfloat16", "float16")


class SupervisedConfig(Settings):
    """Cross-entropy on recorded transcripts.

    Attributes:
        transcripts: trajectories of the teacher to record
        batch_size: rows of an update
        learning_rate: constant in `training.supervised`, the peak in `[warm_start]`
    """

    transcripts: int = Field(default=5000, ge=1)
    batch_size: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=2.5e-3, gt=0)

    @property
    def at_once(self) -> int:
        """Number of different tasks that are drawn at a time."""
        return min(500, self.transcripts)


class WarmStartConfig(SupervisedConfig):
    """Supervised learning before reinforcement, on transcripts of the teacher of a `training.protocols.TrainableWorld`.

    Attributes:
        steps: updates
        warmup_steps: steps of linear rise
        hold: share of the steps after which the linear fall begins
        final_share: share of the peak at the end of the linear fall
        prompt_weight: weight of prompt tokens, next to 1 of completions; 0 by default with `file`
        file: a JSONL of transcripts in place of the teacher's; the world checks nothing
        seed: a separate seed, so that one warm start serves several training seeds; by default the run's
        policy: settings of the teacher
        min_copy_rate: the least share of first look-ups that must name a place of the question (the world's check)
        lessons: share of transcripts with lessons in their prompts, which the teacher follows
        similar: rows of a batch are alike in length: `prompts`, or whole `rows`, which wastes less padding where
            replies differ
        shared_prefixes: compute what the prompts of a batch share once; needs `prompt_weight = 0`
        copying: share of updates on random tokens that come twice, of which the second time is learned; a small
            language model learns to copy names from them
        wrappers: what wraps a tool of the teacher, as in `[wrappers]`
    """

    steps: int = Field(default=450, ge=0)
    warmup_steps: int = Field(default=30, ge=1)
    hold: float = Field(default=0.0, ge=0, lt=1)
    final_share: float = Field(default=0.1, gt=0, le=1)
    prompt_weight: float = Field(default=0.1, ge=0)
    file: Path | None = None
    seed: Seed | None = None
    policy: dict[str, Any] = Field(default_factory=dict)
    min_copy_rate: float = Field(default=0.7, ge=0, le=1)
    lessons: float = Field(default=0.0, ge=0, le=1)
    similar: Literal["prompts", "rows"] = "prompts"
    shared_prefixes: bool = False
    copying: float = Field(default=0.0, ge=0, lt=1)
    wrappers: Wrappers = {}

    @model_validator(mode="after")
    def _shared_prompts_are_not_learned(self) -> WarmStartConfig:
        if self.shared_prefixes and self.prompt_weight:
            raise ValueError(f"with shared_prefixes, prompt_weight must be 0, not {self.prompt_weight:g}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _prompts_of_a_file(cls, table: object) -> object:
        if isinstance(table, Mapping) and table.get("file") is not None:
            return {"prompt_weight": 0.0, **table}
        return table


class ImitationConfig(SupervisedConfig):
    """Supervised learning in place of reinforcement: `training.steps` x `training.minibatches` updates.

    A stronger planner than the warm start's teacher makes it distillation.

    Attributes:
        planner: a table such as `[agent.planner]`: whose transcripts; by default the warm start's teacher
        successes_only: only trajectories of reward 1; of a reward with parts, only with every part in full
    """

    planner: Component | None = None
    successes_only: bool = False


class OverlongConfig(Settings):
    """DAPO's soft punishment of length (arXiv 2503.14476, eq. 13), in tokens after a row's prompt.

    The penalty, 1 at the most, is subtracted from the reward before advantages are taken; the recorded score stays what
    it was.

    Attributes:
        limit: tokens from which the whole penalty counts
        buffer: the penalty rises linearly over so many tokens below `limit`
    """

    limit: int = Field(ge=1)
    buffer: int = Field(ge=1)

    @model_validator(mode="after")
    def _buffer_within(self) -> OverlongConfig:
        if self.buffer > self.limit:
            raise ValueError(f"buffer {self.buffer} exceeds limit {self.limit}")
        return self

    def added(self, tokens: int) -> float:
        """The change, 0 or less, of the reward of a trajectory of that length."""
        share = (tokens - (self.limit - self.buffer)) / self.buffer
        return -min(1.0, max(0.0, share))


class TrainedRole(Settings):
    """One of several roles whose calls train the weights.

    Attributes:
        share: its part of a mini-batch's loss, next to those of the other roles that have calls in it
        kl: multiplies `training.loss.kl_coefficient`, and `entropy_coefficient`, for its calls
    """

    share: float = Field(default=1.0, gt=0)
    kl: float = Field(default=1.0, ge=0)


# GRPO's relatives as settings of one loss: what each sets where a recipe does not.
#
# | variant   | source                       | aggregation             | clip       | baseline      | by std |
# |-----------|------------------------------|-------------------------|------------|---------------|--------|
# | (none)    | Flow-GRPO, arXiv 2510.05592  | trajectory-turn-token   | 0.2, 0.2   | group_mean    | yes    |
# | `grpo`    | arXiv 2402.03300             | seq-mean-token-mean     | 0.2, 0.2   | group_mean    | yes    |
# | `bnpo`    | TRL: GRPO over the batch     | token-mean              | 0.2, 0.2   | group_mean    | yes    |
# | `dr_grpo` | arXiv 2503.20783             | seq-mean-token-sum-norm | 0.2, 0.2   | group_mean    | no     |
# | `dapo`    | arXiv 2503.14476             | token-mean              | 0.2, 0.28  | group_mean    | yes    |
# | `rloo`    | arXiv 2402.14740             | seq-mean-token-sum      | 0.2, 0.2   | leave_one_out | no     |
# | `cispo`   | MiniMax-M1, arXiv 2506.13585 | token-mean              | -, 4       | group_mean    | yes    |
# | `gspo`    | arXiv 2507.18071             | seq-mean-token-mean     | 3e-4, 4e-4 | group_mean    | yes    |
# | `gigpo`   | arXiv 2505.10978             | trajectory-turn-token   | 0.2, 0.2   | of each state | yes    |
# | `arpo`    | arXiv 2507.19849             | seq-mean-token-mean     | 0.2, 0.2   | group_mean    | yes    |
#
# All but Flow-GRPO and GiGPO have `turns = "merged"`: their papers know one response a trajectory. DAPO's other parts,
# `resample_uniform` and `overlong`, cost rollouts or need a length, so a recipe names them. RLOO's paper subtracts the
# KL from the reward; here it is the same term of the loss as in all the others. CISPO's paper leaves its bound open;
# 1 + 4 is what TRL and ScaleRL (arXiv 2510.13786) recommend. GiGPO's advantage and
# ARPO's branching are those of plugins/midstream-credit; ARPO's groups are 16.
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {"loss": {"aggregation": "seq-mean-token-mean", "kl_coefficient": 0.04}},
    "bnpo": {"loss": {"aggregation": "token-mean"}},
    "dr_grpo": {"loss": {"aggregation": "seq-mean-token-sum-norm", "kl_coefficient": 0.0}, "normalize_by_std": False},
    "dapo": {"loss": {"aggregation": "token-mean", "clip_high": 0.28, "kl_coefficient": 0.0}},
    "rloo": {"loss": {"aggregation": "seq-mean-token-sum"}, "baseline": "leave_one_out", "normalize_by_std": False},
    "cispo": {
        "loss": {"surrogate": "cispo", "aggregation": "token-mean", "clip_high": 4.0, "kl_coefficient": 0.0},
    },
    "gspo": {
        "loss": {
            "surrogate": "gspo",
            "aggregation": "seq-mean-token-mean",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
            "kl_coefficient": 0.0,
        },
    },
    "arpo": {
        "loss": {"aggregation": "seq-mean-token-mean", "kl_coefficient": 0.0},
        "branching": {"type": "fork"},
        "group_size": 16,
    },
    "gigpo": {"loss": {"kl_coefficient": 0.01}, "advantage": {"type": "gigpo"}, "turns": "calls"},
}

_TYPES = {"branching": "fork", "asynchrony": "pipeline"}  # by default

# What an advantage takes the place of.
_BASELINES = {"baseline": "group_mean", "normalize_by_std": True, "advantage_over": "trajectories"}

_ELSEWHERE = {
    "sapo": "its clip is a soft gate. The nearest: training.loss.type, a function of your own of each token",
}


class TrainingConfig(Settings):
    """Flow-GRPO (arXiv 2510.05592), or supervised learning with as many updates (`algorithm = "supervised"`).

    `family_sampling = "failure"` draws families in proportion to 1.1 minus their running success.

    Attributes:
        algorithm: `flow_grpo`, or `supervised` (a control)
        variant: `grpo`, `bnpo`, `dr_grpo`, `dapo`, `rloo`, `cispo`, `gspo`, `arpo` or `gigpo`: its settings are
            the defaults
        weights: the engine whose weights are trained, if not the planner's; a served planner gets them as a LoRA
            adapter before every step
        roles: several modules that are trained together, as a list of names or as `training.roles.NAME`
        steps: 0 only evaluates
        tasks_per_step: tasks of a step (the paper: 32)
        group_size: trajectories of a task, G (the paper: 8)
        branching: a part of a group continues its other trajectories from the middle: a table of a component, of type
            `fork` by default (plugins/midstream-credit)
        asynchrony: rollouts that run ahead of training: a table of a component, of type `pipeline` by default
            (plugins/midstream-async)
        minibatches: optimizer steps of a step
        learning_rate: after the warm-up and before the decay (the paper: 1e-6 for 7B)
        warmup_steps: steps of linear rise
        decay_steps: steps at the end of linear fall to a tenth
        loss: see `training.loss`
        advantage_over: `trajectories` (the paper) or `turns` (its released code)
        turns: `calls`: each call is a turn of equation 5 and a row (the paper). `merged`: calls that continue one
            another are one row; the default with a `variant`, and for `interleaved` and `direct` agents
        credit: `broadcast` to every turn (the paper), or `final`: only the last turn
        baseline: subtracted from a reward: the group's mean, or `leave_one_out`, the mean of the others
        advantage: in place of `baseline` and `normalize_by_std`, `gigpo` or `return_to_go` of midstream-credit, which
            give each call a number, or a function of yours, `"my_advantage.py:name"`; or a table with this `type`
        normalize_by_std: divide advantages by the group's standard deviation
        overlong: see `training.overlong`: a penalty of length
        mask_cut_off: a trajectory that a limit of tokens, context or time ended has no row; its reward still counts in
            its group
        resample_uniform: replace groups of equal rewards by other tasks, at most this many times a step (DAPO's dynamic
            sampling)
        uniform_kl_fraction: below 1: the share of uniform groups that keep their KL term, reweighted without bias
        family_sampling: `uniform`; `failure`: families that fail are drawn more often; `balanced`: every family in each
            step, as evenly as `tasks_per_step` allows
        stages: a curriculum of Flow-GRPO: lists of families in the order in which they begin, e.g.
            `[["near"], ["far"]]`; those that have begun stay, and a family in no stage is not trained on
        shuffle_rewards: give rewards to the wrong trajectories: a control that must not learn
        supervised: see `training.supervised`
        checkpoint_every: steps between checkpoints, ten minutes at the most
        validate_every: steps between validations
    """

    algorithm: Literal["flow_grpo", "supervised"] = "flow_grpo"
    variant: str | None = None
    weights: str | None = None
    roles: dict[str, TrainedRole] = {}
    steps: int = Field(default=200, ge=0)
    tasks_per_step: int = Field(default=16, ge=1)
    group_size: int = Field(default=8, ge=2)
    branching: Component | None = None
    asynchrony: Component | None = None
    minibatches: int = Field(default=2, ge=1)
    learning_rate: float = Field(default=6e-4, gt=0)
    warmup_steps: int = Field(default=5, ge=1)
    decay_steps: int = Field(default=0, ge=0)
    loss: SerializeAsAny[PolicyLoss] = PolicyLoss()
    advantage_over: Literal["trajectories", "turns"] = "trajectories"
    turns: Turns = "calls"
    credit: Literal["broadcast", "final"] = "broadcast"
    baseline: Baseline = "group_mean"
    normalize_by_std: bool = True
    advantage: Component | None = None
    overlong: OverlongConfig | None = None
    mask_cut_off: bool = False
    resample_uniform: int = Field(default=0, ge=0)
    uniform_kl_fraction: float = Field(default=1.0, gt=0, le=1)
    family_sampling: Literal["balanced", "failure", "uniform"] = "uniform"
    stages: tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...] = ()
    shuffle_rewards: bool = False
    supervised: ImitationConfig = ImitationConfig()
    checkpoint_every: int = Field(default=25, ge=1)
    validate_every: int = Field(default=25, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_variant(cls, table: object) -> object:
        """Put what the `variant` sets where the table does not set it itself."""
        if not isinstance(table, Mapping) or not isinstance(name := table.get("variant"), str):
            return table
        if name not in VARIANTS:
            raise UnsupportedError(
                f"training.variant = {name!r} is not supported",
                code="unknown-type",
                cause=_ELSEWHERE.get(name, ""),
                fix=f"{'' if name in _ELSEWHERE else did_you_mean(name, VARIANTS)}use one of {', '.join(VARIANTS)}",
            )
        filled = {"turns": "merged", **VARIANTS[name], **table}
        if "advantage" in table:
            # It takes the place of these.
            filled = {key: value for key, value in filled.items() if key in table or key not in _BASELINES}
        loss = table.get("loss", {})
        given = loss.model_dump(exclude_unset=True) if isinstance(loss, BaseModel) else loss
        # Anything else fails validation.
        if isinstance(given, Mapping):
            filled["loss"] = {**VARIANTS[name]["loss"], **given}
        return filled

    @field_validator("roles", mode="before")
    @classmethod
    def _names(cls, roles: object) -> object:
        roles = [roles] if isinstance(roles, str) else roles
        if isinstance(roles, list | tuple) and len({*roles}) < len(roles):
            raise ValueError(f"a role is named twice in {[*roles]}")
        return {name: {} for name in roles} if isinstance(roles, list | tuple) else roles

    @field_validator("algorithm", mode="before")
    @classmethod
    def _no_variant(cls, name: object) -> object:
        if isinstance(name, str) and name in VARIANTS:
            raise ValueError(f'it is a variant: set training.variant = "{name}"')
        return name

    @field_validator("loss", mode="before")
    @classmethod
    def _own_loss(cls, table: object) -> object:
        if not isinstance(table, Mapping) or table.get("type") is None:
            return table
        named = located("loss", table["type"], "training.loss")
        return validate(config_class("loss", named), {**table, "type": named}, "training.loss")

    @field_validator("advantage", mode="before")
    @classmethod
    def _own_advantage(cls, table: object) -> object:
        table = {"type": table} if isinstance(table, str) else table
        return parse_component("advantage", table, "training.advantage") if isinstance(table, Mapping) else table

    @field_validator("branching", "asynchrony", mode="before")
    @classmethod
    def _component(cls, table: object, info: ValidationInfo) -> object:
        kind: Any = info.field_name
        table = {"type": table} if isinstance(table, str) else table
        table = {"type": _TYPES[kind], **table} if isinstance(table, Mapping) else table
        return parse_component(kind, table, f"training.{kind}") if isinstance(table, Mapping) else table

    @model_validator(mode="after")
    def _fits_together(self) -> TrainingConfig:
        changed = [name for name, default in _BASELINES.items() if getattr(self, name) != default]
        if self.advantage is not None and changed:
            raise ValueError(f"advantage takes the place of {changed[0]}: leave one of them out")
        if self.minibatches > self.tasks_per_step:
            raise ValueError(f"minibatches {self.minibatches} exceeds tasks_per_step {self.tasks_per_step}")
        return self
