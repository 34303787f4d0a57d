"""The real `datasets` library: on local folders, and on a stand-in for the Hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from midstream.core.errors import RecipeError, UnsupportedError, UsageError
from midstream.sources.benchmarks import BENCHMARKS, BenchmarkConfig, BenchmarkTasks, is_downloaded
from support import hub_server
from support.errors import coded

if find_spec("datasets") is None:
    pytest.skip("could not import datasets", allow_module_level=True)


def rows(part, split, count=4):
    made = [
        {"id": f"{split}_{n}", "question": f"{part} {n}?", "golden_answers": [f"{n}"], "metadata": {"n": n}}
        for n in range(count)
    ]
    return "\n".join(map(json.dumps, made)).encode()


CARD = b"""---
configs:
- config_name: nq
  data_files:
  - {split: train, path: nq/train.jsonl}
  - {split: dev, path: nq/dev.jsonl}
- config_name: hotpotqa
  data_files:
  - {split: train, path: hotpotqa/train.jsonl}
- config_name: bamboogle
  data_files:
  - {split: test, path: bamboogle/test.jsonl}
---
"""
FILES = {f"{part}/{split}.jsonl": rows(part, split) for part in ("nq", "hotpotqa") for split in ("train", "dev")}
FILES |= {"README.md": CARD, "bamboogle/test.jsonl": rows("bamboogle", "test")}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The Hub's form in a folder; what the library keeps goes to another."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    root = tmp_path / "repository"
    for path, data in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def source(folder, name, **changed):
    return BenchmarkTasks(
        BENCHMARKS[name].model_copy(update={"repository": str(folder), **changed}), BenchmarkConfig(name=name)
    )


def test_configs_are_read_one_after_the_other_as_families(folder):
    tasks = source(folder, "search-r1").tasks("train")
    assert [task.question for task in tasks] == [f"{part} {n}?" for part in ("nq", "hotpotqa") for n in range(4)]
    assert [task.family for task in tasks] == ["nq"] * 4 + ["hotpotqa"] * 4
    assert list(source(folder, "search-r1").families) == ["nq", "hotpotqa"]
    assert {task.metadata == {} for task in tasks} == {True}


def test_a_split_that_is_not_there_is_refused_before_anything_is_read(folder):
    with pytest.raises(RecipeError, check=coded("unknown-split", "'test'")):
        source(folder / "nothing", "search-r1").fixed("test", seed=0)


@pytest.mark.parametrize(
    ("changed", "code", "reason"),
    [
        ({"configs": ("zebra",)}, "hub-changed", "BuilderConfig 'zebra' not found"),
        ({"splits": {"train": "zebra"}}, "hub-changed", 'Unknown split "zebra"'),
        ({"columns": ("question",)}, "bad-rows", "row 1: 'golden_answers' is missing or null"),
    ],
)
def test_a_repository_that_has_changed(folder, changed, code, reason):
    with pytest.raises(UsageError, check=coded(code, reason, fix="`revision`")) as caught:
        source(folder, "search-r1", **changed).tasks("train")
    assert 'file = "search-r1.jsonl"' in caught.value.fix or "`file`" in caught.value.fix


def test_a_repository_that_is_gone(folder):
    with pytest.raises(UsageError, check=coded("hub-changed", "could not be downloaded")):
        source(folder / "nothing", "bamboogle").tasks("test")


def test_one_that_runs_code_of_its_own(folder):
    (folder / "repository.py").write_text("raise SystemExit", encoding="utf-8")
    (folder / "README.md").unlink()
    with pytest.raises(UsageError, check=coded("hub-changed", "scripts are no longer supported")):
        source(folder, "bamboogle").tasks("test")


def test_the_extra_is_asked_for(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnsupportedError, check=coded("missing-extra")):
        source(folder, "bamboogle").tasks("test")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert not is_downloaded("a/b")


def test_what_was_downloaded_before_is_known(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert not is_downloaded("some/where")
    path = tmp_path / "datasets--some--where" / "snapshots" / "abc" / "README.md"
    path.parent.mkdir(parents=True)
    path.write_text("x", encoding="utf-8")
    assert is_downloaded("some/where")


# --- over HTTP --------------------------------------------------------------------------------------------------------

DOWNLOAD = """
import json
from midstream.core.errors import UsageError
from midstream.components.tables import parse_component
from midstream.recipe.check import task_source
found = {}
for name in ("bamboogle", "gpqa", "simpleqa"):
    try:
        revision = "{commit}" if name == "bamboogle" else None
        table = {"type": "benchmark", "name": name, "revision": revision}
        source = task_source(parse_component("tasks", table, "tasks"))
        found[name] = [task.question for task in source.fixed("test", seed=0)]
    except UsageError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def python(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_download_conditions_and_working_offline_afterwards(tmp_path):
    """The library reads its address from the environment when it is first imported: so, other processes."""
    environment = {"HF_HOME": str(tmp_path), "HF_TOKEN": "", "HF_HUB_OFFLINE": "0"}
    repositories = {BENCHMARKS["bamboogle"].repository: FILES, BENCHMARKS["gpqa"].repository: None}
    with hub_server.serving(repositories) as served:
        script = DOWNLOAD.replace("{commit}", hub_server.COMMIT)
        found = json.loads(python("-c", script, **environment, HF_ENDPOINT=served.address))
    assert found["bamboogle"] == [f"bamboogle {n}?" for n in range(4)]
    assert "hf auth login" in found["gpqa"]
    assert "huggingface.co/datasets/Idavidrein/gpqa" in found["gpqa"]
    assert "pin a `revision`" in found["simpleqa"]
    assert not [path for path in served.asked if "nq/" in path or "hotpotqa/" in path]
    assert (
        f"/datasets/{BENCHMARKS['bamboogle'].repository}/resolve/{hub_server.COMMIT}/bamboogle/test.jsonl"
        in served.asked
    )

    shown = json.loads(python("-m", "midstream", "list", "benchmarks", "bamboogle", "--json", **environment))
    assert shown["here"]["questions"] == {"test": 4}
    shown = json.loads(python("-m", "midstream", "list", "benchmarks", "hotpotqa", "--json", **environment))
    assert shown["here"] is None
