"""Tasks of Harbor: folders with an instruction, an image, and tests that write the reward.

    tasks/hello/task.toml  instruction.md  environment/Dockerfile  tests/test.sh

They are read without a container runtime. An episode is a container of the task's image: the instruction is the
user's message, `bash` runs commands, and the agent's first reply without a call ends it. Then `tests/test.sh` runs,
as in Harbor, and writes `/logs/verifier/reward.json` or `reward.txt`. Where it writes none, the run has an error and no
reward.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue

from midstream.components.component import Context, TasksConfig
from midstream.core.data import object_schema
from midstream.core.errors import MidstreamError, UsageError
from midstream.core.source import OVER, Dialogue, UserTurn
from midstream.core.task import Task
from midstream.core.threads import start_thread
from midstream.core.tool import Tool, ToolResult
from midstream.sources.finite import SPLITS, Finite
from midstream.sources.records import BadRowError, Faults
from midstream_environments.cases import Shares, share_of
from midstream_environments.containers import Container, Machine, Runtime, failed, runtime_of
from midstream_environments.library import Range

# Where a task says nothing: Harbor's own.
_TIMEOUT_S = 600.0
_SYSTEM = """
You work in a Linux container, and do there what the user asks for. `bash` runs a command. When all is done, say so in a
reply without a call: this ends your work, and what you left in the container is tested.
"""
_REWARDS = "/logs/verifier"
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_UNITS = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
# Tables and settings of task.toml that would change what a task asks for, or how it is scored.
_NOT_MAPPED = {
    "steps": "several steps",
    "verifier.environment": "a verifier in a container of its own",
    "verifier.collect": "collected files for another verifier",
    "environment.gpus": "GPUs",
    "environment.tpu": "TPUs",
    "environment.healthcheck": "a health check",
    "environment.mcp_servers": "MCP servers",
    "environment.skills_dir": "skills",
    "environment.allowed_hosts": "a list of allowed hosts",
    "agent.allowed_hosts": "a list of allowed hosts",
}


class HarborConfig(TasksConfig):
    """Tasks in Harbor's format.

    Attributes:
        path: the folder of a task, or of several, at any depth
        splits: shares of the splits, such as `{ train = 0.8, test = 0.2 }`; an instruction's text decides its split
        not_mapped: what happens to tasks that need what midstream does not map, such as several containers: `error`,
            or `leave_out`
        runtime: `docker`, `podman`, or the first of them that answers
        command_s: seconds of one command of the agent
        reward_key: of a verifier that writes several rewards, the one that counts; the others are its parts
        range: the lowest and the highest reward, which become 0 and 1
    """

    dialogues = True

    path: Path
    splits: Shares = {"test": 1.0}
    not_mapped: Literal["error", "leave_out"] = "error"
    runtime: Literal["auto", "docker", "podman"] = "auto"
    command_s: float = Field(default=180.0, gt=0)
    reward_key: str = "reward"
    range: Range = (0.0, 1.0)

    def check_machine(self, where: str) -> None:
        """Check, for `--dry-run`, that a container runtime answers."""
        # In a thread: a notebook's has an event loop already.
        start_thread(lambda: asyncio.run(runtime_of(self.runtime)), "harbor").result()

    def build(self, context: Context) -> HarborTasks:
        """Build the source, which reads nothing yet."""
        return HarborTasks(self)


@dataclass(frozen=True)
class Case:
    """A task's folder, and what is read from it."""

    folder: Path
    machine: Machine
    agent_s: float
    agent_user: str
    verifier_s: float
    verifier_user: str
    verifier_variables: Mapping[str, str]


class NotMappedError(BadRowError):
    """Why a task cannot be run, although nothing is wrong with it."""


