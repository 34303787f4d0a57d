"""Run a function as an agent in a process of its own: `python -m midstream.agents.run_function REFERENCE SETTINGS`."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from midstream.agents.session_agent import GIVEN, Address, Outcome, SessionSettings
from midstream.core.own import load
from midstream.core.own_settings import OwnFunction
from midstream.core.task import Task


def main() -> None:
    """Call the function for the task of this session, and write its outcome."""
    reference, settings = sys.argv[1:]
    function, variables = load(reference), os.environ
    shown = json.loads(Path(variables["MIDSTREAM_TASK"]).read_text(encoding="utf-8"))
    task = Task(**shown, answer="")
    address = Address(
        base_url=variables["OPENAI_BASE_URL"],
        api_key=variables["OPENAI_API_KEY"],
        model=variables["OPENAI_MODEL"],
        anthropic_base_url=variables["ANTHROPIC_BASE_URL"],
    )
    own = OwnFunction("agent", reference, function, GIVEN, "a function that takes `session`")
    config = own.settings(SessionSettings).model_validate(json.loads(settings))
    found = function(**own.passed(config, {"task": task, "session": address, "question": task.question}))
    if inspect.isawaitable(found):
        found = asyncio.run(_awaited(found))
    if not isinstance(found, str | Outcome | None):
        sys.exit(f"it returned {found!r:.200}: return the answer as text, an Outcome, or None")
    outcome = found if isinstance(found, Outcome) else Outcome(answer=found)
    Path(variables["MIDSTREAM_ANSWER"]).write_text(outcome.model_dump_json(), encoding="utf-8")


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


if __name__ == "__main__":
    main()
