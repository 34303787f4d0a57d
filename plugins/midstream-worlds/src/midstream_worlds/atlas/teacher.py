"""The teacher of the atlas: a program that writes streams of thoughts, JSON calls and an answer, soundly or clumsily.

    <think>Task: add. I need the height of Port Ruvia.</think><tool_call>{"name": "local_search", "arguments":
    {"query": "Port Ruvia height"}}</tool_call>      The height of Port Ruvia is 327.
    <think>Now I add.</think><tool_call>{"name": "python", "arguments": {"code": "327 + 12"}}</tool_call>      339
    <think>I can answer.</think>339

Values of two places are noted first: "First: 327. Now that of Bel: height.", "Second: 41. Now I subtract.",
"abs(327 - 41)". A model that copies finds each by its word; `abs` spares it an order that no wording has to show.

With lessons in its prompt, the thought that uses values first repeats the one about the attribute (`rules.py`), and the
calculation follows it: "Rule: Height counts 3 times. Now I add.", "(327 * 3) + 12". A model that copies can repeat a
sentence before it can restate it.

It knows what each question asks for. A sound transcript is the shortest plan. In a clumsy one, each decision (which
attribute, which place, whether to look up or calculate at all, which operator, which operands, whether to follow a
rule) is random with probability `clumsy`. Clumsy transcripts leave reinforcement something to find. After a search
without a result, both say that they do not know.

As AgentFlow's four modules it replies to their prompts in a model's place:

    planner    Justification: I need the height of Port Ruvia.     executor   {"query": "Port Ruvia height"}
               Context: Port Ruvia height                          verifier   {"analysis": "More is needed.", ...}
               Sub-Goal: search                                    generator  <answer>327</answer>
               Tool Name: local_search

The planner alone errs: in clumsy transcripts its decisions are random. The executor copies, the verifier stops where
the plan has no step left, the generator answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from pydantic import Field

from midstream.agents.stream_policy import Stream
from midstream.components.component import ComponentConfig, Context, EngineConfig
from midstream.core.agent import ModuleContext
from midstream.core.engine import Engine, Request
from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.stream import POLICY, blocks
from midstream.core.stream_template import Template
from midstream.core.trajectory import Call
from midstream_worlds.atlas.questions import ATTRIBUTES, SIGNS, UNKNOWN
from midstream_worlds.atlas.rules import rules_in
from midstream_worlds.atlas.tasks import Atlas

ARGUMENTS = {"local_search": "query", "python": "code"}
DEEDS = {"+": "add", "-": "subtract", "*": "multiply", ">": "compare"}
SPOKEN = {"True": "yes", "False": "no"}
_STOPS = 0.5  # probability that a random decision about the next step is to leave it out


class AtlasTeacher:
    """Writes each reply from the question and the results so far."""

    def __init__(self, config: AtlasTeacherConfig, world: Atlas) -> None:
        self.config, self.world = config, world

    async def reply(self, stream: Stream, context: ModuleContext) -> Call:
        """Write a thought, and a call or the answer. Raises `RecipeError` for a question that is not the atlas's."""
        question = next(message.content for message in stream.messages if message.role == "user")
        if question not in self.world.asked:
            raise foreign(question)
        found = blocks(stream.pieces, stream.template)
        plan = Plan(
            self.world,
            question,
            tools=[json.loads(block.body)["name"] for block in found if block.kind == "call"],
            results=[block.body.strip() for block in found if block.kind == "output" and not block.sampled],
            lessons=context.lessons,
        )
        step = plan.next_step(Random(context.seed), self.config.clumsiness(question, context.order))
        return Call(
            role=POLICY,
            engine="atlas_agent",
            messages=stream.messages,
            completion=_written(step, stream.template),
            finish_reason="stop",
        )


def foreign(question: str) -> RecipeError:
    """The error for a question that the atlas did not make."""
    return RecipeError(
        f"the teacher of the atlas got the question {question[:100]!r}, which the atlas did not make",
        code="foreign-prompt",
        fix="give the policy a model, or ask questions of the atlas",
    )


def _written(step: Step, template: Template) -> str:
    """A step as an interleaved policy writes it."""
    think, call, text = template.think, template.call, step.text
    if step.tool:
        body = {"name": step.tool, "arguments": {ARGUMENTS[step.tool]: text}}
        text = f"{call.open}{json.dumps(body, ensure_ascii=False)}{call.close}"
    return f"{think.open}{step.thought}{think.close}{text}" if think else text


