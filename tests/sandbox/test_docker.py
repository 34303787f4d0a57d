"""Tier "remote" in a real container: `MIDSTREAM_DOCKER_IMAGE=python:3.12-slim pytest tests/sandbox/test_docker.py`."""

import asyncio
import os
import subprocess
import time

import pytest

from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits, SandboxConfig
from midstream.sandbox.tiers import choose

IMAGE = os.environ.get("MIDSTREAM_DOCKER_IMAGE", "")
pytestmark = pytest.mark.skipif(not IMAGE, reason="MIDSTREAM_DOCKER_IMAGE names no image; see the top of this file")

CASES = {
    "1 + 1": ("ok", "2"),
    "open('kept', 'w').write('hi')\nopen('kept').read()": ("ok", "'hi'"),
    "import os\nos.listdir('.')": ("ok", "[]"),  # nothing is left of the call before
    "import threading\nthread = threading.Thread(target=print, args=(5,))\nthread.start()\nthread.join()": ("ok", "5"),
    "import socket\nsocket.socket()": ("raised", "PermissionError"),
    "open('/etc/new', 'w')": ("raised", "OSError"),
    "import os\nos.fork()": ("raised", "PermissionError"),
    "while True: pass": ("timeout", "not finished"),
    "held = []\nwhile True: held.append(bytearray(50 << 20))": ("memory", "MemoryError"),
}


def containers() -> set[str]:
    listed = subprocess.run(["docker", "ps", "--quiet"], capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def test_a_container_holds_code_and_goes_with_the_pool():
    sandbox = choose(SandboxConfig(tier="remote", image=IMAGE))
    before = containers()

    async def go() -> None:
        pool = PythonPool(CodeLimits(libraries=(), timeout_s=1.0), sandbox)
        for code, (reason, text) in CASES.items():
            result = await pool.run(code)
            assert (result.reason, text in result.text) == (reason, True), (code, result)
        assert len(containers() - before) == 1
        await pool.close()

    asyncio.run(go())
    assert f"container of {IMAGE} without network" in sandbox.mechanisms
    for _ in range(50):
        if containers() <= before:
            return
        time.sleep(0.1)
    pytest.fail(f"left: {containers() - before}")
