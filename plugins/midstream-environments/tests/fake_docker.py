#!/usr/bin/env python3
"""Stands for docker in tests: a container is a folder below $FAKE_DOCKER, in which its absolute paths are.

It knows info, build, run, exec, cp and rm as midstream uses them. $FAKE_DOCKER/log has the commands.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(os.environ["FAKE_DOCKER"])
_OURS = re.compile(r"(?<![\w./])/(tests|logs|tmp|app)\b")


def inside(text, box):
    return _OURS.sub(lambda found: f"{box}/{found[1]}", text)


def ended(box):
    """End what runs in a box, and remove it: nothing outlives a container, and nothing starts in one that is gone."""
    box.joinpath("env").unlink(missing_ok=True)
    mark = f"FAKE_BOX={box}".encode()
    while running := [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if mark in variables(pid)]:
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(box, ignore_errors=True)


def variables(pid):
    """The environment of a process; none of one that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def main():
    command, *words = sys.argv[1:]
    with (ROOT / "log").open("a") as log:
        log.write(json.dumps([command, *words]) + "\n")
    if command == "info":
        if (ROOT / "no-daemon").exists():
            sys.exit("Cannot connect to the Docker daemon")
    elif command == "build":
        context = Path(words[-1])
        if "RUN false" in (context / "Dockerfile").read_text():
            sys.exit("the command false returned a code of 1")
    elif command == "run":
        box = ROOT / "boxes" / words[words.index("--name") + 1]
        image = words[words.index("--entrypoint") + 2]
        if image == "missing":
            sys.exit("pull access denied for missing")
        if image == "late":
            # As if the runtime were busy when it was first asked to remove the box.
            while '["rm"' not in (ROOT / "log").read_text():
                time.sleep(0.01)
        for name in ("tests", "logs", "tmp", "app"):
            (box / name).mkdir(parents=True)
        (box / "env").write_text(json.dumps([words[n + 1] for n, word in enumerate(words) if word == "--env"]))
        if image == "late":
            time.sleep(1000)
        try:
            subprocess.call(["sh", "-c", words[-1]], cwd=box / "app")
        finally:
            ended(box)
    elif command == "exec":
        while words[0].startswith("--"):
            del words[:2]
        box = ROOT / "boxes" / words[0]
        # Looked for by a process that `ended` finds.
        check = f'cd "$FAKE_BOX/app" && [ -e ../env ] || {{ echo No such container: {words[0]}; exit 1; }}; exec "$@"'
        command = ["sh", "-c", check, "exec", *(inside(word, box) for word in words[1:])]
        os.execvpe("sh", command, os.environ | {"FAKE_BOX": str(box)})
    elif command == "cp":
        source, (name, place) = Path(words[0]), words[1].split(":")
        box = ROOT / "boxes" / name
        for file in source.rglob("*"):
            if file.is_file():
                target = box / place.lstrip("/") / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(inside(file.read_text(), box))
    elif command == "rm":
        ended(ROOT / "boxes" / words[-1])
    else:
        sys.exit(f"unknown command {command}")


main()
