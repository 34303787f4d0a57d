"""The names that users import, and what importing them costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import midstream

PUBLIC = """
AgentFlow Comparison Engine InfrastructureError Interleaved MidstreamError Outcome OwnAgent Run Score Task Tasks Tool
ToolResult Trajectory Turn UsageError aevaluate alearn_lessons aresume asolve atrain compare evaluate
learn_lessons resume reward solve tasks text tool train wrapped
""".split()
MORE = """
Action Agent Build Call Command EngineError Environment ExactMatch Executor Generator Memory Message ModuleContext
Observation OpenAICompatibleEngine Planner Recipe RecipeError Request Reward RewardError RunContext RunDirectory
Sampling ToolServerError TrainingError Verdict Verifier load_recipe parse_recipe
""".split()


def python(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_exported_names_are_pinned():
    assert midstream.__all__ == PUBLIC
    assert sorted(midstream._MODULES) == sorted([*PUBLIC, *MORE])


@pytest.mark.parametrize("name", [*PUBLIC, *MORE])
def test_every_name_is_the_object_it_says(name):
    value = getattr(midstream, name)
    assert value.__name__ == name
    assert value.__module__.startswith("midstream.")
    assert name in dir(midstream)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(midstream.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    found = {alias.asname: node.module for node in imports for alias in node.names}
    assert found == midstream._MODULES


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
