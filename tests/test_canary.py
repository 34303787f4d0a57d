"""Keys in the environment are found in nothing that midstream leaves behind, whatever code and servers try.

Each run is a process of its own with canaries in its environment; its directory, recording, report and all it printed
are then searched for them. That the keys were used, and that the code looked for them, is checked on the other side.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from midstream.cli.main import main
from midstream.core.trajectory import Trajectory
from midstream.runs import RunDirectory
from midstream.tools.recording import FILE
from support.api_server import Answer, Asked
from support.every_tool import MCP_SERVER, MCP_VARIABLE, SERPER_VARIABLE, Everything, Model, every_tool
from support.llm_server import AgentFlowReplies, LLMServer, completion, prompt_of
from support.serper_server import SerperServer

CANARIES = {
    "OPENAI_API_KEY": "sk-canary-5b1d9e0c77aa41",
    "SERPER_API_KEY": "serper-canary-93f2c8d10e64b7",
    SERPER_VARIABLE: "serper-canary-0d4471c2fe9a35",
    MCP_VARIABLE: 'mcp-canary/"=e2a86f10b35d9c',
    "JUDGE_KEY": "judge-canary-41d7c90be5a2f8",
    "EMBEDDING_KEY": "embed-canary-8c2e61fa90d3b7",
    "CANARY": "generic-canary-7f3a90cc12d4e8",
}
SPY = """
import os
print("looked", sorted(os.environ.values()), sorted(os.environb.values()))
for process in ("self", os.getppid()):
    for file in ("environ", "cmdline"):
        try:
            with open(f"/proc/{process}/{file}", "rb") as found:
                print(process, file, found.read()[:2000])
        except OSError as error:
            print(process, file, type(error).__name__)
