"""The reflector: a model in three roles, which reads rollouts and proposes operations on the lesson set.

summariser  one rollout: what was done at each step, where it went right or wrong
critic      one group: the summaries with their rewards, the lesson set, the question, the answer if it may be seen
merger      one batch: the groups' operations into one list without repetition or contradiction

Each role's prompt is a file (`prompts/`), laid out so that requests share a prefix: instructions, then the lesson set,
then the question, then what differs. Its reply is JSON, which is checked (`replies.py`); one that cannot be used is
requested again with what was wrong. What stays unusable is on record, never dropped silently.

A request has a key that depends on its content and not on its time, and its answer is in the ledger before anything
else uses it: a resumed run repeats no request, and the order in which answers arrive has no effect.

The values in its prompts cannot forge structure: material from others stands as JSON. The transcript of a rollout, as
the summariser reads it, is one line of JSON a turn, the end last:

    {"turn":1,"planner":"Justification: ...","tool":"search","command":{"query":"Amberbank"},"result":"height 105"}
    {"answer":"112","stop_reason":"verified","reward":1.0}

It never holds the gold answer. What models and tools wrote is in JSON strings without any chat-template token or line
break, so a rollout can forge neither another turn nor a reward.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from pydantic import JsonValue

from midstream.agents.rendering import PromptTemplate
from midstream.core.data import mapped
from midstream.core.engine import Engine, Request
from midstream.core.seeds import derive_seed
from midstream.core.stream import POLICY
from midstream.core.text import neutral, spoken, to_json
from midstream.core.texts import kind_of
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.core.trajectory import Call, Message, Trajectory, Turn
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonOrigin, LessonSet, size
from midstream.lessons.operations import Operation
from midstream.lessons.replies import Merged, ParsedReply, Proposals, read_operations, read_summary
from midstream.lessons.settings import ASKS, LESSON_TOKENS, ROLES, LessonsConfig
from midstream.rollout import Group

T = TypeVar("T")
Read = Callable[[str, bool], ParsedReply[T]]  # a reply, and whether to accept JSON that is almost JSON

_QUOTED = 300  # characters of an unusable reply in a report; the ledger has all of it
_RULES = ("words", "modules", "changes", "module", "lessons", "question")
_LAYOUTS = {
    "summarise": ("question", "answer", "rollout"),  # words: allow
    "contrast": (*_RULES, "answer", "rollouts"),
    "write": _RULES,
    "merge": ("words", "modules", "module", "lessons", "proposals"),
}


class RoleCall(NamedTuple):
    """Purpose of a request: the role that answers it, the update, the task, the rollout's place in its group."""

    role: str
    step: int
    task: str = ""
    rollout: int | str = ""

    @property
    def name(self) -> str:
        """The name in records."""
        task = f", task {self.task}" if self.task else ""
        return f"{self.role}{task}" + (f", rollout {self.rollout}" if self.rollout != "" else "")


