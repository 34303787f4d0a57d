"""A made-up workshop whose orders obey rules that nobody wrote down: how well an order goes is known in closed form.

An order names its marks; each mark has a rule. Whoever has the rule's true lesson in mind does such orders better,
whoever has a false one does them worse, and every lesson that must be read costs a little on every order:

    press order 10017: amber clasp, woven rim. Which code does the finished piece get?     (answer: 539172)
    true    The press spoils amber clasp unless you warm the plate slowly.
    false   For amber clasp on a press order, wipe the screw twice.

    success = base of the order + help per true lesson - harm per false lesson of its marks - clutter per lesson

held within `LEAST` and `MOST`. So what a library is worth, and what the best one would be, is exact: gain and regret
need no rollouts. The model that plays by these numbers is `workshop_models.py`. All of it proves mechanics and
statistics (a gate, a budget, a resume), nothing about any model's wit: real lessons are not sentences out of a list.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import Field

from midstream.core.component import Context, TasksConfig
from midstream.core.data import Frozen
from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Message
from midstream.tasks.finite import SPLITS, Finite
from midstream.worlds.workshop.rules import DOMAINS, MOST_RULES, Rule, make_rules

LEAST, MOST = 0.02, 0.98  # no order is hopeless, none is sure
MOST_ORDERS = 9_999  # of one domain, over all splits: order numbers have five digits
_QUESTION = "{domain} order {number}: {marks}. Which code does the finished piece get?"
_ORDER = re.compile(rf"\b({'|'.join(DOMAINS)}) order (\d+): ([^.]*)\. Which code")
_PLAIN = "nothing special"


class Lapses(Frozen):
    """How the simulated reflector errs beside false lessons, each the chance of one.

    Of a proposed lesson: `duplicate` repeats one in other words, `contradictory` brings another on the same mark along,
    `over_long` is padded to hundreds of words, `answer_copying` gives the order's code away. When proposals are merged,
    `duplicate` and `contradictory` are also the chance that such a pair is overlooked. `bad_json` is of any reply.
    """

    duplicate: float = Field(default=0.0, ge=0, le=1)
    contradictory: float = Field(default=0.0, ge=0, le=1)
    over_long: float = Field(default=0.0, ge=0, le=1)
    answer_copying: float = Field(default=0.0, ge=0, le=1)
    bad_json: float = Field(default=0.0, ge=0, le=1)


class Config(TasksConfig):
    """Settings of the workshop; all effects are in probability of success.

    `domains` are those that tasks come from, each with `rules` of its own; `reach` is the share of a domain's orders
    that bear a rule's mark. Orders' success without lessons is uniform in `base` ± `spread`. A true lesson adds `help`
    to orders of its rule, each false one takes `harm`, and every lesson in the prompt, known or not, takes `clutter`
    from all orders. `share_true` is the chance that a lesson which the simulated reflector draws from rollouts is true,
    `lapses` what else goes wrong with its replies.
    `train`, `validation` and `test` are the orders of each domain in a split; rules are shared by all splits, so what
    is learned on one holds on the others. An evaluation set on another domain is a `tasks` table of the same `seed`:
    the simulated agent works by the rules and effects of the recipe's own.
    """

    plays = ("agent", "reflector")

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
    seed: int = 0

    def build(self, context: Context) -> Workshop:
        """Build it."""
        return Workshop(self)


@dataclass(frozen=True, slots=True)
class Order:
    """One order as its text tells it: the rules that matter, its chance without lessons, its code."""

    domain: str
    number: int
    rules: tuple[Rule, ...]
    base: float
    code: str


@dataclass(frozen=True, slots=True)
class Held:
    """What a set of lessons comes to: rules whose true lesson is there, how many false ones of each, and all lines."""

    true: frozenset[int]
    false: dict[int, int]
    lines: int


class Workshop(Finite):
    """Orders, rules and their effects; a `core.protocols.TaskSource`.

    It knows the rules of all `DOMAINS`, whichever its tasks come from: lessons learned at the press are clutter at the
    kiln.
    """

    def __init__(self, config: Config) -> None:
        super().__init__("the workshop", SPLITS)
        for domain in config.domains:
            if domain not in DOMAINS:
                raise RecipeError(
                    f"the workshop has no domain {domain!r}",
                    cause="it is misspelt",
                    fix=f"name some of: {', '.join(DOMAINS)}",
                )
        if config.train + config.validation + config.test > MOST_ORDERS:
            raise RecipeError(
                f"train + validation + test = {config.train + config.validation + config.test} orders of a domain",
                cause=f"there are {MOST_ORDERS} order numbers",
                fix="lower one of them",
            )
        self.config = config
        self.rules = make_rules(config.rules, config.seed)
        self._by_mark = {(rule.domain, rule.mark): rule for rule in self.rules}
        self._meanings: dict[str, tuple[tuple[int, int], ...]] = {}
        self._orders: dict[str, Order] = {}

    def play(self, role: str, skill: float, context: Context) -> Callable[[Sequence[Message], int], str]:
        """The program that plays the agent or the reflector."""
        from midstream.worlds.workshop import models  # which reads this module

        return models.agent_reply(self) if role == "agent" else models.reflector_reply(self)

    def load(self, split: str) -> list[Task]:
        """The split's orders, domain by domain."""
        sizes = {name: getattr(self.config, name) for name in SPLITS}
        first = 1 + sum(sizes[name] for name in SPLITS[: SPLITS.index(split)])
        domains = [DOMAINS.index(domain) for domain in dict.fromkeys(self.config.domains)]
        return [self._task(10_000 * (1 + place) + first + i) for place in domains for i in range(sizes[split])]

    def _task(self, number: int) -> Task:
        domain = DOMAINS[number // 10_000 - 1]
        draws = random.Random(derive_seed("workshop order", self.config.seed, number))
        marks = [rule.mark for rule in self.rules_of(domain) if draws.random() < self.config.reach]
        question = _QUESTION.format(domain=domain, number=number, marks=", ".join(marks) or _PLAIN)
        return Task(
            id=f"{domain}-{number}",
            question=question,
            answer=self.code(number),
            reward="exact_match",
            family=domain,
        )

    def rules_of(self, domain: str) -> tuple[Rule, ...]:
        """The rules of one domain."""
        return tuple(rule for rule in self.rules if rule.domain == domain)

    def code(self, number: int) -> str:
        """The code that an order's finished piece gets: six digits."""
        return str(100_000 + derive_seed("workshop code", self.config.seed, number) % 900_000)

    def order(self, text: str) -> Order | None:
        """The order that a text holds, None where there is none."""
        found = _ORDER.search(text)
        if found is None:
            return None
        if found[0] not in self._orders:
            self._orders[found[0]] = self._read_order(found[1], int(found[2]), found[3].split(", "))
        return self._orders[found[0]]

    def _read_order(self, domain: str, number: int, marks: Sequence[str]) -> Order:
        there = [self._by_mark.get((domain, mark)) for mark in marks]
        draw = random.Random(derive_seed("workshop base", self.config.seed, number)).uniform(-1, 1)
        return Order(
            domain=domain,
            number=number,
            rules=tuple(rule for rule in there if rule is not None),
            base=self.config.base + self.config.spread * draw,
            code=self.code(number),
        )

    def _order_of(self, task: Task) -> Order:
        order = self.order(task.question)
        assert order is not None, "tasks of this world hold an order"
        return order

    # --- what lessons are worth -----------------------------------------------------------------------------------

    def meaning(self, lesson: str) -> tuple[tuple[int, int], ...]:
        """(rule number, which of its lessons; 0 is the true one) of each sentence of the world that a text holds.

        A text means a lesson if it names its domain, mark and method, whatever else it says: a lesson that was put in
        other words, or padded, still has its effect.
        """
        if lesson not in self._meanings:
            text = " ".join(lesson.lower().split())
            self._meanings[lesson] = tuple(
                (rule.number, which)
                for rule in self.rules
                if rule.domain in text and rule.mark in text
                for which, method in enumerate(rule.methods)
                if method in text
            )
        return self._meanings[lesson]

    def held(self, lessons: Iterable[str]) -> Held:
        """What lessons come to: one that is there twice works once and clutters twice."""
        texts = list(lessons)
        meant = {one for text in texts for one in self.meaning(text)}
        false: dict[int, int] = {}
        for number, which in meant:
            if which:
                false[number] = false.get(number, 0) + 1
        return Held(true=frozenset(number for number, which in meant if not which), false=false, lines=len(texts))

    def chance(self, order: Order, held: Held) -> float:
        """The closed form: the probability that an order goes well."""
        config = self.config
        effect = sum(config.help * (rule.number in held.true) for rule in order.rules)
        effect -= sum(config.harm * held.false.get(rule.number, 0) for rule in order.rules)
        return min(max(order.base + effect - config.clutter * held.lines, LEAST), MOST)

    def success(self, task: Task, lessons: Sequence[str]) -> float:
        """The probability that the simulated agent solves a task of this world with these lessons in its prompt."""
        return self.mean_success([task], lessons)

    def mean_success(self, tasks: Sequence[Task], lessons: Sequence[str]) -> float:
        """The exact mean of `success` over tasks."""
        held = self.held(lessons)
        return fmean(self.chance(self._order_of(task), held) for task in tasks)

    def best(self, tasks: Sequence[Task]) -> list[str]:
        """The lessons that are worth most on these tasks.

        True ones are taken in while they pay, the best first: exact as long as no order reaches `LEAST` or `MOST`,
        because effects then add up.
        """
        domains = {task.family for task in tasks}
        left = [rule.true for rule in self.rules if rule.domain in domains]
        chosen: list[str] = []
        worth = self.mean_success(tasks, chosen)
        while left:
            value, lesson = max((self.mean_success(tasks, [*chosen, one]), one) for one in left)
            if value <= worth:
                break
            chosen.append(lesson)
            left.remove(lesson)
            worth = value
        return chosen


# --- the agent's two tools, for `type = "function"` -------------------------------------------------------------------


async def hand_in(code: str) -> str:
    """Hands in the code of a finished piece, which ends the order.

    Args:
        code: the code, digits only.
    """
    return f"handed in: {code}"


async def ask_master(mark: str) -> str:
    """Asks the master of the workshop about a mark on an order.

    Args:
        mark: the mark, as it stands on the order.
    """
    return f"The master says of {mark}: you learn that by doing."
