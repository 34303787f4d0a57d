"""GEPA by its own package: reflective mutation, a Pareto set of candidates, and merges of them.

Source: GEPA, arXiv 2507.19457, and the package `gepa` (MIT), which decides what is mutated, merged, tried and kept.

    component             a text that the run learns, such as `planner.prompt`
    data                  tasks of the update's batch, for the mutations and for the Pareto set alike
    metric call           a rollout, within `lessons.search_rollouts`
    reflection model      the critic's
    reflective dataset    question, transcript, reward and the reward's feedback; no gold answer

The texts as they are have their scores from the batch's rollouts, which costs nothing. The package is synchronous: it
runs in a thread, and what it asks for runs in the event loop of the run. It writes no file and prints nothing.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import Field

from midstream.components.component import Context
from midstream.core.errors import needs_extra
from midstream.core.text import fill, to_json
from midstream.core.text_file import shipped_prompt
from midstream.core.trajectory import Trajectory
from midstream.lessons.lesson_set import Lesson, LessonOrigin
from midstream.lessons.operations import Operation
from midstream.lessons.proposer import Proposal, Work, ended
from midstream.lessons.reflector import transcript
from midstream.rollout import Group
from midstream_optimizers.texts import RewriterConfig, Writer, cut, learned_texts, reward_of

if TYPE_CHECKING:
    from gepa.core.adapter import EvaluationBatch
    from gepa.core.result import GEPAResult

T = TypeVar("T")
_MERGE_TASKS = 5  # on which the package tries a merged candidate before all others
_OUTPUTS = "What the agent did"


class Place(str):
    """The name of a component, with one hash in all processes: the package draws at random while it walks a set."""

    def __hash__(self) -> int:
        return zlib.crc32(self.encode())


class _Stopped(BaseException):
    """Ends the package's thread: it catches every `Exception` of a request and continues."""


