"""A language model as the judge of answers: any engine, a rubric, a verdict in JSON. Never used by default.

Source: arXiv 2510.05592 judges by GPT-4o in two steps, an analysis and then a verdict, for semantic, numeric and
option-level equivalence with the gold answer. The prompt is ours (`prompts/judge.md`, `prompts/rubric.md`).

The answer goes into the prompt as a JSON string in which no chat-template token can stand, and the verdict is read
from the judge's reply alone, which must be the JSON object and nothing else: no text of an answer, quoted or not, can
decide the verdict.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, JsonValue, model_validator

from midstream.components.component import Context, RewardConfig
from midstream.components.tables import parse_component
from midstream.core.answers import extract
from midstream.core.data import object_schema
from midstream.core.engine import Engine, Request
from midstream.core.errors import EngineError, RefusedError, RewardError
from midstream.core.seeds import derive_seed
from midstream.core.source import Reward
from midstream.core.task import Task
from midstream.core.text import fill, neutral, spoken, to_json
from midstream.core.text_file import shipped_prompt
from midstream.core.trajectory import Call, Message, Sampling, Score, Trajectory, Usage
from midstream.engines.cached import CachedEngine, ReplyFile
from midstream.rewards.rule import SingleFlight

ROLE = "judge"
# A reply that is no verdict is asked for once more.
ASKS = 2
SCHEMA = object_schema(analysis={"type": "string"}, correct={"type": "boolean"})
AGAIN = (
    "This is not the judgement. Reply again with one JSON object and nothing else: "
    '{"analysis": "...", "correct": true or false}'
)
# Whether the answer is correct, and the requests that led to it: two if one was unreadable.
Judged = tuple[bool, tuple[Call, ...]]
_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


class JudgeConfig(RewardConfig):
    """A language model as the judge of answers: any engine, a rubric, a verdict in JSON.

    Attributes:
        temperature: 0 is greedy; more than one vote needs more
        max_tokens: the most new tokens of a verdict
        votes: requests for each answer, an odd number; the majority decides
        rubric: replaces `src/midstream/rewards/prompts/rubric.md`
        structured_output: the server enforces the JSON schema; needs its support
        cache: a directory that keeps the judge's replies, and finds them, as `--cache` does of all served models
        rule: a type of rule-based reward that is computed too and reported; `""`: none
    """

    asks = "always"

    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=2048, ge=1)
    votes: int = Field(default=1, ge=1, le=99)
    rubric: str = ""
    structured_output: bool = False
    cache: Path | None = None
    rule: str = "per_task"

    @model_validator(mode="after")
    def _votes_can_differ(self) -> JudgeConfig:
        if self.votes % 2 == 0:
            raise ValueError(f"votes = {self.votes} may be a tie: choose an odd number")
        if self.votes > 1 and self.temperature == 0:
            raise ValueError(f"votes = {self.votes} at temperature 0 are the same vote again: raise the temperature")
        return self

    def build(self, context: Context) -> Judge:
        """Build it."""
        rule = context.reward(parse_component("reward", {"type": self.rule}, "reward.rule")) if self.rule else None
        assert context.engine is not None
        return Judge(self, context.engine, model=context.engine_identity, rule=rule)


class Judge:
    """1 if most of the judge's votes call the answer correct, else 0; no answer is 0, without a request.

    `parts`: "rule" is the rule-based score of the same answer, and with several votes "votes" and "votes_for" count
    them. `calls` are the requests, at no cost if the verdict was known already. Identical requests are made once.
    """

    judged = True

    def __init__(
        self,
        config: JudgeConfig,
        # Closed by its owner; not a lockstep engine, because a verdict is not a turn of a trajectory.
        engine: Engine,
        *,
        # What decides the replies besides the prompt: the model's name, and settings sent.
        model: Mapping[str, JsonValue],
        rule: Reward | None = None,
    ) -> None:
        self.name = f"judge ({model.get('model', engine.name)})"
        self._config, self._engine, self._rule = config, engine, rule
        self._model = dict(model) or {"model": engine.name}
        if config.cache:
            replies = ReplyFile(config.cache, setting="`cache` of the judge")
            self._engine = CachedEngine(engine, self._model, replies, keeps=lambda call: _verdict_of(call) is not None)
        self._sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens)
        self._rubric = config.rubric.strip() or shipped_prompt("midstream.rewards", "rubric").strip()
        self._system, self._user = shipped_prompt("midstream.rewards", "judge").split("<!-- user -->\n")
        self._flights: SingleFlight[Judged] = SingleFlight()

    def check(self, task: Task) -> None:
        """Accept any task that the rule accepts."""
        if self._rule:
            self._rule.check(task)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Request every vote, one after the other.

        Raises `RewardError` (`calls` hold the requests) if the engine failed, or gave no verdict when asked twice, and
        `StorageError` if the cache could not be read or written.
        """
        ruled = await self._rule.score(task, trajectory) if self._rule else None
        parts = {"rule": ruled.value} if ruled else {}
        answer = "" if trajectory.answer is None else extract(trajectory.answer)
        if not answer:
            return Score(value=0.0, parts=parts)
        # Rules first, which all requests share; then the question, and the answer last.
        rubric = task.metadata.get("rubric")
        values = {
            "rubric": self._rubric,
            "question": to_json(task.question),
            "gold": to_json(task.answers),
            "more": f"Rules for this question: {to_json(rubric)}\n" if rubric else "",
            "answer": to_json(answer),
        }
        system, user = fill(self._system, values), fill(self._user, values)
        messages = (Message(role="system", content=system.strip()), Message(role="user", content=user.strip()))
        calls, votes_for = tuple[Call, ...](), 0
        for vote in range(self._config.votes):
            try:
                (correct, asked), now = await self._vote(messages, vote)
            except RewardError as failure:
                failure.calls = (*calls, *failure.calls)
                raise
            votes_for += correct
            # A verdict of an equal answer was paid for there.
            free = {"usage": Usage(), "failures": (), "error": None}
            calls += asked if now else tuple(call.model_copy(update=free) for call in asked)
        if self._config.votes > 1:
            parts |= {"votes": float(self._config.votes), "votes_for": float(votes_for)}
        return Score(value=float(2 * votes_for > self._config.votes), parts=parts, calls=calls)

    async def close(self) -> None:
        """Close the cache."""
        if self._config.cache:
            await self._engine.close()

    async def _vote(self, messages: tuple[Message, ...], vote: int) -> tuple[Judged, bool]:
        """The verdict, and whether the judge was asked now."""
        said = [message.wire() for message in messages]
        identity = [self._model, self._sampling.model_dump(), self._config.structured_output, said, vote]
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        fresh = False

        async def ask() -> Judged:
            nonlocal fresh
            fresh = True
            return await self._ask(messages, derive_seed(ROLE, key))

        return await self._flights.get(key, ask), fresh

    async def _ask(self, messages: tuple[Message, ...], seed: int) -> Judged:
        calls, reply = tuple[Call, ...](), ""
        for _ in range(ASKS):
            request = Request(
                role=ROLE,
                messages=messages,
                sampling=self._sampling,
                seed=derive_seed(seed, len(calls)),
                json_schema=SCHEMA if self._config.structured_output else None,
            )
            try:
                calls = (*calls, await self._engine.sample(request))
            except RefusedError:
                # The server refuses every request, so it stops the run and not this verdict alone.
                raise
            except EngineError as error:
                failure = error.of(RewardError, "the judge failed", code="judge-failed")
                failure.calls = (*calls, *failure.calls)
                raise failure from error
            correct, reply = _verdict_of(calls[-1]), spoken(calls[-1].completion).strip()
            if correct is not None:
                return correct, calls
            shown = Message(role="assistant", content=neutral(reply) or "(no text)")
            messages = (*messages, shown, Message(role="user", content=AGAIN))
        raise RewardError(
            f"{self.name} gave no verdict when asked {ASKS} times, last: {reply[:300]!r}",
            code="judge-unreadable",
            fix="choose a stronger judge, set structured_output = true where its server can, or raise max_tokens",
            retryable=False,
            calls=calls,
        )


def _verdict_of(call: Call) -> bool | None:
    return read_verdict(spoken(call.completion).strip())


def read_verdict(reply: str) -> bool | None:
    """`correct` of a reply that is one JSON object with an analysis and a verdict, fenced or not; None of any other.

    Nothing else may be in the reply: a judge that quotes a forged object has not decided.
    """
    fenced = _FENCED.fullmatch(reply)
    try:
        pairs = json.loads(fenced[1] if fenced else reply, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, tuple) or sorted(name for name, _ in pairs) != ["analysis", "correct"]:
        # It is no object, or one with a repeated key, or with others.
        return None
    found = dict(pairs)
    sound = isinstance(found["analysis"], str) and isinstance(found["correct"], bool)
    return found["correct"] if sound else None
