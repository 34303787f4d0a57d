"""`midstream solve` on real servers and runs: what it shows, what it asks, how it is stopped."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import tomllib

import pytest

import midstream as ms
from midstream.cli.main import main
from midstream.core.trajectory import ErrorInfo, Trajectory
from midstream.recipe.files import shipped_recipes, to_toml
from midstream.recipe.overrides import agent_recipe, set_server
from support.errors import coded, printed
from support.fake_run import lost
from support.llm_server import AgentFlowReplies, LLMServer, prompt_of

QUESTION = "What is 45 plus 17 ?"
SUM = AgentFlowReplies(tool="python", arguments={"code": "45 + 17"}, turns=2, answer="62")
FAST = ("--set", "engines.model.first_pause_s=0")


def solve(capsys, *options):
    """(exit code, standard output, standard error)."""
    capsys.readouterr()
    code = main(["solve", QUESTION, *map(str, options)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def lines(text):
    return [re.sub("  +", "  ", line.strip()) for line in text.splitlines()]


def test_a_tiny_planner_knows_its_made_up_world_alone(finished_run, capsys):
    assert main(["solve", "How high is Mount Everest ?", "--planner", str(finished_run)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "", "refused before anything is loaded"
    assert "error[question-unknown]: the planner does not know 'Mount', 'Everest'" in captured.err
    [example] = re.findall(r'fix: ask "([^"]+)"', captured.err)
    assert main(["solve", example.replace(" ?", "?"), "--planner", str(finished_run), "--quiet"]) == 0


# -- what is shown ---------------------------------------------------------------------------------------------------


def test_the_turns_are_shown_as_they_happen(capsys):
    with LLMServer(SUM, faults=[None, 429, 503]) as server:
        code, out, err = solve(capsys, "--base-url", server.base_url, "--model", "m", *FAST)
    assert (code, err) == (0, "")
    found = [re.sub(r"  [\d.]+s(  \d+ tokens)?$", "", line) for line in lines(out)]
    turn = found.index("turn 1")  # the line on the sandbox may be two
    assert found[0] == QUESTION
    assert re.match(r"sandbox (strong|standard): ", found[1])
    assert found[turn + 3].startswith("context")
    retries = [line for line in found if line.startswith("retry")]
    assert [line[:19] for line in retries] == ["retry 1  executor: ", "retry 2  executor: "]
    assert "429" in retries[0]
    assert "503" in retries[1]
    assert found.index('command  python(code="45 + 17")') > found.index(retries[1])
    assert "observation  62" in found
    assert found[-4:-2] == ["answer  62", "stopped  verified, 2 turns"]
    assert re.fullmatch(r"spent  [\d.]+s, 7 requests, [\d,]+ \+ \d+ tokens, no price set", found[-2])
    assert found[-1] == "requests  2 request failures"


def test_json_is_all_that_is_printed(capsys):
    with LLMServer(SUM) as server:
        code, out, err = solve(capsys, "--base-url", server.base_url, "--model", "m", "--json")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 1
    trajectory = Trajectory.model_validate_json(out)
    assert (trajectory.answer, trajectory.gold, trajectory.reward) == ("62", None, None)


def test_quiet_prints_the_answer_alone(capsys):
    with LLMServer(SUM) as server:
        assert solve(capsys, "--base-url", server.base_url, "--model", "m", "--quiet") == (0, "62\n", "")


def test_the_whole_last_reply_is_kept_and_shown_where_it_is_wanted(capsys):
    def reasons(body):
        reply = SUM(body)
        return f"<think>hm</think>45 and 17 make 62.\n{reply}" if reply.startswith("<answer>") else reply

    with LLMServer(reasons) as server:
        at = ("--base-url", server.base_url, "--model", "m")
        assert solve(capsys, *at, "--quiet", "--final")[1] == "45 and 17 make 62.\n<answer>62</answer>\n"
        shown = lines(solve(capsys, *at, "--final")[1])
        trajectory = Trajectory.model_validate_json(solve(capsys, *at, "--json")[1])
    final = shown.index("final  45 and 17 make 62.")
    assert shown[final + 1] == "<answer>62</answer>"
    assert shown[final + 2].startswith("answer  62")
    assert (trajectory.answer, trajectory.final) == ("62", "45 and 17 make 62.\n<answer>62</answer>")


@pytest.mark.parametrize("form", [(), ("--json",), ("--quiet",)])
def test_a_lost_run_says_why_on_standard_error(capsys, form):
    code, out, err = solve(capsys, "--base-url", "http://127.0.0.1:9/v1", "--model", "m", *form)
    assert code == 1
    assert err.startswith("error: EngineError: model: nothing answers at http://127.0.0.1:9/v1")
    assert "\n  fix: " in err
    assert "Traceback" not in out + err
    if form == ("--json",):
        assert json.loads(out)["status"] == "error"
    else:
        assert ("stopped  error, no answer, 1 turn" in lines(out)) == (form == ())


def test_a_wrong_key_ends_a_question_with_its_code(capsys):
    with LLMServer(SUM, faults=[401]) as server:
        code, out, err = solve(capsys, "--base-url", server.base_url, "--model", "m", "--json")
    assert (code, out, printed(err).code, len(server.bodies)) == (1, "", "key-refused", 1)


def test_a_price_is_added_up(capsys):
    with LLMServer(SUM) as server:
        options = ("--base-url", server.base_url, "--model", "m", "--set", "engines.model.price_completion_usd=1000")
        _, out, _ = solve(capsys, *options)
    assert re.search(r"tokens, \$0\.\d+\n", out)


@pytest.mark.slow
def test_a_reader_that_stops_early_gets_no_traceback():
    with LLMServer(SUM) as server:
        command = f"{sys.executable} -m midstream solve '{QUESTION}' --base-url {server.base_url} --model m"
        done = subprocess.run(f"{command} | head -1", shell=True, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{QUESTION}\n", "")


@pytest.mark.slow
def test_an_answer_that_the_terminal_cannot_write_ends_nothing():
    with LLMServer(AgentFlowReplies(tool="python", arguments={"code": "6 * 7"}, turns=1, answer="四十二")) as server:
        command = [sys.executable, "-m", "midstream", "solve", QUESTION, "--base-url", server.base_url]
        done = subprocess.run(
            [*command, "--model", "m"], capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u56db" in done.stdout


# -- what is asked ---------------------------------------------------------------------------------------------------


def test_replies_are_streamed_unless_the_recipe_says_otherwise(capsys):
    for override, streamed in (("price_prompt_usd=0", {True}), ("stream=false", {None})):
        with LLMServer(SUM) as server:
            options = ("--base-url", server.base_url, "--model", "m", "--set", f"engines.model.{override}")
            assert solve(capsys, *options)[0] == 0
            assert {body.get("stream") for body in server.bodies} == streamed


def test_exactly_the_named_tools_are_offered(capsys):
    with LLMServer(SUM) as server:
        options = ("--base-url", server.base_url, "--model", "m", "--tools", " python, base_generator")
        assert solve(capsys, *options)[0] == 0
        planner = json.dumps(server.bodies[0]["messages"])
    assert re.findall(r'\\"name\\": ?\\"(\w+)\\"', planner) == ["python", "base_generator"]


def test_a_replay_says_so(capsys, tmp_path):
    with LLMServer(SUM) as server:
        options = ("--base-url", server.base_url, "--model", "m", "--tools", "python")
        assert "replayed" not in solve(capsys, *options, "--record", tmp_path / "kept")[1]
        code, out, _ = solve(capsys, *options, "--replay", tmp_path / "kept")
    assert code == 0
    assert f"tools   replayed from {tmp_path / 'kept'}" in out.replace("\n", "")
    assert "sandbox" not in out


def test_a_tool_keeps_the_recipes_settings(capsys):
    code, out, _ = solve(capsys, "--recipe", "gazetteer-prompted", "--tools", "local_search", "--dry-run")
    assert code == 0
    assert tomllib.loads(out)["tools"]["local_search"]["top_k"] == 3
    assert list(tomllib.loads(out)["tools"]) == ["local_search"]


def test_the_planner_of_a_run_works_with_another_model_in_the_other_modules(finished_run, capsys):
    with LLMServer(AgentFlowReplies(turns=1, answer="62")) as server:
        options = ("--planner", finished_run, "--base-url", server.base_url, "--model", "m", "--json")
        code, out, _ = solve(capsys, *options)
        roles = {body["messages"][0]["content"].partition("\n")[0].lstrip("# ").lower() for body in server.bodies}
    trajectory = Trajectory.model_validate_json(out)
    assert (code, trajectory.answer) == (0, "62")
    assert {call.engine for call in trajectory.calls if call.role == "planner"} == {"policy"}
    assert "planner" not in roles
    assert roles >= {"verifier", "generator"}


def test_a_planner_that_is_served_as_model_keeps_its_server():
    prompted = {"type": "prompted", "engine": "model"}
    table = {
        "name": "t", "tasks": {"type": "gazetteer"}, "reward": {"type": "exact_match"}, "tools": {},
        "agent": {name: dict(prompted) for name in ("planner", "executor", "verifier", "generator")},
        "engines": {"model": {"type": "openai_compatible", "model": "trained", "base_url": "http://a/v1"}},
    }  # fmt: skip
    table["agent"]["executor"]["structured_output"] = True
    set_server(table, {"model": "other", "base_url": "http://b/v1"}, planner_from_run=True)
    assert table["engines"]["model"]["model"] == "trained"
    assert table["engines"]["frozen"] == {"type": "openai_compatible", "model": "other", "base_url": "http://b/v1"}
    assert [table["agent"][name]["engine"] for name in ("planner", "executor")] == ["model", "frozen"]
    assert table["agent"]["executor"]["structured_output"] is True


def test_settings_complete_a_recipe_before_it_is_read(tmp_path):
    """What a recipe requires may come from `--set`, next to a server; its new engines stream, too."""
    text = shipped_recipes()["agentflow-prompted"].read_text()
    path, questions = tmp_path / "mine.toml", tmp_path / "questions.jsonl"
    table = {**tomllib.loads(text), "tasks": {"type": "file"}}
    path.write_text(to_toml(table))
    added = ("engines.other.type=openai_compatible", "engines.other.model=n", "agent.verifier.engine=other")
    recipe = agent_recipe(str(path), model="m", overrides=[f"tasks.path={questions}", *added])
    assert recipe.tasks.table()["path"] == str(questions)
    assert {name: engine.table()["stream"] for name, engine in recipe.engines.items()} == {"model": True, "other": True}
    kept = agent_recipe(str(path), model="m", overrides=[f"tasks.path={questions}", "engines.model.stream=false"])
    assert kept.engines["model"].table()["stream"] is False


def test_a_provider_brings_its_own_address_and_key(capsys, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "agentflow-prompted"\n[engines.model]\nbase_url = "http://h/v1"\napi_key_env = "X"\n')
    _, out, _ = solve(capsys, "--recipe", mine, "--provider", "ollama", "--model", "m", "--dry-run")
    engine = tomllib.loads(out)["engines"]["model"]
    assert (engine["provider"], engine["base_url"]) == ("ollama", "http://localhost:11434/v1")
    moved = ("--set", "engines.model.base_url=http://other/v1")
    _, out, _ = solve(capsys, "--recipe", mine, "--provider", "ollama", "--model", "m", *moved, "--dry-run")
    engine = tomllib.loads(out)["engines"]["model"]
    assert (engine["provider"], engine["base_url"]) == ("ollama", "http://other/v1")
    assert engine["api_key_env"] != "X"


# -- how it says no --------------------------------------------------------------------------------------------------

REFUSED = {
    "an unknown tool": (["--tools", "python,browser"], "unknown-tool", "'browser'", "python, base_generator"),
    "no tool": (["--tools", " ,"], "empty-value", "' ,'", "python, base_generator"),
    "two tools of one name": (["--tools", "a.py:f,b.py:f"], "name-clash", "'a.py:f,b.py:f'", "rename one"),
    "other tools than a tiny planner knows": (
        ["--planner", "RUN", "--tools", "python"],
        "setting-conflict",
        "--tools 'python'",
        "--tools",
    ),
    "an unknown provider": (["--provider", "acme", "--model", "m"], "recipe-invalid", "provider = 'acme'", "provider"),
    "a provider without a model": (["--provider", "ollama"], "missing-option", "", "--model NAME"),
    "a planner and a server without a model": (
        ["--planner", "RUN", "--base-url", "http://h/v1"],
        "missing-option",
        "",
        "",
    ),
    "a model nobody asks": (
        ["--recipe", "control-random", "--model", "m"],
        "option-without-effect",
        "--model",
        "engine",
    ),
    "no sandbox without consent": (
        ["--set", "sandbox.tier=unsafe"],
        "sandbox-not-allowed",
        'sandbox.tier = "unsafe"',
        "--unsafe",
    ),
    "a recipe without an agent": (
        ["--recipe", "TMP/bare.toml", "--model", "m"],
        "recipe-invalid",
        "agent",
        "known keys",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused_with_its_fix(case, finished_run, tmp_path, capsys):
    (tmp_path / "bare.toml").write_text('name = "bare"\n')
    options, kind, value, fix = REFUSED[case]
    options = [option.replace("RUN", str(finished_run)).replace("TMP", str(tmp_path)) for option in options]
    code, out, err = solve(capsys, *options)
    assert (code, out) == (2, "")
    error = printed(err)
    assert coded(kind, value, fix=fix)(error)
    assert error.fix


def test_programs_are_run(capsys):
    """The executor's program runs, and its code and result are on screen."""
    replies = AgentFlowReplies(tool="python", turns=1, answer="62")

    def reply(body):
        executor = "executor" in body["messages"][0]["content"].partition("\n")[0].lower()
        return "```python\nprint(python(code='print(45 + 17)'))\n```" if executor else replies(body)

    with LLMServer(reply) as server:
        options = ("--base-url", server.base_url, "--model", "m", "--set", "agent.executor.mode=code")
        code, out, err = solve(capsys, *options)
    assert (code, err) == (0, "")
    found = [re.sub(r"  [\d.]+s(  \d+ tokens)?$", "", line) for line in lines(out)]
    first = found.index("code  print(python(code='print(45 + 17)'))")
    assert found[first + 1 : first + 3] == ['call  python(code="print(45 + 17)") -> 62', "observation  62"]


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


