"""The image and its services, as far as no daemon is needed: what is copied is there, and commands are real ones."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from ruamel.yaml import YAML

from midstream.cli.main import parser
from support.spoken import spoken_run

ROOT = Path(__file__).parents[1]


def services_of(path: Path) -> dict[str, Any]:
    return YAML(typ="safe").load(path)["services"]


def test_what_the_image_copies_and_installs_is_there():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()]
    [install] = re.findall(r"pip install .*", text)
    plugins = re.findall(r"\./(plugins/[\w-]+)", install)
    assert len(copied) > 4
    assert all((ROOT / path).exists() for path in [*copied, *plugins])
    assert len(plugins) == 5


def test_the_services_are_valid_and_their_commands_are_midstreams():
    path = ROOT / "compose.yaml"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    assert subprocess.run(command, check=False).returncode == 0
    services = services_of(path)
    assert parser().parse_args(services["view"]["command"]).host == "0.0.0.0"
    assert {name for service in services.values() for name in service.get("depends_on", {})} <= services.keys()
    shown = path.read_text(encoding="utf-8") + (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.findall(r"^#   docker (?:compose )?run .* midstream (eval .*|demo|view .*)$", shown, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        parser().parse_args(shlex.split(line))


def test_the_viewer_of_the_services_shows_runs_to_who_has_its_token(tmp_path):
    spoken_run(tmp_path / "runs" / "mine")
    words = services_of(ROOT / "compose.yaml")["view"]["command"]
    command = [sys.executable, "-m", "midstream.cli.main", *words[: words.index("8000")], "0", "--no-browser"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as viewer:
        try:
            assert viewer.stdout is not None
            address = viewer.stdout.readline().strip().replace("0.0.0.0", "localhost")
            with urlopen(f"{address}api/runs") as answer:
                assert b"mine" in answer.read()
            with pytest.raises(HTTPError, match="403") as refused:
                urlopen(f"{address.rsplit('/', 2)[0]}/")
            refused.value.close()
        finally:
            viewer.terminate()
