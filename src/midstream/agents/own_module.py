"""A plain function as an agent's module: `type = "my_planner.py:plan"`.

    def plan(question, tools, memory) -> Action:
        return Action(sub_goal="calculate", tool="python", context=question)

It receives by name what the method of `core/agent.py` receives, and returns its result, with or without calls.
A class or object with that method receives all of it, and returns the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from midstream.agents.stream_policy import StreamPolicy
from midstream.components.component import ComponentConfig, Context, Kind
from midstream.components.own_settings import OwnFunction, class_or_object
from midstream.core.agent import Analyst, Executor, Generator, Planner, Verifier
from midstream.core.trajectory import Action, Call, Command, Verdict

# By kind: its protocol, the method, and what the method's result is, next to the calls.
_MODULES: dict[Kind, tuple[type, str, type]] = {
    "planner": (Planner, "plan", Action),
    "executor": (Executor, "command", Command),
    "verifier": (Verifier, "verify", Verdict),
    "generator": (Generator, "generate", str),
    "analyst": (Analyst, "analyze", str),
    "policy": (StreamPolicy, "reply", Call),
}


def own_module(kind: Kind, reference: str, value: object) -> type[ComponentConfig]:
    """The settings of a module of your own: a function, or a class or object with its kind's method."""
    protocol, method, result = _MODULES[kind]
    names = [name for name in inspect.signature(getattr(protocol, method)).parameters if name != "self"]
    what = f"a function that takes some of {', '.join(names)} and returns {result.__name__}, or a class with `{method}`"

    def module(function: OwnFunction, call: Callable[..., Awaitable[Any]], **attributes: Any) -> Any:
        async def checked(*values: Any) -> Any:
            found = await call(*values)
            with_calls = isinstance(found, tuple) and len(found) == 2
            text, calls = found if with_calls else (found, ())
            if not isinstance(text, result) and not (kind == "generator" and text is None):
                raise function.wrong(found, f"return {result.__name__}, or ({result.__name__}, calls)")
            return text if kind == "policy" else (text, calls)

        return SimpleNamespace(**{method: checked}, **attributes)

    if made := class_or_object(kind, ComponentConfig, reference, value, protocol, method):
        build_object = made.build

        def build_checked(settings: ComponentConfig, context: Context) -> Any:
            made = build_object(settings, context)
            function = OwnFunction(kind, reference, getattr(made, method), names, what)
            return module(function, function.call, shows_lessons=getattr(made, "shows_lessons", False))

        made.build = build_checked  # type: ignore[method-assign]
        return made
    function = OwnFunction(kind, reference, value, names, what)

    def build(settings: ComponentConfig, context: Context) -> Any:
        return module(function, lambda *values: function.called(settings, dict(zip(names, values, strict=True))))

    return function.settings(ComponentConfig, build=build, asks="optional")
