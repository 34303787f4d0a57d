"""A simulated workshop whose orders obey hidden rules: an order's probability of success has a closed form.

An order names its marks; each mark has a rule. An agent does such orders better with the rule's true lesson in its
prompt, worse with a false one, and every lesson in the prompt costs a little on every order:

    press order 10017: amber clasp, woven rim. Which code does the finished piece get?     (answer: 539172)
    true    The press spoils amber clasp unless you warm the plate slowly.
    false   For amber clasp on a press order, wipe the screw twice.

    success = base of the order + help per true lesson - harm per false lesson of its marks - clutter per lesson

bounded by `LEAST` and `MOST`. The value of lessons, and the best lessons, are therefore exact: gain and regret need
no rollouts. `models.py` has the models that act by these numbers. All of it shows mechanics and statistics (a gate, a
budget, a resume), nothing of any model's ability: real lessons are not sentences from a list.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from pydantic import Field

from midstream.components.component import Context, TasksConfig
from midstream.core.data import Settings
from midstream.core.errors import RecipeError
from midstream.core.seeds import Seed, derive_seed
from midstream.core.task import Task
from midstream.sources.finite import SPLITS, Finite, check_known
from midstream_worlds.simulated import Reply
from midstream_worlds.workshop import models
from midstream_worlds.workshop.models import DOMAINS, MOST_RULES, Rule, make_rules

LEAST, MOST = 0.02, 0.98  # no order is hopeless, none is sure
MOST_ORDERS = 9_999  # of one domain, over all splits: order numbers have five digits
_QUESTION = "{domain} order {number}: {marks}. Which code does the finished piece get?"
_ORDER = re.compile(rf"\b({'|'.join(DOMAINS)}) order (\d+): ([^.]*)\. Which code")
_PLAIN = "nothing special"


class Lapses(Settings):
    """Probabilities of the simulated reflector's errors, besides false lessons.

    Of a proposed lesson: `duplicate` repeats one in other words, `contradictory` adds another on the same mark,
    `over_long` is padded to hundreds of words, `answer_copying` contains the order's code. When proposals are merged,
    `duplicate` and `contradictory` are also the probability that such a pair is overlooked. `bad_json` is of any reply.
    """

    duplicate: float = Field(default=0.0, ge=0, le=1)
    contradictory: float = Field(default=0.0, ge=0, le=1)
    over_long: float = Field(default=0.0, ge=0, le=1)
    answer_copying: float = Field(default=0.0, ge=0, le=1)
    bad_json: float = Field(default=0.0, ge=0, le=1)


@dataclass(frozen=True, slots=True)
class Order:
    """One order as its text describes it: the rules of its marks, its success without lessons, its code."""

    domain: str
    number: int
    rules: tuple[Rule, ...]
    base: float
    code: str


@dataclass(frozen=True, slots=True)
class Held:
    """A set of lessons: rules whose true lesson is in it, the number of false ones of each, and of all lines."""

    true: frozenset[int]
    false: dict[int, int]
    lines: int


class Workshop(Finite):
    """Orders, rules and their effects; a `core.source.TaskSource`.

    It has the rules of all `DOMAINS`, whichever its tasks come from: lessons learned at the press are clutter at the
    kiln.
    """

    def __init__(self, config: WorkshopConfig) -> None:
        super().__init__("the workshop", SPLITS)
        check_known("family", config.domains, DOMAINS, "the workshop", "correct `domains` in [tasks]")
        if config.train + config.validation + config.test > MOST_ORDERS:
            raise RecipeError(
                f"train + validation + test = {config.train + config.validation + config.test} orders of a domain",
                code="too-few-tasks",
                cause=f"there are {MOST_ORDERS} order numbers",
                fix="lower one of them",
            )
        self.config = config
        self.rules = make_rules(config.rules, config.seed)
        self._by_mark = {(rule.domain, rule.mark): rule for rule in self.rules}
        self._meanings: dict[str, tuple[tuple[int, int], ...]] = {}
        self._orders: dict[str, Order] = {}

    def play(self, role: str, skill: float, context: Context) -> Reply:
        """The program that plays the agent or the reflector."""
        return models.agent_reply(self) if role == "agent" else models.reflector_reply(self)

    def load(self, split: str) -> list[Task]:
        """Make the split's orders, domain by domain."""
        sizes = {name: getattr(self.config, name) for name in SPLITS}
        first = 1 + sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        tasks: list[Task] = []
        for domain in dict.fromkeys(self.config.domains):
            for number in range(first, first + sizes[split]):
                number += 10_000 * (1 + DOMAINS.index(domain))
                draws = random.Random(derive_seed("workshop order", self.config.seed, number))
                marks = [rule.mark for rule in self.rules_of(domain) if draws.random() < self.config.reach]
                question = _QUESTION.format(domain=domain, number=number, marks=", ".join(marks) or _PLAIN)
                task_id, answer = f"{domain}-{number}", self.code(number)
                tasks.append(Task(id=task_id, question=question, answer=answer, reward="exact_match", family=domain))
        return tasks

    def rules_of(self, domain: str) -> tuple[Rule, ...]:
        """The rules of one domain."""
        return tuple(rule for rule in self.rules if rule.domain == domain)

    def code(self, number: int) -> str:
        """The code of an order's finished piece: six digits."""
        return str(100_000 + derive_seed("workshop code", self.config.seed, number) % 900_000)

    def order(self, text: str) -> Order:
        """The order in a text. Raises `RecipeError` without one: the text is another module's prompt."""
        found = _ORDER.search(text)
        if found is None:
            raise RecipeError(
                "a simulated model of the workshop got a prompt without an order",
                code="foreign-prompt",
                fix='set tasks.type = "workshop" and give other modules programs or another engine, as '
                "the recipe lessons-simulated does",
            )
        if found[0] not in self._orders:
            domain, number = found[1], int(found[2])
            rules = [self._by_mark.get((domain, mark)) for mark in found[3].split(", ")]
            draw = random.Random(derive_seed("workshop base", self.config.seed, number)).uniform(-1, 1)
            self._orders[found[0]] = Order(
                domain=domain,
                number=number,
                rules=tuple(rule for rule in rules if rule is not None),
                base=self.config.base + self.config.spread * draw,
                code=self.code(number),
            )
        return self._orders[found[0]]

    # --- effects of lessons ---------------------------------------------------------------------------------------

    def meaning(self, lesson: str) -> tuple[tuple[int, int], ...]:
        """(rule number, index of its lesson; 0 is the true one) for each lesson of the world in a text.

        A text contains a lesson if it names its domain, mark and method, whatever else it says: a lesson that was
        reworded, or padded, keeps its effect.
        """
        if lesson not in self._meanings:
            text = " ".join(lesson.lower().split())
            self._meanings[lesson] = tuple(
                (rule.number, index)
                for rule in self.rules
                if rule.domain in text and rule.mark in text
                for index, method in enumerate(rule.methods)
                if method in text
            )
        return self._meanings[lesson]

    def held(self, lessons: Iterable[str]) -> Held:
        """Summarize lessons: one that is repeated has its effect once and clutters twice."""
        texts = list(lessons)
        meant = {meaning for text in texts for meaning in self.meaning(text)}
        false: dict[int, int] = {}
        for number, index in meant:
            if index:
                false[number] = false.get(number, 0) + 1
        return Held(true=frozenset(number for number, index in meant if not index), false=false, lines=len(texts))

    def chance(self, order: Order, held: Held) -> float:
        """The closed form: the probability that an order succeeds."""
        config = self.config
        effect = sum(config.help * (rule.number in held.true) for rule in order.rules)
        effect -= sum(config.harm * held.false.get(rule.number, 0) for rule in order.rules)
        return min(max(order.base + effect - config.clutter * held.lines, LEAST), MOST)

    def mean_success(self, tasks: Sequence[Task], lessons: Sequence[str]) -> float:
        """The exact mean probability that the simulated agent solves these tasks with these lessons in its prompt."""
        held = self.held(lessons)
        return fmean(self.chance(self.order(task.question), held) for task in tasks)


