"""Landlock's rules, in processes of their own, from the newest version of this kernel down to the first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Landlock is Linux's", allow_module_level=True)

from midstream.sandbox.inside import landlock

SOURCE = Path(__file__).parents[2] / "src"
VERSION = landlock.version()
pytestmark = pytest.mark.skipif(not VERSION, reason="this kernel has no Landlock, or it is switched off")

ATTEMPTS = """
import os, sys
from midstream.sandbox.inside import landlock
from midstream.sandbox.inside.kernel import control
version, read, write, other = int(sys.argv[1]), *sys.argv[2:]
rules = landlock.make_rules([read, "/no/such/place"], [write], version)
control(38, 1)
landlock.restrict(rules)
def attempt(name, what):
    try:
        what()
    except OSError as error:
        print(name, type(error).__name__)
    else:
        print(name, "ok")
attempt("read", lambda: open(read + "/file").read())
attempt("list", lambda: os.listdir(read))
attempt("read one file", lambda: open(write + "/file", "w").write("x"))
attempt("rename", lambda: os.rename(write + "/file", write + "/name"))
attempt("link", lambda: os.symlink("/", write + "/link"))
attempt("make", lambda: os.mkdir(write + "/directory"))
attempt("move", lambda: os.rename(write + "/name", write + "/directory/name"))
attempt("write into read", lambda: open(read + "/file", "a"))
attempt("truncate in read", lambda: os.truncate(read + "/file", 0))
attempt("remove in read", lambda: os.unlink(read + "/file"))
attempt("fifo", lambda: os.mkfifo(write + "/fifo"))
attempt("read other", lambda: open(other + "/file").read())
attempt("write other", lambda: open(other + "/new", "w"))
attempt("through a link", lambda: open(write + "/link" + other + "/file").read())
attempt("list other", lambda: os.listdir(other))
attempt("hard link", lambda: os.link(read + "/file", write + "/hard"))
attempt("run", lambda: os.execv(read + "/program", ["program"]))
attempt("stat other", lambda: os.stat(other + "/file"))
"""
HELD = ("write into read", "remove in read", "fifo", "read other", "write other", "through a link", "list other", "run")


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_what_a_process_can_still_do(version: int, tmp_path: Path):
    places = [tmp_path / name for name in ("read", "write", "other")]
    for place in places:
        place.mkdir()
        (place / "file").write_text("tagged")
    program = places[0] / "program"
    program.write_text("#!/bin/sh\necho ran")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPTS, str(version), *map(str, places)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": str(SOURCE)},
    )
    found = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert len(found) == ATTEMPTS.count('attempt("'), done.stderr
    assert {found[name] for name in HELD} == {"PermissionError"}
    assert {found[name] for name in ("read", "list", "read one file", "rename", "link", "make")} == {"ok"}
    assert found["hard link"] in ("PermissionError", "OSError")  # EXDEV: to another directory
    # What early versions cannot do, which is why tier standard asks for the third.
    assert found["truncate in read"] == ("PermissionError" if version >= 3 else "ok")
    assert found["move"] == ("ok" if version >= 2 else "OSError")
    assert found["stat other"] == "ok"  # no version hides that
    assert (places[2] / "file").read_text() == "tagged"


def test_each_version_handles_what_it_knows():
    rights = [landlock.handled(version) for version in range(1, 8)]
    assert [bin(files).count("1") for files, _, _ in rights] == [13, 14, 15, 15, 16, 16, 16]
    assert [bool(network) for _, network, _ in rights] == [False] * 3 + [True] * 4
    assert [bool(scoped) for _, _, scoped in rights] == [False] * 5 + [True] * 2
    assert all(landlock.WRITE & landlock.EXECUTE == 0 == landlock.READ & landlock.EXECUTE for _ in rights)


def test_rules_that_the_kernel_refuses_are_an_error(tmp_path: Path):
    with pytest.raises(OSError, match="landlock_restrict_self"):
        landlock.restrict(1_000_000)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        landlock.make_rules([str(tmp_path / "file" / "below")], [], VERSION)
