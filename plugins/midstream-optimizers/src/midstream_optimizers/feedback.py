"""Textual gradients: a model criticizes a text from the rollouts that failed, then corrects it.

Sources: TextGrad, arXiv 2406.07496; ProTeGi ("automatic prompt optimization with gradient descent"), arXiv 2305.03495.
The prompts are ours, and there is one candidate a text, without a beam: the gate decides, not a search. Two requests a
text, none for trying candidates.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence

from midstream.core.text import neutral, shorten, to_json
from midstream.core.trajectory import Trajectory
from midstream.lessons.lesson_set import Lesson, tokens
from midstream.lessons.operations import Operation
from midstream.lessons.proposer import Proposal, Work
from midstream.rollout import run_concurrently
from midstream_optimizers.texts import RewriterConfig, Writer, failures, learned_texts

_WHY = 400  # characters of a criticism in the origin of its text


class Feedback:
    """Criticism of each text, and a correction; with `shorter`, a shorter version of it, too."""

    def __init__(self, config: FeedbackConfig) -> None:
        self.config = config

    async def propose(self, work: Work) -> Proposal:
        """Suggest one correction of each text if a rollout failed."""
        writer = Writer(work, self.config.characters)
        failed = failures(work.groups)[: self.config.shown]
        jobs = [job for lesson in learned_texts(work) for job in self._jobs(writer, lesson, failed)]
        found = await run_concurrently(jobs)
        return Proposal(operations=[each for each in found if each is not None], unreadable=writer.unreadable)

    def _jobs(
        self, writer: Writer, lesson: Lesson, failed: Sequence[Trajectory]
    ) -> Sequence[Coroutine[None, None, Operation | None]]:
        jobs = [self._corrected(writer, lesson, failed)] if failed else []
        return [*jobs, self._shorter(writer, lesson)] if self.config.shorter else jobs

    async def _corrected(self, writer: Writer, lesson: Lesson, failed: Sequence[Trajectory]) -> Operation | None:
        criticism = await writer.remark(f"criticism of {lesson.id}", "criticize", writer.values(lesson), failed)
        if not criticism:
            return None
        questions = "\n".join(f"- {to_json(question)}" for question in dict.fromkeys(each.question for each in failed))
        values = {"criticism": neutral(criticism), "questions": questions}
        why = f"feedback: {shorten(' '.join(criticism.split()), _WHY)}"
        name = f"correction of {lesson.id}"
        return await writer.rewrite(name, lesson, "correct", why=why, values=values, shown=failed)

    async def _shorter(self, writer: Writer, lesson: Lesson) -> Operation | None:
        before = tokens(lesson.text)

        def refuse(text: str) -> str:
            return "" if tokens(text) < before else f"it is not shorter: {tokens(text)} tokens, now it has {before}"

        made = await writer.rewrite(f"shorter {lesson.id}", lesson, "shorten", why="", refuse=refuse)
        if made is None:
            return None
        why = f"feedback: the same in fewer words, {before} -> {tokens(made.text)} tokens"
        return made.model_copy(update={"origin": made.origin.model_copy(update={"why": why})})


class FeedbackConfig(RewriterConfig):
    """Corrections of texts from a criticism of them (TextGrad, ProTeGi).

    Attributes:
        shorter: a shorter version of each text, too
    """

    searches = False
    component = Feedback

    shorter: bool = False
