"""The reflector: a model in three roles, which reads rollouts and proposes operations on the library.

summariser  one rollout: what was done at each step, where it went right or wrong
critic      one group: the summaries with their rewards, the library, the question, the answer if it may be seen
merger      one batch: the groups' operations into one list without repetition or contradiction

Each role's prompt is a file (`prompts/`), laid out so that requests share a prefix: instructions, then the library,
then the question, then what differs. Its reply is JSON that is checked against a schema (`replies.py`); one that cannot
be used is requested again with what was wrong. What stays unusable is on record, never dropped silently.

A request has a key that depends on its content and not on its time, and its answer is in the ledger before anything
else uses it: a resumed run repeats no request, and the order in which answers arrive has no effect.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from midstream.agents.rendering import PromptTemplate
from midstream.core.errors import RecipeError
from midstream.core.protocols import Engine, Request
from midstream.core.seeds import derive_seed
from midstream.core.text import neutral, spoken, to_json
from midstream.core.trajectory import Call, Message, Trajectory
from midstream.rollout import Group
from midstream.training_free.ledger import Ledger
from midstream.training_free.library import Library, Origin
from midstream.training_free.operations import Operation
from midstream.training_free.replies import (
    MERGE_SCHEMA,
    OPERATIONS_SCHEMA,
    SUMMARY_SCHEMA,
    Merged,
    Proposals,
    Reading,
    read_operations,
    read_summary,
)
from midstream.training_free.role_prompts import about_answer, about_library, about_rollouts, about_run, transcript
from midstream.training_free.settings import ROLES, PracticeConfig

T = TypeVar("T")
Read = Callable[[str, bool], Reading[T]]  # a reply, and whether to accept JSON that is almost JSON

_QUOTED = 300  # characters of an unusable reply in a report; the ledger has all of it
_RULES = ("words", "modules", "changes", "module", "library", "question")
_LAYOUTS = {
    "summarise": ("question", "answer", "rollout"),  # words: allow
    "contrast": (*_RULES, "answer", "rollouts"),
    "write": _RULES,
    "merge": ("words", "modules", "module", "library", "proposals"),
}


class RoleCall(NamedTuple):
    """What a request is for: the role that answers it, the update, the task, the rollout's place in its group."""

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

    def __init__(self, config: PracticeConfig, engines: Mapping[str, Engine], ledger: Ledger, seed: int) -> None:
        self.config = config
        self._engines, self._ledger, self._seed = engines, ledger, seed
        critic = "contrast" if config.lessons_from == "rollouts" else "write"
        self._prompts = {
            role: PromptTemplate(name, _LAYOUTS[name], config.role(role).prompt_file, package="midstream.training_free")
            for role, name in zip(ROLES, ("summarise", critic, "merge"), strict=True)  # words: allow
        }

    async def summarize(self, step: int, question: str, trajectory: Trajectory, answer: str | None) -> Reading[str]:
        """Summarize one rollout. `answer` is the gold one, None where no role may see it."""
        values = {
            "question": to_json(question),
            "answer": about_answer(answer, self.config.truth),
            "rollout": transcript(trajectory),
        }
        purpose = RoleCall("summariser", step, trajectory.task_id, trajectory.rollout_index)
        return await self.ask(purpose, self._prompts["summariser"].messages(values), read_summary, SUMMARY_SCHEMA)

    async def contrast(
        self, step: int, group: Group, summaries: Sequence[str | None], library: Library, answer: str | None
    ) -> Reading[list[Operation]]:
        """The semantic advantage of one group. A rollout without a summary is shown by its reward and its answer."""
        values = {
            "question": to_json(group.task.question),
            "answer": about_answer(answer, self.config.truth),
            "rollouts": about_rollouts(group.trajectories, summaries),
        }
        ids = tuple(trajectory.id for trajectory in group.trajectories)
        return await self._operations(Origin(update=step, tasks=(group.task.id,), trajectories=ids), library, values)

    async def write(self, step: int, task_id: str, question: str, library: Library) -> Reading[list[Operation]]:
        """Write lessons from a question alone, without any rollout: a control."""
        return await self._operations(Origin(update=step, tasks=(task_id,)), library, {"question": to_json(question)})

    async def merge(self, step: int, proposals: Proposals, library: Library) -> Reading[Merged]:
        """Merge one batch's operations."""
        messages = self._prompts["merger"].messages(self._values(library, {"proposals": proposals.shown()}))
        answer = await self.ask(RoleCall("merger", step), messages, read_operations, MERGE_SCHEMA)
        merged = None if answer.value is None else proposals.merged(answer.value, self.config.modules, answer.model)
        return Reading(value=merged, flaws=answer.flaws)

    async def _operations(
        self, origin: Origin, library: Library, values: Mapping[str, str]
    ) -> Reading[list[Operation]]:
        """Ask the critic about one task, and note the origin of each operation."""
        messages = self._prompts["critic"].messages(self._values(library, values))
        purpose = RoleCall("critic", origin.update, *origin.tasks)
        answer = await self.ask(purpose, messages, read_operations, OPERATIONS_SCHEMA)
        if answer.value is None:
            return Reading(flaws=answer.flaws)
        operations = [
            change.operation(origin.model_copy(update={"model": answer.model, "why": change.why}), self.config.modules)
            for change in answer.value
        ]
        return Reading(value=operations, flaws=answer.flaws)

    def _values(self, library: Library, values: Mapping[str, str]) -> dict[str, str]:
        text = about_library(library, self.config.library.max_tokens)
        return {**about_run(self.config), "library": text, **values}

    async def ask(
        self, purpose: RoleCall, messages: tuple[Message, ...], read: Read[T], schema: Mapping[str, Any]
    ) -> Reading[T]:
        """Ask a role until a reply can be used, as often as the role allows; the last reply may be repaired.

        Returns the reading of the last reply. Its flaws, for the record, begin with the request's name; where no reply
        could be used, the flaw is the last one. Raises `EngineError` if the engine failed, after its own retries.
        """
        config = self.config.role(purpose.role)
        number, call = 0, Call(role=purpose.role)
        reading: Reading[T] = Reading()
        while reading.value is None and number < config.asks:
            if number:
                # Show the unusable reply without its thoughts, and what was wrong with it.
                reply = neutral(spoken(call.completion).strip()) or "(no text)"
                advice = f"This reply cannot be used: {reading.problem}. "
                advice += "Reply again in the form asked for, and with nothing else."
                messages = (
                    *messages,
                    Message(role="assistant", content=reply),
                    Message(role="user", content=neutral(advice)),
                )
            number += 1
            request = Request(
                role=purpose.role,
                messages=messages,
                sampling=config.sampling,
                seed=derive_seed(self._seed, *purpose, number),
                json_schema=schema if config.structured_output else None,
            )
            call = await self._call(purpose, request)
            reading = read(call.completion, False)
            if reading.value is None and call.finish_reason == "length":
                # Not repaired: more than punctuation is missing.
                problem = f"it was cut off after max_tokens = {call.sampling.max_tokens}: write less"
                reading = Reading(problem=problem)
            elif reading.value is None and number == config.asks:
                repaired = read(call.completion, True)
                reading = reading if repaired.value is None else repaired
        if reading.value is None:
            text = " ".join(spoken(call.completion).encode("utf-8", "replace").decode().split())
            quoted = f"{text[:_QUOTED]}..." if len(text) > _QUOTED else text or "(no text)"
            asked = "when asked once" if number == 1 else f"when asked {number} times"
            lost = f"{purpose.name}: no usable reply {asked}: {reading.problem}: {quoted}"
            return Reading(problem=reading.problem, flaws=(lost,))
        flaws = tuple(f"{purpose.name}: {flaw}" for flaw in reading.flaws)
        # The server's name for the model, where it has one.
        return Reading(value=reading.value, flaws=flaws, model=str(call.sent.get("model", call.engine)))

    async def _call(self, purpose: RoleCall, request: Request) -> Call:
        """The answer in the ledger, or a new one, which is in the ledger before it is used."""
        engine = self._engines.get(purpose.role)
        if engine is None:
            raise RecipeError(
                f"the {purpose.role} has no engine",
                code="missing-key",
                fix=f"name one in practice.{purpose.role} or practice.reflector",
            )
        messages = [message.wire() for message in request.messages]
        content = [engine.name, messages, request.sampling.model_dump(), request.seed, request.json_schema]
        text = json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass")
        key = "/".join([*map(str, purpose), hashlib.blake2b(text, digest_size=16).hexdigest()])
        calls = self._ledger.reply(key)
        if calls is None:
            calls = (await engine.sample(request),)
            self._ledger.keep_reply(key, calls)
        return calls[-1]
