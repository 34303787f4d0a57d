"""Evolution of texts: a model sees what failed and mutates them, or joins two versions; what earns most survives.

Sources: EvoPrompt, arXiv 2309.08532, and Promptbreeder, arXiv 2309.16797. The prompts are ours, and a mutation sees
failed rollouts, as in GEPA (arXiv 2507.19457).

Half of the rollouts are for the generations: every child gets an equal number on the same tasks. The other half
compares the two best children with the texts as they are, again on equal rollouts (`Work.best`), because the best of
many on few rollouts is mostly the luckiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import Field

from midstream.core.task import Task
from midstream.lessons.lesson_set import Lesson, tokens
from midstream.lessons.operations import Operation
from midstream.lessons.proposer import Proposal, Work, ended
from midstream.rollout import Group, run_concurrently
from midstream_optimizers.texts import RewriterConfig, Writer, failures, learned_texts, reward_of

_FINALISTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """Changed texts, by the id of what they replace; the rollouts with them, and their mean reward."""

    operations: tuple[Operation, ...] = ()
    groups: Sequence[Group] = ()
    score: float = -1.0

    @property
    def rank(self) -> tuple[float, int]:
        """A key: the best is the one with the most reward, of equal ones the shortest."""
        return self.score, -sum(tokens(operation.text) for operation in self.operations)

    def text(self, lesson: Lesson) -> str:
        """Its version of a text."""
        changed = {operation.id: operation.text for operation in self.operations}
        return changed.get(lesson.id, lesson.text)

    def child(self, operation: Operation) -> Candidate:
        """The same with another version of one text, not tried yet."""
        others = [each for each in self.operations if each.id != operation.id]
        return Candidate(operations=(*others, operation))


class Evolution:
    """Mutation and crossover over a few generations."""

    def __init__(self, config: EvolutionConfig) -> None:
        self.config = config

    async def propose(self, work: Work) -> Proposal:
        """Return the best candidate's changes; none if the texts as they are earn as much."""
        writer, texts = Writer(work, self.config.characters), learned_texts(work)
        if not texts or not failures(work.groups):
            return Proposal()
        each = work.rollouts // (2 * self.config.generations * self.config.population)
        tasks = work.tasks[:each]
        start = best = Candidate(groups=work.groups, score=_score(_of(tasks or work.tasks, work.groups)))
        tried: dict[tuple[str, ...], Candidate] = {}
        for generation in range(1, self.config.generations + 1):
            children = await run_concurrently(
                self._child(writer, texts[(generation + number) % len(texts)], best, generation, number)
                for number in range(1, self.config.population + 1)
            )
            for child in filter(None, children):
                key = tuple(child.text(lesson) for lesson in texts)
                changed = work.changed(child.operations)
                if key in tried or changed is None:
                    continue
                if each:
                    groups = await work.play(changed, tasks, each // len(tasks))
                    child = Candidate(operations=child.operations, groups=groups, score=_score(groups))
                tried[key] = child
            best = max([best, *tried.values()], key=lambda candidate: candidate.rank)
            if not each:
                break
        finalists = sorted(tried.values(), key=lambda candidate: candidate.rank, reverse=True)[:_FINALISTS]
        chosen = await work.best([candidate.operations for candidate in finalists])
        score = next((candidate.score for candidate in finalists if candidate.operations == tuple(chosen)), start.score)
        why = f"evolution: the best of {len(tried)} candidates, score {start.score:.2f} -> {score:.2f} on the batch"
        return Proposal(
            operations=[
                operation.model_copy(update={"origin": operation.origin.model_copy(update={"why": why})})
                for operation in chosen
            ],
            unreadable=writer.unreadable,
        )

    async def _child(
        self, writer: Writer, lesson: Lesson, parent: Candidate, generation: int, number: int
    ) -> Candidate | None:
        """One child: the first of a generation joins the first text and the parent's, the others are mutations."""
        name = f"generation {generation}, child {number}"
        text = parent.text(lesson)
        if number == 1 and text != lesson.text:
            made = await writer.rewrite(name, lesson, "join", why="", values={"other": text})
        else:
            failed = failures(parent.groups) or failures(writer.work.groups)
            # Mutations of one parent differ in what they are shown.
            turned = [failed[(number - 1 + place) % len(failed)] for place in range(len(failed))]
            shown = turned[: self.config.shown]
            made = await writer.rewrite(name, lesson, "mutate", why="", values={"text": text}, shown=shown)
        return parent.child(made) if made is not None and made.text != text else None


class EvolutionConfig(RewriterConfig):
    """Instructions and other texts by mutation and crossover (EvoPrompt), tried on `lessons.search_rollouts`.

    Attributes:
        population: children of a generation
        generations: how often the best candidate so far has children
    """

    component = Evolution

    population: int = Field(default=3, ge=1)
    generations: int = Field(default=2, ge=1)


def _of(tasks: Sequence[Task], groups: Sequence[Group]) -> list[Group]:
    ids = {task.id for task in tasks}
    return [group for group in groups if group.task.id in ids]


def _score(groups: Sequence[Group]) -> float:
    rewards = [reward_of(each) for group in groups for each in group.trajectories if ended(each)]
    return fmean(rewards) if rewards else -1.0