class Stuck:
    """Plays all roles until the second turn's verifier, which never answers until it is let go."""

    def __init__(self):
        self.reached, self.free = threading.Event(), threading.Event()

    def __call__(self, body):
        text = json.dumps(body["messages"])
        if "verifier" in body["messages"][0]["content"].partition("\n")[0].lower() and '{\\"turn\\":2' in text:
            self.reached.set()
            self.free.wait(30)
        return SUM(body)


def interrupted(*options, terminal):
    """Start solve in a session of its own, press Ctrl-C in the middle: (exit code, output, errors, session id)."""
    stuck = Stuck()
    with LLMServer(stuck) as server:
        command = [sys.executable, "-m", "midstream", "solve", QUESTION, "--model", "m", *options]
        command += ["--base-url", server.base_url]
        mine, its = pty.openpty() if terminal else (None, subprocess.PIPE)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=its, stderr=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        )  # fmt: skip
        try:
            assert stuck.reached.wait(30)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the tools' processes get it, too
            if mine is None:
                out, err = process.communicate(timeout=30)
            else:
                os.close(its)
                err, out = process.communicate(timeout=30)[1], b""
                while chunk := _read(mine):
                    out += chunk
                os.close(mine)
        finally:
            stuck.free.set()
            process.kill()
            process.wait()
    return process.returncode, out.decode(), err.decode(), process.pid


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody has it open any more
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_keeps_what_was_done_and_leaves_nothing_behind(terminal):
    code, out, err, session = interrupted(terminal=terminal)
    assert (code, err) == (130, "\nstopped\n")
    assert out.count("observation") == 2
    assert re.search(r"stopped by Ctrl-C in turn 2 \(verifier\) after [\d.]+s, [\d,]+ \+ \d+ tokens", out)
    assert "Traceback" not in out
    with pytest.raises(ProcessLookupError):
        os.killpg(session, 0)
    if terminal:
        assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")
    else:
        assert "\x1b" not in out


