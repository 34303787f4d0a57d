"""What a run of one task leaves behind: calls, turns, the trajectory and its score.

A worked example, two turns of the offline world ("How high is Amberbank plus 7 ?", answer 112):

    Trajectory(task_id="t1", answer="112", stop_reason="verified", status="ok", reward=Score(value=1.0), turns=(
        Turn(index=1, action=Action(sub_goal="find height", tool="local_search", context="Amberbank height"),
             command=Command(tool="local_search", arguments={"query": "Amberbank height"}),
             observation=Observation(status="ok", text="Amberbank height 105"),
             verdict=Verdict(result_valid=True, memory_sufficient=False),
             calls=(Call(role="planner", prompt_ids=(4, 17, 92), completion_ids=(8, 3, 1), logprobs=(-.1, -.7, -.2)),)),
        Turn(index=2, action=Action(sub_goal="add", tool="python", context="105 + 7"), ...)))

Only calls with token ids and log-probabilities can be trained on; each becomes one training row.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from midstream.core.data import Frozen

# verified: the verifier's STOP; answered, ended: the policy gave an answer, or ended its reply without one.
StopReason = Literal["verified", "answered", "ended", "turn_limit", "token_limit", "deadline", "error"]
EventKind = Literal["call", "action", "command", "observation", "verdict", "answer", "user"]


class Sampling(Frozen):
    """How an engine samples. `temperature` 0 is greedy; `max_tokens` bounds the completion."""

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=512, ge=1)
    stop: tuple[str, ...] = ()


class Usage(Frozen):
    """Tokens of one call as the engine counted them; `cost_usd` is 0 where no price is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


class Message(Frozen):
    """One chat message; what a tool answered has the role "tool"."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class ErrorInfo(Frozen):
    """An error as data: its type's name and text, and whether another attempt could help."""

    type: str
    message: str
    retryable: bool = False


class Call(Frozen):
    """One engine request and what came back, as it was sent and sampled.

    `prompt_ids`, `completion_ids` and `logprobs` are what the engine recorded at sampling, never re-tokenised text;
    they are empty where the engine cannot give them. `logprobs[j]` is the natural log of the probability with which
    `completion_ids[j]` was drawn, under the sampling temperature (at temperature 0: under temperature 1).
    `messages` is what a chat engine was sent, `prompt` what a completion engine was sent, `sent` everything else of the
    request as it went out: address, model, temperature, seed, limits, schema. `failures` are the reasons of the
    attempts before the one that gave this reply. `repaired` says that the reply was no JSON until it was mended. A call
    that never succeeded has `error`.
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
    """The planner's decision; with `error` set it could not be parsed and costs the turn."""

    sub_goal: str = ""
    tool: str = ""
    context: str = ""
    error: str | None = None


class Command(Frozen):
    """The executor's tool call: validated `arguments`, or `code`; with `error` set it was invalid."""

    tool: str
    arguments: dict[str, JsonValue] = {}
    code: str | None = None
    error: str | None = None


class ToolCall(Frozen):
    """One call of a tool by a command's code."""

    tool: str
    arguments: dict[str, JsonValue]
    status: Literal["ok", "error"]
    text: str
    duration_s: float = 0.0


class Observation(Frozen):
    """What came of a turn's action. `status="error"` is what the tool or parser told the agent, not a broken tool.

    `tool_calls` are those that a command's code made, in order; arguments make one call, which is the observation.
    """

    status: Literal["ok", "error"]
    text: str
    duration_s: float = 0.0
    tool_calls: tuple[ToolCall, ...] = ()


class Verdict(Frozen):
    """The verifier's judgement; the loop stops when `memory_sufficient`."""

    result_valid: bool
    memory_sufficient: bool
    analysis: str = ""

    @property
    def signal(self) -> Literal["STOP", "CONTINUE"]:
        """The paper's binary signal v_t."""
        return "STOP" if self.memory_sufficient else "CONTINUE"


class Turn(Frozen):
    """One decision: `events` names what happened in order, the fields hold it, `calls` the requests behind it.

    `user` is what a user said before it. `appended` is the text that the environment put into an interleaved policy's
    stream after this turn's call: tool output between its tags, a user's message. A reply with several tool calls makes
    a turn of each; the first has the call, the last what was appended. With `error` set, something around the model
    failed in this turn: the fields hold what came before.
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
    """A reward in [0, 1] with its named parts, and the requests to a judge behind it."""

    value: float
    parts: dict[str, float] = {}
    calls: tuple[Call, ...] = ()


class Trajectory(Frozen):
    """All turns of one run of one task. `closing_calls` are the generator's, or the reply that ended a policy's stream.

    `reward` is None where none was given. `outcome` is what the other side of a dialogue found: the facts that its
    reward is made of.

    `attempts` counts this run and those before it that broke down and were thrown away, and attempts at scoring it that
    failed; `earlier_errors` says what broke them. `cost_usd` and `request_failures` (attempts of single requests that
    failed) are those of all, and of the judge's requests, which are in `reward.calls` and not in `calls`. `sandbox` is
    the tier that code ran in, "" where none could run; `lessons` the digest of the lessons that were in the prompts, ""
    where there were none.
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
        """Every call of the trajectory in order."""
        return tuple(call for turn in self.turns for call in turn.calls) + self.closing_calls

    @property
    def replies_repaired(self) -> int:
        """Replies that were no JSON until they were mended."""
        return sum(call.repaired for call in self.calls)


def without_clocks(trajectory: Trajectory) -> Trajectory:
    """The trajectory with every wall-clock time 0: what is left of two runs that took differently long is equal.

    That is when it started, how long it took, and how long each observation and each of its tool calls took.
    """

    def timeless(turn: Turn) -> Turn:
        if turn.observation is None:
            return turn
        made = tuple(call.model_copy(update={"duration_s": 0.0}) for call in turn.observation.tool_calls)
        observation = turn.observation.model_copy(update={"duration_s": 0.0, "tool_calls": made})
        return turn.model_copy(update={"observation": observation})

    turns = tuple(map(timeless, trajectory.turns))
    return trajectory.model_copy(update={"turns": turns, "started_at": 0.0, "duration_s": 0.0})
