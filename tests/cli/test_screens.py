"""One golden screen a command: everything that it prints, without times, sizes and paths.

`MIDSTREAM_WRITE_SCREENS=1 pytest tests/cli/test_screens.py` writes the files in screens/; read the difference.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from midstream.cli import doctor
from midstream.cli.main import COMMANDS, main
from midstream.components import kinds
from midstream.core.version import __version__
from midstream.doctor.servers import Check
from midstream.lessons.lesson_set import LessonSet, proven
from support.evaluations import write
from support.learned import LESSONS, write_run
from support.llm_server import AgentFlowReplies, LLMServer
from support.question_server import RECIPE, QuestionServer

SCREENS = Path(__file__).parent / "screens"
SMALL = tuple(
    part
    for override in (
        "tasks.countries=40", "engines.policy.hidden_size=32", "engines.policy.layers=1", "warm_start.transcripts=60",
        "warm_start.steps=3", "warm_start.min_copy_rate=0", "training.steps=2", "training.tasks_per_step=2",
        "training.group_size=2", "evaluation.validation.per_family=1",
        'evaluation.sets=[{name="test", per_family=1}]',
    )
    for part in ("--set", override)
)  # fmt: skip
# What differs between two runs of a command, or between two machines, and its name in a screen.
VARIABLE = (
    (re.escape(__version__), "VERSION"),
    (r"http://127\.0\.0\.1:\d+", "http://SERVER"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\S*", "DATE"),
    (r"sandbox (strong|standard): .*(\n.+)?", "sandbox TIER"),
    (r"[\d,]+ \+ [\d,]+ tokens", "TOKENS"),  # the prompt describes the sandbox
    (r" *\b[\d.,]+ ?(ms|s|min|h|CPU-seconds)\b", " TIME"),  # with the spaces that set it flush right
    (r"\b[\d.]+ ?([kKMG]i?B|bytes)\b", "SIZE"),
)
Screen = Callable[..., None]


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Screen:
    """Run a command in an empty directory and compare its standard output with screens/COMMAND.txt, or NAME.txt.

    With `trained=True` the numbers are those of a trained model and may differ between processors: they are written as
    "#", curves as "CURVE", the columns that they set are closed up, the tools that they order are in the order of the
    alphabet, and the model's own text is cut out.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def compare(*arguments: object, trained: bool = False, name: str = "") -> None:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 0
        text = capsys.readouterr().out.replace(f"{tmp_path}/", "")
        for pattern, written in VARIABLE:
            text = re.sub(pattern, written, text)
        if trained:
            text = re.sub(r"(?s)(turn by turn\n).*(\nReport)", r"\1TURNS\2", text)
            text = re.sub(r'solve ".*?"', "solve QUESTION", text)
            text = re.sub("[▁▂▃▄▅▆▇█]+", "CURVE", text)
            text = re.sub("  +", "  ", re.sub(r"[-+]?\d[\d.,]*", "#", text))
            tools = re.compile(r"( tool  before.*\n─+\n)((?: \S.*\n)+)")
            text = tools.sub(lambda found: found[1] + "".join(sorted(found[2].splitlines(keepends=True))), text)
        lines = [line.rstrip() for line in text.splitlines()]
        path = SCREENS / f"{name or arguments[0]}.txt"
        if os.environ.get("MIDSTREAM_WRITE_SCREENS"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        assert lines == path.read_text(encoding="utf-8").splitlines()

    return compare


def test_every_command_has_a_screen() -> None:
    assert {path.stem.partition("-")[0] for path in SCREENS.iterdir()} == COMMANDS.keys() | {"check", "demo", "index"}


@pytest.mark.slow
def test_train(screen: Screen) -> None:
    screen("train", "flow-grpo-tiny", "--out", "run", "--quiet", *SMALL, trained=True)


def test_resume(screen: Screen, finished_run: Path) -> None:
    shutil.copytree(finished_run, "run")
    screen("resume", "run", "--quiet", trained=True)


def test_show(screen: Screen, finished_run: Path) -> None:
    shutil.copytree(finished_run, "run")
    screen("show", "run", trained=True)


def test_export(screen: Screen, finished_run: Path) -> None:
    screen("export", finished_run, "--format", "sft", "--out", "successes.jsonl")


@pytest.mark.slow
def test_demo(screen: Screen) -> None:
    screen("demo", "--quiet", *SMALL, trained=True)


def test_eval(screen: Screen) -> None:
    answers = {f"How much is {number} plus {number} ?": f"{2 * number}" for number in range(8)}
    rows = [json.dumps({"question": question, "answer": answer}) for question, answer in answers.items()]
    Path("sums.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    with QuestionServer(answers) as server:
        server.answers["How much is 3 plus 3 ?"] = "no idea"
        Path("scripted.toml").write_text(RECIPE.format(base_url=server.base_url), encoding="utf-8")
        screen("eval", "scripted.toml", "--tasks", "sums.jsonl", "--out", "evaluation", "--quiet")


def test_solve(screen: Screen) -> None:
    replies = AgentFlowReplies(tool="python", arguments={"code": "45 + 17"}, turns=2, answer="62")
    with LLMServer(replies) as server:
        screen("solve", "What is 45 plus 17 ?", "--base-url", server.base_url, "--model", "m")


def test_serve(screen: Screen) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def end() -> None:
        for _ in range(600):
            # A port listens before its server can end in order: wait for an answer.
            with suppress(OSError), closing(HTTPConnection("127.0.0.1", port, timeout=1)) as asking:
                asking.request("GET", "/")
                asking.getresponse()
                break
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with LLMServer(lambda _: "62") as server:
        threading.Thread(target=end).start()
        try:
            screen("serve", "direct", "--sessions", "--base-url", server.base_url, "--model", "m", "--port", port,
                   "--out", "run", "--quiet")  # fmt: skip
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def test_view(screen: Screen) -> None:
    write(Path("a"), {f"t{i}": [float(i < 10)] for i in range(40)})
    screen("view", "a", "--file", "a.html")


def test_compare(screen: Screen) -> None:
    write(Path("a"), {f"t{i}": [float(i < 10)] for i in range(40)}, resolved={"agent": {"max_turns": 3}})
    write(Path("b"), {f"t{i}": [float(i < 30)] for i in range(40)}, resolved={"agent": {"max_turns": 10}})
    screen("compare", "a", "b")


def test_call(screen: Screen) -> None:
    screen("call", "guess")


@pytest.mark.parametrize(
    "words", [(), ("recipes",), ("tools", "web_search"), ("reward", "numeric"), ("benchmarks", "gpqa")]
)
def test_list(screen: Screen, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    # Without what other tests of this process have registered.
    monkeypatch.setattr(kinds, "_REGISTRY", {**kinds.COMPONENTS, "agent": kinds.AGENTS})
    screen("list", *words, name="-".join(("list", *words)))


def test_check(screen: Screen, finished_run: Path) -> None:
    shutil.copytree(finished_run, "run")
    screen("check", "run")


def test_init(screen: Screen) -> None:
    screen("init", "mine")


def test_models(screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    screen("models")


def test_lessons(screen: Screen) -> None:
    write_run(Path("run"), versions=(LessonSet(), proven(LESSONS, "scripted (0123456789ab)")))
    screen("lessons", "show", "run")


def test_index(screen: Screen) -> None:
    rows = [{"id": 1, "text": "The lighthouse is 105 metres high.", "title": "Amberbank"}, {"id": 2, "text": " "}]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    screen("index", "build", "docs.jsonl", "--quiet")


def test_doctor(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object, **__: object) -> tuple[Check, ...]:
        checks = [
            {"code": "MS101", "what": "Python", "status": "ok", "words": "there"},
            {"code": "MS202", "what": "GPU", "status": "ok", "words": "none"},
            {"code": "MS401", "what": "sandbox", "status": "warning", "words": "standard", "fix": "apt-get install b"},
        ]
        return tuple(Check.model_validate(check) for check in checks)

    monkeypatch.setattr(doctor, "check_machine", found)
    screen("doctor", "--quiet")
