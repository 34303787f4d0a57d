"""Who is answered: the page that the viewer itself served, and nobody else."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from midstream.view.server import Viewer
from support.errors import raises
from support.viewing import Client


def test_every_address_needs_the_token(client: Client) -> None:
    token = client.base.strip("/")
    for path in (
        "/",
        "/api/runs",
        "/wrong/api/runs",
        f"/{token[:-1]}/api/runs",
        f"/api/runs?token={token}",
        "/view.js",
        "//[",
    ):
        status, headers, body = client.send(path)
        assert status == 403, path
        assert token not in body.decode()
        assert headers["x-content-type-options"] == "nosniff"
    assert client.send(f"/{token}/api/runs")[0] == 200
    status, headers, _ = client.send(f"/{token}")
    assert (status, headers["location"]) == (307, f"/{token}/")


def test_other_hosts_and_origins_are_refused(client: Client) -> None:
    path, port = f"{client.base}api/runs", client.port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1.x:{port}",
        "",
    ):
        assert client.send(path, headers={"Host": host})[0] == 403, host
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert client.send(path, headers={"Host": f"{host}:{port}"})[0] == 200
    assert client.send(path, headers={"Host": f"localhost:{port + 1}"})[0] == 200  # through a tunnel
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}", f"http://localhost:{port}"):
        assert client.send(path, headers={"Origin": origin})[0] == 403, origin
    assert client.send(path, headers={"Origin": f"http://127.0.0.1:{port}"})[0] == 200


def test_elsewhere_than_at_this_machine_the_token_decides(tmp_path: Path) -> None:
    viewer = Viewer([tmp_path], host="0.0.0.0", port=8000, token="secret")
    scope = {"headers": [(b"host", b"box.example:8000")], "method": "GET", "query_string": b""}
    found = [viewer._refusal({**scope, "path": path, "raw_path": path.encode()}) for path in ("/secret/", "/wrong/")]
    assert [bool(why) for why in found] == [False, True]
    assert viewer.address == "http://0.0.0.0:8000/secret/"


def test_a_form_of_another_page_cannot_post(client: Client) -> None:
    path = f"{client.base}api/run/training/feedback"
    assert client.send(path, method="POST", body={})[0] == 403
    assert client.send(path, method="POST", body={}, headers={"X-Midstream": "other"})[0] == 403
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert client.send(path, method=method)[0] in (403, 405)


def test_nothing_loads_from_elsewhere(client: Client) -> None:
    _, headers, _ = client.send(f"{client.base}api/runs")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_only_the_page_is_a_file(client: Client) -> None:
    static = files("midstream.view") / "static"
    for name, kind in (("", "text/html"), ("view.js", "text/javascript"), ("view.css", "text/css")):
        status, headers, body = client.send(f"{client.base}{name}")
        file = static / (name or "index.html")
        assert (status, body) == (200, file.read_bytes())
        assert headers["content-type"] == f"{kind}; charset=utf-8"
    for name in ("server.py", "../server.py", "..%2fserver.py", "static/view.js", "%2e%2e/server.py"):
        assert client.send(f"{client.base}{name}")[0] == 404


TRAJECTORIES = "run/training/part/step-000001/trajectory"
NOT_THERE = (
    "nothing", "run", "run/none", "compare/training/none", "%FF/%FF", "run/training/part/none",
    "run/training/part/..%2F..%2Frun", "run/training/part/%00", "run/training/part/step-000001/group/none",
    f"{TRAJECTORIES}/99", f"{TRAJECTORIES}/x", f"{TRAJECTORIES}/-1", f"{TRAJECTORIES}/99999999999999999999",
    f"{TRAJECTORIES}/0/call/99", f"{TRAJECTORIES}/0/call/99/tokens", f"run/training/part/{'a' * 5000}",
)  # fmt: skip


@pytest.mark.parametrize("path", NOT_THERE)
def test_what_is_not_there_is_said_to_be_missing(client: Client, path: str) -> None:
    problem = client.get(path, status=404)
    assert problem["code"] == "unknown-name"
    assert problem["what"]


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        viewer = Viewer([Path()], port=taken.getsockname()[1])
        with raises("address-taken", str(taken.getsockname()[1])):
            viewer.run(print)
    for port in (99_999, -1):
        with raises("setting-range", str(port)):
            Viewer([Path()], port=port).run(print)


@pytest.mark.slow
def test_the_command_prints_its_address_and_ends_with_ctrl_c(runs: Path) -> None:
    command = [sys.executable, "-m", "midstream", "view", "training"]
    process = subprocess.Popen(command, cwd=runs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    client = Client(address)
    with client.events():  # a page that is open does not keep it
        assert [run["run"] for run in client.get("runs")["runs"]] == ["training"]
        loaded = Path(f"/proc/{process.pid}/maps")
        if loaded.exists():
            assert "torch" not in loaded.read_text()
            assert "numpy" not in loaded.read_text()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, errors) == (0, "", "")


def test_a_missing_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from midstream.cli.main import main

    assert main(["view", str(tmp_path / "none")]) == 2
    assert "error[file-not-found]" in capsys.readouterr().err
