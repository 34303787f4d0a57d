"""The scripted planner and the scripted policy: programs that act in either world, sensibly now and then.

Their transcripts warm-start a small model: they show how an action or a stream is written and how names and numbers are
copied, and seldom a plan that works. With `sense=0` they are the random planner of the controls.

The planner writes action lines (`action_lines.py`). The policy writes an interleaved stream in the template "tiny":

    <think> find height</think><local_search> Amberbank height</local_search><output> Amberbank height 105</output>
    <think> answer</think><answer> 105</answer>
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from pydantic import Field

from midstream.agents.stream_policy import Stream
from midstream.components.component import ComponentConfig
from midstream.core.agent import ModuleContext
from midstream.core.errors import RecipeError
from midstream.core.stream import POLICY, blocks
from midstream.core.stream_template import ANY_TOOL, Marks, Template
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Call, Memory
from midstream_worlds.planning.action_lines import parse_action, render_action, render_prompt
from midstream_worlds.planning.lessons import Decision, decisions
from midstream_worlds.planning.programs import SPOKEN
from midstream_worlds.planning.words import MOST_BACK, TOPICS, Situation, read_question

ENGINE = "clumsy"  # the recorded engine of scripted calls: the `type` that recipes name these programs by
GOALS = {"+": "add", "-": "subtract", "*": "multiply", ">": "compare"}
MALFORMED_ACTIONS = (
    " goal {goal}\n arg {arg}",
    " goal {goal}\n tool browser\n arg {arg}",
    " goal {goal}\n tool {tool}",
    " tool {tool}\n goal {goal}",
)
ANSWER = "answer"  # the thought before an answer: the one word of a stream that actions lack
QUESTION = "Question "  # precedes the question in the prompt of template "tiny"
STOPS = 0.5  # probability that a random decision is to answer
WELL_FORMED = "{open} {thought}{close}{act}"
# Replies that violate the form: no thought, a thought that is never closed, nothing but a thought.
MALFORMED_REPLIES = ("{act}", "{open} {thought}{act}", "{open} {thought}{close}")
_FOUND = [name for topic in TOPICS for name in topic.found]
_FACT = re.compile(rf"\w+ (?:{'|'.join(_FOUND)}) \w+")
_WORDS = re.compile(r"\w+")
NOTHING = "no "  # begins what a tool of the graphs says that it cannot do
_RESULT = re.compile(r".*?(-?\d+|[A-Z][a-z]+)")  # a line that ends in a number, a place, True or False


def action_words() -> set[str]:
    """Words of actions, except names, numbers and the words of one world."""
    goals = {"find", "guess", "question", "browser", "is", *GOALS.values()}
    return {
        *goals,
        *GOALS,
        "yes",
        "no",
        "True",
        "False",
        *(f"{kind}{i}" for kind in "rn" for i in range(1, MOST_BACK + 1)),
    }


def stream_marks(template: Template, tools: Sequence[str]) -> list[str]:
    """Every mark of a stream with these tools; each is one token of a small policy's vocabulary."""
    marks = [mark for pair in template.tags.values() for mark in (pair.open, pair.close)]
    return list(dict.fromkeys(mark.replace(ANY_TOOL, tool) for mark in marks for tool in tools))


def scripted_marks(template: Template) -> tuple[Marks, Marks, Marks]:
    """Marks of thoughts, calls and answers. Raises `RecipeError` for marks that the scripted policy cannot write."""
    if template.think is None or template.answer is None or ANY_TOOL not in template.call.open or template.chat:
        raise RecipeError(
            f"the scripted policy (type clumsy) cannot write the template {template.name!r}",
            code="template-mismatch",
            fix='set agent.template = "tiny", or learn from others: warm_start.file, training.supervised.planner',
        )
    return template.think, template.call, template.answer


class Choice:
    """Draws one decision after another; `lessons` maps a decision to sound (True) or bad (False)."""

    def __init__(
        self, situation: Situation, rng: random.Random, sense: float, lessons: Mapping[Decision, bool]
    ) -> None:
        self.situation, self.rng, self.sense, self.lessons = situation, rng, sense, lessons

    def way(self, about: Decision) -> bool | None:
        """Whether to decide soundly (True), badly (False, by a lesson only) or at random (None)."""
        return self.lessons[about] if about in self.lessons else self.rng.random() < self.sense or None

    def decide(self, tools: Sequence[str]) -> tuple[str, str, str]:
        """Return (goal, tool, argument)."""
        situation, choice = self.situation, self.rng.choice
        topic, guess = situation.topic, self.lessons.get("guess")
        if guess is False and situation.names:
            tool = topic.guess
        elif (way := self.way("tool")) is None:
            tool = choice([tool for tool in tools if tool != topic.guess or guess is None])
        else:
            tool = situation.tool(way)
        if tool == "python":
            way = self.way("operator")
            operator = choice(tuple(GOALS)) if way is None else situation.operator(way)
            way, terms = self.way("operands"), situation.terms
            x, y = (choice(terms), choice(terms)) if way is None else situation.operands(way)
            return GOALS[operator], tool, f"{x} {operator} {y}"
        if tool == "guess":  # of the gazetteer: it answers anything
            return "guess", tool, choice([*situation.things, "question"])
        way = self.way("attribute")
        attribute = choice(topic.found) if way is None else situation.attribute(way)
        if not situation.things:
            return f"find {attribute}", tool, attribute
        way = self.way("place")
        thing = choice(situation.things) if way is None else situation.place(way)
        return f"find {attribute}", tool, situation.query(tool, thing, attribute)


