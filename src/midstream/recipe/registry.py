"""The components that come with midstream, by kind and type. Importing this module registers them.

Each is registered by the name of its settings' class and imported when a recipe names it.
"""

from __future__ import annotations

from midstream.core.component import Kind, register

COMPONENTS: dict[Kind, dict[str, str]] = {
    "tasks": {
        "gazetteer": "midstream.worlds.gazetteer.tasks:Config",
        "game24": "midstream.worlds.game24:Config",
        "workshop": "midstream.worlds.workshop.tasks:Config",
        "desks": "midstream.worlds.desks.tasks:Config",
        "benchmark": "midstream.tasks.benchmarks:Config",
        "file": "midstream.tasks.file:Config",
        "bfcl": "midstream.tasks.bfcl.tasks:Config",
        "tau_bench": "midstream.tasks.tau.tasks:Config",
        "mixture": "midstream.tasks.mixture:Config",
    },
    "reward": {
        "exact_match": "midstream.rewards.exact_match:Config",
        "f1": "midstream.rewards.exact_match:F1Config",
        "numeric": "midstream.rewards.numeric:Config",
        "multiple_choice": "midstream.rewards.multiple_choice:Config",
        "gaia": "midstream.rewards.gaia:Config",
        "game24": "midstream.rewards.game24:Config",
        "math": "midstream.rewards.math:Config",
        "judge": "midstream.rewards.judge:Config",
        "composite": "midstream.rewards.composite:Config",
        "per_task": "midstream.rewards.composite:PerTaskConfig",
        "dialogue": "midstream.rewards.dialogue:Config",
        "artist_math": "midstream.rewards.artist:MathConfig",
        "function_calling": "midstream.rewards.artist:FunctionCallingConfig",
    },
    "tool": {
        "local_search": "midstream.tools.local_search:Config",
        "python": "midstream.tools.python:Config",
        "guess": "midstream.worlds.gazetteer.programs:GuessConfig",
        "base_generator": "midstream.tools.base_generator:Config",
        "function": "midstream.tools.function:Config",
        "web_search": "midstream.tools.web.web_search:Config",
        "web_page": "midstream.tools.web.web_page:Config",
        "mcp": "midstream.tools.mcp.tools:Config",
        "wikipedia": "midstream.tools.web.wikipedia:Config",
    },
    "engine": {
        "tiny": "midstream.worlds.gazetteer.tiny_model:Config",
        "transformers_local": "midstream.engines.local.settings:LocalModelConfig",
        "simulated": "midstream.engines.simulated:Config",
        "openai_compatible": "midstream.engines.openai.settings:Config",
    },
    "planner": {
        "compact": "midstream.worlds.gazetteer.compact:Config",
        "prompted": "midstream.agents.prompted:PlannerConfig",
        "clumsy": "midstream.worlds.gazetteer.scripted:ScriptedConfig",
    },
    "executor": {
        "single_argument": "midstream.worlds.gazetteer.programs:ExecutorConfig",
        "prompted": "midstream.agents.prompted:ExecutorConfig",
    },
    "verifier": {
        "form": "midstream.worlds.gazetteer.programs:VerifierConfig",
        "prompted": "midstream.agents.prompted:VerifierConfig",
    },
    "generator": {
        "verified_result": "midstream.worlds.gazetteer.programs:GeneratorConfig",
        "prompted": "midstream.agents.prompted:GeneratorConfig",
    },
    "policy": {
        "model": "midstream.agents.interleaved:PolicyConfig",
        "clumsy": "midstream.worlds.gazetteer.scripted:ScriptedPolicyConfig",
    },
}

for _kind, _names in COMPONENTS.items():
    for _name, _place in _names.items():
        register(_kind, _name, _place)