"""


def midstream(*words: object, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line with canaries in its environment and `home` as its directory; what it printed is kept."""
    done = subprocess.run(
        [sys.executable, "-m", "midstream", *map(str, words)],
        env={**os.environ, **CANARIES}, cwd=home, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    (home / "stdout.txt").write_text(done.stdout)
    (home / "stderr.txt").write_text(done.stderr)
    return done


def forms_of(key: str) -> set[bytes]:
    """A canary as it is, in base64, in hexadecimal, as JSON and URLs write it, and what is left of it if it is cut."""
    tail = key[-14:]
    texts = {key, json.dumps(key)[1:-1], quote(key, safe=""), *(tail[place : place + 8] for place in range(7))}
    return {base64.b64encode(key.encode())[:-4], key.encode().hex().encode(), *(text.encode() for text in texts)}


def leaks(home: Path) -> list[str]:
    """Where a canary stands in any file."""
    found = []
    for path in (path for path in home.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for name, key in CANARIES.items():
            found += [f"{name} in {path.relative_to(home)}"] if any(form in content for form in forms_of(key)) else []
    return found


def test_the_search_finds_what_is_there(tmp_path):
    assert leaks(tmp_path) == []
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_text(f"x{CANARIES['CANARY']}x")
    (tmp_path / "b").write_bytes(base64.b64encode(CANARIES["SERPER_API_KEY"].encode()))
    assert sorted(leaks(tmp_path)) == ["CANARY in deep/a", "SERPER_API_KEY in b"]


def bearers(server: LLMServer) -> set[str]:
    return {headers.get("authorization", "") for headers in server.headers}


# --- training -------------------------------------------------------------------------------------------------------

TRAINED = """
extends = "ten-steps"
name = "canary"

[agent.executor]
type = "prompted"
engine = "model"

[engines.model]
type = "openai_compatible"
model = "m"
base_url = "{model}"

[tools.web_search]
provider = "serper"
base_url = "{serper}"

[training]
steps = 2
validate_every = 2
checkpoint_every = 2

[warm_start]
transcripts = 100

[evaluation]
temperatures = [0.0]
"""


def execute(body: dict) -> str:
    """An executor whose Python is a spy, whatever the action wants."""
    action = json.loads(prompt_of(body).rpartition("# Action\n\n")[2].partition("\n\n# ")[0])
    said = action["context"] or action["sub_goal"]
    return json.dumps({"python": {"code": SPY}, "guess": {"question": said}}.get(action["tool"], {"query": said}))


@pytest.mark.slow
def test_a_training_run_leaves_no_key(ten_steps, tmp_path):
    shutil.copy(ten_steps, tmp_path)
    recipe = tmp_path / "canary.toml"
    with LLMServer(execute) as model, SerperServer(key=CANARIES["SERPER_API_KEY"]) as serper:
        recipe.write_text(TRAINED.format(model=model.base_url, serper=serper.search_url))
        done = midstream("train", recipe, "--out", "run", "--record", "kept", home=tmp_path)
        assert done.returncode == 0, done.stderr
        assert bearers(model) == {f"Bearer {CANARIES['OPENAI_API_KEY']}"}
        assert {asked.headers["x-api-key"] for asked in serper.asked} <= {CANARIES["SERPER_API_KEY"]}
    run = RunDirectory.open(tmp_path / "run")
    observed = [
        turn.observation.text
        for step in run.trajectories.steps()
        for one in run.trajectories.read(step)
        for turn in one.turns
        if turn.command is not None and turn.command.tool == "python"
    ]
    assert observed, "no trajectory ran the spy"
    assert all("looked [" in text for text in observed)
    assert run.report_path.is_file()
    assert (tmp_path / "kept" / FILE).stat().st_size > 0
    assert leaks(tmp_path) == []


# --- one question, every tool ---------------------------------------------------------------------------------------


class Spies(Model):
    """The coder's programs are spies."""

    def say(self, text: str) -> str:
        return f"```python\n{SPY}\n```" if text.startswith("# Python coder") else super().say(text)


def solve_each(servers: Everything, tools: list[str], home: Path, *form: str) -> dict[str, str]:
    """Standard output of a question for each tool, each in a directory of its own and with no other table of tools."""
    servers.model.reply = Spies(servers.arguments)
    servers.serper.key = CANARIES[SERPER_VARIABLE]
    said = {}
    for tool in tools:
        (home / tool).mkdir()
        table = tool.partition("_")[0] if tool.startswith(("honest_", "remote_")) else tool
        words = ("solve", f"Use {tool} now.", "--recipe", servers.recipe, "--tools", table, "--record", "kept", *form)
        done = midstream(*words, home=home / tool)
        assert done.returncode == 0, done.stderr
        said[tool] = done.stdout
    return said


@pytest.mark.slow
def test_no_tool_leaves_a_key(tmp_path):
    with every_tool(tmp_path) as servers:
        said = solve_each(servers, list(servers.arguments), tmp_path, "--json")
    observed = {tool: Trajectory.model_validate_json(text).turns[0].observation for tool, text in said.items()}
    assert {tool: one.status for tool, one in observed.items()} == dict.fromkeys(observed, "ok")
    assert [tool for tool, one in observed.items() if "looked [" in one.text] == ["python"]
    passed = observed["honest_environment"].text.split()
    assert MCP_VARIABLE in passed
    assert not ({*CANARIES} - {MCP_VARIABLE}) & {*passed}
    assert leaks(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", [("--quiet",), ()])
def test_no_screen_shows_a_key(tmp_path, form):
    with every_tool(tmp_path) as servers:
        solve_each(servers, ["python", "web_search"], tmp_path, *form)
    assert leaks(tmp_path) == []


@pytest.fixture
def remote(tmp_path):
    """The address of an MCP server over HTTP."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(MCP_SERVER), "http", str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.slow
def test_a_key_in_a_header_of_mcp_is_not_left(tmp_path, remote):
    with every_tool(tmp_path) as servers:
        headers = f'headers_env = {{ Authorization = "{MCP_VARIABLE}" }}'
        with servers.recipe.open("a") as recipe:
            recipe.write(f'\n[tools.remote]\ntype = "mcp"\nurl = "{remote}"\n{headers}\ninclude = ["add", "fails"]\n')
        servers.arguments |= {"remote_add": ({"a": 1, "b": 1},) * 2, "remote_fails": ({}, {})}
        said = solve_each(servers, ["remote_add", "remote_fails"], tmp_path, "--json")
    observed = [Trajectory.model_validate_json(text).turns[0].observation for text in said.values()]
    assert [one.status for one in observed] == ["ok", "error"]
    assert leaks(tmp_path) == []


# --- what fails -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("form", ["--json", None])
def test_a_server_that_shows_the_key_in_its_error_does_not_get_it_onto_the_screen(tmp_path, form):
    def refuse(body: dict) -> dict:
        return {"error": {"message": f"Incorrect API key provided: {CANARIES['OPENAI_API_KEY']}", "code": 401}}

    with LLMServer(refuse) as model:
        words = ("solve", "Why?", "--base-url", model.base_url, "--model", "m", "--set", "engines.model.max_attempts=2")
        words += ("--set", "engines.model.first_pause_s=0.001", "--record", "kept")
        done = midstream(*words, *([form] if form else []), home=tmp_path)
        assert bearers(model) == {f"Bearer {CANARIES['OPENAI_API_KEY']}"}
    assert done.returncode == 1
    assert "Incorrect API key" in done.stdout + done.stderr
    assert leaks(tmp_path) == []


@pytest.mark.slow
def test_a_search_that_shows_the_key_in_its_error_does_not_get_it_into_a_trace(tmp_path):
    def show(asked: Asked) -> Answer:
        return Answer(status=403, body=json.dumps({"message": f"Unauthorized: {asked.headers['x-api-key']}"}))

    with every_tool(tmp_path) as servers:
        servers.serper.answer = show
        words = ("solve", "Use web_search now.", "--recipe", servers.recipe, "--record", "kept", "--json")
        done = midstream(*words, home=tmp_path)
        assert {asked.headers["x-api-key"] for asked in servers.serper.asked} == {CANARIES[SERPER_VARIABLE]}
    assert done.returncode == 1
    assert Trajectory.model_validate_json(done.stdout).error.type == "ToolServerError"
    assert leaks(tmp_path) == []


# --- servers that repeat what they were given -----------------------------------------------------------------------

ECHOED = """
extends = "agentflow-prompted"
name = "echoed"

[rollout]
concurrency = 1
max_attempts = 1

[engines.model]
model = "m"
base_url = "{model}"
max_attempts = 2
first_pause_s = 0.0

[engines.judge]
type = "openai_compatible"
model = "j"
base_url = "{judge}"
api_key_env = "JUDGE_KEY"
max_attempts = 2
first_pause_s = 0.0

[reward]
type = "judge"
engine = "judge"

[tools.search]
type = "web_search"
provider = "serper"
base_url = "{serper}"
api_key_env = "{serper_variable}"
engine = "model"
max_attempts = 2
first_pause_s = 0.0

[tools.echo]
type = "mcp"
command = ["{python}", "-S", "{mcp}"{mode}]
env_pass = ["{mcp_variable}"]
prefix = ""
"""


class Echo:
    """A server that repeats its key in `place`, and otherwise plays the agent or a judge."""

    def __init__(self, key: str, place: str = "", tool: str = "look", arguments: Any = None) -> None:
        self.key, self.place = key, place
        self.plays = AgentFlowReplies(tool=tool, arguments=arguments or {"text": "x"}, turns=1, answer="62")

    def __call__(self, body: dict[str, Any]) -> str | dict[str, Any]:
        said = f"echoed {self.key} {json.dumps(self.key)} {quote(self.key)}"
        if self.place == "reply":
            return said
        if self.place in ("400", "503"):
            padding = "x" * 1995 if self.place == "503" else ""  # so that a cut goes through the key
            return {"error": {"message": padding + said, "code": int(self.place)}}
        verdict = json.dumps({"analysis": "it is", "correct": True})
        made = completion(body, verdict if body["model"] == "j" else self.plays(body))
        if self.place == "finish_reason":
            made["choices"][0]["finish_reason"] = said
        if self.place == "fields":
            made |= {"model": said, "id": said, "system_fingerprint": said, "service_tier": said}
        return made


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command in this process with all canaries, in a directory of its own that then holds all it printed."""
    monkeypatch.chdir(tmp_path)
    for name, key in CANARIES.items():
        monkeypatch.setenv(name, key)

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["midstream", *map(str, words)])
        main(list(map(str, words)))
        printed = capsys.readouterr()
        (tmp_path / f"printed-{len(list(tmp_path.iterdir()))}.txt").write_text(printed.out + printed.err)
        return printed.out + printed.err

    return run


EVAL, SOLVE = ("eval", "echoed.toml", "--tasks", "t.jsonl", "--out", "run", "--record", "kept"), ("solve", "Why?")
LOOK, UNSTREAMED = ("call", "look", '{"text": "x"}', "--json"), (*SOLVE, "--set", "engines.model.stream=false")
PLACES = {
    "mcp": ({}, [EVAL, ("show", "run"), ("show", "run", "--tasks"), ("call", "look"), LOOK]),
    "mcp-refuses": ({"mode": "refuses"}, [EVAL, LOOK]),
    "mcp-dies": ({"mode": "dies"}, [EVAL, LOOK]),
    "mcp-babbles": ({"mode": "babbles"}, [EVAL, ("call", "look")]),
    **{f"model-{place}": ({"model": place}, [EVAL, SOLVE, (*SOLVE, "--json"), UNSTREAMED])
       for place in ("reply", "400", "503", "finish_reason", "fields")},
    **{f"judge-{place}": ({"judge": place}, [EVAL]) for place in ("reply", "400", "503", "finish_reason")},
    **{f"search-{place}": ({"search": place}, [EVAL, ("call", "search", "x")]) for place in ("result", "403", "302")},
}  # fmt: skip
QUICK = ("mcp", "model-reply", "model-finish_reason", "search-302")


@pytest.mark.matrix(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in PLACES]
)
def test_what_a_server_repeats_is_left_nowhere(command, tmp_path, name):
    echoes, commands = PLACES[name]

    def search(asked: Asked) -> Answer:
        said = f"echoed {asked.headers['x-api-key']}"
        status = int(echoes["search"]) if echoes["search"].isdigit() else 200
        page = {"title": said, "link": f"https://example.org/{said}", "snippet": said}
        return Answer(status=status, body=json.dumps({"organic": [page], "message": said}), headers={"Location": said})

    tool = ("search", {"query": "x"}) if "search" in echoes else ("look", {"text": "x"})
    model = Echo(CANARIES["OPENAI_API_KEY"], echoes.get("model", ""), *tool)
    judge = Echo(CANARIES["JUDGE_KEY"], echoes.get("judge", ""))
    (tmp_path / "t.jsonl").write_text(json.dumps({"question": "What is 45 plus 17 ?", "answer": "62"}) + "\n")
    with LLMServer(model) as models, LLMServer(judge) as judges, SerperServer(key=CANARIES[SERPER_VARIABLE]) as serper:
        if "search" in echoes:
            serper.answer = search
        mode = f', "{echoes["mode"]}"' if "mode" in echoes else ""
        text = ECHOED.format(
            model=models.base_url, judge=judges.base_url, serper=serper.search_url, serper_variable=SERPER_VARIABLE,
            python=sys.executable, mcp=MCP_SERVER.with_name("echoing.py"), mode=mode, mcp_variable=MCP_VARIABLE,
        )  # fmt: skip
        (tmp_path / "echoed.toml").write_text(text)
        for words in commands:
            recipe = () if words[0] in ("eval", "show") else ("--recipe", "echoed.toml")
            command(*words, *recipe)
        (tmp_path / "prompts.json").write_text(json.dumps(models.bodies + judges.bodies, ensure_ascii=False))
        sent = {*bearers(models), *bearers(judges), *(asked.headers["x-api-key"] for asked in serper.asked)}
    kept = "".join(path.read_text(errors="replace") for path in tmp_path.glob("printed-*.txt"))
    assert "***" in kept if name.startswith("mcp") else any(key in " ".join(sent) for key in CANARIES.values())
    assert leaks(tmp_path) == []


@pytest.mark.parametrize(
    "override",
    [
        "engines.model.extra_body.api_key={}",
        'engines.model.extra_body={{metadata={{deep=["Bearer {}"]}}}}',
        "engines.model.api_key={}",
        "engines.model.base_url=http://me:{}@127.0.0.1/v1",
        "engines.model.model=http://h/v1?token={}",
        'tools.echo.command=["server", "--token", "{}"]',
        'tools.echo.headers_env={{Authorization="Bearer {}"}}',
        'tools.echo.env_pass=["{}"]',
        "unknown.password={}",
        "sk-{}",
    ],
)
def test_a_key_in_a_recipe_or_an_option_is_left_nowhere(command, tmp_path, override):
    key = CANARIES["OPENAI_API_KEY"]
    tasks = tmp_path / "t.jsonl"
    tasks.write_text(json.dumps({"question": "What?", "answer": "62"}) + "\n")
    for words in (
        ("eval", "agentflow-prompted", "--tasks", tasks, "--out", "run"),
        ("train", "flow-grpo-tiny", "--dry-run"),
    ):
        assert "secret-in-recipe" in command(*words, "--set", override.format(key))
    assert not (tmp_path / "run").exists()
    assert leaks(tmp_path) == []


@pytest.mark.parametrize(
    "proxy",
    [
        "http://me:{}@127.0.0.1:1",
        pytest.param("socks5://me:{}@127.0.0.1:1", marks=pytest.mark.slow),
        pytest.param("http://me:{}@:x/", marks=pytest.mark.slow),
    ],
)
def test_the_password_of_a_proxy_is_left_nowhere(command, tmp_path, monkeypatch, proxy):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, proxy.format(CANARIES["CANARY"]))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server = ("--base-url", "http://model.example/v1", "--model", "m", "--set", "engines.model.max_attempts=1")
    command("solve", "Why?", *server)
    command("solve", "Why?", *server, "--json")
    command("call", "web_page", '{"url": "http://page.example/", "query": "x"}', *server)
    command("call", "wikipedia", "x", *server, "--json")
    assert leaks(tmp_path) == []
