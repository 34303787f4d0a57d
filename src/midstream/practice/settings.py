"""Settings of context-space learning: the paper's values are the defaults where it names one (arXiv 2510.08191).

How much a practice run would do at most: rollouts by purpose, requests by the reflector's roles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from midstream.core.data import Frozen
from midstream.core.trajectory import Sampling


class RoleConfig(Frozen):
    """One role of the reflector: which engine it asks and how.

    `engine` names an engine of the recipe. A reply that cannot be used is asked for again, `asks` times in all.
    `prompt_file` replaces the prompt that ships with midstream. `structured_output` has the server enforce the form.
    """

    engine: str
    sampling: Sampling = Sampling(temperature=0.7, max_tokens=4096)
    asks: int = Field(default=3, ge=1)
    prompt_file: Path | None = None
    structured_output: bool = False


class EmbeddingConfig(Frozen):
    """Near-duplicates by a model's embeddings, from the `/embeddings` of an OpenAI-compatible server.

    An update asks for those of its lessons and proposals; they cost next to nothing, and no budget counts them.
    """

    model: str
    base_url: str
    api_key_env: str = ""
    timeout_s: float = Field(default=60.0, gt=0)


class LibraryConfig(Frozen):
    """What the library may hold.

    `max_tokens` bounds all that is rendered, `lesson_tokens` one lesson, four characters counted as a token. Texts
    whose likeness (cosine, 0 to 1) is `likeness` or more are near-duplicates: of hashed n-grams, or with `embedding` of
    a model's vectors. None: no bound, no such check. `leak_guard` refuses lessons that copy a task's answer.
    """

    max_tokens: int | None = Field(default=2000, ge=1)
    lesson_tokens: int | None = Field(default=100, ge=1)
    likeness: float | None = Field(default=0.85, gt=0, le=1)
    embedding: EmbeddingConfig | None = None
    leak_guard: bool = True


class GateConfig(Frozen):
    """When a changed library is accepted (`gate.py`).

    `tasks` of the validation split stand for all others. `error_rate` is the chance that a run accepts any change that
    does not help, over all of its tests together. A test looks after every `block` pairs of fresh validation rollouts;
    it stops early where it is sure, or where an effect of `min_effect` or more is refuted at `futility_rate`, and at
    the latest after `test_pairs`. An update makes two tests at most; between them random halves of the batch tell the
    good changes from the bad, for `bisect_pairs` at most, or until wrong choices are expected to cost less than
    `min_effect`; 0: the batch is accepted or put off as a whole. By default an update's gate takes 4,400 rollouts at
    the very most: with the paper's own 500, not 10 times those. The defaults are chosen by `benchmarks/gate_power.py`.
    """

    enabled: bool = True
    tasks: int = Field(default=100, ge=2)
    error_rate: float = Field(default=0.05, gt=0, lt=1)
    futility_rate: float = Field(default=0.1, gt=0, lt=1)
    min_effect: float = Field(default=0.02, gt=0, lt=1)
    block: int = Field(default=32, ge=1)
    test_pairs: int = Field(default=600, ge=1)
    bisect_pairs: int = Field(default=1000, ge=0)


class BudgetConfig(Frozen):
    """Limits on what a run may use up, evaluations included; None: no limit.

    Nothing is started that could go over `rollouts`, `tokens` (prompt and completion, of agent, tools' models, judge
    and reflector) or `cost_usd`; after `time_s` nothing new is started. `updates` counts updates of the library.
    """

    rollouts: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    cost_usd: float | None = Field(default=None, ge=0)
    time_s: float | None = Field(default=None, ge=0)
    updates: int | None = Field(default=None, ge=0)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return self.model_dump(exclude_none=True)


class PracticeConfig(Frozen):
    """Training-Free GRPO.

    `tasks` of the train split, `epochs` over them, `batch_size` of them an update, `group_size` rollouts each;
    `families`: what is learned from and validated on is of these alone.
    `reflector` is the role that all three of `summariser`, `critic` and `merger` are, where they are not named.
    `truth = "majority"` learns without gold answers: a rollout is right that agrees with most of its group, and no role
    sees the answer. `lessons_from = "model"` has the critic write lessons without any rollout (a control).
    `skip_uniform` leaves groups out whose rollouts all earned the same. `modules` may get lessons. `start` is a library
    to begin with. `patience`: stop after so many updates without a change that was accepted. `shuffle_rewards` is a
    control: all rewards, of validation too, are dealt out at random. `cache` keeps rollouts and replies for other runs
    of the very same settings.
    """

    tasks: int = Field(default=100, ge=1)
    epochs: int = Field(default=3, ge=1)
    batch_size: int = Field(default=100, ge=1)
    group_size: int = Field(default=5, ge=1)
    families: tuple[str, ...] = ()
    truth: Literal["answer", "majority"] = "answer"
    lessons_from: Literal["rollouts", "model"] = "rollouts"
    skip_uniform: bool = True
    changes_per_group: int = Field(default=2, ge=1)
    modules: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=("planner",), min_length=1)
    reflector: RoleConfig
    summariser: RoleConfig | None = None
    critic: RoleConfig | None = None
    merger: RoleConfig | None = None
    library: LibraryConfig = LibraryConfig()
    gate: GateConfig = GateConfig()
    budget: BudgetConfig = BudgetConfig()
    start: Path | None = None
    patience: int | None = Field(default=None, ge=1)
    shuffle_rewards: bool = False
    cache: Path | None = None

    @property
    def updates(self) -> int:
        """How many updates the whole schedule has."""
        return self.epochs * -(-self.tasks // self.batch_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """At most so many requests of a role to an engine, each for at most `max_tokens` new tokens."""

    role: str
    engine: str
    count: int
    max_tokens: int


def updates(config: PracticeConfig) -> int:
    """How many updates the schedule and the budget allow."""
    limit = config.budget.updates
    return config.updates if limit is None else min(config.updates, limit)


def tasks(config: PracticeConfig) -> int:
    """The tasks of all updates, each as often as it comes."""
    per_epoch = config.updates // config.epochs
    epochs, rest = divmod(updates(config), per_epoch)
    return epochs * config.tasks + min(rest * config.batch_size, config.tasks)


def rollouts(config: PracticeConfig) -> dict[str, int]:
    """Rollouts by what they are for; the gate's where every test and every bisection goes to its end."""
    learning = tasks(config) * config.group_size if config.lessons_from == "rollouts" else 0
    said = f"learning, {tasks(config):,} tasks x {config.group_size}" if learning else "learning, without rollouts"
    found = {said: learning}
    if config.gate.enabled:
        pairs = 2 * config.gate.test_pairs + config.gate.bisect_pairs
        found[f"gate, {updates(config)} updates x {pairs:,} pairs x 2"] = 2 * pairs * updates(config)
    return found


def requests(config: PracticeConfig) -> list[Requests]:
    """What the roles are asked where every reply has to be asked for again, as often as is allowed."""
    counts = {"critic": tasks(config), "merger": updates(config)}
    if config.lessons_from == "rollouts":
        counts = {"summariser": tasks(config) * config.group_size, **counts}
    return [_of(role, getattr(config, role) or config.reflector, count) for role, count in counts.items()]


def _of(role: str, config: RoleConfig, count: int) -> Requests:
    return Requests(role=role, engine=config.engine, count=count * config.asks, max_tokens=config.sampling.max_tokens)
