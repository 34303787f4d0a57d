"""The record of one run of one task: its calls, turns, memory, trajectory and score.

An example of two turns in the offline world ("How high is Amberbank plus 7 ?", answer 112):

    Trajectory(task_id="t1", answer="112", stop_reason="verified", status="ok", reward=Score(value=1.0), turns=(
        Turn(index=1, action=Action(sub_goal="find height", tool="local_search", context="Amberbank height"),
             command=Command(tool="local_search", arguments={"query": "Amberbank height"}),
             observation=Observation(status="ok", text="Amberbank height 105"),
             verdict=Verdict(result_valid=True, memory_sufficient=False),
             calls=(Call(role="planner", prompt_ids=(4, 17, 92), completion_ids=(8, 3, 1), logprobs=(-.1, -.7, -.2)),)),
        Turn(index=2, action=Action(sub_goal="add", tool="python", context="105 + 7"), ...)))

Only calls with token ids and log-probabilities can be trained on. Each becomes one training row; calls that
continue one another, as in a stream, become one row together (`core/sequences.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, JsonValue

from midstream.core.data import Frozen, Settings
from midstream.core.text import html_table

# verified: the verifier stopped the loop; answered: the policy gave an answer; ended: it ended its reply without one;
# token_limit: the agent's own limit; context_limit: the model's context; time_limit: `rollout.deadline_s`.
StopReason = Literal[
    "verified",
    "answered",
    "ended",
    "turn_limit",
    "token_limit",
    "context_limit",
    "time_limit",
    "error",
]
OUTER_LIMITS: tuple[StopReason, ...] = ("context_limit", "time_limit")
CUT_OFF: frozenset[StopReason] = frozenset({"token_limit", "context_limit", "time_limit"})  # a limit ended the run
EventKind = Literal["call", "action", "command", "observation", "verdict", "answer", "user"]


class Sampling(Settings):
    """Settings of an engine's sampling.

    Attributes:
        temperature: 0 is greedy; a planner in training needs more than 0
        top_p: nucleus sampling; a planner in training needs 1
        max_tokens: the most new tokens
        stop: strings that end a completion; its text ends before them, its sampled tokens include them
    """

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=512, ge=1)
    stop: tuple[str, ...] = ()


class Usage(Frozen):
    """Tokens of one call as the engine counted them; `cost_usd` is 0 if no price is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


class Message(Frozen):
    """One chat message; a tool's answer has the role "tool".

    `fields` are what role and content do not hold of a message that another program sent: its tool calls, its ids, its
    role "developer", its content as parts. `content` is then the text of these parts.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    fields: dict[str, JsonValue] = {}

    def wire(self) -> dict[str, JsonValue]:
        """The message as it was sent, and as a server gets it."""
        return {"role": self.role, "content": self.content, **self.fields}


class ErrorInfo(Frozen):
    """An error as data: the name of its type, its text, and whether another attempt could help."""

    type: str
    message: str
    retryable: bool = False

    @property
    def foreign(self) -> bool:
        """True if midstream did not raise it on purpose; `message` is then a traceback."""
        return self.message.startswith("Traceback (")

    @property
    def text(self) -> str:
        """Type and message; of a traceback, its last frame and the line that names the exception."""
        return " ".join(self._end) if self.foreign else f"{self.type}: {self.message}"

    @property
    def line(self) -> str:
        """Type and message in a line; of a traceback the line that names the exception."""
        return self.summary if self.foreign else f"{self.type}: {self.summary}"

    @property
    def summary(self) -> str:
        """The message in a line: its first, or of a traceback the line that names the exception."""
        return self._end[1] if self.foreign else (self.message.splitlines() or [""])[0]

    @property
    def _end(self) -> tuple[str, str]:
        """Of a traceback, the last frame and the line that names the exception."""
        lines = self.message.splitlines()
        last = max((number for number, line in enumerate(lines) if line.startswith("  File ")), default=0)
        found = next((line for line in lines[last + 1 :] if line and line[0] not in " +|"), lines[-1])
        return f"{lines[last].strip()}:", found


class Call(Frozen):
    """One engine request and its reply, as sent and as sampled."""

    role: str  # the module that asked, e.g. "planner" or "judge"
    engine: str = ""  # its name
    prompt: str = ""  # the text that a completion engine was sent
    messages: tuple[Message, ...] = ()  # the messages that a chat engine was sent
    completion: str = ""  # the text of the reply
    # Token ids as the engine recorded them, never re-tokenized text; empty if the engine does not give them.
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    # Natural log of the probability with which each completion token was sampled, under the sampling temperature (at
    # temperature 0: under temperature 1).
    logprobs: tuple[float, ...] = ()
    sampling: Sampling = Sampling()
    policy_version: int | None = None  # version of the weights that sampled; None for engines without versions
    finish_reason: str = ""  # why the reply ended, in the engine's words
    usage: Usage = Usage()
    sent: dict[str, JsonValue] = {}  # everything else in the request: address, model, temperature, seed, limits, schema
    reply: dict[str, JsonValue] = {}  # the server's whole answer, where an agent of another program got it
    failures: tuple[str, ...] = ()  # why earlier attempts of this request failed
    repaired: bool = False  # the reply was not valid JSON and was repaired
    error: ErrorInfo | None = None  # why the request failed; None if it succeeded
    reward: float | None = None  # of this call alone, as an agent of another program gave it
    # False: the agent never received the reply, for example because it had hung up; not trained.
    delivered: bool = True
    replayed: bool = False  # the recorded reply of the trajectory that this one forked from: it cost nothing here
    # Wall-clock seconds since the epoch and how long the agent waited; 0 for one of a tool or a judge, or that failed.
    started_at: float = 0.0
    duration_s: float = 0.0


class Action(Frozen):
    """The planner's decision. With `error` set, its reply could not be parsed, which costs the turn."""

    sub_goal: str = ""
    tool: str = ""
    context: str = ""
    error: str | None = None


