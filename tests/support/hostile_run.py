"""Run the hostile corpus in one tier of the sandbox: `python tests/support/hostile_run.py strong`. Prints JSON.

A separate script, so that it can also run as an ordinary user. `--only NAME ...` runs some snippets, `--file FILE`
those of a JSON list of {"code": ...}. Nothing hostile is run before the sandbox has refused three harmless things.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

from midstream.components.component import Sandbox
from midstream.core.errors import SandboxError, UnsupportedError
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits, SandboxConfig
from midstream.sandbox.tiers import choose
from support.hostile_corpus import CORPUS, DISK_MB, HONEST, MEMORY_MB, Snippet
from support.hostile_watch import Watch, descendants, within

# Long, so that what is left of it in the worker's memory would be found by "search_the_memory".
PROBE = "import os\nprint(2 + 2, os.listdir('.'), sorted(os.environ))\n# " + "remains " * 12_000
HARMLESS = "import os\n{}\nprint('not confined')"
REFUSED = ("open({note!r}).read()", "import socket\nsocket.socket()", "os.fork() or os._exit(0)")
ANNOTATED = 2001  # characters that an error's description may add to what was printed
NOT_CONFINED, UNSUPPORTED = 3, 4  # exit codes


class NotConfined(Exception):
    """The sandbox let something harmless pass, so nothing hostile is tried."""


def limits(slow: bool = False) -> CodeLimits:
    timeout_s = 0.04 if slow else 1.0
    return CodeLimits(workers=1, timeout_s=timeout_s, memory_mb=MEMORY_MB, disk_mb=DISK_MB, libraries=())


async def make_sure(sandbox: Sandbox, tier: str, note: str) -> None:
    """Raise `NotConfined` unless the sandbox is of `tier` and refuses what any tier must."""
    pool = PythonPool(limits(), sandbox)
    if (sandbox.tier, pool.tier) != (tier, tier) or tier not in ("strong", "standard"):
        raise NotConfined(f"asked for {tier}, got {sandbox.tier} and {pool.tier}")
    try:
        for attempt in REFUSED:
            result = await pool.run(HARMLESS.format(attempt.format(note=note)))
            if result.reason == "ok" or "not confined" in result.text.splitlines() or "Error" not in result.text:
                raise NotConfined(f"{attempt} gave {result}")
    finally:
        await pool.close()


async def attack(pool: PythonPool, snippet: Snippet, watch: Watch, *, running: bool) -> dict[str, Any]:
    """Run one snippet, then a harmless piece of code; what the snippet did, and how it ended.

    If the worker is `running` already, no process may have been added to it.
    """
    others = descendants() - {watch.victim.pid}
    clock = time.monotonic()
    try:
        result = await pool.run(snippet.filled(watch.values()))
        effects = watch.effects(result.text)
        if len(result.text) > pool._limits.output_limit + ANNOTATED:
            effects.append(f"answered {len(result.text)} characters")
        text, reason = result.text, result.reason
    except SandboxError as error:
        effects, text, reason = [*watch.effects(""), f"broke the worker: {error.what}"], "", "error"
    wall_s = time.monotonic() - clock
    if running:
        effects += [f"left process {pid}" for pid in within(1, lambda: descendants() - others - {watch.victim.pid})]
    after = await pool.run(PROBE)
    if (after.text.split(" [")[0], "[]" in after.text) != ("4", True):
        effects.append(f"changed the next call: {after.text[:200]}")
    return {"effects": effects, "text": text[:2000], "reason": reason, "wall_s": round(wall_s, 3)}


async def cold(sandbox: Sandbox, snippets: list[Snippet], watch: Watch) -> dict[str, Any]:
    """Each snippet in a fresh pool."""
    found = {}
    for snippet in snippets:
        pool = PythonPool(limits(snippet.slow), sandbox)
        found[snippet.name] = await attack(pool, snippet, watch, running=False)
        await pool.close()
        found[snippet.name]["effects"] += watch.left()
    return found


async def warm(sandbox: Sandbox, snippets: list[Snippet], watch: Watch) -> dict[str, Any]:
    """All snippets in one pool; two, because slow ones get another clock."""
    found = {}
    for slow in (False, True):
        pool = PythonPool(limits(slow), sandbox)
        await pool.run(PROBE)
        for snippet in snippets:
            if snippet.slow == slow:
                found[snippet.name] = await attack(pool, snippet, watch, running=True)
        await pool.close()
    return found


async def honest(sandbox: Sandbox) -> dict[str, list[str]]:
    """What honest code should print, and what it printed."""
    pool = PythonPool(limits(), sandbox)
    found = {code: [text, (await pool.run(code)).text] for code, text in HONEST.items()}
    await pool.close()
    return found


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    snippets = CORPUS
    if arguments.file:
        with open(arguments.file, encoding="utf-8") as file:
            codes = [entry["code"].replace("$", "$$") for entry in json.load(file)]
        snippets = [Snippet(f"file_{i}", code) for i, code in enumerate(codes)]
    snippets = [snippet for snippet in snippets if not arguments.only or snippet.name in arguments.only]
    watch = Watch()
    try:
        sandbox = choose(SandboxConfig(tier=arguments.tier))
        await make_sure(sandbox, arguments.tier, str(watch.home / ".netrc"))
        found: dict[str, Any] = {"tier": sandbox.tier, "mechanisms": sandbox.mechanisms, "user": os.getuid()}
        found["honest"] = await honest(sandbox)
        for mode, runs in (("warm", warm), ("cold", cold)):
            if mode in arguments.modes:
                found[mode] = await runs(sandbox, snippets, watch)
        return found | {"left": watch.left()}
    finally:
        watch.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", choices=("strong", "standard"))
    parser.add_argument("--modes", nargs="+", default=("warm", "cold"))
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--file")
    try:
        json.dump(asyncio.run(run(parser.parse_args())), sys.stdout)
    except (NotConfined, UnsupportedError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NOT_CONFINED if isinstance(error, NotConfined) else UNSUPPORTED)


if __name__ == "__main__":
    main()