class Step(NamedTuple):
    """A thought, and the tool with its one argument; or without a tool the answer."""

    thought: str
    tool: str
    text: str


class Plan:
    """What a question asks for, and how far the calls of `tools` with these `results` have come."""

    def __init__(
        self, world: Atlas, question: str, *, tools: Sequence[str], results: Sequence[str], lessons: str = ""
    ) -> None:
        self.asked = world.asked[question]
        self.rule, self.rule_text = rules_in(lessons).get(self.asked.attribute, (None, ""))
        self.lessons = lessons
        # In the order of the question, which is the easiest to copy. It changes no answer: sums and `abs` take
        # either order, and questions that compare name the places in theirs.
        self.places = sorted(self.asked.places, key=question.index)
        self.numbers = re.findall(r"\d+", question)
        self.searches, self.calculated = tools.count("local_search"), "python" in tools
        self.values = [world.stated[result] for result in results if result in world.stated]
        self.failed = len(self.values) < self.searches
        if self.calculated:
            self.values.append(results[-1])

    def next_step(self, draws: Random, clumsy: float = 0.0) -> Step:
        """The next step of the shortest plan; each decision is random with probability `clumsy`."""
        asked = self.asked
        # Named first, next to the question: a small model learns slowly which of many wordings ask for which operation
        # if it has to say so only after the searches, in one word of seventy. It is right in clumsy transcripts too.
        task = "" if self.searches or self.calculated else f"Task: {DEEDS.get(asked.sign, 'find')}. "
        # Of two values each is noted under a word of its own, by which the calculation finds it again.
        noted = self.searches and self.values and not self.calculated and len(self.places) == 2
        note = f"{'First' if self.searches == 1 else 'Second'}: {self.values[-1]}. " if noted else ""

        def bad() -> bool:
            return draws.random() < clumsy

        def leaves_out() -> bool:
            return bad() and bool(self.values) and draws.random() < _STOPS

        if self.failed:
            return Step("I found nothing.", "", UNKNOWN)
        needed = 2 if asked.relation else len(asked.places)
        if self.searches < needed and not self.calculated and not leaves_out():
            attribute, place = self._target()
            if bad():
                attribute = draws.choice(ATTRIBUTES)
            if bad():
                place = draws.choice([*asked.places, place])
            return Step(task + note + self._need(attribute, place), "local_search", f"{place} {attribute}")
        found = [value for value in self.values if value.isdigit()]
        rule, said = self.rule, note
        if self.lessons and asked.attribute and not self.calculated:
            if rule and bad():
                rule = None
            said += f"Rule: {self.rule_text if rule else f'{asked.attribute.capitalize()} as found'}. "
        if asked.sign and not self.calculated and not leaves_out():
            sign = draws.choice(tuple(DEEDS)) if bad() else asked.sign
            terms = [*((f"({rule.code(value)})" if rule else value) for value in found), *self.numbers] or ["0"]
            x, y = draws.choices(terms, k=2) if bad() else (terms[0], terms[-1])
            code = f"abs({x} - {y})" if sign == "-" else f"{x} {sign} {y}"
            return Step(f"{task}{said}Now I {DEEDS[sign]}.", "python", code)
        if rule and found and not self.calculated:
            return Step(f"{said}Now I {DEEDS[SIGNS[rule.word]]}.", "python", rule.code(found[-1]))
        value = self.values[-1]
        return Step(f"{said}I can answer.", "", SPOKEN.get(value, value))

    def _target(self) -> tuple[str, str]:
        """Attribute and place of the next search of the shortest plan."""
        asked = self.asked
        if not asked.relation:
            return asked.attribute, self.places[self.searches]
        if not self.searches:
            return asked.relation, asked.places[0]
        names = [value for value in self.values if not value.isdigit()]  # a clumsy first search may have found none
        return asked.attribute, names[-1] if names else asked.places[0]

    def _need(self, attribute: str, place: str) -> str:
        """The thought before a search; that before the first one names the second too.

        A model that copies looks for what followed the same words before. So the second place stands after words of its
        own ("that of"); after "the height of" the model would find the first place again.
        """
        asked, first = self.asked, not self.searches
        if len(self.places) == 2 and not first:
            return f"Now that of {place}: {attribute}."
        if len(self.places) == 2:
            return f"I need the {attribute} of {place}, then that of {self.places[1]}."
        then = f", then its {asked.attribute}" if asked.relation and first else ""
        return f"I need the {attribute} of {place}{then}."


