"""BFCL's multi-turn function calling: 800 dialogues in four categories, each with a state that calls change.

    [tasks]
    type = "bfcl"
    families = ["miss_param", "miss_func", "long_context"]

The data is the user's: `pip install --no-deps bfcl-eval==2026.3.23 mpmath` (Apache-2.0). Its 200 scenarios come in
every category, told in other ways; so a scenario is in one split with all its categories, and nothing is tested on what
was trained on. Its composite category is not served: upstream has put it aside, and its states no longer load.

Results are for a model's own development; a row of the public leaderboard is made by upstream's own program.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, JsonValue, field_validator

from midstream.core.component import Context, TasksConfig
from midstream.core.dialogue import OVER, UserTurn
from midstream.core.protocols import ToolResult
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.tasks.bfcl.check import Judge
from midstream.tasks.bfcl.package import CATEGORIES, Entry, Package, package
from midstream.tasks.bfcl.state import State
from midstream.tasks.finite import SPLITS, Finite
from midstream.tasks.functions import Invocation

SCENARIOS = 200  # of each category


class Config(TasksConfig):
    """Which categories (`families`), and how the 200 scenarios are shared out.

    `train` and `validation` are numbers of scenarios, drawn by `split_seed` in equal parts from the four domains; the
    rest is the test split. ARTIST (arXiv 2505.01441) trains on 100 and evaluates on 100, and does not say which; with
    both 0 all is tested, as upstream does. `output_tokens` bounds a function's result as the model sees it: none of the
    ground truth's is longer, and it is judged by the whole.
    """

    dialogues = True

    families: tuple[str, ...] = Field(default=CATEGORIES, min_length=1)
    train: int = Field(default=100, ge=0, lt=SCENARIOS)
    validation: int = Field(default=0, ge=0, lt=SCENARIOS)
    split_seed: int = 0
    output_tokens: int = Field(default=8192, ge=1)

    @field_validator("families")
    @classmethod
    def _known(cls, families: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in families if name not in CATEGORIES]:
            raise ValueError(f"no category {unknown[0]!r}; there are {', '.join(CATEGORIES)}")
        return tuple(dict.fromkeys(families))

    def build(self, context: Context) -> Bfcl:
        """Build it."""
        return Bfcl(self)


class Bfcl(Finite):
    """The dialogues as tasks; a `core.protocols.TaskSource` and `core.dialogue.Dialogues`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        sizes = {"train": config.train, "validation": config.validation}
        super().__init__("BFCL", [split for split in SPLITS if sizes.get(split, 1)])
        self._entries: dict[str, Entry] = {}

    def load(self, split: str) -> list[Task]:
        """The split's tasks, category by category.

        Raises:
            RecipeError: the package is not installed.
        """
        entries = self._all().values()
        chosen = self._scenarios(split)
        return [_task(entry) for entry in entries if entry.scenario in chosen]

    def open(self, task: Task, *, seed: int) -> BfclDialogue:
        """A dialogue on a state of its own; nothing in it is random, so `seed` changes nothing."""
        return BfclDialogue(package(), self.entry(task), self.config.output_tokens)

    def entry(self, task: Task) -> Entry:
        """What BFCL says of a task, ground truth and all."""
        return self._all()[str(task.metadata["entry"])]

    def expected(self, task: Task) -> list[list[Invocation]]:
        """The calls that BFCL expects in each turn of a task."""
        entry = self.entry(task)
        state = State(package(), entry)
        return [[state.invocation(call) for call in turn] for turn in entry.truth]

    def _all(self) -> dict[str, Entry]:
        if not self._entries:
            self._entries = {one.id: one for name in self.config.families for one in package().entries(name)}
        return self._entries

    def _scenarios(self, split: str) -> set[int]:
        """The scenarios of a split: a draw in each domain, and then one of each domain after the other."""
        domains: dict[str, list[tuple[int, int]]] = {}
        for scenario, domain in {one.scenario: one.classes for one in self._all().values()}.items():
            rank = derive_seed("bfcl split", self.config.split_seed, scenario)
            domains.setdefault(_domain(domain), []).append((rank, scenario))
        drawn = [(place, scenario) for one in domains.values() for place, (_, scenario) in enumerate(sorted(one))]
        order = [scenario for _, scenario in sorted(drawn)]
        first, second = self.config.train, self.config.train + self.config.validation
        parts = {"train": order[:first], "validation": order[first:second], "test": order[second:]}
        return set(parts[split])


class BfclDialogue:
    """One rollout's user, functions and state; a `core.dialogue.Dialogue`."""

    system = ""

    def __init__(self, package: Package, entry: Entry, output_tokens: int) -> None:
        self._entry = entry
        self._state = State(package, entry)
        self._judge = Judge(package, entry)
        self._made: list[tuple[Invocation, str]] = []
        self._spoken = 0
        self.functions = {
            name: document.tool(self._call, output_tokens) for name, document in self._state.documents.items()
        }

    async def begin(self) -> UserTurn:
        """What the user says first."""
        return self._next()

    async def reply(self, text: str) -> UserTurn:
        """What the user says next, whatever the reply is: its words are not judged."""
        self._end_turn(finished=True)
        return self._next() if self._spoken < len(self._entry.users) else OVER

    def outcome(self) -> dict[str, JsonValue]:
        """Whether every turn was passed, and what of each matched; a turn that was cut off is judged as it stands."""
        if len(self._judge.turns) < self._spoken:
            self._end_turn(finished=False)
        return self._judge.outcome()

    async def close(self) -> None:
        """Nothing to release."""

    def _next(self) -> UserTurn:
        said = self._entry.users[self._spoken]
        self._spoken += 1
        return UserTurn(text=said, tools=[self.functions[name] for name in self._offered(self._spoken - 1)])

    def _offered(self, turn: int) -> Sequence[str]:
        """The functions of a turn: those that came later stand last."""
        later = {name: first for first, names in self._entry.held_out.items() for name in names}
        there = [name for name in self.functions if later.get(name, 0) <= turn]
        return sorted(there, key=lambda name: later.get(name, -1))

    def _call(self, invocation: Invocation) -> ToolResult:
        result = self._state.call(invocation)
        self._made.append((invocation, result.text))
        return result

    def _end_turn(self, *, finished: bool) -> None:
        self._judge.turn(self._state, self._made, finished=finished)
        self._made = []


def _task(entry: Entry) -> Task:
    """What is said in all turns and what is called in each, for reports: an agent hears of it turn by turn."""
    return Task(
        id=entry.id,
        question="\n".join(entry.users),
        answer="\n".join("; ".join(calls) or "(nothing to call)" for calls in entry.truth),
        reward="dialogue",
        family=entry.category,
        metadata={"entry": entry.id, "scenario": entry.scenario, "user_turns": len(entry.users)},
    )


def _domain(classes: Sequence[str]) -> str:
    """The one of BFCL's four domains that a scenario is of; the other classes come along in all of them."""
    mains = ("GorillaFileSystem", "VehicleControlAPI", "TradingBot", "TravelAPI")
    return next((name for name in mains if name in classes), classes[0])
