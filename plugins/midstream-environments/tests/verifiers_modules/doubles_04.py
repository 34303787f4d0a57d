"""A taskset of verifiers 0.4 for tests, with a tool, for verifiers' own harness."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Used(vf.State):
    used: int = 0


class Doubling(vf.Toolset[vf.ToolsetConfig, Used]):
    TOOL_PREFIX = "math"

    @vf.tool
    async def double(self, number: int) -> str:
        """Double a number."""
        self.state.used += 1
        return str(2 * number)


class DoubleTask(vf.Task[Data, Used, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Doubling(vf.ToolsetConfig())]

    @vf.reward
    async def correct(self, task, trace) -> float:
        return float(trace.last_reply == task.answer)

    @vf.metric
    async def used(self, trace) -> float:
        return trace.state.used


class Doubles(vf.Taskset[DoubleTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        n = 0
        while True:
            n += 1
            yield DoubleTask(Data(prompt=f"Double {n} with the tool.", answer=str(2 * n)), self.config.task)


__all__ = ["Doubles"]

if __name__ == "__main__":
    Doubling.run()