class Command(Frozen):
    """The executor's tool call: validated `arguments`, or `code`. With `error` set, it was invalid."""

    tool: str
    arguments: dict[str, JsonValue] = {}
    code: str | None = None
    error: str | None = None


class ToolCall(Frozen):
    """One call of a tool from a command's code."""

    tool: str
    arguments: dict[str, JsonValue]
    status: Literal["ok", "error"]
    text: str
    started_at: float = 0.0
    duration_s: float = 0.0


class Observation(Frozen):
    """The result of a turn's action, as the agent sees it.

    `status="error"` is an answer of the tool or parser, not a broken tool. `tool_calls` are the calls that a command's
    code made, in order; for a command with arguments the observation itself is the one call. `marks` say what a
    simulated or degraded tool did, which the agent does not see.
    """

    status: Literal["ok", "error"]
    text: str
    started_at: float = 0.0  # of the tool; 0 where none was called
    duration_s: float = 0.0
    tool_calls: tuple[ToolCall, ...] = ()
    marks: tuple[str, ...] = ()


class Verdict(Frozen):
    """The verifier's judgment; the loop stops when `memory_sufficient`."""

    result_valid: bool
    memory_sufficient: bool
    analysis: str = ""

    @property
    def signal(self) -> Literal["STOP", "CONTINUE"]:
        """The paper's binary signal v_t."""
        return "STOP" if self.memory_sufficient else "CONTINUE"


class Turn(Frozen):
    """One decision of the agent and what followed.

    A reply with several tool calls makes one turn of each: the first holds the engine call, the last what was appended.
    """

    index: int  # from 1
    events: tuple[EventKind, ...] = ()  # the kinds of what happened, in order
    user: str = ""  # what a user said before the decision
    action: Action | None = None
    command: Command | None = None
    observation: Observation | None = None
    verdict: Verdict | None = None
    calls: tuple[Call, ...] = ()  # the engine requests of the turn
    # Text that the environment appended to an interleaved policy's stream after this turn's call: tool output between
    # its tags, or a user's message.
    appended: str = ""
    # Something around the model failed in this turn, or a limit ended it; the rest is what happened before.
    error: ErrorInfo | None = None


class MemoryRecord(Frozen):
    """One turn as later turns see it."""

    turn: int  # from 1
    action: Action
    command: Command | None = None
    result: str = ""  # text of the observation; empty without one
    error: str | None = None  # why it failed: a malformed action, an invalid command, or a tool that found nothing
    verdict: Verdict | None = None
    # Wall-clock seconds, only if the agent is configured to record them: a prompt with a measured time cannot be
    # repeated exactly.


class Memory(Frozen):
    """Records in order. `append` returns a new memory, so that runs cannot share one by accident."""

    records: tuple[MemoryRecord, ...] = ()
    analysis: str = ""  # of the query, before the first turn; empty without an analyst

    def append(self, record: MemoryRecord) -> Memory:
        """This memory and one more record."""
        return Memory(records=(*self.records, record), analysis=self.analysis)

    def __len__(self) -> int:
        return len(self.records)


