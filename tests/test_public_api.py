"""The names that users import, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import midstream
from midstream.core import errors

PUBLIC = """
Action Agent AgentFlow BudgetError Build Call CheckpointError Command DeadlineError Dialogue Dialogues Engine
EngineError Environment EvaluationResult ExactMatch Executor Gazetteer Generator Group InfrastructureError
Interleaved Learner LocalSearch Memory MemoryRecord Message MidstreamError ModuleContext Observation
OpenAICompatibleEngine Planner PromptTooLongError PythonTool Recipe RecipeError Request Reward RewardError
RunDirectory RunError Sampling SandboxError Score ScriptedEngine StepMetrics StorageError Task Template Tool
ToolResult ToolServerError TrainingError Trajectory Turn UnsupportedError Usage UsageError UserTurn Verdict Verifier
derive_seed evaluate load_recipe load_template parse_recipe tool
""".split()


def python(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_exported_names_are_pinned():
    assert midstream.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_the_object_it_says(name):
    value = getattr(midstream, name)
    assert value.__name__ == name
    assert value.__module__.startswith("midstream.")
    assert name in dir(midstream)


def test_every_error_is_exported():
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert kinds <= set(PUBLIC)


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = midstream.Nonsense


def test_rollout_is_always_the_module():
    # The module's name would hide a function of the same name, or not, by the order of imports.
    code = "from midstream import rollout; import midstream.rollout as same; print(rollout is same, callable(rollout))"
    assert python(code) == "True False"


def test_importing_midstream_loads_nothing_else():
    code = "import sys, midstream; print([name for name in sys.modules if name.startswith(('midstream.', 'pydantic'))])"
    assert python(code) == "['midstream.core', 'midstream.core.version']"


def test_no_exported_name_needs_torch():
    code = "import sys; from midstream import *; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert python(code) == "[]"


def test_version_is_the_packages():
    assert python("import importlib.metadata as m; print(m.version('midstream'))") == midstream.__version__
