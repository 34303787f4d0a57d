"""The real `transformers serve` in a process of its own: agents run on it, training on it is refused with a reason.

What it takes: temperature, top_p, seed, max_tokens, stop, stream, chat_template_kwargs. Without effect: logprobs,
response_format, stream_options, and the text of an assistant's message that has calls. Refused with 422:
return_token_ids, top_k, min_p, repetition_penalty. Its streams end without [DONE]; it samples (`temperature`) only if
the model's generation_config.json says `do_sample`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.components.kinds import register
from midstream.core.engine import Request
from midstream.core.errors import EngineError, UnsupportedError
from midstream.core.trajectory import Message, Sampling, Trajectory
from midstream.engines.local.engine import TransformersLocal, generate
from midstream.engines.local.pretrained import load_model
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.runs import RunDirectory
from support.interleaved import Shout
from support.served_model import CalculatesConfig, save_model, save_shipped_weights, write_recipe

for module in ("fastapi", "uvicorn", "openai"):
    pytest.importorskip(module, reason="needs transformers[serving]")

START_TIMEOUT_S = 600.0  # it takes twelve seconds of a whole CPU
CHAT = (Message(role="system", content="be brief"), Message(role="user", content="How high is it ?"))
# A Qwen's marks: the server looks for them, and takes all before them for the reply where they are missing.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = save_model(tmp_path_factory.mktemp("serve") / "model")
    (directory / "chat_template.jinja").write_text(CHATML)
    settings = directory / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"do_sample": True}))
    return str(directory)


@pytest.fixture(scope="module")
def url(model, tmp_path_factory):
    """The server's address; the process ends with the tests."""
    with serving(model, tmp_path_factory.mktemp("home")) as address:
        yield address