class Score(Frozen):
    """A reward in [0, 1], its named parts, and the requests to the judge, if there was one.

    `feedback` says why, in words: the critic reads it next to the reward.
    """

    value: float
    parts: dict[str, float] = {}
    feedback: str = ""
    calls: tuple[Call, ...] = ()

    def __init__(self, *value: float, **more: Any) -> None:
        # A record without a value is pydantic's error, as for every other field.
        super().__init__(**dict(zip(("value",), value, strict=False)), **more)


class Refinement(Frozen):
    """Record of a strategy of several chains on one task.

    `answers` has for each chain its answers of rounds 0 to T, None where a run gave none; a chain that was stopped has
    fewer. `agent_runs` counts the runs that ended, failed ones included.
    """

    strategy: str
    answers: tuple[tuple[str | None, ...], ...] = ()
    agent_runs: int = 0


class Trajectory(Frozen):
    """One run of one task."""

    id: str  # unique in its rollout
    task_id: str
    family: str = ""  # of the task, as are question and gold answer
    question: str = ""
    agent: str = ""
    rollout_index: int = 0  # number of the run among the runs of its task, from 0
    seed: int = 0
    opening_calls: tuple[Call, ...] = ()  # before the first turn: the analyst's, or a dialogue's that failed
    analysis: str = ""  # of the query, as the prompts show it; empty without an analyst
    turns: tuple[Turn, ...] = ()
    closing_calls: tuple[Call, ...] = ()  # after the last turn: the generator's, or the reply that ended a stream
    answer: str | None = None
    final: str = ""  # the whole reply of the answer, without thoughts; empty for programs and dialogues
    gold: str | None = None
    aliases: tuple[str, ...] = ()  # other answers that count as right
    reward: Score | None = None
    stop_reason: StopReason = "turn_limit"
    status: Literal["ok", "error"] = "ok"  # "error" if something around the model failed
    error: ErrorInfo | None = None  # that failure
    attempts: int = 1  # at running and scoring, this one included; failed ones were discarded
    earlier_errors: tuple[ErrorInfo, ...] = ()  # why earlier attempts failed
    # Over all attempts, and with the judge's requests (which `reward.calls` holds, not `calls`).
    cost_usd: float = 0.0
    request_failures: int = 0  # failed attempts at single requests
    sandbox: str = ""  # the tier that code ran in; "" if none could run
    lessons: str = ""  # digest of the lessons in the prompts; "" without lessons
    outcome: dict[str, JsonValue] = {}  # facts about the end of a dialogue, from which its reward is calculated
    refinement: Refinement | None = None  # of a strategy, whose agent runs all have their turns here
    # Id of the trajectory that this one forked from, and how many of its first replies it was to take over. Fewer calls
    # are `replayed` where a tool gave another result, so that the agent asked something else.
    fork_of: str = ""
    fork_at: int = 0
    started_at: float = 0.0  # wall-clock seconds since the epoch
    duration_s: float = 0.0

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call of the trajectory, in order."""
        return (*self.opening_calls, *(call for turn in self.turns for call in turn.calls), *self.closing_calls)

    @property
    def replies_repaired(self) -> int:
        """Number of replies that were not valid JSON and were repaired."""
        return sum(call.repaired for call in self.calls)

    def _repr_html_(self) -> str:
        rows = [
            {
                "turn": turn.index,
                "tool": turn.action.tool if turn.action else "",
                "sub-goal": turn.action.sub_goal if turn.action else "",
                "observation": turn.observation.text if turn.observation else turn.error.message if turn.error else "",
            }
            for turn in self.turns
        ]
        reward = f", reward {self.reward.value:g}" if self.reward else ""
        lost = f", lost: {self.error.message}" if self.error else ""
        return html_table(rows, [f"question: {self.question}", f"answer: {self.answer}{reward}{lost}"])


def usage_of(calls: Iterable[Call]) -> Usage:
    """The tokens and cost of all these calls but those that were replayed."""
    calls = tuple(call for call in calls if not call.replayed)
    return Usage(
        prompt_tokens=sum(call.usage.prompt_tokens for call in calls),
        completion_tokens=sum(call.usage.completion_tokens for call in calls),
        cost_usd=sum(call.usage.cost_usd for call in calls),
    )


def without_clocks(trajectory: Trajectory) -> Trajectory:
    """A copy of the trajectory with every wall-clock time set to 0, for comparing runs that took differently long."""

    def without(part: Any) -> Any:
        if isinstance(part, tuple) and part and isinstance(part[0], Frozen):
            return tuple(map(without, part))
        if not isinstance(part, Frozen):
            return part
        fields = {name: without(getattr(part, name)) for name in type(part).model_fields}
        return part.model_copy(update=fields | dict.fromkeys({"started_at", "duration_s"} & fields.keys(), 0.0))

    return without(trajectory)