class AtlasTeacherConfig(ComponentConfig):
    """Settings of the teacher of the atlas.

    Attributes:
        share: the share of its transcripts that are clumsy
        clumsy: in those, the probability that a decision is random
    """

    teaches = "model"

    share: float = Field(default=0.5, ge=0, le=1)
    clumsy: float = Field(default=0.3, ge=0, le=1)

    @property
    def needs_world(self) -> bool:
        """It knows what the questions ask for."""
        return True

    def clumsiness(self, question: str, order: int) -> float:
        """The probability of a random decision: a transcript is clumsy or sound as a whole."""
        return self.clumsy if Random(derive_seed("clumsy", question, order)).random() < self.share else 0.0

    def check_template(self, template: Template) -> None:
        """Refuse a template with other calls or answers than the teacher can write."""
        if template.body != "json" or template.appends != "message" or "{tool}" in template.call.open:
            raise RecipeError(
                f"the teacher of the atlas cannot write the template {template.name!r}",
                code="template-mismatch",
                fix='set agent.template = "native"',
            )

    def build(self, context: Context) -> Any:
        """Build it."""
        if context.template is not None:
            self.check_template(context.template)
        assert isinstance(context.source, Atlas)  # the recipe's check has seen to it
        return AtlasTeacher(self, context.source)


SUB_GOALS = {"local_search": "search", "python": "calculate"}


class AtlasModules(Engine):
    """Reads question, memory or action from a module's prompt, whatever its other words are."""

    token_exact = False

    def __init__(self, config: AtlasModulesConfig, world: Atlas, name: str) -> None:
        self.config, self.world, self.name = config, world, name

    async def sample(self, request: Request) -> Call:
        """Reply in the format of the module that asks. Raises `RecipeError` for a question that is not the atlas's."""
        prompt = next(message.content for message in request.messages if message.role == "user")
        lines = prompt.splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        if request.role == "executor":
            text = _json({ARGUMENTS[records[0]["tool"]]: records[0].get("context", "")})
        else:
            text = self._planned(request, lines, records)
        return Call(
            role=request.role, engine=self.name, messages=request.messages, completion=text, finish_reason="stop"
        )

    def _planned(self, request: Request, lines: list[str], records: list[dict[str, Any]]) -> str:
        """The reply of a module that sees the question and the memory."""
        question = next((line for line in lines if line in self.world.asked), None)
        if question is None:
            raise foreign(" ".join(lines))
        plan = Plan(
            self.world,
            question,
            tools=[record["action"].get("tool", "") for record in records],
            results=[record.get("result") or record.get("error", "") for record in records],
        )
        step = plan.next_step(Random(request.seed))
        if request.role == "verifier":
            analysis = "More is needed." if step.tool else "All is known."
            valid = "error" not in records[-1]
            return _json({"analysis": analysis, "result_valid": valid, "memory_sufficient": not step.tool})
        if request.role == "generator":
            answer = (plan.values or [UNKNOWN])[-1] if step.tool else step.text  # the plan was cut short
            return f"<answer>{answer}</answer>"
        if not step.tool:  # the verifier did not see that all is known
            action = records[-1]["action"]
            step = Step("I check the result.", action["tool"], action["context"])
        clumsy = plan.next_step(Random(request.seed), self.config.clumsiness(question, request.order))
        step = clumsy if clumsy.tool else step  # whether to answer is the verifier's decision
        return (
            f"Justification: {step.thought}\nContext: {step.text}\nSub-Goal: {SUB_GOALS[step.tool]}\n"
            f"Tool Name: {step.tool}"
        )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


class AtlasModulesConfig(AtlasTeacherConfig, EngineConfig):
    """Settings of the teacher of the atlas as AgentFlow's four modules: those of its stream."""

    teaches = "prompted"

    def build(self, context: Context) -> AtlasModules:
        """Build it."""
        assert isinstance(context.source, Atlas)  # the recipe's check has seen to it
        return AtlasModules(self, context.source, context.name)
