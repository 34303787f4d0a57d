"""midstream: agents that learn from the outcome of their own runs.

    import midstream as ms

    agent = ms.AgentFlow(model="ollama/qwen2.5:7b", tools=["python"])
    tasks = ms.tasks("questions.jsonl")
    before = ms.evaluate(agent, tasks.test)
    run = ms.learn_lessons(agent, tasks.train, out="runs/mine")
    print(ms.compare(before, ms.evaluate(run.agent, tasks.test)))

docs/python.md has every name. A name is imported from its module on first use, so `import midstream` is quick and needs
no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from midstream.core.version import __version__ as __version__

# Names by module. Type checkers read the imports below instead; tests/test_public_api.py compares the two.
_NAMES = {
    "core.engine": "Engine",
    "api": "aevaluate alearn_lessons aresume asolve atrain compare evaluate learn_lessons resume solve train",
    "core.errors": "InfrastructureError MidstreamError UsageError",
    "core.texts": "text",
    "core.tool": "Tool ToolResult",
    "core.task": "Task",
    "core.trajectory": "Score Trajectory Turn",
    "components.agent_record": "Outcome",
    "interface.agents": "AgentFlow Interleaved OwnAgent wrapped",
    "report.comparison": "Comparison",
    "interface.results": "Run",
    "interface.tasks": "Tasks tasks",
    "rewards.own": "reward",
    "tools.function": "tool",
}
# Names for components of your own, and for work without these functions.
_MORE = {
    "core.agent": "Agent Executor Generator ModuleContext Planner RunContext Verifier",
    "core.engine": "Request",
    "core.errors": "EngineError RecipeError RewardError ToolServerError TrainingError",
    "core.source": "Reward",
    "core.trajectory": "Action Call Command Memory Message Observation Sampling Verdict",
    "engines.openai.engine": "OpenAICompatibleEngine",
    "recipe.build": "Build",
    "recipe.schema": "Recipe load_recipe parse_recipe",
    "rewards.exact_match": "ExactMatch",
    "rollout": "Environment",
    "runs": "RunDirectory",
}
_MODULES = {
    name: f"{__name__}.{module}" for module, names in (*_NAMES.items(), *_MORE.items()) for name in names.split()
}
__all__ = sorted(" ".join(_NAMES.values()).split())  # pyright: ignore[reportUnsupportedDunderAll]

# fmt: off
if TYPE_CHECKING:
    # isort: off
    from midstream.components.agent_record import Outcome as Outcome
    from midstream.core.errors import (
        EngineError as EngineError, InfrastructureError as InfrastructureError,
        MidstreamError as MidstreamError, RecipeError as RecipeError, RewardError as RewardError,
        ToolServerError as ToolServerError, TrainingError as TrainingError, UsageError as UsageError,
    )
    from midstream.core.agent import (
        Agent as Agent, Executor as Executor, Generator as Generator, ModuleContext as ModuleContext,
        Planner as Planner, RunContext as RunContext, Verifier as Verifier,
    )
    from midstream.core.engine import Engine as Engine, Request as Request
    from midstream.core.source import Reward as Reward
    from midstream.core.texts import text as text
    from midstream.core.tool import Tool as Tool, ToolResult as ToolResult
    from midstream.core.task import Task as Task
    from midstream.core.trajectory import (
        Action as Action, Call as Call, Command as Command, Memory as Memory, Message as Message,
        Observation as Observation, Sampling as Sampling, Score as Score, Trajectory as Trajectory,
        Turn as Turn, Verdict as Verdict,
    )
    from midstream.engines.openai.engine import OpenAICompatibleEngine as OpenAICompatibleEngine
    from midstream.interface.agents import (
        AgentFlow as AgentFlow, Interleaved as Interleaved, OwnAgent as OwnAgent, wrapped as wrapped,
    )
    from midstream.report.comparison import Comparison as Comparison
    from midstream.interface.results import Run as Run
    from midstream.interface.tasks import Tasks as Tasks, tasks as tasks
    from midstream.api import (
        aevaluate as aevaluate, alearn_lessons as alearn_lessons, aresume as aresume, asolve as asolve,
        atrain as atrain, compare as compare, evaluate as evaluate, learn_lessons as learn_lessons,
        resume as resume, solve as solve, train as train,
    )
    from midstream.recipe.build import Build as Build
    from midstream.recipe.schema import Recipe as Recipe, load_recipe as load_recipe, parse_recipe as parse_recipe
    from midstream.rewards.exact_match import ExactMatch as ExactMatch
    from midstream.rewards.own import reward as reward
    from midstream.rollout import Environment as Environment
    from midstream.runs import RunDirectory as RunDirectory
    from midstream.tools.function import tool as tool
# fmt: on


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
