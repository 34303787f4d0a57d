"""verifiers: its environments of 0.1 (`load_environment(NAME, ...)`, datasets and rubrics), and tasksets since 0.3.

The environment's own rollout asks the session's address, and its own scoring gives the reward. Errors that verifiers
keeps in its records, or counts as a reward of 0, are raised here.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import inspect
import itertools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

DISTRIBUTION = "verifiers"
# Fields that number a row.
NUMBERING = ("idx", "id", "index", "name")

JsonObject = dict[str, Any]


class Refused(ValueError):
    """The environment needs something that midstream does not map."""

    code = "environment-not-mapped"


class Failed(RuntimeError):
    """A rollout or its scoring failed, which verifiers says in its record."""


class Unscored(Failed):
    """A reward function failed."""

    code = "environment-not-scored"


def Adapter(environment: str, arguments: JsonObject, env: JsonObject, count: int | None) -> Any:
    """The adapter of the generation of verifiers that is installed here."""
    name, installed = importable(environment), version(DISTRIBUTION)
    if installed.startswith("0.2."):
        raise Refused(f"verifiers {installed} is of neither generation that is mapped: 0.1.14, or 0.3 and newer")
    if installed.startswith("0.1."):
        if env:
            raise Refused("tasks.env is for verifiers 0.4; what an environment of 0.1 takes is in tasks.arguments")
        return Environments(name, arguments, count)
    return Tasksets(name, arguments, env, count)


def importable(environment: str) -> str:
    """The name to load an environment by; the directory of one that is a file becomes importable, for its tools too."""
    if not environment.endswith(".py"):
        return environment
    path = Path(environment).resolve()
    if not path.is_file():
        raise Refused(f"tasks.environment: there is no file {environment!r}")
    sys.path.insert(0, str(path.parent))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path.parent), os.environ.get("PYTHONPATH"))))
    return path.stem


def distinct(rows: list[JsonObject]) -> list[JsonObject]:
    """Rows whose questions differ where their contents do: a game may begin with the same words each time."""
    contents: dict[str, set[str]] = {}
    for row in rows:
        contents.setdefault(row["question"], set()).add(row["content"])
    for row in rows:
        content = row.pop("content")
        if len(contents[row["question"]]) > 1:
            row["question"] += f"\n\n(case {content})"
    return rows


def case_in(cases: Mapping[str, Any], case: str) -> Any:
    """What a case stands for. Raises `Failed` if there is no such case in this process."""
    if case not in cases:
        raise Failed("the environment has other rows in each process: give it a seed in tasks.arguments")
    return cases[case]


def unnumbered(values: Any) -> Any:
    """A row's values without those that only number it: equal rows are one task, which is in one split."""
    if isinstance(values, str):
        with contextlib.suppress(ValueError):
            values = json.loads(values)
    if not isinstance(values, Mapping):
        return values
    return {name: value for name, value in values.items() if name not in NUMBERING}


def content_of(values: Any) -> str:
    """A short name of what a row holds."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def question_of(prompt: Any) -> str:
    """The text of a prompt: that of its only user message, or the whole chat."""
    if isinstance(prompt, str):
        return prompt
    messages = [(named(message, "role"), text_of(named(message, "content"))) for message in prompt or []]
    asked = [text for role, text in messages if role == "user"]
    if len(asked) == 1:
        return asked[0]
    return "\n\n".join(f"{role}: {text}" for role, text in messages if role != "system")


def text_of(content: Any) -> str:
    """The text of a message, whose content may be parts."""
    if not isinstance(content, list):
        return str(content or "")
    return "\n".join(str(named(part, "text")) for part in content if named(part, "type") == "text")


def named(value: Any, name: str) -> Any:
    """A field of a message, which is a mapping or an object."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


