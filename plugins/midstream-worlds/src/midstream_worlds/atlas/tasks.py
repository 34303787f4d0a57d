"""The atlas: facts about places of many regions, and endless questions about them in open text.

It is the gazetteer's successor for models that read text: the same families and plans (`gazetteer/tasks.py`), asked in
hundreds of wordings, and answered from documents in several wordings. A region has countries, a capital and a river for
each, and 540 facts about the 180 of them. The splits differ in what a policy that was trained on `train` has not met:

    train       names of the training regions, a fifth of them wild
    validation  held-out names
    test        held-out names
    unseen      held-out names, and a held-out wording of every part of the question
    real        real place names, with made-up facts

One search index holds the documents of all regions. A question's text alone reaches the agent. With hidden `rules`
the right answers follow from rules that only a lesson in the prompt states (`rules.py`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from midstream.components.component import Context, TasksConfig
from midstream.core.errors import RecipeError
from midstream.core.seeds import Seed, derive_seed
from midstream.core.task import Task
from midstream.core.texts import Lessons
from midstream.core.trajectory import Message, Trajectory
from midstream.rollout import Environment, rollout
from midstream_worlds.atlas import reflector
from midstream_worlds.atlas.names import LONGEST, PREFIXES, NameMaker, real_places, search_words
from midstream_worlds.atlas.questions import PLACE_ATTRIBUTES, SIGNS, UNKNOWN, Asked, documents, wording
from midstream_worlds.atlas.rules import PATTERN, Rule, warm_lessons
from midstream_worlds.bases import WarmStartWorld
from midstream_worlds.endless import Endless

STRANGE = "unknown"  # a family to ask for: questions about places that no document names
FAMILIES = ("lookup", "arith", "hop", "scale", "sum", "diff", "compare")
SMALLEST, LARGEST = 11, 999
WILD = 0.2  # share of wild names in training regions: rare pieces of text have to be copied too
_NAME = re.compile("[A-Za-zÀ-ÖØ-öø-ɏ]+(?:[ '’-][A-Za-zÀ-ÖØ-öø-ɏ]+)*")  # what small models copy
_STRANGERS = 10  # names of a region without documents
_MADE_UP = ("validation", "test", "unseen")  # evaluation splits of held-out names
# Operands are split too: no sum of an evaluation is ever trained on.
_REMAINDERS = {"train": range(6), "validation": range(6, 8)}
_OTHER_REMAINDERS = range(8, 10)


def _checked(place: str) -> str:
    place = unicodedata.normalize("NFC", place)
    if not _NAME.fullmatch(place):
        raise ValueError(f"{place!r} is no name: Latin letters, with single spaces, hyphens or apostrophes between")
    return place


class AtlasConfig(TasksConfig):
    """Settings of the atlas.

    Attributes:
        families: families of questions; `unknown`, about places that no document names, must be asked for
        regions: training regions; each evaluation split has another one
        countries: countries of a region; each makes nine facts
        seed: the world's seed: the same world for every run seed
        places: names of countries to add, each with documents about it, its capital and its river
        rules: hidden rules of the answers, by attribute (population, area, height, length): `{ height = "times 3" }`;
            no document or question shows them
    """

    endless = True
    plays: ClassVar[tuple[str, ...]] = ("reflector",)
    world = True
    teacher = "atlas_agent"
    gate_samples = 1

    families: tuple[str, ...] = FAMILIES
    regions: int = Field(default=100, ge=1, le=400)
    countries: int = Field(default=60, ge=20, le=60)
    seed: Seed = 0
    places: tuple[Annotated[str, Field(max_length=LONGEST), AfterValidator(_checked)], ...] = ()
    rules: dict[Literal["population", "area", "height", "length"], Annotated[str, Field(pattern=PATTERN)]] = Field(
        default_factory=dict
    )

    def build(self, context: Context) -> Atlas:
        """Build it."""
        return Atlas(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Names of the countries of a region, of the capital and the river of each, and of places without documents."""

    countries: Sequence[str]
    capitals: Sequence[str]
    rivers: Sequence[str]
    strangers: Sequence[str]

    @property
    def names(self) -> list[str]:
        """All names."""
        return [*self.countries, *self.capitals, *self.rivers, *self.strangers]