@pytest.mark.slow
def test_ctrl_c_leaves_no_half_json():
    code, out, _, _ = interrupted("--json", terminal=False)
    assert (code, out) == (130, "")


def test_an_agent_whose_tasks_are_dialogues_answers_no_single_question(capsys):
    assert main(["solve", "What is 45 plus 17 ?", "--recipe", "function-calling-simulated"]) == 2
    fix = "midstream eval function-calling-simulated"
    assert coded("dialogues-not-supported", fix=fix)(printed(capsys.readouterr().err))


def test_what_to_do_instead_names_the_recipe_as_it_was_given(tmp_path, capsys):
    mine = tmp_path / "file.toml"
    mine.write_text('name = "mine"\nextends = "function-calling-simulated"\n', encoding="utf-8")
    assert main(["solve", QUESTION, "--recipe", str(mine)]) == 2
    assert coded("dialogues-not-supported", "'mine'", fix=f"midstream eval {mine}")(printed(capsys.readouterr().err))
    assert main(["solve", QUESTION, "--recipe", "artist-tiny"]) == 2
    fix = "midstream train artist-tiny --out runs/mine"
    assert coded("untrained", "'artist-tiny'", fix=fix)(printed(capsys.readouterr().err))


@pytest.mark.parametrize(
    ("setting", "code", "value"),
    [
        ("agent.policy.engine=modl", "unknown-engine", "agent.policy.engine = 'modl'"),
        ("agent.policy.type=modle", "unknown-type", "agent.policy.type = 'modle'"),
    ],
)
def test_a_server_next_to_a_misspelt_name_hides_nothing(capsys, setting, code, value):
    options = ["--recipe", "artist-prompted", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--set", setting]
    assert main(["solve", QUESTION, *options]) == 2
    assert coded(code, value)(printed(capsys.readouterr().err))


def test_a_stream_is_solved_live_with_its_marks(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def policy(body):
        done = "<output>\n62\n</output>" in prompt_of(body)
        return "<think>So.</think><answer>62</answer>" if done else "<think>Add.</think><python>print(45 + 17)</python>"

    with LLMServer(policy) as server:
        arguments = ["--recipe", "artist-prompted", "--model", "m", "--base-url", server.base_url]
        assert main(["solve", "What is 45 plus 17 ?", *arguments]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    places = [next(at for at, line in enumerate(lines) if line.startswith(part)) for part in (
        "▸ written by the policy ◂ put in by tools and users", "reply 1", "▸ think Add.",
        '▸ call python(code="print(45 + 17)")', "◂ output 62", "reply 2", "▸ think So.", "answer 62",
        "stopped answered, 1 turn",
    )]  # fmt: skip
    assert places == sorted(places)


def test_a_lost_question_shows_the_end_of_a_traceback(capsys, monkeypatch):
    frame = '  File "mine.py", line 3, in agent\n    1 / 0'
    text = f"Traceback (most recent call last):\n{frame}\nZeroDivisionError: by zero\n"
    error = ErrorInfo(type="ZeroDivisionError", message=text)
    monkeypatch.setattr("midstream.api.solve", lambda *_, **__: lost().model_copy(update={"error": error}))
    assert main(["solve", "What?", "--quiet"]) == 1
    assert capsys.readouterr().err == (
        'error: File "mine.py", line 3, in agent: ZeroDivisionError: by zero\n(--json prints the whole traceback)\n'
    )
    assert main(["solve", "What?", "--json"]) == 1
    assert "--json" not in capsys.readouterr().err


# -- questions about graphs --------------------------------------------------------------------------------------------


@pytest.fixture
def ring(tmp_path, monkeypatch):
    """The working directory with a ring of six nodes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring.csv").write_text("source,target\n" + "".join(f"{n},{(n + 1) % 6}\n" for n in range(6)))
    return tmp_path


DIAMETER = {"graph": "ring.csv", "algorithm": "diameter", "arguments": {}}


def at(server, graphs="ring.csv"):
    server_options = ("--recipe", "graphqa-prompted", "--base-url", server.base_url, "--model", "m")
    return (*server_options, "--set", f'tools.graph.files=["{graphs}"]')


def test_a_graph_file_is_there_for_the_tool_and_named_to_the_planner(capsys, ring):
    asked = []
    replies = AgentFlowReplies(tool="graph", arguments=DIAMETER, turns=1, answer="3")

    def model(body):
        asked.append(prompt_of(body))
        return replies(body)

    with LLMServer(model) as server:
        code, out, err = solve(capsys, *at(server), "--json")
        shown = solve(capsys, *at(server, str(ring)), "--final")[1]  # a directory
    assert (code, err) == (0, "")
    trajectory = Trajectory.model_validate_json(out)
    assert trajectory.answer == "3"
    assert trajectory.turns[0].observation.text == "diameter of ring.csv: 3"
    assert "Graph files: ring.csv." in asked[0]
    assert "final  <answer>3</answer>" in lines(shown)


def test_a_graph_file_that_is_missing_costs_no_request(capsys, ring):
    with LLMServer(SUM) as server:
        code, out, err = solve(capsys, *at(server, "none.csv"), "--quiet")
        assert not server.bodies
    assert (code, out) == (2, "")
    assert printed(err).code == "file-not-found"


def test_a_question_about_a_graph_is_asked_from_python(ring):
    replies = AgentFlowReplies(tool="graph", arguments=DIAMETER, turns=1, answer="3")
    with LLMServer(replies) as server:
        agent = ms.AgentFlow(model="m", base_url=server.base_url, tools=["graph"])
        trajectory = ms.solve(agent, "How far is it at most?", settings={"tools.graph.files": ["ring.csv"]})
    assert trajectory.answer == "3"
    assert trajectory.turns[0].observation.text == "diameter of ring.csv: 3"


def test_a_question_about_a_graph_is_replayed(capsys, ring):
    replies = AgentFlowReplies(tool="graph", arguments=DIAMETER, turns=1, answer="3")
    with LLMServer(replies) as server:
        recorded = Trajectory.model_validate_json(solve(capsys, *at(server), "--json", "--record", "kept")[1])
        replayed = Trajectory.model_validate_json(solve(capsys, *at(server), "--json", "--replay", "kept")[1])
    assert recorded.turns[0].observation.text == replayed.turns[0].observation.text == "diameter of ring.csv: 3"
    assert recorded.sandbox == replayed.sandbox != ""