class Tasksets:
    """verifiers 0.4: a taskset, the harness that plays it, and the task's own rewards."""

    def __init__(self, name: str, arguments: JsonObject, env: JsonObject, count: int | None) -> None:
        import verifiers.v1 as vf

        # A harness is a program that uv prepares, which may be installed next to the library.
        os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        self._vf, self._name, self._count, self._sessions = vf, name, count, itertools.count(1)
        self._config = self._configured(name, arguments, env)
        self._taskset = vf.load_environment(self._config).taskset
        if count is None and not self._taskset.bounded:
            raise Refused(f"{name!r} has no end of tasks: set tasks.count")
        self._tasks: dict[str, Any] = {}

    def _configured(self, name: str, arguments: JsonObject, env: JsonObject) -> Any:
        """The configuration of the environment: its one agent runs on this machine unless it says where."""
        vf = self._vf
        table = {**env, "taskset": {"id": name, **arguments}}
        kind = vf.env_config_type(name, str(env.get("id") or ""))
        seats = [key for key, info in kind.model_fields.items() if isinstance(info.default, vf.AgentConfig)]
        if len(seats) != 1:
            raise Refused(f"{name!r} has the agents {', '.join(seats)}: environments of one agent are mapped")
        (seat,) = seats
        own = kind.model_fields[seat].default.model_fields_set
        table[seat] = given = dict(env.get(seat) or {})
        if "harness" not in own and vf.default_harness_id(name) == "bash":
            # A loop of chat and the task's tools. verifiers' default would also give the model a shell.
            given.setdefault("harness", {"id": "null"})
        if "runtime" not in own:
            given.setdefault("runtime", {"type": "subprocess"})
        config = vf.resolve_env_config(table)
        self._check(config, getattr(config, seat), config.agent_harnesses()[seat])
        # midstream tries a failed run again; here, the calls of a first try would be learned from.
        agent = getattr(config, seat).model_copy(update={"retries": vf.RetryConfig()})
        return config.model_copy(update={seat: agent, "retries": vf.RetryConfig()})

    def _check(self, config: Any, agent: Any, harness: Any) -> None:
        """Refuse what would run commands of the model on this machine, and what needs a container."""
        vf = self._vf
        local = isinstance(agent.runtime, vf.SubprocessConfig)
        if agent.client is not None or agent.model is not None:
            raise Refused(f"the agent of {self._name!r} names its own model, and midstream's policy is the agent here")
        if local and vf.load_harness(harness).EXECUTES_CODE:
            raise Refused(
                f"the harness {harness.id!r} runs commands of the model, and its runtime is this machine: "
                "name another in tasks.env, { agent = { runtime = { type = 'docker' } } }"
            )
        if local and vf.task_type(config.taskset.id).NEEDS_CONTAINER:
            raise Refused(f"the tasks of {self._name!r} need a container: name a runtime in tasks.env")

    def rows(self) -> list[JsonObject]:
        """Rows without a split, for a taskset has none."""
        taskset = self._taskset if self._count is None else self._taskset.take(self._count)
        rows = []
        for number, task in enumerate(taskset):
            data = task.data.model_dump(mode="json")
            content = content_of(unnumbered(data))
            case = f"{number}-{content}"
            self._tasks[case] = task
            rows.append(
                {
                    "case": case,
                    "question": task.data.prompt_text or str(data.get("name") or ""),
                    "answer": text_answer(data.get("answer")),
                    "family": self._name,
                    "content": content,
                }
            )
        return distinct(rows)

    async def run(self, case: str, base_url: str, api_key: str, model: str) -> JsonObject:
        """One episode of the environment, whose model is the session's."""
        vf = self._vf
        if not self._tasks:
            self.rows()
        # Programs of a harness do not inherit variables of such a name.
        variable = f"MIDSTREAM_SESSION_API_KEY_{next(self._sessions)}"
        os.environ[variable] = api_key
        try:
            client = vf.EvalClientConfig(base_url=base_url, api_key_var=variable)
            # One for each run: it keeps a client for every address that it sees.
            environment = vf.load_environment(self._config)
            (slot,) = environment.slots(case_in(self._tasks, case))
            async with environment.serving():
                episode = await environment.run_slot(slot, vf.ModelContext(model=model, client=client))
        finally:
            del os.environ[variable]
        return scored(episode)


def text_answer(value: Any) -> str:
    """An answer as text."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def scored(episode: Any) -> JsonObject:
    """The reward of an episode of 0.4, and its parts. Raises `Failed` where something failed or was not scored."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors:
        raise Failed(f"{errors[-1].type}: {errors[-1].message}")
    if len(episode.traces) != 1:
        raise Refused(f"the environment ran its agent {len(episode.traces)} times in one episode: once is mapped")
    (trace,) = episode.traces
    # An agent that takes too long is scored like one that takes too many turns.
    if episode.is_timeout or (trace.is_timeout and trace.stop_condition != "agent_timeout"):
        raise Failed(f"the environment took too long: {trace.stop_condition}")
    if missing := sorted(name for name, reward in trace.rewards.items() if reward is None):
        raise Unscored(f"not scored: {', '.join(missing)}")
    if not trace.rewards:
        raise Unscored("the environment has no reward")
    parts = {name: value for name, value in trace.metrics.items() if value is not None}
    parts |= {name: reward.score for name, reward in trace.rewards.items()}
    return {"answer": trace.last_reply, "reward": trace.reward, "parts": parts}