class _Land:
    """Regions, facts and documents, drawn from a seed."""

    def __init__(self, regions: int, countries: int, seed: int, places: Sequence[str]) -> None:
        self.facts: dict[tuple[str, str], str] = {}
        self.stated: dict[str, str] = {}
        draws = self.draws = Random(derive_seed("atlas", seed))
        phrases = [phrase.format("", "") for known in documents().values() for phrase in known]
        maker = NameMaker(draws, search_words(" ".join((*phrases, *PREFIXES, *real_places()))))
        count = 3 * countries + _STRANGERS
        self.splits: dict[str, list[Region]] = {}
        for split, made in {"train": regions, **dict.fromkeys(_MADE_UP, 1)}.items():
            training = split == "train"
            self.splits[split] = []
            for _ in range(made):
                names = [maker.make(held=not training, wild=WILD if training else 0.0) for _ in range(count)]
                self.splits[split].append(self._region(names, countries))
        self.splits["real"] = [self._region(draws.sample(real_places(), count), countries)]
        for place in places:
            if not maker.take(place):
                used = ", ".join(map(repr, sorted(maker.in_use(place))))
                raise RecipeError(
                    f"the atlas cannot have a place named {place!r}",
                    code="setting-conflict",
                    cause=f"a search for it would find others, which have {used}" if used else "that is only a prefix",
                    fix="choose another name in tasks.places, such as 'Zembla'",
                )
        others = [maker.make(held=True, wild=0.0) for _ in range(2 * len(places))]
        self._region([*places, *others], len(places))

    def _region(self, names: Sequence[str], n: int) -> Region:
        """Make a region of `n` countries, with these names: its facts, and a document for each fact."""
        region = Region(
            countries=names[:n], capitals=names[n : 2 * n], rivers=names[2 * n : 3 * n], strangers=names[3 * n :]
        )
        for country, capital, river in zip(region.countries, region.capitals, region.rivers, strict=True):
            self._state(country, "capital", capital)
            self._state(country, "river", river)
            self._state(river, "length", self._value())
            for place in (country, capital):
                for attribute in PLACE_ATTRIBUTES:
                    self._state(place, attribute, self._value())
        return region

    def _value(self) -> str:
        return str(self.draws.randint(SMALLEST, LARGEST))

    def _state(self, place: str, attribute: str, value: str) -> None:
        self.facts[place, attribute] = value
        self.stated[self.draws.choice(documents()[attribute]).format(place, value)] = value


# A recipe names the same one for training and for each of its sets; a large one takes a second.
_land = lru_cache(maxsize=2)(_Land)


