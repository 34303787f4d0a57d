"""`midstream doctor`: what works on this machine, and can this model play the agent's roles?

The machine is looked at always (`machine/`), the roles where a model is named. Each role's real module, with the
recipe's prompt and settings, is asked the fixed cases of `doctor/cases.toml`; each server is asked two questions about
itself. What the model gets wrong is the result; a server that fails is an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from midstream.agents.formats import schema_error
from midstream.agents.interleaved import Config as StreamConfig
from midstream.agents.interleaved import Interleaved
from midstream.cli.commands import dry_run
from midstream.core.data import Frozen
from midstream.core.errors import DeadlineError, EngineError, PromptTooLongError, RecipeError, UnsupportedError
from midstream.core.protocols import Engine, LockstepEngine, ModuleContext, Request
from midstream.core.seeds import derive_seed
from midstream.core.stream import load_template
from midstream.core.trajectory import Message, Sampling
from midstream.doctor.cases import ASK, Cases, load_cases
from midstream.doctor.checks import check_machine
from midstream.engines.openai.engine import OpenAICompatibleEngine
from midstream.recipe.build import Build
from midstream.recipe.overrides import RECIPE, set_server
from midstream.recipe.registry import ROOMS, resolve
from midstream.recipe.schema import InterleavedConfig, Recipe, parse_recipe, read_table, with_overrides
from midstream.report.doctor import (
    JSON_SCHEMA,
    TOKEN_IDS,
    CaseResult,
    Check,
    Diagnosis,
    Probe,
    RoleResult,
    advice_on,
    machine_screen,
    rates_of,
    screen,
    standing_of,
)
from midstream.rollout import together

NOT_REACHED = "The roles were not examined: a key or a server failed."
EXAMINE = "Examine a model: midstream doctor --model NAME --base-url URL"
REACHED = ("MS501", "MS502")  # without these no model can be asked
_NAMES_A_MODEL = ("model", "base_url", "provider", "recipe")
_AT_A_TIME = 4  # requests under way: seconds are then those of a server that is not crowded
_CASE_LIMIT_S = 600.0
_PROBE_SCHEMA: Mapping[str, Any] = {
    "type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"], "additionalProperties": False,
}  # fmt: skip


def diagnose(options: argparse.Namespace) -> int:
    """Examine machine and model and print what was found; returns 0, or 1 where something failed."""
    recipe = _recipe(options)
    if options.dry_run:
        return dry_run(recipe)
    build = Build(recipe, unsafe=True)  # no program is run: an executor that writes them is not examined
    named = options.roles or any(getattr(options, one) is not None for one in _NAMES_A_MODEL)
    if named:
        _check_any_role(build)
    silent = options.json or options.quiet
    with _spinner(silent, "looking at this machine"):
        machine = asyncio.run(check_machine(build, named=named))
    if not options.json:
        Console().print(machine_screen(machine), crop=False)
    reached = not any(one.code in REACHED and one.status == "failed" for one in machine)
    if named and reached:
        found = _examined(build, machine, silent)
    else:
        roles = _unreached(build) if named else ()
        sound = all(one.status != "failed" for one in machine)
        found = Diagnosis(recipe=recipe.name, machine=machine, roles=roles, works=sound)
    if options.json:
        print(found.model_dump_json())
    elif named and reached:
        Console().print(Text(), screen(found))
    else:
        Console().print(NOT_REACHED if named else EXAMINE, markup=False, highlight=False, soft_wrap=True)
    return 0 if found.works else 1


def _examined(build: Build, machine: tuple[Check, ...], silent: bool) -> Diagnosis:
    """What the roles came to, beside the machine."""
    with _spinner(silent, "asking the model") as status:

        def told(done: int, of: int) -> None:
            if status is not None:
                status.update(f"{done} of {of} cases")

        roles = asyncio.run(examine(build, told))
    sound = all(one.status != "failed" for one in machine)
    return roles.model_copy(update={"machine": machine, "works": sound and roles.works})


def _spinner(silent: bool, words: str) -> AbstractContextManager[Status | None]:
    return nullcontext() if silent else Console(stderr=True).status(words)


def _unreached(build: Build) -> tuple[RoleResult, ...]:
    reasons = {
        name: _not_examined(build, name) or "its server or key failed, see above" for name in build.recipe.modules
    }
    return tuple(RoleResult(role=name, standing="not examined", skipped=why) for name, why in reasons.items())


def _recipe(options: argparse.Namespace) -> Recipe:
    table = read_table(options.recipe or RECIPE)
    set_server(table, options)
    if options.seed is not None:
        table["seed"] = options.seed
    return parse_recipe(with_overrides(table, options.overrides))


# --- the cases --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Role:
    """A role that is examined: its module (of a policy the agent that runs it) and its engine."""

    name: str
    module: Any
    config: Frozen
    engine: Engine


async def examine(build: Build, told: Callable[[int, int], None] = lambda done, of: None) -> Diagnosis:
    """Ask every role its cases, every server its probes. `told(done, of)` hears of each case that is done.

    Raises:
        InfrastructureError: a request failed for good, whatever the model can do.
        RecipeError: the recipe has no role that asks a model.
    """
    _check_any_role(build)
    cases = load_cases()
    roles, skipped = _roles(build)
    engines = {role.engine.name: role.engine for role in roles}
    slots = asyncio.Semaphore(_AT_A_TIME)
    jobs = [(role, case) for role in roles for case in _cases(build, cases, role.name)]
    done: list[CaseResult] = []

    async def one(order: int, role: _Role, case: Any) -> CaseResult:
        async with slots:
            result = await _ask(role, case, cases, build.recipe.seed, order)
        done.append(result)
        told(len(done), len(jobs))
        return result

    try:
        results = await together([one(order, *job) for order, job in enumerate(jobs)])
        probes = [probe for engine in engines.values() for probe in await _probes(engine)]
    finally:
        for engine in engines.values():
            await engine.close()
    made = [
        _role_result(role, [result for (asked, _), result in zip(jobs, results, strict=True) if asked is role])
        for role in roles
    ]
    everyone = sorted([*made, *skipped], key=lambda role: list(build.recipe.modules).index(role.role))
    return Diagnosis(
        recipe=build.recipe.name,
        roles=tuple(everyone),
        probes=tuple(probes),
        advice=advice_on(everyone, probes),
        works=all(role.standing != "cannot" for role in made),
    )


def _cases(build: Build, cases: Cases, name: str) -> Sequence[Any]:
    """A role's cases; of a policy those of the tool that its template knows, or of all where it knows any."""
    found = getattr(cases, name)
    agent = build.recipe.agent
    tool = load_template(agent.template).tool if isinstance(agent, InterleavedConfig) else ""
    return [case for case in found if case.tool == tool] if tool else found


