"""The components that come with midstream, by kind and type: the place of each one's settings.

`components/kinds.py` imports a place when a recipe names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal[
    "tasks", "reward", "tool", "engine", "agent", "planner", "executor", "verifier", "generator", "analyst", "policy",
    "advantage", "loss", "learner", "tracker",
]  # fmt: skip
Table = dict[str, Any]

# The modules of each kind of agent; the first is the one whose weights are trained.
MODULES: dict[str, tuple[Kind, ...]] = {
    "agentflow": ("planner", "executor", "verifier", "generator"),
    "interleaved": ("policy",),
    "direct": ("policy",),
}
MODULE_KINDS: tuple[Kind, ...] = ("planner", "executor", "verifier", "generator", "analyst", "policy")
COMPONENTS: dict[Kind, dict[str, str]] = {
    "tasks": {
        "game24": "midstream.sources.game24:Game24Config",
        "quiz": "midstream.sources.quiz:QuizConfig",
        "benchmark": "midstream.sources.benchmarks:BenchmarkConfig",
        "file": "midstream.sources.file:FileTasksConfig",
        "none": "midstream.sources.none:NoTasksConfig",
        "mixture": "midstream.sources.mixture:MixtureConfig",
    },
    "reward": {
        "exact_match": "midstream.rewards.exact_match:ExactMatchConfig",
        "f1": "midstream.rewards.exact_match:F1Config",
        "numeric": "midstream.rewards.numeric:NumericConfig",
        "multiple_choice": "midstream.rewards.multiple_choice:MultipleChoiceConfig",
        "gaia": "midstream.rewards.gaia:GaiaConfig",
        "game24": "midstream.rewards.game24:Game24RewardConfig",
        "math": "midstream.rewards.math:MathConfig",
        "judge": "midstream.rewards.judge:JudgeConfig",
        "composite": "midstream.rewards.composite:CompositeConfig",
        "per_task": "midstream.rewards.composite:PerTaskConfig",
        "thumbs": "midstream.rewards.thumbs:ThumbsConfig",
        "dialogue": "midstream.rewards.dialogue:DialogueConfig",
        "artist_math": "midstream.rewards.artist:ArtistMathConfig",
        "function_calling": "midstream.rewards.artist:FunctionCallingConfig",
    },
    "tool": {
        "local_search": "midstream.tools.local_search:LocalSearchConfig",
        "python": "midstream.tools.python:PythonConfig",
        "base_generator": "midstream.tools.base_generator:BaseGeneratorConfig",
        "function": "midstream.tools.function:FunctionConfig",
        "web_search": "midstream.tools.web.web_search:WebSearchConfig",
        "web_page": "midstream.tools.web.web_page:WebPageConfig",
        "mcp": "midstream.tools.mcp.tools:McpConfig",
        "wikipedia": "midstream.tools.web.wikipedia:WikipediaConfig",
    },
    "tracker": {
        "wandb": "midstream.trackers:WandbConfig",
        "mlflow": "midstream.trackers:MlflowConfig",
    },
    "engine": {
        "reference": "midstream.engines.local.settings:ReferenceConfig",
        "transformers_local": "midstream.engines.local.settings:LocalModelConfig",
        "openai_compatible": "midstream.engines.openai.settings:OpenAIConfig",
        "mcp_client": "midstream.engines.mcp_client:McpClientConfig",
    },
    "learner": {
        "local": "midstream.training.settings:LearnerConfig",
    },
    "planner": {
        "prompted": "midstream.agents.prompted:PlannerConfig",
        "json_line": "midstream.agents.compact:JsonLineConfig",
        "released": "midstream.agents.released:ReleasedPlannerConfig",
    },
    "executor": {
        "single_argument": "midstream.agents.compact:SingleArgumentConfig",
        "prompted": "midstream.agents.prompted:ExecutorConfig",
        "released": "midstream.agents.released:ReleasedExecutorConfig",
    },
    "verifier": {
        "prompted": "midstream.agents.prompted:VerifierConfig",
        "result": "midstream.agents.compact:ResultConfig",
    },
    "generator": {
        "prompted": "midstream.agents.prompted:GeneratorConfig",
        "last_result": "midstream.agents.compact:LastResultConfig",
    },
    "analyst": {"prompted": "midstream.agents.prompted:AnalystConfig"},
    "policy": {
        "model": "midstream.agents.stream_policy:PolicyConfig",
    },
}

AGENTS = {
    "agentflow": "midstream.recipe.schema:AgentConfig",
    "interleaved": "midstream.recipe.schema:InterleavedConfig",
    "direct": "midstream.recipe.schema:DirectConfig",
    "command": "midstream.gateway.session_agent:CommandSettings",
    "external": "midstream.gateway.external:ExternalSettings",
}

# By kind, the function that makes the settings of a component of your own: of a function, a class or an object. It
# receives the kind, the reference, and the object that it names.
OWN: dict[Kind, str] = {
    "tasks": "midstream.sources.file:own_tasks",
    "reward": "midstream.rewards.own:own_reward",
    "tool": "midstream.tools.function:own_tool",
    "engine": "midstream.engines.own:own_engine",
    "agent": "midstream.agents.own_agent:own_agent",
    "advantage": "midstream.training.own:own_advantage",
    "tracker": "midstream.trackers:own_tracker",
    "loss": "midstream.training.own:own_loss",
    "learner": "midstream.training.own:own_learner",
}
OWN |= dict.fromkeys(MODULE_KINDS, "midstream.agents.own_module:own_module")


def agent_type(agent: Any) -> str:
    """The type of an agent, or of its table."""
    return str(agent.get("type", "agentflow") if isinstance(agent, Mapping) else getattr(agent, "type", "agentflow"))


def modules_of(agent: str) -> tuple[Kind, ...]:
    """The modules of an agent of this type; the first is trained. One of your own is itself its one module."""
    return MODULES.get(agent, ("policy",))
