"""Who accepts changes of an agent's texts best? Simulated agents whose truth is known: no model, no server.

    python benchmarks/texts_offline.py --json texts.json      # 40 seeds, 17 minutes on one core
    python benchmarks/texts_offline.py --seeds 10 --first 1000 --scenarios "mostly neutral" --budgets 2000

A text is a set of changes: helpful, harmful, neutral or leaking (`texts_world.py`). A change is made from one rollout
of each of three training tasks. Change number k is the same for every way to accept it (of the package gepa, which
draws its own training tasks, the same kind):

- no gate: every new change is accepted;
- minibatch: accepted if the three tasks' rewards rise, by gepa's `StrictImprovementAcceptance` if it is installed;
- gate: `midstream.lessons.gate.decide`, with pending changes carried over; "small" has settings for small budgets;
- gepa: `gepa.optimize`, with these changes in place of a model's; the text is the best on its validation tasks;
- gepa + gate: GEPA stops earlier, and its text is one change that goes to `decide`, on validation tasks of the gate's.

All rollouts count, so all ways have equal budgets; a decision that the end of the budget interrupts is not made.
"gain" is in mean success on fresh tasks, "regret" what the best text (all helpful changes) has more: at the end, and on
average over the budget. "false" are runs whose text ever had a change that does not help, "no better" those with a step
to a text that is not better than the one before. "accepted" is the mean number of changes that a text ever had, by
kind. "90 %" are runs that reached 90 % of the possible gain, with the median of the rollouts until then over all runs.
After a ± is half of a 95 % interval over seeds; in brackets is one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import count, pairwise
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

from texts_world import EMPTY, KINDS, SCENARIOS, TASKS, BudgetSpent, Text, World, sound

from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.evaluation.estimates import t_interval, wilson
from midstream.lessons.gate import Decision, decide
from midstream.lessons.lesson_set import LessonSet
from midstream.lessons.operations import Operation, Rules, screened
from midstream.lessons.runner import Match
from midstream.lessons.settings import GateConfig

SMALL_BUDGET = 2_000  # up to here GEPA validates on half of its tasks, which is better for it
SEPARATOR = " | "
RULES = Rules(modules=["agent"])
GEPA = find_spec("gepa") is not None

Step = tuple[int, Text]  # the rollouts used so far, and the text from then on
Way = Callable[[World], Iterator[Text]]


def no_gate(world: World) -> Iterator[Text]:
    """Accept every sound change."""
    text = EMPTY
    for number in count():
        _, _, change = world.study(number, text)
        if sound(change, text):
            text |= {change}
        yield text


def minibatch_rule(world: World) -> Iterator[Text]:
    """Accept a change if the sum of rewards over its own minibatch rises."""
    text, rises = EMPTY, acceptance()
    for number in count():
        tasks, before, change = world.study(number, text)
        if sound(change, text) and rises(before, world.rewards([(task, text | {change}) for task in tasks])):
            text |= {change}
        yield text


def acceptance() -> Callable[[list[float], list[float]], bool]:
    """GEPA's acceptance of a proposal by its minibatch's rewards before and after."""
    if not GEPA:
        return lambda before, after: sum(after) > sum(before)
    proposal = import_module("gepa.proposer.base").CandidateProposal
    criterion = import_module("gepa.strategies.acceptance").StrictImprovementAcceptance()
    return lambda *scores: criterion.should_accept(proposal({}, [0], None, *scores), state=None)


def text_of(lesson_set: LessonSet) -> Text:
    """The changes in a lesson set; a lesson that is a whole text of GEPA's has several."""
    return frozenset(change for lesson in lesson_set.rendered for change in lesson.text.split(SEPARATOR))


