"""What README.md shows."""

import ast
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_its_workflow_is_one_that_the_server_takes(tmp_path):
    [block] = re.findall(r"^```yaml\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    workflow = tmp_path / "agent.yml"
    workflow.write_text(block, encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", workflow]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_its_block_of_python_is_python():
    [block] = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    ast.parse(block)
