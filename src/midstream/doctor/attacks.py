"""The sandbox, tried out: which tier works here, and what five attacks on it come to.

Every attack is code as a model might write it, run through the pool that the `python` tool uses. It aims at the bait of
`bait.py` alone, and whether it got through is seen from outside, by what became of that. Where no sandbox holds code
back, no attack is run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from midstream.core.errors import MidstreamError, UnsupportedError
from midstream.doctor.honeypot import CONNECT, READ, SPY, START, WRITE, Bait, laid_bait
from midstream.report.doctor import Check, Status
from midstream.report.numbers import cut
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import Config, Limits
from midstream.sandbox.tiers import Sandbox, attempt, choose

HOLDING = ("strong", "standard", "remote")  # tiers that are meant to hold code back
LIMITS = Limits(workers=1, timeout_s=3.0, libraries=())
LIMIT_S = 60.0  # for the whole trial
LONGEST_CAUSE = 300
LOOK_S = 0.03


@dataclass
class Sighting:
    """What was seen of one attack: what its code printed, and what became of the bait."""

    bait: Bait
    before: dict[str, tuple[int, bytes]]
    text: str = ""
    started: bool = False

    def got(self, *names: str) -> bool:
        """Whether the code itself says that one of these attempts was done."""
        return any(line.startswith(f"{name} done") for line in self.text.splitlines() for name in names)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Code, and how to see that it got through."""

    code: str
    what: str
    source: str
    through: Callable[[Sighting], bool] = field(repr=False)


ATTACKS = (
    Attack(code="MS411", what="read files", source=READ, through=lambda seen: seen.bait.secret in seen.text),
    Attack(code="MS412", what="write files", source=WRITE, through=lambda seen: seen.bait.files() != seen.before),
    Attack(code="MS413", what="reach the network", source=CONNECT, through=lambda seen: seen.bait.reached()),
    Attack(
        code="MS414",
        what="start processes",
        source=START,
        through=lambda seen: seen.started or seen.got("fork", "spawn", "shell"),
    ),
    Attack(code="MS415", what="read keys", source=SPY, through=lambda seen: seen.bait.canary in seen.text),
)


async def check_sandbox(config: Config, *, wanted: bool) -> list[Check]:
    """MS401: the tier that works here; MS411 to MS415: the attacks on it. `wanted`: a recipe that is named needs it."""
    try:
        sandbox = await asyncio.to_thread(choose, config)
    except UnsupportedError as failure:
        words = f"{failure.what}, so code that a model writes will not run: {cut(failure.cause, LONGEST_CAUSE)}"
        return [_tier("failed" if wanted else "warning", words, failure.fix), *_not_run("there is no sandbox")]
    except MidstreamError as failure:
        return [_tier("failed", failure.what, failure.fix), *_not_run("the sandbox failed")]
    tier = _of(sandbox, config)
    if sandbox.tier not in HOLDING:
        return [tier, *_not_run("there is no sandbox")]
    try:
        async with asyncio.timeout(LIMIT_S):
            return [tier, *await attacked(sandbox)]
    except TimeoutError:
        words = f"{sandbox.tier}: not tried out within {LIMIT_S:g} s"
        return [_tier("failed", words, "midstream doctor   # on a quieter machine"), *_not_run("too slow")]
    except OSError as failure:
        return [tier, *_not_run(f"no bait could be laid ({failure})")]
    except MidstreamError as failure:
        return [_tier("failed", failure.what, failure.fix), *_not_run("the sandbox failed")]


def _of(sandbox: Sandbox, config: Config) -> Check:
    """What was chosen, and what a stronger choice needs."""
    words = f"{sandbox.tier}: {sandbox.mechanisms}"
    better = attempt("strong", "") if sandbox.tier == "standard" and config.tier == "auto" else ""
    if isinstance(better, MidstreamError):
        words += f"; strong does not work: {better.what}"
        return _tier("warning", words, better.fix)
    if sandbox.tier in HOLDING:
        return _tier("ok", words)
    return _tier("warning", words)


def _tier(status: Status, words: str, fix: str = "") -> Check:
    return Check(code="MS401", what="sandbox", status=status, words=words, fix=fix)


def _not_run(why: str) -> list[Check]:
    words = f"not run: {why}"
    return [Check(code=one.code, what=one.what, status="not checked", words=words) for one in ATTACKS]


async def attacked(sandbox: Sandbox) -> list[Check]:
    """Every attack on a pool of that sandbox, between two harmless lines that show that code runs at all.

    Raises:
        SandboxError: the pool broke down.
    """
    pool = PythonPool(LIMITS, sandbox)
    try:
        return [await _attack(pool, attack) for attack in ATTACKS]
    finally:
        await pool.close()


async def _attack(pool: PythonPool, attack: Attack) -> Check:
    with laid_bait() as bait:
        seen = Sighting(bait, bait.files())
        alive = await _runs(pool)
        run = asyncio.create_task(pool.run(bait.code(attack.source)))
        try:
            while not run.done():
                await asyncio.wait({run}, timeout=LOOK_S)
                seen.started = seen.started or bait.started()
            result = await run
        finally:
            run.cancel()
        seen.text = result.text
        alive = alive and await _runs(pool)
        through = attack.through(seen)
    if through:
        done = [line.split()[0] for line in seen.text.splitlines() if " done " in line]
        words = f"got through: {', '.join(done) or 'seen from outside'}"
        fix = "apt-get install bubblewrap" if pool.tier == "standard" else "--set sandbox.tier=arithmetic"
        return Check(code=attack.code, what=attack.what, status="failed", words=words, fix=fix)
    tried = sum(f" {end}" in line for line in seen.text.splitlines() for end in ("done", "refused"))
    if not alive or (tried < attack.source.count("\nattempt(") and result.reason != "killed"):
        words = f"not known: the code ended early ({result.reason}): {cut(' '.join(seen.text.split()), 200)}"
        fix = "midstream doctor   # once more; if it stays, this Python's sandbox is broken"
        return Check(code=attack.code, what=attack.what, status="failed", words=words, fix=fix)
    return Check(code=attack.code, what=attack.what, status="ok", words=f"held back, tried in {tried} ways")


async def _runs(pool: PythonPool) -> bool:
    return (await pool.run("6 * 7")).text == "42"
