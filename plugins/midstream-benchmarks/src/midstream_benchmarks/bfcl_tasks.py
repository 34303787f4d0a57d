"""BFCL's multi-turn function calling: 800 dialogues in four categories, each with a state that calls change.

    [tasks]
    type = "bfcl"
    families = ["miss_param", "miss_func", "long_context"]

The data is the user's: `pip install --no-deps bfcl-eval==2026.3.23 mpmath` (Apache-2.0). Its 200 scenarios occur in
every category, in other words; so a scenario is in one split with all its categories, and no test scenario is ever
trained on. Its composite category is not supported: upstream has dropped it, and its states no longer load.

Results are for a model's own development; rows of the public leaderboard are made by upstream's own program.
"""

from __future__ import annotations

from functools import cached_property

from pydantic import Field, JsonValue, field_validator

from midstream.components.component import TasksConfig
from midstream.core.seeds import Seed, derive_seed
from midstream.core.source import OVER, Dialogue, UserTurn
from midstream.core.task import Task
from midstream.core.tool import ToolResult
from midstream.sources.finite import SPLITS, Finite
from midstream_benchmarks.bfcl_package import CATEGORIES, Entry, Package, package
from midstream_benchmarks.bfcl_state import Judge, State
from midstream_worlds.functions import Invocation, StateFunction

SCENARIOS = 200  # of each category
# A scenario has a class of one of these domains; its other classes occur in all of them.
DOMAINS = ("GorillaFileSystem", "VehicleControlAPI", "TradingBot", "TravelAPI")


class Bfcl(Finite):
    """The dialogues as tasks; a `core.source.TaskSource` and `core.source.Dialogues`."""

    def __init__(self, config: BfclConfig) -> None:
        self.config = config
        sizes = {"train": config.train, "validation": config.validation}
        super().__init__("BFCL", [split for split in SPLITS if sizes.get(split, 1)])

    def load(self, split: str) -> list[Task]:
        """Make the split's tasks, by category. Question and answer, all turns' texts and calls, are for people."""
        # The scenarios of all splits in order: drawn within each domain, then one of each domain after the other.
        ranks: dict[str, list[tuple[int, int]]] = {}
        for scenario, classes in {entry.scenario: entry.classes for entry in self._entries.values()}.items():
            domain = next((name for name in DOMAINS if name in classes), classes[0])
            rank = derive_seed("bfcl split", self.config.split_seed, scenario)
            ranks.setdefault(domain, []).append((rank, scenario))
        drawn = [(place, scenario) for pairs in ranks.values() for place, (_, scenario) in enumerate(sorted(pairs))]
        order = [scenario for _, scenario in sorted(drawn)]
        first, second = self.config.train, self.config.train + self.config.validation
        chosen = set({"train": order[:first], "validation": order[first:second], "test": order[second:]}[split])
        return [
            Task(
                id=entry.id,
                question="\n".join(entry.users),
                answer="\n".join("; ".join(calls) or "(nothing to call)" for calls in entry.truth),
                reward="dialogue",
                family=entry.category,
                metadata={"entry": entry.id, "scenario": entry.scenario, "user_turns": len(entry.users)},
            )
            for entry in self._entries.values()
            if entry.scenario in chosen
        ]

    def open(self, task: Task, *, seed: int) -> BfclDialogue:
        """Open a dialogue with a separate state; nothing in it is random, so `seed` is ignored."""
        return BfclDialogue(package(), self.entry(task), self.config.output_tokens)

    def entry(self, task: Task) -> Entry:
        """BFCL's own entry of a task, with its ground truth."""
        return self._entries[str(task.metadata["entry"])]

    def expected(self, task: Task) -> list[list[Invocation]]:
        """The calls that BFCL expects in each turn of a task."""
        entry = self.entry(task)
        state = State(package(), entry)
        return [[state.invocation(call) for call in turn] for turn in entry.truth]

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        return {entry.id: entry for name in self.config.families for entry in package().entries(name)}


class BfclConfig(TasksConfig):
    """BFCL v3's multi-turn dialogues (Berkeley Function Calling Leaderboard).

    ARTIST (arXiv 2505.01441) trains on 100 and evaluates on 100, and does not name them; with `train` and
    `validation` 0 all are tested, as upstream does.

    Attributes:
        families: categories
        train: scenarios to train on, in equal parts from the four domains; each is in every category
        validation: scenarios to validate on; the rest of the 200 is the test split
        split_seed: decides which scenario is in which split
        output_tokens: the most tokens of a function's result as the model sees it; the whole result is judged
    """

    dialogues = True
    component = Bfcl

    families: tuple[str, ...] = Field(default=CATEGORIES, min_length=1)
    train: int = Field(default=100, ge=0, lt=SCENARIOS)
    validation: int = Field(default=0, ge=0, lt=SCENARIOS)
    split_seed: Seed = 0
    output_tokens: int = Field(default=8192, ge=1)

    @field_validator("families")
    @classmethod
    def _known(cls, families: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in families if name not in CATEGORIES]:
            raise ValueError(f"no category {unknown[0]!r}; there are {', '.join(CATEGORIES)}")
        return tuple(dict.fromkeys(families))


class BfclDialogue(Dialogue):
    """One rollout's user, functions and state."""

    system = ""

    def __init__(self, package: Package, entry: Entry, output_tokens: int) -> None:
        self._entry = entry
        self._state = State(package, entry)
        self._judge = Judge(package, entry)
        self._made: list[tuple[Invocation, str]] = []
        self._turn = 0  # user turns that have begun
        self.functions = {
            name: StateFunction(document, self._call, output_tokens) for name, document in self._state.documents.items()
        }

    async def begin(self) -> UserTurn:
        """Return the user's next text, with the functions of that turn; functions that were added are last."""
        added = {name: first for first, names in self._entry.held_out.items() for name in names}
        offered = [name for name in self.functions if added.get(name, 0) <= self._turn]
        offered.sort(key=lambda name: added.get(name, -1))
        text = self._entry.users[self._turn]
        self._turn += 1
        return UserTurn(text=text, tools=[self.functions[name] for name in offered])

    async def reply(self, text: str) -> UserTurn:
        """Return the user's next text, whatever the reply is: its words are not judged."""
        self._end_turn(finished=True)
        return await self.begin() if self._turn < len(self._entry.users) else OVER

    def outcome(self) -> dict[str, JsonValue]:
        """Whether every turn was passed, and the facts of each; an unfinished turn is judged in its present state."""
        if len(self._judge.turns) < self._turn:
            self._end_turn(finished=False)
        return self._judge.outcome()

    def _call(self, invocation: Invocation) -> ToolResult:
        result = self._state.call(invocation)
        self._made.append((invocation, result.text))
        return result

    def _end_turn(self, *, finished: bool) -> None:
        self._judge.turn(self._state, self._made, finished=finished)
        self._made = []