def _not_examined(build: Build, name: str) -> str:
    """Why a role is not examined, "" if it is."""
    table = build.recipe.modules[name]
    if table["type"] not in ("prompted", "model"):
        return f"its type is {table['type']!r}"
    if not _cases(build, load_cases(), name):
        return "its template calls a tool that no case is about"
    config = resolve(ROOMS[name], table, f"agent.{name}")[1]
    return "it writes programs, and the cases are about arguments" if getattr(config, "mode", "") == "code" else ""


def _check_any_role(build: Build) -> None:
    """Refuse a recipe without a role to examine, before anything is looked at."""
    reasons = {name: _not_examined(build, name) for name in build.recipe.modules}
    if all(reasons.values()):
        raise RecipeError(
            f"recipe {build.recipe.name!r} has no role to examine",
            cause="; ".join(f"{name}: {reason}" for name, reason in reasons.items()),
            fix="midstream doctor --model NAME --base-url URL",
        )


def _roles(build: Build) -> tuple[list[_Role], list[RoleResult]]:
    """The roles that ask a model, and why the others are not examined."""
    roles: list[_Role] = []
    skipped: list[RoleResult] = []
    for name, table in build.recipe.modules.items():
        reason = _not_examined(build, name)
        if reason:
            skipped.append(RoleResult(role=name, standing="not examined", skipped=reason))
        else:
            component, config = resolve(ROOMS[name], table, f"agent.{name}")
            module = component.make(config)
            if isinstance(build.recipe.agent, InterleavedConfig):
                module = _stream_of(build.recipe.agent, module)
            roles.append(_Role(name=name, module=module, config=config, engine=build.engine(table["engine"])))
    return roles, skipped


def _stream_of(agent: InterleavedConfig, policy: Any) -> Interleaved:
    """The recipe's agent with the cases' tools, which its template calls by their own names."""
    settings = StreamConfig(max_turns=agent.max_turns, max_tokens=agent.max_tokens)
    return Interleaved(policy=policy, template=load_template(agent.template), config=settings)


