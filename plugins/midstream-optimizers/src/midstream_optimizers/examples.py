"""Few-shot examples: successes of the batch, written into the prompts of a module, chosen by random search.

Source: bootstrapped demonstrations with random search, as in DSPy (arXiv 2310.03714) and MIPRO (arXiv 2406.11695).
Here a candidate is a subset of the examples that a module has and of those that the batch offers.

An example of one stream is its question and the stream in the template's own form, so that a policy can continue it:

    Question: What is 12 * 4 - 31?
    <python>
    print(12 * 4 - 31)
    </python>
    <output>
    17
    </output>
    <answer>17</answer>

One of AgentFlow's modules shows what the module replied in each turn, and the result that the turn had:

    Query: What is 12 * 4 - 31?
    Turn 1: calculate (python)
    Justification: ...
    Result: 17
    Answer: 17
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from pydantic import Field

from midstream.components.component import Context, ProposerConfig
from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.stream import POLICY, escape_marks, stream_of
from midstream.core.stream_template import Template
from midstream.core.text import PLACE, fill, neutral, spoken
from midstream.core.texts import EXAMPLES, PROMPT, kind_of
from midstream.core.tool_calls import cut_result
from midstream.core.trajectory import Call, Trajectory
from midstream.lessons.lesson_set import Lesson, LessonOrigin, LessonSet, fitted, render_modules, tokens
from midstream.lessons.operations import Operation, OperationOutcome, screened
from midstream.lessons.proposer import Proposal, Work, ended
from midstream_optimizers.texts import reward_of

# Of a tool's result in AgentFlow's examples: the form is what an example teaches.
_RESULT = 400


class Examples:
    """The status quo against random subsets of a module's examples and the batch's successes."""

    def __init__(self, config: ExamplesConfig, template: Template | None = None) -> None:
        self.config, self.template = config, template

    async def propose(self, work: Work) -> Proposal:
        """Return the adds and deletes of the best subset; none if the examples as they are earn as much."""
        pools = {
            place: self._pool(work, place.removesuffix(EXAMPLES), place)
            for place in work.config.modules
            if kind_of(place) == "example"
        }
        draw = random.Random(derive_seed(work.seed, "examples"))
        candidates = list[list[Operation]]()
        for _ in range(self.config.candidates):
            found = [
                operation
                for place, (offered, _) in pools.items()
                for operation in self._subset(draw, _own(work.lesson_set, place), offered)
            ]
            if found and found not in candidates:
                candidates.append(found)
        chosen = await work.best(candidates)
        refused = [outcome for _, outcomes in pools.values() for outcome in outcomes]
        why = f"examples: the best of {len(candidates)} subsets on the batch"
        return Proposal(
            operations=[
                operation.model_copy(update={"origin": operation.origin.model_copy(update={"why": why})})
                for operation in chosen
            ],
            left_out=refused,
        )

    def _pool(self, work: Work, module: str, place: str) -> tuple[list[Operation], list[OperationOutcome]]:
        """Examples that could be added, the shortest success of each task; and those that may not be, with why."""
        held = {lesson.text for lesson in work.lesson_set.lessons if lesson.module == place}
        instructions = render_modules(work.lesson_set).get(module + PROMPT, "")
        offered, refused = list[Operation](), list[OperationOutcome]()
        for group in work.groups:
            good = [each for each in group.trajectories if ended(each) and reward_of(each) >= self.config.reward]
            texts = {each.id: example(each, module, self.template, instructions) for each in good}
            written = [each for each in good if texts[each.id]]
            if not written:
                continue
            shortest = min(written, key=lambda each: len(texts[each.id]))
            text = texts[shortest.id]
            if tokens(text) > self.config.example_tokens or fitted(place, text) in held:
                continue
            origin = LessonOrigin(update=work.step, tasks=(group.task.id,), trajectories=(shortest.id,))
            operation = Operation(kind="add", text=text, module=place, origin=origin)
            _, [outcome] = screened(work.lesson_set, [operation], work.rules)
            # A full set has room if an old example goes: the gate's rules decide that of a whole subset.
            if outcome.refused and not outcome.refused.startswith("the lesson set is full"):
                refused.append(outcome)
            else:
                offered.append(operation)
        return offered, refused

    def _subset(self, draw: random.Random, own: Sequence[Lesson], offered: Sequence[Operation]) -> list[Operation]:
        """The operations from the examples as they are to a random subset of them and of what is offered."""
        free = [lesson for lesson in own if lesson.state == "active"]
        kept = len([lesson for lesson in own if lesson.state == "pinned"])
        pool = [*free, *offered]
        most = min(self.config.most - kept, len(pool))
        if most < 1:
            return []
        chosen = draw.sample(range(len(pool)), draw.randint(1, most))
        deletes = [Operation(kind="delete", id=lesson.id) for at, lesson in enumerate(free) if at not in chosen]
        return [*deletes, *(operation for at, operation in enumerate(offered, len(free)) if at in chosen)]


class ExamplesConfig(ProposerConfig):
    """Few-shot examples from the batch's successes, chosen by random search on `lessons.search_rollouts`.

    Attributes:
        most: the most examples of a module
        candidates: subsets that are tried
        reward: the least reward of a rollout that becomes an example
        example_tokens: the most tokens of an example; four characters count as a token
    """

    component = Examples

    most: int = Field(default=3, ge=1)
    candidates: int = Field(default=4, ge=1)
    reward: float = Field(default=1.0, gt=0, le=1)
    example_tokens: int = Field(default=400, ge=1)

    def build(self, context: Context) -> Examples:
        """Build it. Raises `RecipeError` if `lessons.modules` names no examples."""
        places = context.recipe.lessons.modules
        if not any(kind_of(place) == "example" for place in places):
            raise RecipeError(
                f"the proposer {context.name!r} chooses examples, and lessons.modules = {list(places)} names none",
                code="setting-conflict",
                fix='name the examples of a module there, such as "planner.examples" or "policy.examples"',
            )
        return Examples(self, context.template)


def _own(lesson_set: LessonSet, place: str) -> list[Lesson]:
    return [lesson for lesson in lesson_set.lessons if lesson.module == place]


def example(trajectory: Trajectory, module: str, template: Template | None = None, instructions: str = "") -> str:
    """A rollout as an example of a module; "" if no model played the module in it.

    `template` is that of the agent if it is one stream, `instructions` its learned ones.
    """
    if template is not None and module == POLICY:
        return _stream_example(trajectory, template.with_instructions(instructions))
    return _module_example(trajectory, module)


def _stream_example(trajectory: Trajectory, template: Template) -> str:
    pieces = [piece.text for piece in stream_of(trajectory)]
    if not pieces:
        return ""
    joined = "\n".join(piece.strip("\n") for piece in pieces) if template.appends == "message" else "".join(pieces)
    question = fill(_question_form(template), {"query": escape_marks(neutral(trajectory.question), template)})
    return (question + template.opening + joined.lstrip("\n")).strip()


def _question_form(template: Template) -> str:
    """How the prompt of a template asks its question: its last part, with the place {{query}}."""
    before, _, after = template.user.partition("{{query}}")
    # Instructions, lessons and tools stand before; a paragraph of its own holds the question.
    start = max((place.end() for place in PLACE.finditer(before)), default=0)
    start = max(start, before.rfind("\n\n") + 2 if "\n\n" in before else 0)
    form = before[start:].lstrip("\n") + "{{query}}" + PLACE.split(after)[0]
    if form.strip() == "{{query}}":
        form = "Question: {{query}}"
    # After a label such as "Assistant:" the stream continues on the same line, as in the prompt itself.
    return form.rstrip() + ("\n" if form.rstrip().endswith("{{query}}") else "")


def _module_example(trajectory: Trajectory, module: str) -> str:
    def reply(calls: Iterable[Call]) -> list[str]:
        # Of a module that was asked again, the last reply is the one that was used.
        said = [spoken(call.completion).strip() for call in calls if call.role == module]
        return [text for text in said[-1:] if text]

    if not any(call.role == module for call in trajectory.calls):
        return ""
    lines = [f"Query: {trajectory.question}", *reply(trajectory.opening_calls)]
    for turn in trajectory.turns:
        lines.append(f"Turn {turn.index}" + (f": {turn.action.sub_goal} ({turn.action.tool})" if turn.action else ""))
        lines += reply(turn.calls)
        if turn.observation is not None:
            lines.append(f"Result: {cut_result(turn.observation.text, _RESULT)}")
    answer = [f"Answer: {trajectory.answer}"] if trajectory.answer is not None else []
    return "\n".join([*lines, *(reply(trajectory.closing_calls) or answer)])