class Reflector:
    """The three roles; `engines` are keyed by their names. It holds no state except what the ledger keeps.

    The `step` of its methods is the number of the update. They raise `EngineError` once an engine's own retries failed.
    A prompt file that cannot be used raises `RecipeError`.
    """

    def __init__(self, config: LessonsConfig, engines: Mapping[str, Engine], ledger: Ledger, seed: int) -> None:
        self.config = config
        self._engines, self._ledger, self._seed = engines, ledger, seed
        critic = "contrast" if config.lessons_from == "rollouts" else "write"
        self._prompts = {
            role: PromptTemplate(name, _LAYOUTS[name], config.role(role).prompt_file, package="midstream.lessons")
            for role, name in zip(ROLES, ("summarise", critic, "merge"), strict=True)  # words: allow
        }

    async def summarize(self, step: int, question: str, trajectory: Trajectory, answer: str | None) -> ParsedReply[str]:
        """Summarize one rollout. `answer` is the gold one, None where no role may see it."""
        values = {
            "question": to_json(question),
            "answer": about_answer(answer, self.config.truth),
            "rollout": transcript(trajectory),
        }
        purpose = RoleCall("summariser", step, trajectory.task_id, trajectory.rollout_index)
        return await self.ask(purpose, self._prompts["summariser"].messages(values), read_summary)

    async def contrast(
        self, step: int, group: Group, summaries: Sequence[str | None], lesson_set: LessonSet, answer: str | None
    ) -> ParsedReply[list[Operation]]:
        """The semantic advantage of one group. A rollout without a summary is shown by its reward and its answer.

        With `lessons_from = "model"` the critic sees the question alone, without any rollout: a control.
        """
        values = {"question": to_json(group.task.question)}
        if self.config.lessons_from == "rollouts":
            values["answer"] = about_answer(answer, self.config.truth)
            values["rollouts"] = about_rollouts(group.trajectories, summaries)
        messages = self._prompts["critic"].messages(self._values(lesson_set, values))
        reply = await self.ask(RoleCall("critic", step, group.task.id), messages, read_operations)
        if reply.value is None:
            return ParsedReply(flaws=reply.flaws)
        ids = tuple(trajectory.id for trajectory in group.trajectories)
        origin = LessonOrigin(update=step, tasks=(group.task.id,), trajectories=ids, model=reply.model)
        operations = [
            change.operation(origin.model_copy(update={"why": change.why}), self.config.modules)
            for change in reply.value
        ]
        return ParsedReply(value=operations, flaws=reply.flaws)

    async def merge(self, step: int, proposals: Proposals, lesson_set: LessonSet) -> ParsedReply[Merged]:
        """Merge one batch's operations."""
        messages = self._prompts["merger"].messages(self._values(lesson_set, {"proposals": proposals.shown()}))
        answer = await self.ask(RoleCall("merger", step), messages, read_operations)
        merged = None if answer.value is None else proposals.merged(answer.value, self.config.modules, answer.model)
        return ParsedReply(value=merged, flaws=answer.flaws)

    def _values(self, lesson_set: LessonSet, values: Mapping[str, str]) -> dict[str, str]:
        text = about_lessons(lesson_set, self.config.limits.max_tokens)
        return {**about_run(self.config), "lessons": text, **values}

    async def ask(self, purpose: RoleCall, messages: tuple[Message, ...], read: Read[T]) -> ParsedReply[T]:
        """Ask a role until a reply can be used, `ASKS` times at most; the last reply may be repaired.

        Returns the reading of the last reply. Its flaws, for the record, begin with the request's name; where no reply
        could be used, the flaw is the last one. Raises `EngineError` if the engine failed, after its own retries.
        """
        call = Call(role=purpose.role)
        reading: ParsedReply[T] = ParsedReply()
        for number in range(1, ASKS + 1):
            request = Request(
                role=purpose.role,
                messages=messages,
                sampling=self.config.role(purpose.role).sampling,
                seed=derive_seed(self._seed, *purpose, number),
            )
            call = await self._answer(purpose, request)
            reading = read(call.completion, False)
            if reading.value is None and call.finish_reason == "length":
                # Not repaired: more than punctuation is missing.
                problem = f"it was cut off after max_tokens = {call.sampling.max_tokens}: write less"
                reading = ParsedReply(problem=problem)
            elif reading.value is None and number == ASKS:
                # Only now: a model repairs its own JSON first.
                repaired = read(call.completion, True)
                reading = reading if repaired.value is None else repaired
            if reading.value is not None:
                flaws = tuple(f"{purpose.name}: {flaw}" for flaw in reading.flaws)
                # The server's name for the model, where it has one.
                model = str(call.sent.get("model", call.engine))
                return ParsedReply(value=reading.value, flaws=flaws, model=model)
            # Show the unusable reply without its thoughts, and what was wrong with it.
            reply = neutral(spoken(call.completion).strip()) or "(no text)"
            advice = f"This reply cannot be used: {reading.problem}. "
            advice += "Reply again in the form asked for, and with nothing else."
            correction = Message(role="user", content=neutral(advice))
            messages = (*messages, Message(role="assistant", content=reply), correction)
        text = " ".join(spoken(call.completion).encode("utf-8", "replace").decode().split())
        quoted = f"{text[:_QUOTED]}..." if len(text) > _QUOTED else text or "(no text)"
        lost = f"{purpose.name}: no usable reply when asked {ASKS} times: {reading.problem}: {quoted}"
        return ParsedReply(problem=reading.problem, flaws=(lost,))

    async def _answer(self, purpose: RoleCall, request: Request) -> Call:
        """The answer in the ledger, or a new one, which is in the ledger before it is used."""
        engine = self._engines[purpose.role]
        messages = [message.wire() for message in request.messages]
        content = [engine.name, messages, request.sampling.model_dump(), request.seed]
        text = json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass")
        # The key holds the content, so that a resumed run whose prompts have changed asks again.
        key = "/".join([*map(str, purpose), hashlib.blake2b(text, digest_size=16).hexdigest()])
        calls = self._ledger.reply(key)
        if calls is None:
            calls = (await engine.sample(request),)
            self._ledger.keep_reply(key, calls)
        return calls[-1]


# Of English text with its space: models follow a limit in words better than one in tokens.
_CHARACTERS_PER_WORD = 6
_MODULES = {
    "planner": "decides in each turn which step and which tool come next, and what "
    "the tool is to be told",  # words: allow
    "executor": "writes the call of the chosen tool; it sees the step's sub-goal and context alone, not the question",
    "verifier": "judges each result, and whether what is known suffices to answer",
    "generator": "writes the final answer from what was found",
}
_NOT_KNOWN = {  # by `lessons.truth`
    "majority": "not known: a reward of 1 means that the answer is the one that most rollouts gave",
    "none": "not known, and nothing is graded: every reward is null. Judge from the rollouts alone which decisions "
    "were right: what was checked, what the evidence says, where rollouts agree and where they contradict each other.",
}
_LONGEST = 40_000  # characters of a whole transcript: about 10,000 tokens
_FEEDBACK = 1_000  # characters of a reward's feedback
_TEXT, _LEAST_TEXT = 4_000, 250  # characters of one text in it: at first, and where the whole would be too long


