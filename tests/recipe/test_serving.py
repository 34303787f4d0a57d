"""Servers that a run starts for itself: started, watched and ended, whatever becomes of the run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.core.errors import EngineError, RecipeError, UnsupportedError, UsageError
from midstream.core.events import Note, RunEvent, ServerStarts
from midstream.recipe.overrides import agent_recipe
from midstream.recipe.schema import Recipe, load_recipe
from midstream.recipe.serving import served, server_commands
from support.errors import coded, printed

# A program called vllm: it writes its arguments, waits, and answers every request as a model that knows the capital.
PROGRAM = """#!{python}
import http.server, json, os, sys, time
words = sys.argv[1:]
open({seen!r}, "a").write(json.dumps([words, os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"), os.getpid()]) + "\\n")
print("loading", flush=True)
if "broken" in words:
    sys.exit("no such model")
time.sleep(0.3)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_GET(self):
        if self.path == "/exit":
            os._exit(3)
        self.answer(b"{{}}")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {{"role": "assistant", "content": '<answer>Paris</answer>'}}
        choice = {{"index": 0, "message": message, "finish_reason": "stop"}}
        usage = {{"prompt_tokens": 1, "completion_tokens": 1}}
        self.answer(json.dumps({{"choices": [choice], "usage": usage}}).encode())
    def log_message(self, *words): ...
port = int(words[words.index("--port") + 1])
class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *about):
        # A traceback of a caller that hung up would be the log's last lines, which the test reads.
        pass


Server(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the program on PATH; the file of what it was called with."""
    seen, program = tmp_path / "seen", tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable, seen=str(seen)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return seen


def recipe_of(port: int, *overrides: str, model: str = "capital") -> Recipe:
    url = f"http://127.0.0.1:{port}/v1"
    return agent_recipe("agentflow-prompted", model=model, base_url=url, serve_with="vllm", overrides=overrides)


def calls(seen: Path) -> list[tuple[list[str], str | None, int]]:
    return [tuple(json.loads(line)) for line in seen.read_text().splitlines()]


def gone(pid: int) -> bool:
    until = time.monotonic() + 15
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_question_is_answered_by_a_server_that_ends_with_it(port, seen, capsys):
    url = f"http://127.0.0.1:{port}/v1"
    options = ["--model", "capital", "--base-url", url, "--serve-with", "vllm"]
    more = ["--set", "engines.model.serve=--max-model-len 512", "--set", "agent.max_turns=1"]
    assert main(["solve", "What is the capital of France?", *options, *more]) == 0
    [(words, _, pid)] = calls(seen)
    assert words == ["serve", "capital", "--port", str(port), "--host", "127.0.0.1", "--max-model-len", "512"]
    assert gone(pid)
    out, err = capsys.readouterr()
    assert "Paris" in out
    assert "server  vllm serve capital" in err
    assert "answers after" in err
    assert not list(seen.parent.glob("*.log"))


def test_a_model_that_cannot_be_served_is_an_error_with_its_last_words(port, seen):
    with (
        pytest.raises(EngineError, check=coded("server-not-started", "no such model")),
        served(recipe_of(port, model="broken"), lambda event: None),
    ):
        pass
    assert list(seen.parent.glob("*.log"))


def test_what_a_server_prints_is_read_from_the_end_and_without_secrets(port, seen):
    program = seen.parent / "bin" / "vllm"
    program.write_text(
        "#!/bin/sh\nhead -c 50000000 /dev/zero\necho\necho \"{'api_key': ['tok-1234567890']}\"\necho no memory\n"
    )
    with (
        pytest.raises(EngineError, check=coded("server-not-started", "*** | no memory")) as caught,
        served(recipe_of(port), lambda event: None),
    ):
        pass
    assert "tok-1234567890" not in str(caught.value)


def test_no_key_stands_in_the_options_of_a_server(port):
    with pytest.raises(RecipeError, check=coded("secret-in-recipe")) as caught:
        recipe_of(port, "engines.model.serve=--api-key tok-1234567890")
    assert "tok-1234567890" not in str(caught.value)
    with pytest.raises(RecipeError, check=coded("recipe-invalid", "https://localhost:8000")):
        recipe_of(port, "engines.model.serve=", "engines.model.base_url=https://localhost:8000/v1")


def test_a_server_that_ends_in_the_middle_is_said(port, seen):
    events: list[RunEvent] = []
    with served(recipe_of(port), events.append):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /exit HTTP/1.1\r\nHost: x\r\n\r\n")
            connection.recv(1)
        until = time.monotonic() + 15
        while not any(isinstance(event, Note) for event in events) and time.monotonic() < until:
            time.sleep(0.02)
    assert [type(event) for event in events] == [ServerStarts, ServerStarts, Note]
    assert "ended in the middle of the run: loading" in events[-1].text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, *(pytest.param(how, marks=pytest.mark.slow) for how in (signal.SIGTERM, signal.SIGINT))]
)
def test_no_server_outlives_a_run_that_is_ended(port, seen, how):
    script = (
        "import signal, sys, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from midstream.recipe.overrides import agent_recipe\nfrom midstream.recipe.serving import served\n"
        f"recipe = agent_recipe('agentflow-prompted', model='m', base_url='http://127.0.0.1:{port}/v1', "
        "serve_with='vllm')\nwith served(recipe, lambda event: None):\n    print(flush=True)\n    time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline()
        run.send_signal(how)
    [(_, _, pid)] = calls(seen)
    assert gone(pid)


def test_what_is_in_the_way_is_refused_before_anything_starts(port, seen, monkeypatch):
    recipe = recipe_of(port)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(EngineError, check=coded("address-in-use")),
        served(recipe, lambda event: None),
    ):
        pass
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with (
        pytest.raises(UnsupportedError, check=coded("program-not-installed", "vllm")),
        served(recipe, lambda event: None),
    ):
        pass
    assert not seen.exists()


def test_training_on_vllm_gets_the_options_that_it_needs():
    [command] = server_commands(load_recipe("agentflow-1.5b-24gb", ["engines.policy.serve=--dtype bfloat16"]))
    assert command.words[:3] == ("vllm", "serve", "Qwen/Qwen2.5-1.5B-Instruct")
    given = " ".join(command.words[3:])
    assert given == (
        "--port 8000 --host localhost --logprobs-mode processed_logprobs --enable-lora --max-lora-rank 16 "
        "--dtype bfloat16"
    )
    assert command.environment == {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}


def test_each_model_has_a_port_and_a_remote_server_stays(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        """
        name = "mine"
        extends = "agentflow-prompted"
        agent.verifier.engine = "second"
        agent.generator.engine = "far"
        engines.model.model = "a"
        engines.second = { type = "openai_compatible", model = "b" }
        engines.far = { type = "openai_compatible", model = "c", base_url = "http://gpu:8000/v1" }
        """
    )
    commands = server_commands(agent_recipe(str(file), serve_with="vllm"))
    assert [command.words[2:5] for command in commands] == [("a", "--port", "8000"), ("b", "--port", "8001")]
    assert server_commands(agent_recipe(str(file))) == []
    same = ["engines.second.base_url='http://localhost:8000/v1/'", "engines.second.model=a"]
    assert len(server_commands(agent_recipe(str(file), serve_with="vllm", overrides=same))) == 1


def test_llama_cpp_takes_a_file_or_a_name(tmp_path):
    for model, option in ((tmp_path / "m.gguf", "--model"), ("org/name", "--hf-repo")):
        if option == "--model":
            model.write_text("")
        recipe = agent_recipe("agentflow-prompted", model=str(model), serve_with="llama_cpp")
        [command] = server_commands(recipe)
        assert command.words[:3] == ("llama-server", option, str(model))


@pytest.mark.parametrize("provider", ["openai", "ollama", "nonsense"])
def test_only_servers_that_can_be_started_are_named(provider, capsys):
    with pytest.raises(UsageError, check=coded("unknown-name", provider)):
        agent_recipe("agentflow-prompted", model="m", serve_with=provider)
    options = ["--model", "m", "--base-url", "http://gpu:8000/v1", "--serve-with", "vllm"]
    assert main(["solve", "q", *options, "--dry-run"]) == 2
    assert coded("option-without-effect")(printed(capsys.readouterr().err))