class _Bridge:
    """Runs coroutines of another thread in this event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: Future[Any] | None = None
        self._closed = False
        self.failure: BaseException | None = None

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, for the other thread. Raises `_Stopped` if it failed, which `failure` keeps."""
        if self._closed:
            coroutine.close()
            raise _Stopped
        self._waiting = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return self._waiting.result()
        except BaseException as failure:
            self.failure = failure
            raise _Stopped from failure

    def close(self) -> None:
        """Stop the other thread at its next or present request."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Example:
    """A task of the batch with its rollouts that ended; `score` is their mean reward."""

    group: Group
    score: float

    @property
    def worst(self) -> Trajectory:
        return min(self.group.trajectories, key=reward_of)


class _Silent:
    def log(self, message: str) -> None:
        """The package prints by default."""


class _Adapter:
    """What the package asks of the agent (`gepa.GEPAAdapter`), in its thread."""

    def __init__(self, work: Work, texts: Sequence[Lesson], writer: Writer, bridge: _Bridge) -> None:
        self.work, self.writer, self.bridge = work, writer, bridge
        self.texts = {Place(lesson.module): lesson for lesson in texts}
        self.by_id = {lesson.id: lesson for lesson in texts}
        # Who wrote each text that it was given.
        self.made: dict[tuple[str, str], LessonOrigin] = {}
        self.asked = 0

    def operations(self, candidate: Mapping[str, str]) -> list[Operation]:
        """What changes from the texts as they are to a candidate."""
        return [
            Operation(
                kind="modify",
                id=lesson.id,
                text=candidate[place],
                origin=self.made.get((lesson.id, candidate[place]), LessonOrigin(update=self.work.step)),
            )
            for place, lesson in self.texts.items()
            if candidate[place] != lesson.text
        ]

    def evaluate(
        self, batch: list[_Example], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Trajectory | str, None]:
        """A rollout of each task. A candidate that is not sound gets 0 without one, with the reason as its trace."""
        from gepa.core.adapter import EvaluationBatch

        operations = self.operations(candidate)
        faults = [self.writer.unsound(self.by_id[operation.id], operation.text) for operation in operations]
        # As they are, the texts have their rollouts already.
        scores: list[float] = [each.score for each in batch]
        traces: list[Trajectory | str] = [each.worst for each in batch]
        if fault := "; ".join(filter(None, faults)):
            scores, traces = [0.0] * len(batch), [fault for _ in batch]
        elif operations:
            # The package repeats tasks where a batch is smaller than it wants.
            tasks = {each.group.task.id: each.group.task for each in batch}
            changed = self.work.changed(operations)
            assert changed is not None, "each of them is sound"
            groups = self.bridge.wait(self.work.play(changed, list(tasks.values())))
            played = {group.task.id: group.trajectories[0] for group in groups}
            for place, each in enumerate(batch):
                trajectory = played[each.group.task.id]
                # A rollout that failed says nothing about the candidate.
                if ended(trajectory):
                    scores[place], traces[place] = reward_of(trajectory), trajectory
        return EvaluationBatch(
            outputs=[None] * len(batch), scores=scores, trajectories=traces if capture_traces else None
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Trajectory | str, None],
        components_to_update: list[str],
    ) -> dict[str, list[dict[str, Any]]]:
        """What the model reads of each rollout: no more than the reflector's roles do without the gold answer."""
        records = list[dict[str, Any]]()
        for trace, score in zip(eval_batch.trajectories or [], eval_batch.scores, strict=True):
            if isinstance(trace, str):
                records.append({"Feedback": f"It was not tried: {trace}"})
                continue
            said = trace.reward.feedback if trace.reward is not None else ""
            records.append(
                {
                    "Question": to_json(trace.question),
                    _OUTPUTS: transcript(trace),
                    "Feedback": f"The reward was {score:.2f}; 1 is the best." + (f" {to_json(said)}" if said else ""),
                }
            )
        return dict.fromkeys(components_to_update, records)

    def propose_new_texts(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """Ask the critic's model for new texts, in the package's order of prompt; without a sound one, none."""
        from gepa.strategies.instruction_proposal import InstructionProposalSignature

        found: dict[str, str] = {}
        for name in components_to_update:
            lesson, self.asked = self.texts[Place(name)], self.asked + 1
            values = self.writer.values(lesson)
            template = fill(shipped_prompt("midstream_optimizers", "gepa"), values)

            def prompt(limit: int, name: str = name, template: str = template) -> str:
                shown = [
                    {**record, **({_OUTPUTS: cut(record[_OUTPUTS], limit)} if _OUTPUTS in record else {})}
                    for record in reflective_dataset[name]
                ]
                asked = {
                    "current_instruction_doc": candidate[name],
                    "dataset_with_feedback": shown,
                    "prompt_template": template,
                }
                return str(InstructionProposalSignature.prompt_renderer(asked))

            made = self.bridge.wait(self.writer.rewrite(f"reflection {self.asked}", lesson, prompt, why=""))
            if made is not None:
                self.made[lesson.id, made.text] = made.origin
                found[name] = made.text
        return found


class Gepa:
    """GEPA over the texts of a run, with the package `gepa`."""

    def __init__(self, config: GepaConfig) -> None:
        self.config = config

    async def propose(self, work: Work) -> Proposal:
        """Return the changes of the package's best candidate; none if that is the texts as they are.

        Raises:
            UnsupportedError: the package is not installed.
            EngineError: a model failed, after its engine's own retries.
            BudgetError: a limit was reached.
        """
        with needs_extra("the proposer gepa runs the package gepa, which is not installed", "gepa"):
            from gepa.api import optimize

        texts = learned_texts(work)
        ended_groups = [
            Group(task=group.task, trajectories=tuple(filter(ended, group.trajectories))) for group in work.groups
        ]
        batch = [
            _Example(group=group, score=fmean(map(reward_of, group.trajectories)))
            for group in ended_groups
            if group.trajectories
        ]
        # Every candidate that is kept is tried on all of them.
        batch = batch[: min(self.config.tasks, work.rollouts // 4)]
        if not texts or not batch or all(each.score >= 1 for each in batch):
            return Proposal()
        writer, bridge = Writer(work, self.config.characters), _Bridge()
        adapter = _Adapter(work, texts, writer, bridge)
        shown = min(self.config.shown, len(batch))
        iteration = max(2 * shown, _MERGE_TASKS) + len(batch)

        def stop(gepa_state: Any) -> bool:
            # An iteration that finds nothing to improve takes neither rollouts nor requests.
            idle = gepa_state.i >= 4 * self.config.requests
            return idle or work.rollouts < iteration or adapter.asked >= self.config.requests

        def run() -> GEPAResult[None, int] | None:
            try:
                return optimize(
                    seed_candidate={place: lesson.text for place, lesson in adapter.texts.items()},
                    trainset=batch,
                    valset=batch,
                    adapter=adapter,  # type: ignore[arg-type]
                    reflection_minibatch_size=shown,
                    # One text has nothing to be merged with.
                    use_merge=len(texts) > 1,
                    merge_val_overlap_floor=min(_MERGE_TASKS, len(batch)),
                    stop_callbacks=stop,
                    logger=_Silent(),
                    track_best_outputs=False,
                    seed=work.seed,
                )
            except _Stopped:
                return None

        try:
            result = await asyncio.to_thread(run)
        finally:
            bridge.close()
        if bridge.failure is not None:
            raise bridge.failure
        assert result is not None, "only a failure stops it"
        scores = result.val_aggregate_scores
        why = (
            f"gepa: {result.num_candidates} candidates, score {scores[0]:.2f} -> {scores[result.best_idx]:.2f} on "
            f"{len(batch)} tasks of the batch"
        )
        tasks = tuple(each.group.task.id for each in batch)
        return Proposal(
            operations=[
                operation.model_copy(
                    update={"origin": operation.origin.model_copy(update={"tasks": tasks, "why": why})}
                )
                for operation in adapter.operations(result.candidates[result.best_idx])
            ],
            unreadable=writer.unreadable,
        )


class GepaConfig(RewriterConfig):
    """GEPA by its own package (`pip install gepa`), on `lessons.search_rollouts`.

    Attributes:
        tasks: the most tasks of the batch on which candidates are compared; at most a quarter of the rollouts
        requests: the most new texts that the model is asked for in an update
    """

    extra: ClassVar[str] = "gepa"
    packages: ClassVar[tuple[str, ...]] = ("gepa",)
    component = Gepa

    tasks: int = Field(default=12, ge=1)
    requests: int = Field(default=12, ge=1)

    def build(self, context: Context) -> object:
        """Build it. Raises `UnsupportedError` without the package, and as the base does."""
        self.check_machine(f"the proposer {context.name!r}")
        return super().build(context)
