"""Adapters on a server: written whole, named by content, loaded once, gone when a newer one is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.engine import Weights
from midstream.core.errors import EngineError, StorageError
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.engines.openai.server import ADAPTERS_KEPT, adapter_name, change_adapter, write_adapter
from support.errors import coded
from support.llm_server import LLMServer

Answer = tuple[int, str]


def weights(content: bytes) -> Callable[[Path], None]:
    """An export of an adapter with that content."""

    def export(directory: Path) -> None:
        (directory / "adapter_model.safetensors").write_bytes(content)
        (directory / "adapter_config.json").write_text("{}")

    return export


def new_weights(content: bytes, root: Path, version: int) -> Weights:
    codec: Any = None
    return Weights(version=version, codec=codec, export=weights(content), directory=root)


def engine_for(server: LLMServer) -> OpenAICompatibleEngine:
    config = OpenAIConfig(model="m", base_url=server.base_url, max_attempts=3, first_pause_s=0.001)
    return OpenAICompatibleEngine(config, "planner")


def hand_over(server: LLMServer, root: Path, *versions: tuple[int, bytes]) -> None:
    async def all_of_them() -> None:
        engine = engine_for(server)
        for version, content in versions:
            await engine.use_weights(new_weights(content, root, version))

    asyncio.run(all_of_them())


def on_disk(root: Path) -> list[str]:
    return sorted(path.name.rsplit("-", 1)[0] for path in root.iterdir())


def test_the_newest_is_loaded_and_two_are_kept(tmp_path: Path):
    with LLMServer() as server:
        hand_over(server, tmp_path, *((version, b"w%d" % version) for version in range(5)))
    [path] = server.adapters.values()
    assert Path(path, "adapter_model.safetensors").read_bytes() == b"w4"
    assert on_disk(tmp_path) == ["version-3", "version-4"]


def test_a_name_holds_version_content_and_place(tmp_path: Path):
    paths = [
        write_adapter(weights(content), tmp_path / root, version)
        for root, version, content in [("a", 1, b"x"), ("a", 1, b"y"), ("a", 2, b"x"), ("b", 1, b"x")]
    ]
    assert len({adapter_name(path) for path in paths}) == 4
    assert write_adapter(weights(b"x"), tmp_path / "a", 1) == paths[0]
    assert all(adapter_name(path).startswith("midstream-version-") for path in paths)


def test_a_resumed_run_with_other_weights_leaves_nothing_of_the_killed_one(tmp_path: Path):
    with LLMServer() as server:
        hand_over(server, tmp_path, (3, b"three"), (4, b"four"), (5, b"five"))
        hand_over(server, tmp_path, (4, b"other four"))  # another process, from checkpoint 4
    [(name, path)] = server.adapters.items()
    assert Path(path, "adapter_model.safetensors").read_bytes() == b"other four"
    assert name == adapter_name(Path(path))
    assert on_disk(tmp_path) == ["version-4", "version-5"]


def test_equal_weights_are_used_again(tmp_path: Path):
    with LLMServer() as server:
        hand_over(server, tmp_path, (3, b"three"))
        [first] = server.adapters
        hand_over(server, tmp_path, (3, b"three"))
        assert list(server.adapters) == [first]
    assert "/v1/unload_lora_adapter" not in server.paths


def test_runs_that_share_a_server_leave_each_other_alone(tmp_path: Path):
    with LLMServer() as server:
        hand_over(server, tmp_path / "a", (1, b"x"))
        hand_over(server, tmp_path / "b", (1, b"x"), (2, b"y"))
    assert sorted(Path(path).relative_to(tmp_path).parts[0] for path in server.adapters.values()) == ["a", "b"]


def test_an_interrupted_export_is_never_seen(tmp_path: Path):
    def dies(directory: Path) -> None:
        (directory / "adapter_model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_adapter(dies, tmp_path, 1)
    assert not list(tmp_path.glob("version-*"))
    write_adapter(weights(b"whole"), tmp_path, 1)
    assert on_disk(tmp_path) == ["version-1"]


def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, check=coded("write-failed", tmp_path)):
        write_adapter(weights(b"x"), tmp_path / "file" / "adapters", 1)


# -- what the server may answer, as vLLM 0.32 does -----------------------------------------------------------

ALREADY = (400, """{"error":{"message":"The lora adapter 'a' has already been loaded.","code":400}}""")
UNKNOWN = (404, '{"error":{"message":"The lora adapter \'a\' cannot be found."}}')
NO_ROUTE = (404, '{"detail":"Not Found"}')
NO_PATH = (404, '{"error":{"message":"Loading lora a failed: No adapter found for <path>"}}')
RANK = (500, "Call to add_lora method failed: Worker failed with error 'LoRA rank 16 is greater than max_lora_rank 8.'")
GOOD = (200, "Success: LoRA adapter 'a' added successfully.")


CONFIG = OpenAIConfig(model="m", base_url="http://h/v1")


async def post_answer(action: str, body: Mapping[str, str], *, answer: Answer) -> Answer:
    """Answer every post the same way."""
    return answer


def run(awaitable: Awaitable[object]) -> object:
    async def wait() -> object:
        return await awaitable

    return asyncio.run(wait())


@pytest.mark.parametrize("answer", [GOOD, ALREADY])
def test_loading_succeeds(answer: Answer):
    path = Path("/run/adapters/version-1-ab")
    assert run(change_adapter("load", path, CONFIG, partial(post_answer, answer=answer))) == adapter_name(path)


@pytest.mark.parametrize("answer", [GOOD, UNKNOWN])
def test_unloading_succeeds(answer: Answer):
    run(change_adapter("unload", Path("a"), CONFIG, partial(post_answer, answer=answer)))


@pytest.mark.parametrize(
    ("answer", "fix"),
    [
        (NO_ROUTE, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        (NO_PATH, "shared disk"),
        (RANK, "--max-lora-rank"),
        ((400, "'m' conflicts with a served base model."), "--enable-lora"),
    ],
)
def test_a_refusal_says_what_to_do(answer: Answer, fix: str):
    with pytest.raises(EngineError, check=coded("adapter-refused", answer[0], fix=fix)):
        run(change_adapter("load", Path("a"), CONFIG, partial(post_answer, answer=answer)))


@pytest.mark.parametrize("fault", [503, "reset"])
def test_attempts_come_to_an_end(tmp_path: Path, fault: int | str):
    with LLMServer(faults=[fault] * 9) as server:
        with pytest.raises(EngineError, check=coded("endpoint-failed", "load_lora_adapter", "3 times")):
            hand_over(server, tmp_path, (1, b"x"))
        assert server.paths == ["/v1/load_lora_adapter"] * 3


def test_faults_on_the_way_lose_no_adapter(tmp_path: Path):
    with LLMServer(faults=[503, "reset", None, "truncate"]) as server:
        hand_over(server, tmp_path, (1, b"x"), (2, b"y"))
    [path] = server.adapters.values()
    assert Path(path).name.startswith("version-2-")


@given(
    versions=st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=1)), min_size=1, max_size=12),
    kept=st.integers(1, 3),
)
def test_whatever_the_order_the_newest_adapters_are_loaded(tmp_path_factory: pytest.TempPathFactory, versions, kept):
    """Steps, resumes and repeats in any order: the server holds the newest hand-overs alone, the disk one more."""
    root = tmp_path_factory.mktemp("adapters")
    loaded: dict[str, Path] = {}
    engine = OpenAICompatibleEngine(CONFIG, "planner")
    engine.kept = kept

    async def post(path: str, body: dict[str, str]) -> tuple[int, str]:
        if path == "load_lora_adapter":
            loaded[body["lora_name"]] = Path(body["lora_path"])
        elif loaded.pop(body["lora_name"], None) is None:
            return 404, ""
        return 200, ""

    engine._post = post
    newest: list[int] = []
    for version, content in versions:
        asyncio.run(engine.use_weights(new_weights(content, root, version)))
        newest = [*(each for each in newest if each != version), version][-kept:]
        assert [*engine.versions] == newest
        assert {*engine.versions.values()} == {*loaded.values()}
        assert (engine.versions[version] / "adapter_model.safetensors").read_bytes() == content
        assert all(path.name.startswith(f"version-{each}-") for each, path in engine.versions.items())
        assert len(list(root.iterdir())) <= max(kept + 1, ADAPTERS_KEPT)
