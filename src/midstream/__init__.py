"""midstream: agents made better in the flow from the outcome of their own runs.

    from midstream import Build, load_recipe
    from midstream.rollout import rollout

    with Build(load_recipe("flow-grpo-tiny")) as build:
        groups = asyncio.run(rollout(build.environment(), tasks, group_size=8, seed=0))

Every name in `__all__` can be imported from here and loads its module on first use, so `import midstream` is quick and
none of them needs torch. `rollout` alone lives one step down: `midstream.rollout` is its module. Weight space is in
`midstream.training`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from midstream.core.version import __version__ as __version__

if TYPE_CHECKING:
    from midstream.agents.agentflow import AgentFlow
    from midstream.agents.interleaved import Interleaved
    from midstream.core.dialogue import Dialogue, Dialogues, UserTurn
    from midstream.core.errors import (
        BudgetError,
        CheckpointError,
        DeadlineError,
        EngineError,
        InfrastructureError,
        MidstreamError,
        PromptTooLongError,
        RecipeError,
        RewardError,
        RunError,
        SandboxError,
        StorageError,
        ToolServerError,
        TrainingError,
        UnsupportedError,
        UsageError,
    )
    from midstream.core.memory import Memory, MemoryRecord
    from midstream.core.metrics import EvaluationResult, StepMetrics
    from midstream.core.protocols import (
        Agent,
        Engine,
        Executor,
        Generator,
        Learner,
        ModuleContext,
        Planner,
        Request,
        Reward,
        Tool,
        ToolResult,
        Verifier,
    )
    from midstream.core.seeds import derive_seed
    from midstream.core.stream_template import Template, load_template
    from midstream.core.task import Task
    from midstream.core.trajectory import (
        Action,
        Call,
        Command,
        Message,
        Observation,
        Sampling,
        Score,
        Trajectory,
        Turn,
        Usage,
        Verdict,
    )
    from midstream.engines.openai.engine import OpenAICompatibleEngine
    from midstream.engines.scripted import ScriptedEngine
    from midstream.evaluation import evaluate
    from midstream.recipe.build import Build
    from midstream.recipe.schema import Recipe, load_recipe, parse_recipe
    from midstream.rewards.exact_match import ExactMatch
    from midstream.rollout import Environment, Group
    from midstream.runs import RunDirectory
    from midstream.tools.function import tool
    from midstream.tools.local_search import LocalSearch
    from midstream.tools.python import PythonTool
    from midstream.worlds.gazetteer.tasks import Gazetteer


__all__ = [
    "Action",
    "Agent",
    "AgentFlow",
    "BudgetError",
    "Build",
    "Call",
    "CheckpointError",
    "Command",
    "DeadlineError",
    "Dialogue",
    "Dialogues",
    "Engine",
    "EngineError",
    "Environment",
    "EvaluationResult",
    "ExactMatch",
    "Executor",
    "Gazetteer",
    "Generator",
    "Group",
    "InfrastructureError",
    "Interleaved",
    "Learner",
    "LocalSearch",
    "Memory",
    "MemoryRecord",
    "Message",
    "MidstreamError",
    "ModuleContext",
    "Observation",
    "OpenAICompatibleEngine",
    "Planner",
    "PromptTooLongError",
    "PythonTool",
    "Recipe",
    "RecipeError",
    "Request",
    "Reward",
    "RewardError",
    "RunDirectory",
    "RunError",
    "Sampling",
    "SandboxError",
    "Score",
    "ScriptedEngine",
    "StepMetrics",
    "StorageError",
    "Task",
    "Template",
    "Tool",
    "ToolResult",
    "ToolServerError",
    "TrainingError",
    "Trajectory",
    "Turn",
    "UnsupportedError",
    "Usage",
    "UsageError",
    "UserTurn",
    "Verdict",
    "Verifier",
    "derive_seed",
    "evaluate",
    "load_recipe",
    "load_template",
    "parse_recipe",
    "tool",
]

_NAMES = {
    "agents.agentflow": "AgentFlow",
    "agents.interleaved": "Interleaved",
    "recipe.build": "Build",
    "recipe.schema": "Recipe load_recipe parse_recipe",
    "core.dialogue": "Dialogue Dialogues UserTurn",
    "core.memory": "Memory MemoryRecord",
    "core.metrics": "EvaluationResult StepMetrics",
    "core.protocols": "Agent Engine Executor Generator Learner ModuleContext Planner Request Reward Tool ToolResult "
    "Verifier",
    "core.seeds": "derive_seed",
    "core.stream_template": "Template load_template",
    "core.task": "Task",
    "core.trajectory": "Action Call Command Message Observation Sampling Score Trajectory Turn Usage Verdict",
    "engines.openai.engine": "OpenAICompatibleEngine",
    "engines.scripted": "ScriptedEngine",
    "evaluation": "evaluate",
    "rewards.exact_match": "ExactMatch",
    "rollout": "Environment Group",
    "runs": "RunDirectory",
    "worlds.gazetteer.tasks": "Gazetteer",
    "tools.function": "tool",
    "tools.local_search": "LocalSearch",
    "tools.python": "PythonTool",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'core.errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
