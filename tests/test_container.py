"""The image and its services, as far as no daemon is needed: what is copied is there, and commands are real ones."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from midstream.cli.main import parser

ROOT = Path(__file__).parents[1]


def test_what_the_image_copies_and_installs_is_there():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()]
    [install] = re.findall(r"pip install .*", text)
    plugins = re.findall(r"\./(plugins/\S+)", install)
    assert len(copied) > 4
    assert all((ROOT / path).exists() for path in [*copied, *plugins])
    assert len(plugins) == 3


def test_the_services_are_valid_and_their_commands_are_midstreams():
    path = ROOT / "compose.yaml"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    assert subprocess.run(command, check=False).returncode == 0
    services = YAML(typ="safe").load(path)["services"]
    assert parser().parse_args(services["view"]["command"]).host == "0.0.0.0"
    shown = path.read_text(encoding="utf-8") + (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.findall(r"^#   docker (?:compose )?run .* midstream (eval .*|demo|view .*)$", shown, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        parser().parse_args(shlex.split(line))