class ScriptedPlanner:
    """Makes each decision (tool, place, attribute, operator, operands) sensibly with probability `sense`.

    It knows a sensible *next* decision but makes several in a row so rarely that its transcripts show the action
    language and copying, not how to plan: that is left for reinforcement to find.
    """

    def __init__(self, config: ScriptedConfig) -> None:
        self.config = config

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """Write one action as text and parse it as a model's."""
        found = [(record.action.tool, record.result) for record in memory.records if not record.error]
        failed = {record.action.tool for record in memory.records if record.error}
        situation = Situation(question, found, failed)
        rng, lessons = random.Random(context.seed), decisions(context.lessons)
        choice = Choice(situation, rng, self.config.sense, lessons)
        goal, tool, argument = choice.decide([tool.name for tool in tools])
        text = render_action(goal, tool, argument)
        form = lessons.get("form")
        if form is False:
            text = MALFORMED_ACTIONS[0].format(goal=goal, arg=argument)
        elif form is None and rng.random() < self.config.malformed:
            text = rng.choice(MALFORMED_ACTIONS).format(goal=goal, tool=tool, arg=argument)
        prompt = render_prompt(question, memory, context.lessons)
        call = Call(role="planner", engine=ENGINE, prompt=prompt, completion=text)
        return parse_action(text, tools, memory), (call,)


class ScriptedPolicy:
    """Makes each decision of `ScriptedPlanner`, and whether to answer, sensibly with probability `sense`.

    It reads the question and the output so far. It looks up and calculates with the question's own words and the last
    words of each output; the newest is its answer. A share `malformed` of its replies lacks the thought, leaves it
    open, or holds nothing else.
    """

    def __init__(self, config: ScriptedConfig) -> None:
        self.config = config

    async def reply(self, stream: Stream, context: ModuleContext) -> Call:
        """Write one thought, and a call or the answer. Raises `RecipeError` for a template unlike "tiny"."""
        rng = random.Random(context.seed)
        think, call, answer = scripted_marks(stream.template)
        situation = StreamSituation(stream)
        answers = False
        if situation.slots:
            sensible = rng.random() < self.config.sense
            answers = situation.complete if sensible else rng.random() < STOPS
        if answers:
            thought, act = ANSWER, f"{answer.open} {situation.answer}{answer.close}"
        else:
            choice = Choice(situation, rng, self.config.sense, {})
            thought, tool, argument = choice.decide(list(stream.tools))
            act = f"{call.open.replace(ANY_TOOL, tool)} {argument}{call.close.replace(ANY_TOOL, tool)}"
        form = rng.choice(MALFORMED_REPLIES) if rng.random() < self.config.malformed else WELL_FORMED
        text = form.format(open=think.open, thought=thought, close=think.close, act=act)
        return Call(role=POLICY, engine=ENGINE, prompt=stream.request().prompt, completion=text, finish_reason="stop")


class StreamSituation(Situation):
    """State of a plan in a stream: the last words of its results replace references to results.

    A look-up that found a fact about something else, as on a noisy search, counts as if it had not been made.
    """

    def __init__(self, stream: Stream) -> None:
        found = blocks(stream.pieces, stream.template)
        question = stream.messages[-1].content.removeprefix(QUESTION)
        steps: list[tuple[str, str]] = []
        failed: set[str] = set()
        tool = query = ""
        for block in found:
            if block.kind == "call":
                tool, query = block.tool, block.body
            elif block.kind == "output" and not block.sampled:
                text = block.body.strip()
                if text.startswith(NOTHING):
                    failed.add(tool)
                elif not _FACT.fullmatch(text) or set(_WORDS.findall(query)) <= set(_WORDS.findall(text)):
                    steps.append((tool, text))
        last = [_RESULT.fullmatch(text) for _, text in steps]
        super().__init__(question, [step for step, result in zip(steps, last, strict=True) if result], failed)
        self.slots = [result[1] for result in last if result]
        self.calculates = read_question(question)[1]

    @property
    def terms(self) -> list[str]:
        """Operands of a calculation."""
        return [*self.slots, *self.numbers] or self.names

    @property
    def complete(self) -> bool:
        """Whether every place in the question was looked up, and then a calculation made if it asks for one."""
        return self.all_found and self.calculated >= self.calculates

    @property
    def answer(self) -> str:
        """The newest result, Python's True and False as yes and no."""
        return SPOKEN.get(self.slots[-1], self.slots[-1])


class ScriptedConfig(ComponentConfig):
    """A program that plans badly, for warm starts and controls.

    A lesson about a decision overrides both settings.

    Attributes:
        sense: the probability that a decision is the sensible one; else it is uniformly random
        malformed: the share of actions, or of a stream's replies, that cannot be parsed
    """

    teaches = "action_lines"

    component = ScriptedPlanner

    sense: float = Field(default=0.3, ge=0, le=1)
    malformed: float = Field(default=0.1, ge=0, le=1)

    @property
    def needs_world(self) -> bool:
        """It decides by the world's names."""
        return True


class ScriptedPolicyConfig(ScriptedConfig):
    """A program that writes a bad policy's stream, for warm starts and controls."""

    teaches = "model"

    def check_template(self, template: Template) -> None:
        """Refuse a template with other marks than the policy can write."""
        scripted_marks(template)

    component = ScriptedPolicy
