"""The record of one run of one task: its calls, turns, trajectory and score.

An example of two turns in the offline world ("How high is Amberbank plus 7 ?", answer 112):

    Trajectory(task_id="t1", answer="112", stop_reason="verified", status="ok", reward=Score(value=1.0), turns=(
        Turn(index=1, action=Action(sub_goal="find height", tool="local_search", context="Amberbank height"),
             command=Command(tool="local_search", arguments={"query": "Amberbank height"}),
             observation=Observation(status="ok", text="Amberbank height 105"),
             verdict=Verdict(result_valid=True, memory_sufficient=False),
             calls=(Call(role="planner", prompt_ids=(4, 17, 92), completion_ids=(8, 3, 1), logprobs=(-.1, -.7, -.2)),)),
        Turn(index=2, action=Action(sub_goal="add", tool="python", context="105 + 7"), ...)))

Only calls with token ids and log-probabilities can be trained on. Each becomes one training row; calls that
continue one another, as those of a stream do, become one row together.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from midstream.core.data import Frozen

# verified: the verifier stopped the loop; answered: the policy gave an answer; ended: it ended its reply without one.
StopReason = Literal["verified", "answered", "ended", "turn_limit", "token_limit", "deadline", "error"]
EventKind = Literal["call", "action", "command", "observation", "verdict", "answer", "user"]


class Sampling(Frozen):
    """How an engine samples. `temperature` 0 is greedy; `max_tokens` limits the completion."""

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=512, ge=1)
    stop: tuple[str, ...] = ()


class Usage(Frozen):
    """Tokens of one call as the engine counted them; `cost_usd` is 0 if no price is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


class Message(Frozen):
    """One chat message; a tool's answer has the role "tool"."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class ErrorInfo(Frozen):
    """An error as data: the name of its type, its text, and whether another attempt could help."""

    type: str
    message: str
    retryable: bool = False


class Call(Frozen):
    """One engine request and its reply, as sent and as sampled.

    Attributes:
        role: the module that asked, e.g. "planner" or "judge".
        engine: name of the engine.
        prompt: the text that a completion engine was sent.
        messages: the messages that a chat engine was sent.
        completion: the text of the reply.
        prompt_ids: token ids of the prompt as the engine recorded them, never re-tokenized text; empty if the engine
            does not give them.
        completion_ids: token ids of the reply, likewise.
        logprobs: natural log of the probability with which each completion token was sampled, under the sampling
            temperature (at temperature 0: under temperature 1).
        sampling: the sampling settings of the request.
        policy_version: version of the weights that sampled; None for engines without versions.
        finish_reason: why the reply ended, in the engine's words.
        usage: tokens and cost.
        sent: everything else in the request: address, model, temperature, seed, limits, schema.
        failures: why earlier attempts of this request failed.
        repaired: the reply was not valid JSON and was repaired.
        error: why the request failed; None if it succeeded.
    """

    role: str
    engine: str = ""
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    completion: str = ""
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    sampling: Sampling = Sampling()
    policy_version: int | None = None
    finish_reason: str = ""
    usage: Usage = Usage()
    sent: dict[str, JsonValue] = {}
    failures: tuple[str, ...] = ()
    repaired: bool = False
    error: ErrorInfo | None = None


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
    duration_s: float = 0.0


class Observation(Frozen):
    """The result of a turn's action, as the agent sees it.

    `status="error"` is an answer of the tool or parser, not a broken tool. `tool_calls` are the calls that a command's
    code made, in order; for a command with arguments the observation itself is the one call.
    """

    status: Literal["ok", "error"]
    text: str
    duration_s: float = 0.0
    tool_calls: tuple[ToolCall, ...] = ()


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

    Attributes:
        index: number of the turn, from 1.
        events: the kinds of what happened, in order.
        user: what a user said before the decision.
        action: the planner's decision.
        command: the executor's tool call.
        observation: the result.
        verdict: the verifier's judgment.
        calls: the engine requests of the turn.
        appended: text that the environment appended to an interleaved policy's stream after this turn's call: tool
            output between its tags, or a user's message.
        error: something around the model failed in this turn; the other fields hold what happened before.
    """

    index: int
    events: tuple[EventKind, ...] = ()
    user: str = ""
    action: Action | None = None
    command: Command | None = None
    observation: Observation | None = None
    verdict: Verdict | None = None
    calls: tuple[Call, ...] = ()
    appended: str = ""
    error: ErrorInfo | None = None


class Score(Frozen):
    """A reward in [0, 1], its named parts, and the requests to the judge, if there was one."""

    value: float
    parts: dict[str, float] = {}
    calls: tuple[Call, ...] = ()


class Trajectory(Frozen):
    """One run of one task.

    Attributes:
        id: unique in its rollout.
        task_id: id of the task.
        family: family of the task.
        question: question of the task.
        agent: name of the agent.
        rollout_index: number of the run among those of the same task, from 0.
        seed: seed of the run.
        turns: the turns, in order.
        closing_calls: calls after the last turn: the generator's, or the reply that ended a policy's stream.
        answer: the agent's answer, if it gave one.
        gold: the gold answer.
        reward: the score; None without one.
        stop_reason: why the run ended.
        status: "error" if something around the model failed.
        error: that failure.
        attempts: number of attempts at running and scoring, this one included; failed ones were discarded.
        earlier_errors: why earlier attempts failed.
        cost_usd: cost of all attempts and of the judge's requests (which `reward.calls` holds, not `calls`).
        request_failures: number of failed attempts at single requests, likewise.
        sandbox: the tier that code ran in; "" if none could run.
        lessons: digest of the lessons in the prompts; "" without lessons.
        outcome: facts about the end of a dialogue, from which its reward is calculated.
        started_at: wall-clock time of the start, in seconds since the epoch.
        duration_s: wall-clock duration.
    """

    id: str
    task_id: str
    family: str = ""
    question: str = ""
    agent: str = ""
    rollout_index: int = 0
    seed: int = 0
    turns: tuple[Turn, ...] = ()
    closing_calls: tuple[Call, ...] = ()
    answer: str | None = None
    gold: str | None = None
    reward: Score | None = None
    stop_reason: StopReason = "turn_limit"
    status: Literal["ok", "error"] = "ok"
    error: ErrorInfo | None = None
    attempts: int = 1
    earlier_errors: tuple[ErrorInfo, ...] = ()
    cost_usd: float = 0.0
    request_failures: int = 0
    sandbox: str = ""
    lessons: str = ""
    outcome: dict[str, JsonValue] = {}
    started_at: float = 0.0
    duration_s: float = 0.0

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call of the trajectory, in order."""
        return tuple(call for turn in self.turns for call in turn.calls) + self.closing_calls

    @property
    def replies_repaired(self) -> int:
        """Number of replies that were not valid JSON and were repaired."""
        return sum(call.repaired for call in self.calls)


def without_clocks(trajectory: Trajectory) -> Trajectory:
    """A copy of the trajectory with every wall-clock time set to 0, for comparing runs that took differently long.

    These are its start and duration, and the durations of observations and of their tool calls.
    """
    turns = []
    for turn in trajectory.turns:
        if turn.observation is not None:
            calls = tuple(call.model_copy(update={"duration_s": 0.0}) for call in turn.observation.tool_calls)
            observation = turn.observation.model_copy(update={"duration_s": 0.0, "tool_calls": calls})
            turn = turn.model_copy(update={"observation": observation})
        turns.append(turn)
    return trajectory.model_copy(update={"turns": tuple(turns), "started_at": 0.0, "duration_s": 0.0})