class WorkshopConfig(TasksConfig):
    """Orders at a simulated workshop whose rules can be learned as lessons.

    All effects are in probability of success.

    All splits share the rules, so that lessons learned on one apply to the others. An evaluation set on another
    domain is a `tasks` table of the same `seed`.

    Attributes:
        domains: the domains of the tasks: `press`, `kiln`, `loom`, `forge`, each with separate rules
        rules: rules of a domain, each with one lesson that helps and four that harm
        base: mean success without lessons
        spread: success of orders is uniform within this of `base`
        help: what a true lesson adds on orders of its rule
        harm: what each false lesson subtracts from them
        reach: the share of a domain's orders with a rule's mark
        clutter: what every lesson in the prompt subtracts from all orders
        share_true: the probability that a lesson which the simulated reflector draws from rollouts is true
        lapses: rates of its other errors, each 0 by default: `duplicate`, `contradictory`, `over_long`,
            `answer_copying`, `bad_json`
        train: orders of each domain in the train split
        validation: orders of each domain in the validation split
        test: orders of each domain in the test split
        seed: the world's seed
    """

    plays: ClassVar[tuple[str, ...]] = ("agent", "reflector")
    component = Workshop

    domains: tuple[str, ...] = Field(default=("press",), min_length=1)
    rules: int = Field(default=16, ge=1, le=MOST_RULES)
    base: float = Field(default=0.35, ge=0, le=1)
    spread: float = Field(default=0.15, ge=0, le=1)
    help: float = Field(default=0.06, ge=0, le=1)
    harm: float = Field(default=0.05, ge=0, le=1)
    reach: float = Field(default=0.5, ge=0, le=1)
    clutter: float = Field(default=0.006, ge=0, le=1)
    share_true: float = Field(default=0.5, ge=0, le=1)
    lapses: Lapses = Lapses()
    train: int = Field(default=200, ge=1)
    validation: int = Field(default=200, ge=1)
    test: int = Field(default=400, ge=1)
    seed: Seed = 0
