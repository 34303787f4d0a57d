"""Which agent a library was proven for: a name that changes with whatever decides how the agent behaves beside it.

That is the model each module asks, the text of its prompt and its other settings, and the tools with theirs; not where
a model is served, and not how it is sampled from: one library is evaluated at several temperatures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midstream.agents.template import prompt_text

Table = Mapping[str, Any]
_MODULES = ("planner", "executor", "verifier", "generator", "policy")  # of whichever kind the agent is
_LOOP = ("memory_update", "record_time", "template")  # what else of the loop is in the prompts
_MODEL = ("model", "extra_body", "chat_template_kwargs", "adapter")


def identity(resolved: Table, weights: str = "") -> str:
    """The agent of a resolved recipe, as "qwen2.5:7b, gpt-4o (8c1f0e6a2b4d)": its models, and a digest of all of it.

    Args:
        resolved: a recipe with every default filled in (`recipe_check.check`).
        weights: the digest of a checkpoint that the planner samples from, "" for the weights that the recipe names.
    """
    agent, engines = resolved["agent"], resolved["engines"]
    modules = {name: _module(name, agent[name], engines) for name in _MODULES if name in agent}
    asked = [one["engine"] for one in modules.values() if "engine" in one]
    whole = {
        "modules": modules,
        "loop": {key: agent[key] for key in _LOOP if key in agent},
        "tools": {name: _with_model(table, engines) for name, table in resolved["tools"].items()},
        "weights": weights,
        # The weights of a model without a name come from its seed and its warm start.
        "start": {} if all("model" in one for one in asked) else {k: resolved.get(k) for k in ("seed", "warm_start")},
    }
    names = dict.fromkeys(str(one.get("model", one.get("type"))) for one in asked)
    text = json.dumps(whole, sort_keys=True)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{', '.join(names) or 'programs'} ({digest})"


def _module(name: str, table: Table, engines: Table) -> Table:
    """A module's settings; a prompt file counts by what it says, not by where it lies."""
    settings = {key: value for key, value in table.items() if key not in ("sampling", "prompt_file")}
    if table["type"] == "prompted":
        role = "executor_code" if table.get("mode") == "code" else name
        settings["prompt"] = prompt_text(role, Path(table["prompt_file"]) if "prompt_file" in table else None)
    return _with_model(settings, engines)


def _with_model(table: Table, engines: Table) -> dict[str, Any]:
    """A table with what its engine is in place of what the recipe calls it."""
    if "engine" not in table:
        return dict(table)
    engine = engines[table["engine"]]
    model = {key: engine[key] for key in _MODEL if key in engine} if "model" in engine else dict(engine)
    return {**table, "engine": model}