def about_run(config: LessonsConfig) -> dict[str, str]:
    """The values that are equal in every prompt of a run: the length of a lesson, and the modules that may have one."""
    places = [name for name in config.modules if kind_of(name) == "lesson"]
    lines = [f"  - {name}: {_MODULES[name]}" if name in _MODULES else f"  - {name}" for name in places]
    lines += [
        f"  - {name}: not a lesson but the whole text there, of any length: modify it by its id, and keep every "
        "{{name}} in it"
        for name in config.modules
        if kind_of(name) == "text"
    ]
    return {
        "words": str(_words(LESSON_TOKENS)),
        "modules": neutral("\n".join(lines)),
        "module": (*places, *config.modules)[0],
        "changes": str(config.changes_per_group),
    }


def about_lessons(lesson_set: LessonSet, max_tokens: int) -> str:
    """One line of JSON a lesson, and how much more the lesson set may hold."""
    lines = []
    for lesson in lesson_set.lessons:
        shown = {"id": lesson.id, "module": lesson.module, "text": lesson.text}
        lines.append(to_json(shown if lesson.state == "active" else {**shown, "state": lesson.state}))
    if not lesson_set.lessons:
        lines.append("(no lesson yet)")
    left = max_tokens - size(lesson_set)
    lines.append(f"There is room for about {_words(left)} words more." if left > 0 else "It is full: add nothing.")
    return "\n".join(lines)


def about_answer(answer: str | None, truth: str) -> str:
    """The gold answer, or what a reward means where no role may see it."""
    shown = _NOT_KNOWN["none" if truth == "none" else "majority"] if answer is None else to_json(answer)
    return f"# Gold answer\n\n{shown}\n\n"


def about_rollouts(trajectories: Sequence[Trajectory], summaries: Sequence[str | None]) -> str:
    """One line of JSON a rollout, numbered from 1; one without a summary still has its reward and its answer."""
    lines = []
    for number, (trajectory, summary) in enumerate(zip(trajectories, summaries, strict=True), 1):
        shown = {"rollout": number, **_score(trajectory), "answer": trajectory.answer, "summary": summary}
        lines.append(to_json(shown))
    return "\n".join(lines)


def _score(trajectory: Trajectory) -> dict[str, JsonValue]:
    """The reward, and what it says about the answer, if it does."""
    score = trajectory.reward
    reward: dict[str, JsonValue] = {"reward": round(score.value, 4) if score else None}
    return reward | ({"feedback": _cut_texts(score.feedback, _FEEDBACK)} if score and score.feedback else {})


def _words(tokens: int) -> int:
    """Estimate how many words so many tokens are."""
    return max(1, tokens * CHARACTERS_PER_TOKEN // _CHARACTERS_PER_WORD)


def transcript(trajectory: Trajectory) -> str:
    """Turns, answer, stop reason, reward, feedback; long texts are cut, shorter if all has over 40,000 characters."""
    limit = _TEXT
    last = {call.role: spoken(call.completion) for call in trajectory.closing_calls if call.role == POLICY}
    end = last | {"answer": trajectory.answer, "stop_reason": trajectory.stop_reason} | _score(trajectory)
    while True:
        lines = [to_json(_cut_texts(_turn(turn), limit)) for turn in trajectory.turns]
        lines.append(to_json(_cut_texts(end, limit)))
        text = "\n".join(lines)
        if len(text) <= _LONGEST or limit == _LEAST_TEXT:
            return text
        limit = max(limit // 2, _LEAST_TEXT)


def _turn(turn: Turn) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {"turn": turn.index}
    action, command, observation, verdict = turn.action, turn.command, turn.observation, turn.verdict
    # An agent without actions has only its replies.
    if action is None:
        shown["said"] = [spoken(call.completion) for call in turn.calls]
    else:
        # The decision in the words of the planner or the policy where it is a model.
        said = {call.role: spoken(call.completion) for call in turn.calls if call.role in ("planner", POLICY)}
        shown |= said or {"sub_goal": action.sub_goal, "context": action.context}
        shown |= {"malformed": action.error} if action.error else {"tool": action.tool}
    if command is not None:
        shown["command"] = dict(command.arguments) if command.code is None else command.code
        if command.error:
            shown["invalid"] = command.error
    if observation is not None:
        calls: list[JsonValue] = [
            {"tool": call.tool, "arguments": dict(call.arguments), "status": call.status, "result": call.text}
            for call in observation.tool_calls
        ]
        if calls:
            shown["tool_calls"] = calls
        shown["result" if observation.status == "ok" else "error"] = observation.text
    if verdict is not None:
        shown["verdict"] = {"signal": verdict.signal, "valid": verdict.result_valid, "analysis": verdict.analysis}
    return shown


def _cut_texts(value: JsonValue, limit: int) -> JsonValue:
    """`value` with every text in it at most `limit` characters long, with a note of what is left out."""

    def cut(leaf: JsonValue) -> JsonValue:
        if not isinstance(leaf, str) or len(leaf) <= limit:
            return leaf
        return f"{leaf[: limit // 2]} [cut: {len(leaf) - limit} characters] {leaf[-(limit // 2) :]}"

    return mapped(value, cut)