@contextmanager
def serving(model: str, home: Path) -> Iterator[str]:
    """A server of the directory `model`; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (home / "hub").mkdir()  # without it, GET /v1/models is an internal server error
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", model, "--host", "127.0.0.1"]
    log = home / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [*command, "--port", str(port), "--device", "cpu"],
            env={**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            stdout=file,
            stderr=file,
        )
    try:
        wait_until_healthy(server, port, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(30)
        finally:
            server.kill()


def wait_until_healthy(server, port, log):
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-3000:]
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except (OSError, HTTPException):  # not up yet, or too busy to answer
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise AssertionError(f"not up after {START_TIMEOUT_S:g} s: {log.read_text()[-3000:]}")


def ask(url, model, requests, **settings):
    """The calls of an engine on this server."""

    async def play():
        engine = OpenAICompatibleEngine(OpenAIConfig(model=model, base_url=url, max_attempts=1, **settings), "planner")
        try:
            return [await engine.sample(request) for request in requests]
        finally:
            await engine.close()

    return asyncio.run(play())


def chat(seed=0, **more):
    return Request(role="planner", messages=CHAT, sampling=Sampling(temperature=1.5, max_tokens=6), seed=seed, **more)


def test_replies_are_drawn_from_their_seed(url, model):
    first, again, *others = ask(url, model, [chat(1), chat(1), *map(chat, range(2, 6))])
    assert first.completion == again.completion
    assert len({first.completion, *(one.completion for one in others)}) > 1
    assert first.usage.completion_tokens == 6 or first.finish_reason == "stop"
    assert first.usage.prompt_tokens > len(CHAT)
    assert (first.completion_ids, first.logprobs) == ((), ())


def test_a_stream_is_the_same_reply_in_pieces(url, model):
    emitted = []
    replies = ask(url, model, map(chat, range(6)))
    seed, whole = max(enumerate(replies), key=lambda one: one[1].usage.completion_tokens)
    assert whole.usage.completion_tokens > 1
    streaming = chat(seed, emit=lambda kind, value: emitted.append((kind, value)))
    [streamed] = ask(url, model, [streaming], stream=True)
    assert streamed.completion.strip() == whole.completion.strip()  # whole, the server strips it
    assert (streamed.finish_reason, streamed.usage) == (whole.finish_reason, whole.usage)
    assert len(emitted) > 1
    assert {kind for kind, _ in emitted} == {"text"}
    assert "".join(text for _, text in emitted) == streamed.completion


def test_structured_output_and_template_settings_do_no_harm(url, model):
    settings = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    [call] = ask(url, model, [chat(json_schema={"type": "object"})], **settings)
    assert call.finish_reason in ("stop", "length")


@pytest.mark.parametrize("more", [(), ("--set", "engines.model.stream=true")])
def test_solve_runs_all_four_modules_though_the_model_babbles(url, model, more, capsys):
    short = [f"agent.{one}.sampling={{max_tokens=12}}" for one in ("planner", "executor", "verifier", "generator")]
    words = [word for one in (*short, "agent.max_turns=2") for word in ("--set", one)]
    server = ["--base-url", url, "--model", model, "--json"]
    assert main(["solve", "What is 45 plus 17 ?", *server, *words, *more]) == 0
    trajectory = Trajectory.model_validate_json(capsys.readouterr().out)
    assert (trajectory.status, trajectory.request_failures) == ("ok", 0)
    assert trajectory.stop_reason in ("turn_limit", "verified")
    assert {call.role for call in trajectory.calls} >= {"planner", "verifier", "generator"}
    assert all(call.usage.completion_tokens for call in trajectory.calls)


@pytest.mark.slow
def test_solve_starts_the_server_itself_and_ends_it(model, tmp_path, monkeypatch, capsys):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = [word for one in ("agent.max_turns=1", "engines.model.serve=--device cpu") for word in ("--set", one)]
    for role in ("planner", "executor", "verifier", "generator"):
        words += ["--set", f"agent.{role}.sampling={{max_tokens=12}}"]
    server = ["--base-url", f"http://127.0.0.1:{port}/v1", "--model", model, "--serve-with", "transformers", "--json"]
    assert main(["solve", "What is 45 plus 17 ?", *server, *words]) == 0
    trajectory = Trajectory.model_validate_json(capsys.readouterr().out)
    assert (trajectory.status, trajectory.request_failures) == ("ok", 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_wrong_model_name_is_refused_at_once(url):
    with pytest.raises(EngineError, match=r"answered 400: [\s\S]*pinned to"):
        ask(url, "another", [chat()])


# -- training ---------------------------------------------------------------------------------------------------------


def test_token_ids_are_refused_with_the_reason(url, model):
    with pytest.raises(
        UnsupportedError, match=r"impossible with this server[\s\S]*422[\s\S]*return_token_ids"
    ) as refused:
        ask(url, model, [chat()], token_ids=True)
    assert "vllm serve" in str(refused.value)
    assert "transformers_local" in str(refused.value)


@pytest.mark.parametrize(
    ("token_ids", "reason", "fix"),
    [
        (False, "error[not-trainable]: engine 'policy'", "token_ids = true"),
        (True, "load_lora_adapter answered 404", "vllm serve"),
    ],
)
def test_training_is_refused_before_the_first_step(url, model, tmp_path, capsys, monkeypatch, token_ids, reason, fix):
    register("reward", "calculates", CalculatesConfig)
    recipe = write_recipe(tmp_path, url, tmp_path.parent / "model", token_ids=token_ids)
    words = ["--set", f"engines.policy.model={model}", "--set", f"engines.weights.model={model}"]
    assert main(["train", str(recipe), "--out", str(tmp_path / "run"), "--quiet", *words]) in (1, 2)
    err = capsys.readouterr().err
    assert reason in err
    assert fix in err
    assert not list((tmp_path / "run").glob("trajectories/*"))


# -- the weights that come with midstream -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    """(the directory of the shipped weights, the address of their server)."""
    directory = str(save_shipped_weights(tmp_path_factory.mktemp("text") / "model"))
    with serving(directory, tmp_path_factory.mktemp("home")) as address:
        yield directory, address


@pytest.mark.slow
def test_the_shipped_weights_read_and_write_the_same_tokens_behind_it(text_model):
    """Tools, a call and its result in the prompt, and a greedy reply."""
    directory, address = text_model
    call = '<tool_call>{"name": "a", "arguments": {"code": "Ávila height"}}</tool_call>'
    tool = {"name": "a", "description": "", "parameters": dict(Shout("a").parameters)}
    request = Request(
        role="policy",
        messages=(
            Message(role="user", content="How high is Ávila?"),
            Message(role="assistant", content=call),
            Message(role="tool", content="The height of Ávila is 42."),
        ),
        tools=({"type": "function", "function": tool},),
        sampling=Sampling(temperature=0, max_tokens=24),
    )
    engine = TransformersLocal(*load_model(directory, "float32", "cpu"))
    ids = tuple(engine.codec.encode(request))
    [(reply, _)] = generate(engine.model, [(ids, request)], end_ids=engine.codec.end_ids)
    [served] = ask(address, directory, [request])
    assert served.usage.prompt_tokens == len(ids)
    assert served.usage.completion_tokens == len(reply)
    assert served.completion == engine.tokenizer.decode(reply, skip_special_tokens=True).strip()


@pytest.mark.slow
def test_the_shipped_weights_answer_behind_it_as_they_do_here(text_model, tmp_path, monkeypatch, capsys):
    """The same calls and answers, in `solve` and in `eval`."""
    model, address = text_model
    monkeypatch.chdir(tmp_path)
    engine = f'engines.policy={{type="openai_compatible",base_url="{address}",model="{model}",provider="transformers"}}'
    settings = ["tasks.regions=1", 'evaluation.sets=[{name="test",split="test",per_family=2}]']
    settings += ["agent.policy.sampling.temperature=0", "evaluation.temperatures=[0.0]"]
    here = [word for setting in settings for word in ("--set", setting)]
    served, found = [*here, "--set", engine], {}
    for name, words in {"here": here, "served": served}.items():
        assert main(["eval", "text-tiny", "--out", name, "--quiet", *words]) == 0
        [part] = RunDirectory.open(Path(name)).trajectories.parts().values()
        found[name] = [(one.question, one.answer, [turn.command for turn in one.turns]) for one in part]
    assert len(found["here"]) == 16
    assert found["served"] == found["here"]
    question, answer, _ = found["here"][0]
    capsys.readouterr()
    assert main(["solve", question, "--recipe", "text-tiny", "--json", *served]) == 0
    assert Trajectory.model_validate_json(capsys.readouterr().out).answer == answer
