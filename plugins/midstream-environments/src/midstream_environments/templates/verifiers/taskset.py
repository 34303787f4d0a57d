"""The taskset for verifiers 0.4, and the agent that works on it by default: a chat with the tools, on this machine."""

import verifiers.v1 as vf
from verifiers.v1.harnesses.null import NullHarnessConfig

from . import world
from .tools import PerRunTools, SharedTools, shared_tools


class WorldData(vf.TaskData):
    """A task of midstream: its key, and its gold answer."""

    case: str
    answer: str


class WorldTaskConfig(vf.TaskConfig):
    """Where the tools run that depend on the task."""

    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class WorldTask(vf.Task[WorldData, vf.State, WorldTaskConfig]):
    """Scored by midstream's reward."""

    @classmethod
    def toolsets(cls, config: WorldTaskConfig) -> list[vf.Toolset]:
        """Tools that depend on the task have a server for each rollout."""
        return [PerRunTools(config.tools)] if world().per_run else []

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """The score of the last reply. What it raises is an error of the rollout."""
        score = await world().open(self.data.case).score(trace.last_reply)
        return score.value


class WorldConfig(vf.TasksetConfig):
    """The split, by default the last one that was exported; where tools run that all tasks share."""

    split: str = ""
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()
    task: WorldTaskConfig = WorldTaskConfig()


class WorldTaskset(vf.Taskset[WorldTask, WorldConfig]):
    """The exported tasks."""

    @classmethod
    def toolsets(cls, config: WorldConfig) -> list[vf.Toolset]:
        """Tools that are the same for every task have one server."""
        return [SharedTools(config.tools)] if shared_tools() else []

    def load(self) -> list[WorldTask]:
        """Make the tasks of the split."""
        found = world()
        return [self._task(case) for case in found.cases(self.config.split or found.splits[-1])]

    def _task(self, case: str) -> WorldTask:
        task = world().tasks[case]
        data = WorldData(
            id=case, name=task.id, case=case, prompt=task.question, system_prompt=world().system, answer=task.answer
        )
        return WorldTask(data, self.config.task)


class WorldEnvConfig(vf.EnvConfig):
    """A chat model with the tools; nothing that it writes runs outside of them, so it needs no container."""

    agent: vf.AgentConfig = vf.AgentConfig(
        harness=NullHarnessConfig(id="null"), runtime=vf.SubprocessConfig(), max_turns=world().max_replies
    )


class WorldEnv(vf.Env[WorldEnvConfig]):
    """One agent, one task."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Have the agent work on the task."""
        await agents.agent.run(task)