@dataclass
class _Watch:
    """Takes the time of every ask, as `core.events.Emit`."""

    last_s: float = field(default_factory=time.monotonic)
    seconds: list[float] = field(default_factory=list)

    def __call__(self, kind: str, value: Any) -> None:
        if kind == "call":
            now_s = time.monotonic()
            self.seconds.append(now_s - self.last_s)
            self.last_s = now_s


async def _ask(role: _Role, case: Any, cases: Cases, seed: int, order: int) -> CaseResult:
    watch = _Watch()
    context = ModuleContext(
        engine=role.engine,
        seed=derive_seed(seed, "doctor", role.name, case.name),
        order=order,
        deadline_s=time.monotonic() + _CASE_LIMIT_S,
        emit=watch,
    )
    barrier = role.engine if isinstance(role.engine, LockstepEngine) else None
    if barrier:
        barrier.join(order)
    too_long = ""
    try:
        (checks, said, wanted), calls = await ASK[role.name](role.module, case, cases, context)
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
        seconds=tuple(watch.seconds),
        prompt_tokens=sum(call.usage.prompt_tokens for call in calls),
        completion_tokens=sum(call.usage.completion_tokens for call in calls),
        retries=sum(len(call.failures) for call in calls),
        repaired=sum(call.repaired for call in calls),
        cut_off=sum(call.finish_reason == "length" for call in calls),
        too_long=too_long,
    )


def _role_result(role: _Role, cases: Sequence[CaseResult]) -> RoleResult:
    seconds = [one for case in cases for one in case.seconds]
    costs = ("prompt_tokens", "completion_tokens", "retries", "repaired", "cut_off")
    sums: dict[str, Any] = {name: sum(getattr(case, name) for case in cases) for name in costs}
    rates = rates_of(cases)
    return RoleResult(
        role=role.name,
        standing=standing_of(rates),
        model=getattr(getattr(role.engine, "config", None), "model", role.engine.name),
        engine=role.engine.name,
        structured_output=getattr(role.config, "structured_output", None),
        rates=rates,
        asks=len(seconds),
        median_s=statistics.median(seconds) if seconds else None,
        cases=tuple(cases),
        **sums,
    )


# --- asking the server -----------------------------------------------------------------------------------------------


async def _probes(engine: Engine) -> list[Probe]:
    """Does it give token ids and log-probabilities? Does it enforce a JSON schema?"""
    if not isinstance(engine, OpenAICompatibleEngine):
        said = "sampled in this process" if engine.token_exact else "not recorded"
        return [Probe(engine=engine.name, what=TOKEN_IDS, works=engine.token_exact, words=said)]
    exact = OpenAICompatibleEngine(engine.config.model_copy(update={"token_ids": True}), engine.name)
    try:
        return [await _probe(exact, TOKEN_IDS, None), await _probe(engine, JSON_SCHEMA, _PROBE_SCHEMA)]
    finally:
        await exact.close()


async def _probe(engine: Engine, what: str, schema: Mapping[str, Any] | None) -> Probe:
    """Ask for one plain word: under a schema, only a server that enforces it can answer in JSON."""
    request = Request(
        role="probe",
        messages=(Message(role="user", content="Reply with the single word hello, in plain text, without JSON."),),
        sampling=Sampling(temperature=1.0, max_tokens=512),
        json_schema=schema,
        deadline_s=time.monotonic() + _CASE_LIMIT_S,
    )
    try:
        call = await engine.sample(request)
    except UnsupportedError as failure:
        return Probe(engine=engine.name, what=what, works=False, words=failure.what)
    except (EngineError, DeadlineError) as failure:
        # Refused at once is a no; failed again and again, or too late, tells nothing.
        spent = isinstance(failure, DeadlineError) or any(call.failures for call in failure.calls)
        return Probe(engine=engine.name, what=what, works=None if spent else False, words=failure.what)
    if schema is None:
        return Probe(engine=engine.name, what=what, works=True, words=f"{len(call.completion_ids)} for a short reply")
    return Probe(
        engine=engine.name, what=what, works=_satisfies(call.completion, schema), words=f"replied {call.completion}"
    )


def _satisfies(reply: str, schema: Mapping[str, Any]) -> bool:
    try:
        value = json.loads(reply)
    except ValueError:
        return False
    return isinstance(value, dict) and schema_error(value, schema) is None
