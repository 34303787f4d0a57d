"""The clumsy policy: a program that writes an interleaved stream about the gazetteer, planned as badly as by
`programs.ClumsyPlanner`.

    <think> find height</think><local_search> Amberbank height</local_search><output> Amberbank height 105</output>
    <think> answer</think><answer> 105</answer>

Its transcripts warm-start a small policy (template "tiny"): they show how a stream is written and how names and numbers
are copied, and seldom a plan that works.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from midstream.agents.interleaved import Stream
from midstream.core.errors import RecipeError
from midstream.core.protocols import ModuleContext
from midstream.core.stream import POLICY, Marks, Template, blocks
from midstream.core.stream_template import ANY_TOOL
from midstream.core.trajectory import Call
from midstream.worlds.gazetteer.plans import Situation, asked
from midstream.worlds.gazetteer.programs import SPOKEN, Choice, ClumsyConfig

__all__ = ["ClumsyConfig", "ClumsyPolicy", "stream_marks", "stream_words"]

ANSWER = "answer"
QUESTION = "Question "  # what stands before the question in the prompt of template "tiny"
STOPS = 0.5  # how often a decision at random is to answer
SOUND = "{open} {thought}{close}{act}"
# Where form fails: no thought, one that is never closed, nothing but a thought.
MALFORMED = ("{act}", "{open} {thought}{act}", "{open} {thought}{close}")
_RESULT = re.compile(r".*?(-?\d+|[A-Z][a-z]+)")  # a line that ends in a number, a place, True or False


def stream_words() -> set[str]:
    """The words of a stream beside those of actions (`programs.action_words`) and the gazetteer's own."""
    return {ANSWER}


def stream_marks(template: Template, tools: Sequence[str]) -> list[str]:
    """Every mark that can stand in a stream with these tools: each is a token of a small policy's vocabulary."""
    marks = [mark for pair in template.tags.values() for mark in (pair.open, pair.close)]
    return list(dict.fromkeys(mark.replace(ANY_TOOL, tool) for mark in marks for tool in tools))


class ClumsyPolicy:
    """Takes each decision of `ClumsyPlanner`, and whether to answer, sensibly with probability `sense`.

    It reads the question and the output so far. What it looks up and calculates with beside the question's own words
    are the last words of output; the newest is its answer, however it came about. A share `malformed` of its replies
    lacks the thought, leaves it open, or holds nothing else.
    """

    def __init__(self, config: ClumsyConfig) -> None:
        self.config = config

    async def reply(self, stream: Stream, context: ModuleContext) -> Call:
        """One thought, and a call or the answer.

        Raises:
            RecipeError: the template is not of the form of "tiny".
        """
        rng = random.Random(context.seed)
        think, call, answer = clumsy_marks(stream.template)
        situation = _Standing(stream)
        if situation.values and self._answers(situation, rng):
            thought, act = ANSWER, _between(answer, situation.answer)
        else:
            choice = Choice(situation, rng, self.config.sense, {})
            thought, tool, argument = choice.decide(list(stream.tools))
            named = Marks(open=call.open.replace(ANY_TOOL, tool), close=call.close.replace(ANY_TOOL, tool))
            act = _between(named, argument)
        form = rng.choice(MALFORMED) if rng.random() < self.config.malformed else SOUND
        text = form.format(open=think.open, thought=thought, close=think.close, act=act)
        return Call(role=POLICY, engine="clumsy", prompt=stream.request().prompt, completion=text, finish_reason="stop")

    def _answers(self, situation: _Standing, rng: random.Random) -> bool:
        if rng.random() < self.config.sense:
            return situation.complete
        return rng.random() < STOPS


class _Standing(Situation):
    """Where a stream stands: `values` are what its results ended in, in place of references to them."""

    def __init__(self, stream: Stream) -> None:
        found = blocks(stream.pieces, stream.template)
        question = stream.messages[-1].content.removeprefix(QUESTION)
        super().__init__(question, [one.tool for one in found if one.kind == "call"])
        results = [_RESULT.fullmatch(one.body.strip()) for one in found if one.kind == "output" and not one.sampled]
        self.values = self.slots = [result[1] for result in results if result]
        self.calculated = any(one.tool == "python" for one in found)
        self.calculates = asked(question)[1]

    @property
    def terms(self) -> list[str]:
        """What can be calculated with."""
        return [*self.values, *self.numbers] or self.names

    @property
    def complete(self) -> bool:
        """Whether all that the question names was looked up, and calculated with if that is asked for."""
        return self.found >= self.needed and self.calculated >= self.calculates

    @property
    def answer(self) -> str:
        """The newest result, Python's True and False as the question's yes and no."""
        return SPOKEN.get(self.values[-1], self.values[-1])


def _between(marks: Marks, text: str) -> str:
    return f"{marks.open} {text}{marks.close}"


def clumsy_marks(template: Template) -> tuple[Marks, Marks, Marks]:
    """Those of thoughts, of each tool's calls, of the answer. `RecipeError`: the template has others."""
    if template.think is None or template.answer is None or ANY_TOOL not in template.call.open or template.chat:
        raise RecipeError(
            f"the clumsy policy cannot write the template {template.name!r}",
            cause="it writes thoughts, calls and answers between marks, each tool's its own, to a prompt of plain text",
            fix='set agent.template = "tiny", or learn from others: warm_start.file, training.supervised.planner',
        )
    return template.think, template.call, template.answer
