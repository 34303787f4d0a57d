"""Every check of the machine, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping

from midstream.doctor.attacks import check_sandbox
from midstream.doctor.installed import check_extras, check_python, check_requirements, check_training
from midstream.doctor.servers import check_search, check_server, no_server
from midstream.doctor.system import check_open_files, check_runs
from midstream.engines.openai.settings import Config
from midstream.recipe.build import Build
from midstream.recipe.registry import ENGINES, resolve
from midstream.report.doctor import Check
from midstream.rollout import together

MANY = 64  # trajectories at once: what a rollout has unless its recipe says otherwise


async def check_machine(build: Build, *, named: bool) -> tuple[Check, ...]:
    """Look at everything; nothing that is broken ends it. `named`: the recipe or its model is the user's choice."""
    recipe = build.recipe
    engines: Mapping[str, Config] = {
        name: resolve(ENGINES, table, f"engines.{name}")[1]
        for name, table in recipe.engines.items()
        if named and table["type"] == "openai_compatible"
    }
    tools = {str(table.get("type", name)) for name, table in recipe.tools.items() if named}
    slow: list[Coroutine[None, None, list[Check]]] = [
        check_training(),
        check_sandbox(recipe.sandbox, wanted=named and build.runs_code),
        *(check_server(name, config, several=len(engines) > 1) for name, config in engines.items()),
    ]
    training, sandbox, *servers = await together(slow)
    return (
        check_python(),
        check_requirements(),
        *check_extras(tools),
        *training,
        check_runs(),
        check_open_files(max(MANY, recipe.rollout.concurrency)),
        *sandbox,
        *(check for one in servers or [no_server()] for check in one),
        check_search(recipe.tools),
    )