class HarborTasks(Finite):
    """The tasks below a folder (`core.source.Dialogues`), read when first used."""

    def __init__(self, config: HarborConfig) -> None:
        self.config = config
        self.cases: dict[str, Case] = {}
        self._finding, self._runtime = asyncio.Lock(), None
        super().__init__(str(config.path), [split for split in SPLITS if split in config.splits])

    def load(self, split: str) -> list[Task]:
        """Return the tasks of a split."""
        if not self.cases:
            self._read()
        return self._loaded.get(split, [])

    def _read(self) -> None:
        """Read every task. Raises `UsageError` that names those which cannot be, with their reasons."""
        root = self.config.path
        folders = sorted(path.parent for path in root.rglob("task.toml"))
        if not folders:
            what = f"{root} holds no task of Harbor" if root.exists() else f"there is no folder {root}"
            raise UsageError(what, code="no-questions", fix="name a folder with task.toml, or of such folders")
        faults, left_out, seen = Faults(self.what), Counter[str](), set[str]()
        for folder in folders:
            name = "." if folder == root else folder.relative_to(root).as_posix()
            try:
                task, case = read_task(folder, root.resolve().name if name == "." else name)
            except BadRowError as reason:
                if isinstance(reason, NotMappedError) and self.config.not_mapped == "leave_out":
                    left_out[str(reason)] += 1
                else:
                    faults.add(name, reason)
                continue
            if task.question in seen:
                left_out["it repeats another instruction"] += 1
                continue
            seen.add(task.question)
            self.cases[task.id] = case
            self._loaded.setdefault(share_of(task.question, self.config.splits), []).append(task)
        self.left_out = {"": left_out} if left_out else {}
        cause = "a task has task.toml, instruction.md, tests/test.sh, and environment/Dockerfile or docker_image"
        faults.refuse(cause, 'correct them; or leave out what is not mapped: tasks.not_mapped = "leave_out"')

    def open(self, task: Task, *, seed: int) -> HarborEpisode:
        """Open a new episode of a task."""
        self.tasks(self.splits[0])
        return HarborEpisode(self, self.cases[task.id])

    async def runtime(self) -> Runtime:
        """The container runtime, which is looked for once. Raises `UnsupportedError` without one."""
        async with self._finding:
            self._runtime = self._runtime or await runtime_of(self.config.runtime)
            return self._runtime


# -- reading -----------------------------------------------------------------------------------------------------------


def read_task(folder: Path, name: str) -> tuple[Task, Case]:
    """Read a task's folder. Raises `BadRowError` with what is wrong with it, or not mapped."""
    table = _table(folder / "task.toml")
    question = _text(folder / "instruction.md").strip()
    if not question:
        raise BadRowError("instruction.md is empty")
    if not (folder / "tests" / "test.sh").is_file():
        raise BadRowError("it has no tests/test.sh")
    agent, verifier, environment = (_section(table, part) for part in ("agent", "verifier", "environment"))
    _check_mapped(folder, table, verifier, environment)
    metadata = _section(table, "metadata")
    shown: dict[str, Any] = {key: metadata[key] for key in ("difficulty", "category", "tags") if key in metadata}
    agent_s, verifier_s = (_number(part, "timeout_sec", _TIMEOUT_S) for part in (agent, verifier))
    case = Case(
        folder=folder,
        machine=_machine(folder, environment),
        agent_s=agent_s or _TIMEOUT_S,
        agent_user=str(agent.get("user", "")),
        verifier_s=verifier_s or _TIMEOUT_S,
        verifier_user=str(verifier.get("user", "")),
        verifier_variables=_variables(verifier, "verifier.env"),
    )
    task = Task(
        id=name,
        question=question,
        answer="",
        family=str(metadata.get("category") or "harbor"),
        metadata={**json.loads(json.dumps(shown, default=str)), "case": f"harbor/{name}", "agent_s": case.agent_s},
    )
    return task, case


def _check_mapped(folder: Path, table: Mapping[str, Any], verifier: Mapping[str, Any], environment: Any) -> None:
    """Raise `NotMappedError` for a task that needs more than one Linux container."""
    for place, words in _NOT_MAPPED.items():
        section, _, key = place.rpartition(".")
        if (_section(table, section) if section else table).get(key):
            raise NotMappedError(f"it needs {words} ({place}), which is not mapped")
    if verifier.get("environment_mode", "shared") != "shared":
        raise NotMappedError("it needs a verifier in a container of its own, which is not mapped")
    if str(environment.get("os", "linux")).lower() != "linux":
        raise NotMappedError(f"it needs {environment['os']}, which is not mapped")
    for file in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / "environment" / file).exists():
            raise NotMappedError(f"it needs several containers (environment/{file}), which is not mapped")