@dataclass(frozen=True)
class Gate:
    """Settings of the gate: its own, the updates of a run, and the proposals of an update."""

    config: GateConfig
    updates: int
    batch: int

    def __call__(self, world: World) -> Iterator[Text]:
        """Accept as `LessonLearner` does: an update's new changes and the pending ones go to the gate together."""
        lesson_set, pending = LessonSet(), list[Operation]()
        for update in range(self.updates):
            text = text_of(lesson_set)
            known, proposed = text | {operation.text for operation in pending}, list[Operation]()
            for number in range(update * self.batch, (update + 1) * self.batch):
                _, _, change = world.study(number, text)
                if sound(change, known):
                    known |= {change}
                    proposed.append(Operation(kind="add", text=change))
            lesson_set, outcomes = screened(lesson_set, [*pending, *proposed], RULES, pending=len(pending))
            changes = [outcome.operation for outcome in outcomes if not outcome.refused]
            decision = self.decide(world, lesson_set, changes, self.updates, update)
            lesson_set = decision.lesson_set
            pending = [change.operation for change in decision.changes if change.fate == "pending"]
            yield text_of(lesson_set)

    def decide(
        self, world: World, lesson_set: LessonSet, changes: Sequence[Operation], updates: int, update: int
    ) -> Decision:
        async def play(name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
            # The gate adds the pair to the task's id.
            sides = [
                (each.task.id.split("@")[0], text_of(side)) for each in matches for side in (each.first, each.other)
            ]
            rewards = world.rewards(sides)
            return list(zip(rewards[::2], rewards[1::2], strict=True))

        tasks = [Task(id=task, question="", answer="") for task in world.ids["validation"]]
        seed, config = derive_seed(world.seed, "gate", update), self.config
        return asyncio.run(
            decide(lesson_set, changes, tasks=tasks, play=play, config=config, updates=updates, seed=seed)
        )


# Chosen on seeds from 1000, like the number of GEPA's validation tasks: the lowest regret on average over the scenarios
# where something helps, within 10,000 rollouts for the default settings of the gate and 2,000 for the others.
GATE = Gate(GateConfig(), updates=3, batch=64)
SMALL = Gate(GateConfig(test_pairs=200, bisect_pairs=200, block=16), updates=3, batch=32)
WAYS: dict[str, Way] = {"no gate": no_gate, "minibatch": minibatch_rule, "gate": GATE, "gate, small": SMALL}


def run(world: World, way: Way) -> list[Step]:
    """Accept until the budget is spent or the way has ended; one step for each new text."""
    steps: list[Step] = [(0, EMPTY)]
    with suppress(BudgetSpent):
        for text in way(world):
            if text != steps[-1][1]:
                steps.append((world.used, text))
    return steps


def gepa_steps(world: World) -> list[Step]:
    """Run `gepa.optimize`; one step whenever another candidate is the best on GEPA's validation tasks."""
    gepa = import_module("gepa")

    def parsed(candidate: dict[str, str]) -> Text:
        return frozenset(candidate["text"].split(SEPARATOR)) if candidate["text"] else EMPTY

    class Adapter:
        """Simulated rollouts, and the world's changes in place of a model's reflection."""

        proposed = 0

        def evaluate(self, batch: list[str], candidate: dict[str, str], capture_traces: bool = False) -> Any:
            rewards = world.rewards([(task, parsed(candidate)) for task in batch])
            return gepa.EvaluationBatch(outputs=rewards, scores=rewards, trajectories=batch if capture_traces else None)

        def make_reflective_dataset(self, candidate: dict[str, str], batch: Any, names: list[str]) -> Any:
            return {name: [{"task": task} for task in batch.trajectories] for name in names}

        def propose_new_texts(self, candidate: dict[str, str], dataset: Any, names: list[str]) -> dict[str, str]:
            change = world.change(self.proposed, [record["task"] for record in dataset["text"]])
            self.proposed += 1
            text = parsed(candidate)
            return {"text": SEPARATOR.join(sorted(text | {change}))} if sound(change, text) else {}

    # GEPA looks at its budget between iterations; what it does beyond the budget does not count.
    budget, world.budget = world.budget, sys.maxsize
    validation = world.ids["gepa"][: TASKS["gepa"] // (2 if budget <= SMALL_BUDGET else 1)]
    result = gepa.optimize(
        seed_candidate={"text": ""},
        trainset=world.ids["training"],
        valset=validation,
        adapter=Adapter(),
        max_metric_calls=budget,
        logger=SimpleNamespace(log=lambda message: None),
        seed=world.seed,
    )
    assert result.total_metric_calls == world.used
    steps: list[Step] = [(0, EMPTY)]
    scores = result.val_aggregate_scores
    for place, candidate in enumerate(result.candidates):
        if place and scores[place] > max(scores[:place]):
            # The candidate's count is that before its validation.
            steps.append((result.discovery_eval_counts[place] + len(validation), parsed(candidate)))
    return [step for step in steps if step[0] <= budget]


def behind_gate(world: World, steps: Sequence[Step], gate: Gate) -> list[Step]:
    """Test GEPA's text as one change; the most that the test may take comes out of GEPA's budget."""
    world.used = world.budget - 2 * gate.config.test_pairs
    text = [EMPTY, *(text for used, text in steps if used <= world.used)][-1]
    if text:
        whole = Operation(kind="add", id="L1", text=SEPARATOR.join(sorted(text)), module="agent")
        if accepted := text_of(gate.decide(world, LessonSet(), [whole], 1, 0).lesson_set):
            return [(0, EMPTY), (world.used, accepted)]
    return [(0, EMPTY)]


@dataclass(frozen=True)
class Outcome:
    """One run up to a budget. `accepted` counts by kind; `rollouts_to_90` is None for never."""

    gain: float
    regret: float
    mean_regret: float
    accepted: dict[str, int]
    no_better: bool
    rollouts_to_90: int | None


def outcome(world: World, steps: Sequence[Step], budget: int) -> Outcome:
    steps = [step for step in steps if step[0] <= budget]
    values = [world.success(text) for _, text in steps]
    best = world.success(world.scenario.best)
    ends = [used for used, _ in steps[1:]] + [budget]
    area = sum((best - value) * (end - used) for (used, _), end, value in zip(steps, ends, values, strict=True))
    ever = EMPTY.union(*(text for _, text in steps))
    enough = values[0] + 0.9 * (best - values[0])
    reached = [used for (used, _), value in zip(steps, values, strict=True) if value >= enough > values[0]]
    return Outcome(
        gain=values[-1] - values[0],
        regret=best - values[-1],
        mean_regret=area / budget,
        accepted={kind: sum(change.startswith(kind) for change in ever) for kind in KINDS},
        no_better=any(after <= before for before, after in pairwise(values)),
        rollouts_to_90=min(reached, default=None),
    )


def measure(scenario: str, seed: int, budgets: Sequence[int]) -> dict[int, dict[str, Outcome]]:
    """The outcomes by budget and way. A run with the largest budget begins with those of smaller ones, but GEPA's."""
    found: dict[int, dict[str, Outcome]] = {budget: {} for budget in budgets}
    for name, way in WAYS.items():
        world = World(seed, scenario, name, max(budgets))
        steps = run(world, way)
        for budget in budgets:
            found[budget][name] = outcome(world, steps, budget)
    for budget in budgets if GEPA else ():
        world = World(seed, scenario, "gepa", budget)
        steps = gepa_steps(world)
        found[budget]["gepa"] = outcome(world, steps, budget)
        for name, gate in (("gepa + gate", GATE), ("gepa + gate, small", SMALL)):
            world = World(seed, scenario, name, budget)
            found[budget][name] = outcome(world, behind_gate(world, steps, gate), budget)
    return found


NAMES = ("gain", "regret, end", "on average", "false", "no better", "accepted", "90 %")
HEADS = f"  {'':<18}  {{:<14}}  {{:<14}}  {{:<14}}  {{:<18}}  {{:<18}}  {{:<19}}  {{}}".format(*NAMES)


def row(name: str, outcomes: Sequence[Outcome]) -> str:
    def mean(values: Sequence[float]) -> str:
        middle = fmean(values)
        return f"{middle:+.3f} ± {t_interval(values)[1] - middle:.3f}"

    def share(values: Sequence[bool]) -> str:
        low, high = wilson(fmean(values), len(values))
        return f"{fmean(values):>4.0%} [{low:>4.0%}, {high:>4.0%}]"

    reached = [math.inf if each.rollouts_to_90 is None else each.rollouts_to_90 for each in outcomes]
    cells = [
        f"  {name:<18}",
        mean([each.gain for each in outcomes]),
        mean([each.regret for each in outcomes]),
        mean([each.mean_regret for each in outcomes]),
        share([any(each.accepted[kind] for kind in KINDS[1:]) for each in outcomes]),
        share([each.no_better for each in outcomes]),
        " ".join(f"{fmean(each.accepted[kind] for each in outcomes):>4.1f}" for kind in KINDS),
        f"{fmean(used < math.inf for used in reached):>4.0%}",
        f"{median(reached):>6,.0f}" if median(reached) < math.inf else " never",
    ]
    return "  ".join(cells)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="the first seed; settings were chosen on those from 1000")
    parser.add_argument("--budgets", type=int, nargs="+", default=[2_000, 10_000], help="rollouts of a run")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run")
    parser.add_argument("--quick", action="store_true", help="two seeds, two scenarios and 900 rollouts, for a test")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.budgets, options.scenarios = 2, [900], ["mostly helpful", "shuffled rewards"]
    report = dict[str, list[dict[int, dict[str, Outcome]]]]()
    for scenario in options.scenarios:
        runs = [measure(scenario, options.first + seed, options.budgets) for seed in range(options.seeds)]
        shares = ", ".join(f"{share} % {kind}" for kind, share in zip(KINDS, SCENARIOS[scenario].shares, strict=True))
        for budget in options.budgets:
            print(f"\n{scenario} ({shares}), {budget:,} rollouts\n{HEADS}")
            for name in runs[0][budget]:
                print(row(name, [found[budget][name] for found in runs]), flush=True)
        report[scenario] = runs
    if not GEPA:
        print("\ngepa, gepa + gate: not measured: gepa is not installed")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1, default=asdict) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
