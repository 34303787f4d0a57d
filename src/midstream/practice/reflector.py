"""Asking a role of the reflector until its reply can be used, and never twice for the same.

Every request has a key that depends on what is asked and not on when, and its answer is in the ledger before anything
else uses it: a run that goes on asks nothing again, and the order in which answers arrive changes nothing.


The reflector: a model in three roles, which reads rollouts and proposes operations on the library.

summariser  one rollout: what was done at each step, where it went right or wrong
critic      one group: the summaries with their rewards, the library, the question, the answer if it may be seen
merger      one batch: the groups' operations into one list without repetition or contradiction

Each role's prompt is a file (`prompts/`), laid out for sharing: instructions, then the library, then the question, then
what differs between requests. Its reply is JSON that is checked against a form (`replies.py`); one that cannot be used
is asked for again with what was wrong (`asking.py`). What stays unusable is reported, never dropped in silence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from midstream.agents.rendering import PromptTemplate
from midstream.core.errors import RecipeError
from midstream.core.prompt_text import neutral, to_json
from midstream.core.protocols import Engine, Request
from midstream.core.replies import spoken
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Call, Message, Trajectory
from midstream.practice.ledger import Ledger
from midstream.practice.library import Library, Origin
from midstream.practice.operations import Operation
from midstream.practice.replies import (
    MERGE_SCHEMA,
    OPERATIONS_SCHEMA,
    SUMMARY_SCHEMA,
    Merged,
    Proposals,
    Reading,
    read_operations,
    read_summary,
)
from midstream.practice.role_prompts import about_answer, about_library, about_rollouts, about_run, transcript
from midstream.practice.settings import PracticeConfig, RoleConfig
from midstream.rollout import Group

T = TypeVar("T")
ROLES = ("summariser", "critic", "merger")
_QUOTED = 300  # characters of an unusable reply in a report; the ledger has all of it
_RULES = ("words", "modules", "changes", "module", "library", "question")
_LAYOUTS = {
    "summarise": ("question", "answer", "rollout"),
    "contrast": (*_RULES, "answer", "rollouts"),
    "write": _RULES,
    "merge": ("words", "modules", "module", "library", "proposals"),
}


class Read(Protocol[T]):
    """A reader of `replies.py`."""

    def __call__(self, reply: str, *, repair: bool = False) -> Reading[T]:
        """What a reply comes to; `repair` mends JSON that is almost JSON."""
        ...


class Work(NamedTuple):
    """What a request is for: the role that answers it, the update, the task, the rollout's place in its group."""

    role: str
    step: int
    task: str = ""
    rollout: int | str = ""

    @property
    def name(self) -> str:
        """As reports say it."""
        task = f", task {self.task}" if self.task else ""
        return f"{self.role}{task}" + (f", rollout {self.rollout}" if self.rollout != "" else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered(Generic[T]):
    """A role's answer, None where no reply could be used. `unreadable` says what was lost, `model` who answered."""

    value: T | None
    unreadable: tuple[str, ...] = ()
    model: str = ""


class RoleClient:
    """Asks roles; `engines` go by their names."""

    def __init__(self, config: PracticeConfig, engines: Mapping[str, Engine], ledger: Ledger, seed: int) -> None:
        self._config, self._engines, self._ledger, self._seed = config, engines, ledger, seed

    def config(self, role: str) -> RoleConfig:
        """The role's own settings, or those of the reflector for all."""
        own = {"summariser": self._config.summariser, "critic": self._config.critic, "merger": self._config.merger}
        return own[role] or self._config.reflector

    async def ask(
        self, work: Work, messages: tuple[Message, ...], read: Read[T], schema: Mapping[str, Any]
    ) -> Answered[T]:
        """Ask as often as the role may until a reply can be used; after the last, JSON that is almost JSON is mended.

        Raises whatever the engine raises once its own retries are spent.
        """
        config = self.config(work.role)
        number, call = 0, Call(role=work.role)
        found: Reading[T] = Reading()
        while found.value is None and number < config.asks:
            if number:
                messages = (*messages, *_correction(call.completion, found.problem))
            number += 1
            request = Request(
                role=work.role,
                messages=messages,
                sampling=config.sampling,
                seed=derive_seed(self._seed, *work, number),
                json_schema=schema if config.structured_output else None,
            )
            call = await self._call(work, request)
            found = _reading(call, read, repair=number == config.asks)
        if found.value is None:
            asked = "when asked once" if number == 1 else f"when asked {number} times"
            lost = f"no usable reply {asked}: {found.problem}: {_quoted(call.completion)}"
            return Answered(value=None, unreadable=(f"{work.name}: {lost}",))
        flaws = tuple(f"{work.name}: {flaw}" for flaw in found.flaws)
        return Answered(value=found.value, unreadable=flaws, model=_model(call))

    async def _call(self, work: Work, request: Request) -> Call:
        """The answer that the ledger has, or a new one, which it has before it is used."""
        engine = self._engine(work.role)
        key = "/".join([*map(str, work), _hash(engine.name, request)])
        kept = self._ledger.reply(key)
        if kept is None:
            kept = (await engine.sample(request),)
            self._ledger.keep_reply(key, kept)
        return kept[-1]

    def _engine(self, role: str) -> Engine:
        if role not in self._engines:
            raise RecipeError(f"the {role} has no engine", fix=f"name one in practice.{role} or practice.reflector")
        return self._engines[role]


def _reading(call: Call, read: Read[T], *, repair: bool) -> Reading[T]:
    """What a reply comes to. One that was cut off is not mended: what is missing is more than punctuation."""
    found, cut = read(call.completion), call.finish_reason == "length"
    if found.value is None and cut:
        return Reading(problem=f"it was cut off after max_tokens = {call.sampling.max_tokens}: write less")
    if found.value is None and repair:
        mended = read(call.completion, repair=True)
        return found if mended.value is None else mended
    return found


def _correction(completion: str, problem: str) -> tuple[Message, Message]:
    """The unusable reply without its thoughts, and what was wrong with it."""
    said = neutral(spoken(completion).strip()) or "(no text)"
    advice = f"This reply cannot be used: {problem}. Reply again in the form asked for, and with nothing else."
    return Message(role="assistant", content=said), Message(role="user", content=neutral(advice))


def _hash(engine: str, request: Request) -> str:
    """A name of exactly this request."""
    said = [message.model_dump() for message in request.messages]
    asked = [engine, said, request.sampling.model_dump(), request.seed, request.json_schema]
    return hashlib.blake2b(
        json.dumps(asked, sort_keys=True).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def _model(call: Call) -> str:
    """The model that answered, by the server's name for it where it has one."""
    return str(call.sent.get("model", call.engine))


def _quoted(text: str) -> str:
    """What a reply said, on one line."""
    said = " ".join(spoken(text).encode("utf-8", "replace").decode().split())
    return f"{said[:_QUOTED]}..." if len(said) > _QUOTED else said or "(no text)"


class Reflector:
    """The three roles; `engines` go by their names. It holds no state but what the ledger keeps.

    `RecipeError` for a prompt file that cannot be used. Its methods raise whatever the engines raise once their own
    retries are spent; a `step` is the number of the update.
    """

    def __init__(self, config: PracticeConfig, engines: Mapping[str, Engine], ledger: Ledger, seed: int) -> None:
        self.config = config
        self._client = RoleClient(config, engines, ledger, seed)
        self._summariser = self._template("summariser", "summarise")
        self._critic = self._template("critic", "contrast" if config.lessons_from == "rollouts" else "write")
        self._merger = self._template("merger", "merge")

    async def summarise(self, step: int, question: str, trajectory: Trajectory, answer: str | None) -> Answered[str]:
        """What happened in one rollout. `answer` is the gold one, None where no role may see it."""
        values = {"question": to_json(question), "answer": about_answer(answer), "rollout": transcript(trajectory)}
        work = Work("summariser", step, trajectory.task_id, trajectory.rollout_index)
        return await self._client.ask(work, self._summariser.messages(values), read_summary, SUMMARY_SCHEMA)

    async def contrast(
        self, step: int, group: Group, summaries: Sequence[str | None], library: Library, answer: str | None
    ) -> Answered[list[Operation]]:
        """The semantic advantage of one group. Of a rollout without a summary the reward and the answer are shown."""
        shown = {"answer": about_answer(answer), "rollouts": about_rollouts(group.trajectories, summaries)}
        origin = Origin(update=step, tasks=(group.task.id,), trajectories=tuple(one.id for one in group.trajectories))
        return await self._operations(origin, library, {"question": to_json(group.task.question), **shown})

    async def write(self, step: int, task_id: str, question: str, library: Library) -> Answered[list[Operation]]:
        """Lessons from a question alone, without any rollout: a control."""
        return await self._operations(Origin(update=step, tasks=(task_id,)), library, {"question": to_json(question)})

    async def merge(self, step: int, proposals: Proposals, library: Library) -> Answered[Merged]:
        """One batch's operations made one."""
        values = self._values(library, {"proposals": proposals.shown()})
        work = Work("merger", step)
        said = await self._client.ask(work, self._merger.messages(values), read_operations, MERGE_SCHEMA)
        merged = None if said.value is None else proposals.merged(said.value, self.config.modules, said.model)
        return Answered(value=merged, unreadable=said.unreadable, model=said.model)

    async def _operations(
        self, origin: Origin, library: Library, shown: Mapping[str, str]
    ) -> Answered[list[Operation]]:
        """Ask the critic about one task, and note of each operation where it came from."""
        work, messages = (
            Work("critic", origin.update, *origin.tasks),
            self._critic.messages(self._values(library, shown)),
        )
        said = await self._client.ask(work, messages, read_operations, OPERATIONS_SCHEMA)
        if said.value is None:
            return Answered(value=None, unreadable=said.unreadable)
        operations = [
            change.operation(origin.model_copy(update={"model": said.model, "why": change.why}), self.config.modules)
            for change in said.value
        ]
        return Answered(value=operations, unreadable=said.unreadable, model=said.model)

    def _values(self, library: Library, shown: Mapping[str, str]) -> dict[str, str]:
        text = about_library(library, self.config.library.max_tokens)
        return {**about_run(self.config), "library": text, **shown}

    def _template(self, role: str, prompt: str) -> PromptTemplate:
        override = self._client.config(role).prompt_file
        return PromptTemplate(prompt, _LAYOUTS[prompt], override, package="midstream.practice")