def _machine(folder: Path, environment: Mapping[str, Any]) -> Machine:
    """The container of a task. Raises `BadRowError` without an image."""
    image, context = str(environment.get("docker_image") or ""), folder / "environment"
    if not image and not (context / "Dockerfile").is_file():
        raise BadRowError("it has neither environment.docker_image nor environment/Dockerfile")
    mode = environment.get("network_mode", "public" if environment.get("allow_internet", True) else "no-network")
    if mode not in ("public", "no-network"):
        raise NotMappedError(f"it needs environment.network_mode = {mode!r}, which is not mapped")
    return Machine(
        name=_digest(context) if not image else "",
        image=image,
        context=None if image else context,
        build_s=_number(environment, "build_timeout_sec", _TIMEOUT_S) or _TIMEOUT_S,
        cpus=_number(environment, "cpus"),
        memory_mb=_memory(environment),
        network=mode == "public",
        workdir=str(environment.get("workdir") or ""),
        variables=_variables(environment, "environment.env"),
    )


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise BadRowError(f"{path.name} is no TOML: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRowError(f"{path.name} cannot be read: {error}") from error


def _section(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, Mapping):
        raise BadRowError(f"task.toml: {name} must be a table, not {found!r}")
    return found


def _number(section: Mapping[str, Any], name: str, usual: float | None = None) -> float | None:
    value = section.get(name, usual)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise BadRowError(f"task.toml: {name} must be a positive number, not {value!r}")
    return float(value)


def _memory(environment: Mapping[str, Any]) -> int | None:
    """Megabytes of `memory_mb`, or of the older `memory = "2G"`."""
    text = environment.get("memory")
    if "memory_mb" in environment or text is None:
        number = _number(environment, "memory_mb")
        return None if number is None else int(number)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", str(text).lower())
    if found is None:
        raise BadRowError(f'task.toml: memory must be such as "2G", not {text!r}')
    return int(float(found[1]) * _UNITS[found[2]])


def _variables(section: Mapping[str, Any], where: str) -> dict[str, str]:
    """The environment variables of a section, as they are written."""
    found = section.get("env", {})
    if not isinstance(found, Mapping):
        raise BadRowError(f"task.toml: {where} must be a table, not {found!r}")
    return {str(name): str(value) for name, value in found.items()}


def filled(variables: Mapping[str, str], where: str) -> dict[str, str]:
    """Variables in which `${NAME}` and `${NAME:-default}` stand for those of this process. Raises `UsageError`."""

    def value(found: re.Match[str]) -> str:
        known = os.environ.get(found[1], found[2])
        if known is None:
            what = f"{where} needs the environment variable {found[1]}"
            raise UsageError(what, code="missing-key", fix=f"export {found[1]}=...")
        return known

    return {name: _VARIABLE.sub(value, text) for name, text in variables.items()}


def _digest(folder: Path) -> str:
    """A short name of what a folder holds."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*")):
        found.update(f"{path.relative_to(folder)}\0".encode("utf-8", "surrogateescape"))
        if path.is_file():
            found.update(path.read_bytes() + bytes([path.stat().st_mode & 0o111 != 0]))
    return found.hexdigest()


# -- running -----------------------------------------------------------------------------------------------------------


class HarborEpisode(Dialogue):
    """One container of a task."""

    def __init__(self, source: HarborTasks, case: Case) -> None:
        self.system = _SYSTEM.strip()
        self.source, self.case = source, case
        self.container: Container | None = None
        # Without a reward until the verifier has run: were it lost, this would be an error, and no 0.
        self._outcome: dict[str, JsonValue] = {"reward": None, "range": [*source.config.range]}
        self._ended = False
        self._until = math.inf

    async def begin(self) -> UserTurn:
        """Start the container; the instruction."""
        runtime, machine = await self.source.runtime(), self.case.machine
        variables = filled(machine.variables, f"{self.case.folder.name}: environment.env")
        self.container = await runtime.open(_with(machine, variables))
        self._until = time.monotonic() + self.case.agent_s
        return UserTurn(text=_text(self.case.folder / "instruction.md").strip(), tools=[Bash(self)])

    async def reply(self, text: str) -> UserTurn:
        """The agent's first reply without a call ends its work."""
        return OVER

    async def run(self, command: str) -> ToolResult:
        """Run a command of the agent."""
        assert self.container is not None
        limit_s = min(self.source.config.command_s, self._until - time.monotonic())
        if limit_s <= 0:
            text = f"the {self.case.agent_s:g} s of this task are over: reply without a call"
            return ToolResult(text=text, ok=False)
        ran = await self.container.run(command, limit_s=limit_s, user=self.case.agent_user)
        if ran.code is None:
            return ToolResult(text=f"{ran.text}\n[ended after {limit_s:.0f} s]".lstrip(), ok=False)
        code = f"\n[exit code {ran.code}]" if ran.code else ""
        return ToolResult(text=f"{ran.text}{code}".lstrip("\n") or "(no output)", ok=ran.code == 0)

    def outcome(self) -> dict[str, JsonValue]:
        """What the verifier says, from `close` on: it is asked for only where the agent's work has come to an end."""
        self._ended = True
        # This very table, not a copy: `close` adds the reward to it.
        return self._outcome

    async def close(self) -> None:
        """Run the verifier if the run has come to an end, at a limit too, as Harbor does; remove the container.

        Raises:
            InfrastructureError: the verifier wrote no reward, or took too long.
        """
        if self.container is None:
            return
        try:
            if self._ended:
                self._outcome.update(await verified(self.container, self.case, self.source.config.reward_key))
        finally:
            await self.container.close()


class Bash(Tool):
    """Runs commands in the task's container."""

    name = "bash"
    description = (
        "Run a command of bash in the container, and get its output. Each call is a new shell in the working folder. "
        "Files stay, and so do processes in the background."
    )
    parameters = object_schema(command={"type": "string", "description": "the command, of any number of lines"})
    output_tokens = 8192
    # The episode's own limit, and the time to end a command.
    timeout_s = 86_400.0

    def __init__(self, episode: HarborEpisode) -> None:
        self._episode = episode

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Run it."""
        return await self._episode.run(str(arguments["command"]))


async def verified(container: Container, case: Case, key: str) -> dict[str, JsonValue]:
    """Run a task's verifier in its container; `reward`, and the other numbers that it wrote as `parts`.

    Raises:
        InfrastructureError: it wrote no reward, or took too long: this is no reward of 0.
    """
    name = case.folder.name
    # What the agent may have put there is not the verifier's.
    ready = await container.run(f"rm -rf /tests {_REWARDS} && mkdir -p /tests {_REWARDS}", limit_s=60.0)
    if ready.code != 0:
        raise failed(f"the tests of {name} could not be copied", ready.text.encode())
    await container.copy(case.folder / "tests", "/tests")
    try:
        variables = filled(case.verifier_variables, f"{name}: verifier.env")
    except MidstreamError as error:
        raise failed(error.what, retryable=False) from error
    ran = await container.run(
        "bash /tests/test.sh", limit_s=case.verifier_s, user=case.verifier_user, variables=variables
    )
    if ran.code is None:
        what = f"the verifier of {name} took more than {case.verifier_s:g} s"
        raise failed(what, ran.text.encode(), retryable=False)
    written = await container.run(f"cat {_REWARDS}/reward.json", limit_s=60.0)
    if written.code == 0:
        return _of_json(name, written.text, key)
    written = await container.run(f"cat {_REWARDS}/reward.txt", limit_s=60.0)
    if written.code == 0:
        try:
            return {"reward": float(written.text)}
        except ValueError:
            what = f"the verifier of {name} wrote {written.text[:200].strip()!r} as reward.txt"
            raise failed(what, retryable=False) from None
    what = f"the verifier of {name} wrote no reward, and ended with exit code {ran.code}"
    raise failed(what, ran.text.encode(), retryable=False)


def _of_json(name: str, text: str, key: str) -> dict[str, JsonValue]:
    """The reward and its parts in reward.json. Raises `InfrastructureError`."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise failed(f"the verifier of {name} wrote {text[:200].strip()!r} as reward.json", retryable=False)
    named = key if key in found or len(found) > 1 else next(iter(found))
    if named not in found:
        raise failed(
            f"the verifier of {name} wrote no {key!r} in reward.json, only {', '.join(found)}: set tasks.reward_key",
            retryable=False,
        )
    return {"reward": found[named], "parts": {part: value for part, value in found.items() if part != named}}


def _with(machine: Machine, variables: Mapping[str, str]) -> Machine:
    return Machine(**{**vars(machine), "variables": variables})