@dataclass
class Failures:
    """What failed while one rollout was scored: reward functions, and metrics, which have no weight in the reward."""

    rewards: list[str] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)


_failures: contextvars.ContextVar[Failures] = contextvars.ContextVar("failures")


class Environments:
    """verifiers 0.1: an environment with datasets and a rubric."""

    def __init__(self, name: str, arguments: JsonObject, count: int | None) -> None:
        import verifiers as vf

        # Here, in the main thread: it handles signals.
        self._name, self._count = name, count
        self._environment = vf.load_environment(name, **arguments)
        for rubric in rubrics_of(self._environment):
            if rubric.has_group_rewards or rubric.has_advantages:
                raise Refused(f"the rubric of {name!r} scores a group of rollouts at once: rewards of one are mapped")
            rubric.funcs = [watched(*pair) for pair in zip(rubric.funcs, rubric.weights, strict=True)]
        weights = [weight for rubric in rubrics_of(self._environment) for weight in rubric.weights]
        if not any(weights) or not self._environment.score_rollouts:
            raise Refused(f"{name!r} gives no reward: its rubric has no function with a weight, or it does not score")
        self._rows: dict[str, JsonObject] = {}
        self._http: Any = None

    def rows(self) -> list[JsonObject]:
        """The rows of the dataset, for training, and of that for evaluation, the test; one alone is shared out."""
        environment = self._environment
        train, test = environment.build_dataset(), environment.build_eval_dataset()
        both = train is not None and test is not None
        rows = []
        for split, dataset in (("train", train), ("test", test)):
            for number, row in enumerate([] if dataset is None else dataset.to_list()[: self._count]):
                content = content_of([row["prompt"], row.get("answer"), unnumbered(row.get("info"))])
                case = f"{split}-{number}-{content}"
                self._rows[case] = row
                rows.append(
                    {
                        "case": case,
                        "question": question_of(row["prompt"]),
                        "answer": text_answer(row.get("answer")),
                        "split": split if both else "",
                        "family": family_of(row) or self._name,
                        "content": content,
                    }
                )
        return distinct(rows)

    async def run(self, case: str, base_url: str, api_key: str, model: str) -> JsonObject:
        """One rollout of the environment, whose client asks the session, scored by its rubric."""
        import openai
        import verifiers as vf

        if not self._rows:
            self.rows()
        failures = Failures()
        _failures.set(failures)
        environment = self._environment
        if self._http is None:
            # One for all sessions: to make one takes as long as a rollout.
            self._http = openai.DefaultAsyncHttpxClient(timeout=None)
        asking = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=self._http)
        # A group of one, as verifiers' own runner does it.
        (said,) = await environment.run_group(
            [case_in(self._rows, case)], vf.OpenAIChatCompletionsClient(asking), model, environment.sampling_args
        )
        if said["error"] is not None:
            raise Failed(f"the rollout failed: {said['error']}")
        if failures.rewards:
            raise Unscored(failures.rewards[0])
        parts = {name: value for name, value in (said["metrics"] or {}).items() if name not in failures.metrics}
        return {"answer": last_reply(said["completion"]), "reward": said["reward"], "parts": parts}


def family_of(row: Mapping[str, Any]) -> str:
    """The task that a row names, or the member of a group of environments that it is of."""
    info = row.get("info") or {}
    group = (json.loads(info) if isinstance(info, str) else info).get("env_id")
    return next((name for name in (row.get("task"), group) if isinstance(name, str)), "")


def rubrics_of(environment: Any) -> list[Any]:
    """Every rubric of an environment, those of groups too."""
    found = [rubric for member in getattr(environment, "envs", ()) for rubric in rubrics_of(member)]
    waiting = [environment.rubric]
    while waiting:
        rubric = waiting.pop()
        found.append(rubric)
        waiting += getattr(rubric, "rubrics", ())
    return found


def watched(function: Any, weight: float) -> Any:
    """A reward function whose failure is kept: verifiers counts it as a reward of 0."""
    name = getattr(function, "__name__", str(function))

    @functools.wraps(function)
    async def call(*args: Any, **keywords: Any) -> float:
        try:
            value = function(*args, **keywords)
            return float(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            failures = _failures.get(Failures())
            if weight:
                failures.rewards.append(f"the reward function {name!r} failed: {type(error).__name__}: {error}")
            else:
                failures.metrics.add(name)
            raise

    return call


def last_reply(completion: Any) -> str:
    """The text of the model's last message."""
    if isinstance(completion, str):
        return completion
    said = [text_of(named(message, "content")) for message in completion or [] if named(message, "role") == "assistant"]
    return said[-1] if said else ""