class Atlas(WarmStartWorld, Endless):
    """Regions, facts, documents and questions; a `training.protocols.TrainableWorld`.

    `facts` maps a place and an attribute to the value, `stated` the text of a document to the value that it states.
    `asked` says what each question asks for that was made so far: agents see the question alone, the teacher and
    `warm_rate` may know.
    """

    def __init__(self, config: AtlasConfig) -> None:
        super().__init__(
            "the atlas",
            known=(*FAMILIES, STRANGE),
            families=config.families,
            sampled=("atlas tasks",),
            fixed=("atlas fixed",),
        )
        land = _land(config.regions, config.countries, config.seed, config.places)
        self.facts, self.stated, self.splits = land.facts, land.stated, land.splits
        self.asked: dict[str, Asked] = {}
        self.rules: dict[str, Rule] = {}
        for attribute, rule in config.rules.items():
            word, number = rule.split()
            self.rules[attribute] = Rule(attribute, word, int(number))

    def documents(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text) of every fact, in a fixed order."""
        for number, text in enumerate(self.stated):
            yield f"fact-{number}", text

    def play(self, role: str, skill: float, context: Context) -> Callable[[Sequence[Message], int], str]:
        """The program that plays the reflector."""
        return reflector.reply

    def check_validation(self, tasks: Sequence[Task], least: float) -> None:
        """Refuse validation tasks of which none names a place of the atlas, unless any copy rate will do."""
        if least and not any(map(self.places, tasks)):
            raise RecipeError(
                "no question of evaluation.validation names a place of the atlas",
                code="setting-conflict",
                fix="give it questions of the atlas that name places, or set warm_start.min_copy_rate = 0",
            )

    def places(self, task: Task) -> tuple[str, ...]:
        """The places that a question names; none of a question that the atlas did not make."""
        return self.asked[task.question].places if task.question in self.asked else ()

    def copied(self, task: Task, trajectory: Trajectory) -> bool | None:
        """Whether the first call's query has the exact name of a place of the question; None if it is no search."""
        command = trajectory.turns[0].command if trajectory.turns else None
        if command is None or command.tool != "local_search":
            return None
        query = f" {command.arguments.get('query', '')} "
        return any(f" {place} " in query for place in self.places(task))

    async def warm_rate(self, environment: Environment, tasks: Sequence[Task], seed: int) -> tuple[float, str]:
        """Of the first calls that search, the share with the exact name of a place of the question."""
        naming = [task for task in tasks if self.places(task)]
        groups = await rollout(environment, naming, group_size=AtlasConfig.gate_samples, seed=seed)
        copied = [self.copied(group.task, trajectory) for group in groups for trajectory in group.trajectories]
        searches = [copy for copy in copied if copy is not None]
        return sum(searches) / max(1, len(searches)), "share of first searches with a name of the question"

    def make(self, split: str, family: str, draws: Random, task_id: str) -> Task:
        """Draw one question, with an answer computed from the facts."""
        asked = self._arithmetic(split, draws) if family == "arith" else self._about_places(split, family, draws)
        question = wording(asked, draws, held_out=split == "unseen")
        self.asked[question] = asked
        return Task(id=task_id, question=question, answer=self.answer(asked, self.rules), family=family)

    def lessons(self, task_ids: Sequence[str], share: float, seed: int) -> Mapping[str, Lessons]:
        """Lessons that state rules, for the prompts of a `share` of some tasks (`atlas.rules`)."""
        return warm_lessons(task_ids, share, seed)

    def _arithmetic(self, split: str, draws: Random) -> Asked:
        sign = draws.choice(tuple(SIGNS.values()))
        while True:
            x, y = draws.randint(SMALLEST, LARGEST), draws.randint(SMALLEST, LARGEST)
            if sign == "*":
                y = draws.randint(2, 9)
            elif sign == "-":
                x, y = max(x, y), min(x, y)
            if (31 * x + y) % 10 in _REMAINDERS.get(split, _OTHER_REMAINDERS):
                return Asked(family="arith", sign=sign, numbers=(x, y))

    def _about_places(self, split: str, family: str, draws: Random) -> Asked:
        region = draws.choice(self.splits[split])
        attribute = draws.choice((*PLACE_ATTRIBUTES, *(("length",) if family in ("lookup", "hop", "scale") else ())))
        if family == STRANGE:
            return Asked(family=family, places=(draws.choice(region.strangers),), attribute=attribute)
        if family == "hop":
            relation = "river" if attribute == "length" else "capital"
            return Asked(
                family=family, places=(draws.choice(region.countries),), attribute=attribute, relation=relation
            )
        kind = region.rivers if attribute == "length" else draws.choice((region.countries, region.capitals))
        first, second = draws.sample(kind, 2)
        if family == "lookup":
            return Asked(family=family, places=(first,), attribute=attribute)
        if family == "scale":
            sign = draws.choice(tuple(SIGNS.values()))
            return Asked(family=family, places=(first,), attribute=attribute, sign=sign, numbers=(draws.randint(2, 9),))
        if family == "diff" and int(self.facts[first, attribute]) < int(self.facts[second, attribute]):
            first, second = second, first
        sign = {"sum": "+", "diff": "-", "compare": ">"}[family]
        return Asked(family=family, places=(first, second), attribute=attribute, sign=sign)

    def answer(self, asked: Asked, rules: Mapping[str, Rule]) -> str:
        """The right answer under some rules, by attribute."""
        if asked.family == STRANGE:
            return UNKNOWN
        places = [self.facts[place, asked.relation] if asked.relation else place for place in asked.places]
        values = [int(self.facts[place, asked.attribute]) for place in places]
        if asked.attribute in rules:
            values = [rules[asked.attribute].value(value) for value in values]
        values += asked.numbers
        if not asked.sign:
            return str(values[0])
        x, y = values
        if asked.sign == ">":
            return "yes" if x > y else "no"
        return str({"+": x + y, "-": x - y, "*": x * y}[asked.sign])
