"""Whether a model can play an agent's roles.

Each role's real module, with the recipe's prompt and settings, is asked the fixed cases of `cases.toml`; each server is
probed twice. What the model gets wrong is the result; a server that fails is an error.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from midstream.agents.interleaved import InterleavedLoop, StreamConfig
from midstream.components.component import Kind
from midstream.core.agent import ModuleContext
from midstream.core.data import Frozen
from midstream.core.engine import Engine, LockstepEngine
from midstream.core.errors import PromptTooLongError, RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.stream_template import load_template
from midstream.recipe.build import Build
from midstream.recipe.schema import InterleavedConfig
from midstream.rollout import run_concurrently
from midstream_extra.examination.cases import Cases, load_cases
from midstream_extra.examination.probes import probe_engine
from midstream_extra.examination.report import GOOD, CaseResult, Diagnosis, RoleResult, advice_on, rates_of, standing_of

# Few requests at a time, so that the seconds are those of a server that is not crowded.
_CONCURRENCY = 4
_CASE_LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class _Role:
    """A role that is examined: its module (of a policy the agent that runs it) and its engine."""

    name: str
    module: Any
    config: Frozen
    engine: Engine


async def examine(build: Build, report: Callable[[int, int], None] = lambda done, cases: None) -> Diagnosis:
    """Ask every role its cases, and probe every server.

    `report` is called after each case with the number of finished cases and of all cases. Raises `InfrastructureError`
    if a request failed for good, for a reason other than the model's abilities, and `RecipeError` if the recipe has no
    role that asks a model.
    """
    check_any_role(build)
    cases = load_cases()
    roles: list[_Role] = []
    for name, component in build.recipe.modules.items():
        if _reason_to_skip(build, name):
            continue
        assert component.engine is not None
        module: Any = component.config.build(None)  # type: ignore[arg-type]  # a module uses nothing of the recipe
        agent = build.recipe.agent
        if isinstance(agent, InterleavedConfig):
            # The recipe's agent gets the tools of the cases, which its template calls by their own names.
            settings = StreamConfig(max_turns=agent.max_turns, max_tokens=agent.max_tokens)
            module = InterleavedLoop(policy=module, template=load_template(agent.template), config=settings)
        engine = build.engine(component.engine)
        roles.append(_Role(name=name, module=module, config=component.config, engine=engine))
    engines = {role.engine.name: role.engine for role in roles}
    semaphore = asyncio.Semaphore(_CONCURRENCY)
    jobs = [(role, case) for role in roles for case in _cases(build, cases, role.name)]
    finished = 0

    async def run_case(order: int, role: _Role, case: Any) -> CaseResult:
        nonlocal finished
        async with semaphore:
            result = await _ask(role, case, cases, build.recipe.seed, order)
        finished += 1
        report(finished, len(jobs))
        return result

    try:
        results = await run_concurrently([run_case(order, *job) for order, job in enumerate(jobs)])
        probes = [probe for engine in engines.values() for probe in await probe_engine(engine)]
    finally:
        for engine in engines.values():
            await engine.close()
    reasons = {name: _reason_to_skip(build, name) for name in build.recipe.modules}
    found = {
        name: RoleResult(role=name, standing="not examined", skipped=reason)
        for name, reason in reasons.items()
        if reason
    }
    for role in roles:
        answered = [result for (asked, _), result in zip(jobs, results, strict=True) if asked is role]
        seconds, rates = [each for result in answered for each in result.seconds], rates_of(answered)
        found[role.name] = RoleResult(
            role=role.name,
            standing=standing_of(rates),
            model=getattr(getattr(role.engine, "config", None), "model", role.engine.name),
            engine=role.engine.name,
            structured_output=getattr(role.config, "structured_output", None),
            rates=rates,
            asks=len(seconds),
            median_s=statistics.median(seconds) if seconds else None,
            cases=tuple(answered),
        )
    everyone = [found[name] for name in build.recipe.modules]
    advice, planner = advice_on(everyone, probes), found.get("planner")
    readable = planner.rates.get("reply readable") if planner else None
    if readable is not None and readable.share < GOOD and build.recipe.modules["planner"].type == "prompted":
        advice = ("planner: try the modules of the recipe agentflow-small (midstream-worlds)", *advice)
    return Diagnosis(
        recipe=build.recipe.name,
        roles=tuple(everyone),
        probes=tuple(probes),
        advice=advice,
        works=all(role.standing != "cannot" for role in everyone),
    )


def check_any_role(build: Build) -> None:
    """Raise `RecipeError` if the recipe has no role to examine."""
    reasons = {name: _reason_to_skip(build, name) for name in build.recipe.modules}
    if all(reasons.values()):
        raise RecipeError(
            f"recipe {build.recipe.name!r} has no role to examine",
            code="no-role-to-examine",
            cause="; ".join(f"{name}: {reason}" for name, reason in reasons.items()),
            fix="midstream examine --model NAME --base-url URL",
        )


def _reason_to_skip(build: Build, name: Kind) -> str:
    """Why a role is not examined, "" if it is."""
    module = build.recipe.modules[name]
    examined = ("prompted", "released", "model", "json_line", *(["last_result"] if module.engine else []))
    if module.type not in examined:
        return f"its type is {module.type!r}"
    if name == "analyst":
        return "no case is about it"
    if not _cases(build, load_cases(), name):
        return "its template calls a tool that no case is about"
    if getattr(module.config, "mode", "") == "code":
        return "it writes programs, and the cases are about arguments"
    return ""


def _cases(build: Build, cases: Cases, name: str) -> Sequence[Any]:
    """A role's cases; of a policy those of the tool that its template knows, or all where it knows any tool."""
    found = getattr(cases, name)
    agent = build.recipe.agent
    tool = load_template(agent.template).tool if isinstance(agent, InterleavedConfig) else ""
    return [case for case in found if case.tool == tool] if tool else found


async def _ask(role: _Role, case: Any, cases: Cases, seed: int, order: int) -> CaseResult:
    times = [time.monotonic()]

    def clock_call(kind: str, value: Any) -> None:
        if kind == "call":
            times.append(time.monotonic())

    context = ModuleContext(
        engine=role.engine,
        seed=derive_seed(seed, "doctor", role.name, case.name),
        order=order,
        deadline_s=time.monotonic() + _CASE_LIMIT_S,
        emit=clock_call,
    )
    barrier = role.engine if isinstance(role.engine, LockstepEngine) else None
    if barrier:
        barrier.join(order)
    too_long = ""
    try:
        (checks, said, wanted), calls = await case.ask(role.module, cases, context)
    except PromptTooLongError as failure:  # the model's context is too small for the role: that is a finding
        too_long, calls = failure.what, failure.calls
        checks, said, wanted = {"prompt fits": False}, failure.what, "a reply"
    finally:
        if barrier:
            barrier.leave(order)
    return CaseResult(
        case=case.name,
        checks=checks,
        said=said,
        wanted=wanted,
        seconds=tuple(end - start for start, end in pairwise(times)),
        retries=sum(len(call.failures) for call in calls),
        repaired=sum(call.repaired for call in calls),
        cut_off=sum(call.finish_reason == "length" for call in calls),
        too_long=too_long,
    )
