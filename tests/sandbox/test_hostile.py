"""The hostile corpus in both tiers: each snippet in a fresh pool and in one warm one, by us and by an ordinary user.

`hostile_run.py` runs it in another process; what is documented not to be held (docs/sandbox.md) is listed with the
snippets (`leaks:`), and nothing else may get through.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from midstream.components.component import Sandbox
from midstream.core.errors import SandboxError, UnsupportedError
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits, SandboxConfig
from midstream.sandbox.tiers import choose
from support.hostile_corpus import CORPUS, HONEST, parse
from support.hostile_run import NOT_CONFINED, UNSUPPORTED, make_sure
from support.hostile_watch import Watch, descendants, parent_of, within

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="strong and standard are Linux's")

SCRIPT = Path(__file__).parents[1] / "support" / "hostile_run.py"
TESTS, SOURCE = Path(__file__).parents[1], Path(__file__).parents[2] / "src"
NOBODY = "65534"
LIMIT_S = 300
TIERS = ("strong", "standard")
USERS = ("as_we_are", "ordinary")
# A snippet that ends so was mistyped: it has not tried what it should.
MISTYPED = re.compile(r"^(Name|Syntax|Indentation|Attribute|Import|ModuleNotFound|UnboundLocal|Type|Key)Error", re.M)


def need(tier: str) -> Sandbox:
    """The tier, or a skip that says what this machine lacks."""
    if tier == "strong" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed: apt-get install bubblewrap")
    try:
        return choose(SandboxConfig(tier=tier))  # pyright: ignore[reportArgumentType]
    except UnsupportedError as error:
        pytest.skip(str(error))


def command(user: str) -> tuple[list[str], dict[str, str]]:
    """How to run Python as a user, and the environment for it."""
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = f"{SOURCE}:{TESTS}"
    if user == "as_we_are":
        return [sys.executable], environment
    if os.getuid():
        pytest.skip("these tests run as an ordinary user already")
    python = shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
    if not python or not shutil.which("setpriv"):
        pytest.skip("needs setpriv, and a Python of this version that everyone may run")
    packages = Path(sys.modules["pydantic"].__file__ or "").parents[1]
    environment |= {"PYTHONPATH": f"{SOURCE}:{TESTS}:{packages}", "HOME": "/nonexistent"}
    argv = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", python]
    if subprocess.run(
        [*argv, "-c", "import midstream.sandbox.pool, support.hostile_run"], env=environment, cwd="/", check=False
    ).returncode:
        pytest.skip("an ordinary user cannot read midstream and its packages here")
    return argv, environment


LIMITS = {"endless_loop": "timeout", "catastrophic_pattern": "timeout", "memory_at_once": "memory"}
SOME = [snippet for at, snippet in enumerate(CORPUS) if at % 12 == 0 or snippet.name in LIMITS]
# `make test` tries some snippets of every kind in one warm pool, `make test-all` all of them in every way.
RUNS = [pytest.param(tier, "as_we_are", "some", id=f"{tier}-some") for tier in TIERS]
RUNS += [
    pytest.param(tier, user, "all", id=f"{tier}-{user}", marks=pytest.mark.slow) for tier in TIERS for user in USERS
]
every_run = pytest.mark.parametrize(("tier", "user", "extent"), RUNS)


@cache
def found(tier: str, user: str, extent: str) -> dict[str, Any]:
    """The effects of the corpus. A tier that works for us and not for an ordinary user is a skip with the reason."""
    need(tier)
    argv, environment = command(user)
    part = ["--modes", "warm", "--only", *(snippet.name for snippet in SOME)] if extent == "some" else []
    done = subprocess.run(
        [*argv, str(SCRIPT), tier, *part],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode == UNSUPPORTED:
        pytest.skip(done.stderr)
    assert done.returncode != NOT_CONFINED, f"nothing was tried, the sandbox is open: {done.stderr}"
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def tried(request: pytest.FixtureRequest):
    """Try the snippets before the first case that asks, which would take the blame for what all cost."""
    parameters = getattr(request.node, "callspec", None)
    if parameters and "extent" in parameters.params:
        found(*(parameters.params[name] for name in ("tier", "user", "extent")))


def outcomes(tier: str, user: str, extent: str) -> dict[str, dict[str, Any]]:
    """The outcome of every snippet by the mode of the run."""
    modes = ("warm",) if extent == "some" else ("warm", "cold")
    return {mode: found(tier, user, extent)[mode] for mode in modes}


@pytest.mark.matrix(1)
@every_run
def test_only_what_is_documented_gets_through(tier: str, user: str, extent: str):
    snippets = SOME if extent == "some" else CORPUS
    confined = "a file system for each call" in found(tier, user, extent)["mechanisms"]
    leaks = {snippet.name for snippet in snippets if tier in snippet.leaks and not confined}
    for results in outcomes(tier, user, extent).values():
        assert results.keys() == {snippet.name for snippet in snippets}
        through = {name: result["effects"] for name, result in results.items() if result["effects"]}
        assert through.keys() == leaks, {name: effects for name, effects in through.items() if name not in leaks}


@every_run
def test_every_snippet_was_tried_and_ended_as_it_should(tier: str, user: str, extent: str):
    ends = {snippet.name: snippet.ends for snippet in CORPUS}
    problems = {}
    for mode, results in outcomes(tier, user, extent).items():
        for name, result in results.items():
            said = re.search(r"^(held|tried|ESCAPED)", result["text"], re.M) or result["reason"] != "ok"
            if not said or MISTYPED.search(result["text"]) or (ends[name] and result["reason"] not in ends[name]):
                problems[name, mode] = result
    assert not problems


@every_run
def test_honest_code_works_and_nothing_is_left(tier: str, user: str, extent: str):
    results = found(tier, user, extent)
    assert len(results["honest"]) == len(HONEST)
    assert all(wanted == got for wanted, got in results["honest"].values()), results["honest"]
    assert results["left"] == []


@every_run
def test_what_uses_too_much_ends_in_time(tier: str, user: str, extent: str):
    for results in outcomes(tier, user, extent).values():
        for name, reason in LIMITS.items():
            assert (results[name]["reason"], results[name]["wall_s"] < 20) == (reason, True)


def test_some_snippets_are_of_every_kind():
    assert {snippet.kind for snippet in SOME} == {snippet.kind for snippet in CORPUS}
    assert len({snippet.kind for snippet in CORPUS}) == 8


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", "")
    monkeypatch.setenv("HOSTILE_CANARY", "")
    monkeypatch.setattr("tempfile.tempdir", None)
    watching = Watch()
    yield watching
    watching.close()


@pytest.mark.matrix(2)
@pytest.mark.parametrize("who", ["the zygote", "what the host started"])
@pytest.mark.parametrize("tier", TIERS)
def test_a_worker_killed_in_mid_call_is_an_error_of_that_call_alone(watch: Watch, tier: str, who: str):
    sandbox = need(tier)

    async def go() -> None:
        pool = PythonPool(CodeLimits(workers=1, libraries=()), sandbox)
        before = descendants()
        assert (await pool.run("1")).text == "1"
        worker = descendants() - before
        running = asyncio.create_task(pool.run("import time\ntime.sleep(60)"))
        while not (child := descendants() - before - worker):
            await asyncio.sleep(0.01)
        zygote = parent_of(*child)
        first = next(pid for pid in worker if parent_of(pid) == os.getpid())
        os.kill(zygote if zygote and who == "the zygote" else first, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await running
        assert (await pool.run("1")).text == "1"
        assert not within(2, lambda: descendants() & (worker | child))
        await pool.close()

    asyncio.run(go())
    assert watch.left() == []


def test_nothing_hostile_is_tried_where_nothing_confines(tmp_path: Path):
    note = tmp_path / "note"
    note.write_text("read")
    with pytest.raises(Exception, match="asked for standard, got unsafe"):
        asyncio.run(make_sure(choose(unsafe=True), "standard", str(note)))


def test_the_corpus_is_read_as_it_is_written():
    snippets = parse("==== a part\n\n-- one slow leaks:standard ends:timeout,memory\nx = 1\n\n-- two\ny\n\n==== more\n")
    assert [(found.name, found.code, found.kind) for found in snippets] == [
        ("one", "x = 1", "a part"),
        ("two", "y", "a part"),
    ]
    assert [snippet.slow for snippet in snippets] == [True, False]
    assert (snippets[0].leaks, snippets[0].ends) == (("standard",), ("timeout", "memory"))
    assert len({snippet.name for snippet in CORPUS}) == len(CORPUS)


def test_the_document_says_how_many_there_are_and_how_many_leak():
    document = " ".join((SOURCE.parent / "docs/sandbox.md").read_text(encoding="utf-8").split())
    assert f" {len(CORPUS)} pieces of hostile code" in document
    assert "None of them gets through on `strong`, nor on `standard` with namespaces. Without them one does" in document
    assert [sum(tier in snippet.leaks for snippet in CORPUS) for tier in TIERS] == [0, 1]


def send(family: int, kind: int, address: Any) -> None:
    with socket.socket(family, kind) as end:
        end.connect(address)
        if kind == socket.SOCK_DGRAM:
            end.send(b"x")


EFFECTS: dict[str, tuple[Callable[[Watch], object], str]] = {
    "write": (lambda w: (w.home / "pwned").touch(), "changed files"),
    "append": (lambda w: (w.home / ".netrc").write_text("x"), "changed files"),
    "mode": (lambda w: (w.home / ".netrc").chmod(0o777), "changed files"),
    "time": (lambda w: os.utime(w.home / ".netrc", (1, 1)), "changed files"),
    "attribute": (lambda w: os.setxattr(w.home / ".netrc", "user.pwned", b"1"), "changed files"),
    "delete": (lambda w: (w.home / "empty").rmdir(), "changed files"),
    "elsewhere": (lambda w: Path("/dev/shm", w.tag).touch(), "wrote"),
    "kill": (lambda w: (w.victim.kill(), w.victim.wait()), "changed the victim"),
    "stop": (lambda w: (w.victim.send_signal(signal.SIGSTOP), os.waitpid(w.victim.pid, os.WUNTRACED)), "the victim"),
    "priority": (lambda w: os.setpriority(os.PRIO_PROCESS, w.victim.pid, 15), "changed the victim"),
    "tcp": (lambda w: send(2, 1, w.sockets["tcp"].getsockname()), "reached the tcp"),
    "udp": (lambda w: send(2, 2, w.sockets["udp"].getsockname()), "reached the udp"),
    "abstract": (lambda w: send(1, 1, f"\0{w.tag}"), "reached the abstract socket"),
    "path": (lambda w: send(1, 2, str(w.base / "socket.d")), "reached the path datagram socket"),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_the_watch_sees_every_effect_once(watch: Watch, name: str):
    do, seen = EFFECTS[name]
    assert watch.effects("") == []
    do(watch)
    (effect,) = watch.effects("")
    assert seen in effect
    assert watch.effects("") == []


def test_the_watch_sees_secrets_claims_and_what_is_left(watch: Watch):
    assert watch.effects(f"a {watch.secrets['file']} b") == ["read the secret of the file"]
    assert watch.effects("x\nESCAPED by y") == ["ESCAPED by y"]
    assert watch.effects("    print('ESCAPED')") == []
    (watch.scratch / "left").touch()
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        assert watch.left(patience_s=0) == [f"process {process.pid}", "left"]
        process.kill()
