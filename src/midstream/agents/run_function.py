"""Run a function as an agent in a process of its own: `python -m midstream.agents.run_function REFERENCE SETTINGS`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from midstream.agents.session_agent import GIVEN, Address, Outcome
from midstream.core.own import load
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
    values: dict[str, Any] = {"task": task, "session": address, "question": task.question}
    import inspect

    taken = {name: values[name] for name in GIVEN if name in inspect.signature(function).parameters}
    found = function(**taken, **json.loads(settings))
    if not isinstance(found, str | Outcome | None):
        sys.exit(f"it returned {found!r:.200}: return the answer as text, an Outcome, or None")
    outcome = found if isinstance(found, Outcome) else Outcome(answer=found)
    Path(variables["MIDSTREAM_ANSWER"]).write_text(outcome.model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
