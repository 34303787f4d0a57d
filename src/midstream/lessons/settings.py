"""Settings of lesson runs; the defaults are the paper's where it names a value (arXiv 2510.08191)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from midstream.components.component import Component
from midstream.components.tables import parse_component
from midstream.core.data import Settings
from midstream.core.texts import kind_of
from midstream.core.trajectory import Sampling
from midstream.runs.budget import BudgetConfig

ROLES = ("summariser", "critic", "merger")
# Requests for one usable reply. The last may be repaired: a model repairs its own JSON first.
ASKS = 3
LESSON_TOKENS = 100
NEAR = 0.85
"""Similarity (cosine, 0 to 1) from which lessons of one module repeat each other."""


class RoleConfig(Settings):
    """One role of the reflector.

    Attributes:
        engine: the name of a table `[engines.NAME]`
        sampling: see `sampling`
        prompt_file: replaces the role's prompt (not in `reflector`); the critic's replaces `write.md` with
            `lessons_from = "model"`
    """

    engine: str
    sampling: Sampling = Sampling(temperature=0.7, max_tokens=4096)
    prompt_file: Path | None = None


class LessonLimits(Settings):
    """Limits of the lesson set. One lesson has at most `LESSON_TOKENS`.

    Attributes:
        max_tokens: the most tokens of all lessons together; four characters count as a token
        leak_guard: refuse lessons that copy a task's answer
    """

    max_tokens: int = Field(default=2000, ge=1)
    leak_guard: bool = True


class GateConfig(Settings):
    """When a changed lesson set is accepted (`gate.py`).

    A test stops early if the evidence suffices. By default an update's gate takes at most 4,400 rollouts, less than
    10 times the paper's 500, and 1,200 more where a change saves tokens. `benchmarks/gate_power.py` chose the defaults.

    Attributes:
        enabled: `false`: every valid change is accepted, as in the paper
        tasks: validation tasks
        error_rate: the probability that a run accepts any change that does not help
        min_effect: the smallest effect on the mean reward that is worth finding
        margin: what a removal, or a text that is a tenth shorter, may cost in mean reward, each time that one is
            accepted; 0: it must raise it, as any other change
        block: pairs of fresh validation rollouts between two looks of a test
        test_pairs: the most pairs of one test; an update makes at most two tests, three if it can save tokens
        bisect_pairs: the most pairs to separate good changes from bad ones by random halves; 0: never separate
    """

    enabled: bool = True
    tasks: int = Field(default=100, ge=2)
    error_rate: float = Field(default=0.05, gt=0, lt=1)
    min_effect: float = Field(default=0.02, gt=0, lt=1)
    margin: float = Field(default=0.0, ge=0, lt=1)
    block: int = Field(default=32, ge=1)
    test_pairs: int = Field(default=600, ge=1)
    bisect_pairs: int = Field(default=1000, ge=0)


class LessonsConfig(Settings):
    """Training-Free GRPO.

    With `truth = "majority"` or `"none"` no role of the reflector sees a gold answer. `lessons_from = "model"` has the
    critic write lessons without any rollout (a control).

    Attributes:
        tasks: tasks of the train split; questions of the validation set are left out
        epochs: passes over the tasks, each in a new order
        batch_size: tasks of an update
        group_size: rollouts of a task
        families: learn from and validate on these families; empty: all
        truth: what grades a rollout: `answer`, its reward; `majority`, whether it agrees with most of its group; `none`
        lessons_from: `rollouts`, or `model`: a control whose lessons come from the questions only
        skip_uniform: leave out groups whose rollouts all have the same reward; no effect with `truth = "none"`
        changes_per_group: the most proposals from one group
        modules: what may be learned: the lessons of a module (`planner`; of an interleaved agent `policy`), its
            instructions (`planner.prompt`) and examples (`planner.examples`), the description of a tool (`tools.NAME`),
            a text that your agent marks (`texts.NAME`)
        proposers: what suggests changes: `reflection`, types of installed packages, or your own, each a name or a table
        search_rollouts: what each proposer may try its candidates with in an update
        reflector: the model behind all three roles; see `lessons.reflector`
        summariser: replaces `reflector` for this role
        critic: replaces `reflector` for this role
        merger: replaces `reflector` for this role
        limits: see `lessons.limits`
        gate: see `lessons.gate`
        approval: `gate`, or `person`: what the gate accepts also waits for a person's yes
        feedback: the file in which an installed package (midstream-extra: votes) keeps feedback, which refuses lessons
        start: the first lesson set: a lesson run or a file
        shuffle_rewards: a control: all rewards are permuted at random
    """

    tasks: int = Field(default=100, ge=1)
    epochs: int = Field(default=3, ge=1)
    batch_size: int = Field(default=100, ge=1)
    group_size: int = Field(default=5, ge=1)
    families: tuple[str, ...] = ()
    truth: Literal["answer", "majority", "none"] = "answer"
    lessons_from: Literal["rollouts", "model"] = "rollouts"
    skip_uniform: bool = True
    changes_per_group: int = Field(default=2, ge=1)
    modules: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=("planner",), min_length=1)
    proposers: tuple[Component, ...] = Field(default=("reflection",), min_length=1, validate_default=True)
    search_rollouts: int = Field(default=64, ge=0)
    reflector: RoleConfig
    summariser: RoleConfig | None = None
    critic: RoleConfig | None = None
    merger: RoleConfig | None = None
    limits: LessonLimits = LessonLimits()
    gate: GateConfig = GateConfig()
    approval: Literal["gate", "person"] = "gate"
    feedback: Path | None = None
    start: Path | None = None
    shuffle_rewards: bool = False

    @field_validator("proposers", mode="before")
    @classmethod
    def _components(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            return value
        tables = [{"type": each} if isinstance(each, str) else each for each in value]
        return tuple(
            parse_component("proposer", table, f"lessons.proposers.{place}") if isinstance(table, Mapping) else table
            for place, table in enumerate(tables)
        )

    @property
    def searching(self) -> int:
        """How many proposers try candidates on rollouts."""
        return sum(getattr(each.config, "searches", True) for each in self.proposers)

    @model_validator(mode="after")
    def _search_is_graded(self) -> LessonsConfig:
        names = [proposer.type for proposer in self.proposers]
        if len(set(names)) < len(names):
            raise ValueError(f"proposers = {names} names one twice")
        if self.searching and (self.truth != "answer" or self.lessons_from != "rollouts"):
            raise ValueError(
                f"proposers = {names} compare rollouts by their rewards: leave out truth and lessons_from, or have "
                '"reflection" alone'
            )
        return self

    @model_validator(mode="after")
    def _groups_have_contrast(self) -> LessonsConfig:
        if self.group_size < 2 and self.skip_uniform and self.lessons_from == "rollouts":
            raise ValueError(
                f"group_size = {self.group_size} never teaches anything, because groups without contrast are skipped: "
                "set it to 2 or more, or skip_uniform = false"
            )
        return self

    def role(self, name: str) -> RoleConfig:
        """The settings of one of `ROLES`."""
        return {"summariser": self.summariser, "critic": self.critic, "merger": self.merger}[name] or self.reflector

    @property
    def updates(self) -> int:
        """The number of updates in the whole schedule."""
        return self.epochs * -(-self.tasks // self.batch_size)

    def most_updates(self, limits: BudgetConfig) -> int:
        """The number of updates that the schedule and the budget allow."""
        return self.updates if limits.updates is None else min(self.updates, limits.updates)

    def most_tasks(self, limits: BudgetConfig) -> int:
        """The tasks of all updates, each counted as often as it occurs."""
        epochs, rest = divmod(self.most_updates(limits), self.updates // self.epochs)
        return epochs * self.tasks + min(rest * self.batch_size, self.tasks)

    def most_rollouts(self, limits: BudgetConfig) -> dict[str, int]:
        """An upper bound of the rollouts by purpose: every test and every bisection of the gate runs to its end."""
        tasks, updates = self.most_tasks(limits), self.most_updates(limits)
        learning = tasks * self.group_size if self.lessons_from == "rollouts" else 0
        what = f"learning, {tasks:,} tasks x {self.group_size}" if learning else "learning, without rollouts"
        found = {what: learning}
        # Several versions of one text are compared once more.
        if times := self.searching + sum(kind_of(place) == "text" for place in self.modules):
            found[f"trying candidates, {updates} updates"] = updates * self.search_rollouts * times
        if self.gate.enabled:
            pairs = (3 if self.gate.margin else 2) * self.gate.test_pairs + self.gate.bisect_pairs
            found[f"gate, {updates} updates x {pairs:,} pairs x 2"] = 2 * pairs * updates
        return found

    def most_requests(self, limits: BudgetConfig) -> Counter[tuple[str, str]]:
        """An upper bound of the requests by role and engine: every reply is requested `ASKS` times."""
        counts = {"critic": self.most_tasks(limits), "merger": self.most_updates(limits)}
        if self.lessons_from == "rollouts":
            counts = {"summariser": counts["critic"] * self.group_size, **counts}
        # A proposer asks at most once for each rollout that it tries a candidate with, or a few times without any.
        others = sum(proposer.type != "reflection" for proposer in self.proposers)
        counts["critic"] += self.most_updates(limits) * others * max(10, self.search_rollouts)
        return Counter({(name, self.role(name).engine): count * ASKS for name, count in counts.items()})
