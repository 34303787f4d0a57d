"""The settings of a component of your own: the parameters of its function or class.

Parameters that midstream passes itself, such as a reward's `answer`, are no settings.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import create_model
from pydantic.errors import PydanticUserError

from midstream.components.component import ComponentConfig, Context, Kind
from midstream.components.own import name_of
from midstream.core.data import Settings
from midstream.core.errors import (
    EngineError,
    InfrastructureError,
    MidstreamError,
    RecipeError,
    RewardError,
    TrainingError,
)
from midstream.core.task import Task
from midstream.core.threads import in_thread

SettingsT = TypeVar("SettingsT", bound=Settings)

Function = Callable[..., Any]

# A table of any component has these keys, so no setting can.
_TAKEN = ("type", "engine", "engines", "alias", "weight", "parts", "lessons")
_LIBRARY = re.compile(r"[/\\\\](site-packages|lib[/\\\\]python3[^/]*)[/\\\\]|<frozen")
_MESSAGE_CHARACTERS = 500


def settings_of(
    base: type[SettingsT],
    reference: str,
    function: Function,
    *,
    given: Collection[str] = (),
    **attributes: object,
) -> type[SettingsT]:
    """A subclass of `base` whose fields are the parameters of `function`, but for those that are `given` to it.

    `attributes` are those of the class: its `build` and class variables.

    Raises `RecipeError` for a parameter that cannot be a setting.
    """
    try:
        hints = get_type_hints(function.__init__ if isinstance(function, type) else function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}
    fields: dict[str, Any] = {}
    for name, parameter in parameters_of(reference, function).items():
        if name in given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        known = name in hints or parameter.default is not parameter.empty or isinstance(function, type)
        if parameter.kind is parameter.POSITIONAL_ONLY or not known:
            what = f"{reference}: parameter {name!r} is neither a setting nor one of {', '.join(given)}"
            fix = f"rename it; or make it a setting, with a type and a default: {name}: int = 3"
            raise RecipeError(what, code="component-invalid", fix=fix)
        if name in _TAKEN or name in base.model_fields or hasattr(base, name):
            what = f"{reference}: a setting cannot be called {name!r}, a key of every table"
            raise RecipeError(what, code="component-invalid", fix="rename the parameter")
        fields[name] = (hints.get(name, Any), ... if parameter.default is parameter.empty else parameter.default)
    try:
        named, about = f"{name_of(reference)}Config", inspect.getdoc(function)
        made = create_model(named, __base__=base, __module__=__name__, __doc__=about, **fields)
    except (PydanticUserError, NameError) as error:
        raise RecipeError(
            f"a parameter of {reference} cannot be a setting: {error}",
            code="component-invalid",
            fix="give it a type that TOML has: str, int, float, bool, a list or a table of them",
        ) from error
    for name, value in {**attributes, "own_settings": tuple(fields)}.items():
        setattr(made, name, value)
    return made


def class_settings(
    base: type[SettingsT], reference: str, cls: type, finish: Callable[[object, Context], object]
) -> type[SettingsT]:
    """Settings that are the parameters of a class; `context` receives the `Context`. `finish` checks the object."""

    def build(self: ComponentConfig, context: Context) -> object:
        passed = {"context": context} if "context" in inspect.signature(cls).parameters else {}
        try:
            made = cls(**passed, **own_values(self))
        # What a user's class raises can be anything.
        except (Exception, SystemExit) as error:
            raise RecipeError(
                f"{reference} cannot be created: {described(error)}",
                code="component-invalid",
                cause=where_raised(error),
                fix="correct its settings, or its constructor",
            ) from error
        return finish(made, context)

    return settings_of(base, reference, cls, given=("context",), build=build, asks="optional")


def own_values(config: ComponentConfig) -> dict[str, object]:
    """The settings that are parameters of the user's function or class, by name."""
    return {name: getattr(config, name) for name in type(config).own_settings}


def parameters_of(reference: str, function: Function) -> Mapping[str, inspect.Parameter]:
    """The parameters of a user's function. Raises `RecipeError` if Python does not know them."""
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError) as error:
        raise RecipeError(
            f"the parameters of {reference} are not known: {error}",
            code="component-invalid",
            fix="name a function that is written with def",
        ) from error


def not_of_kind(kind: Kind, reference: str, value: object, what: str) -> RecipeError:
    """The error for an object that is no component of a kind; `what` says what one is."""
    return RecipeError(
        f"{reference} is no {kind} ({what}): {value!r:.100}",
        code="component-invalid",
        fix="docs/extending.md has an example of each kind",
    )


def class_or_object(
    kind: Kind, base: type[SettingsT], reference: str, value: object, protocol: type, method: str
) -> type[SettingsT] | None:
    """The settings of a class or object that has `method`; None for anything else, such as a function.

    Raises `RecipeError` if an object lacks something of the protocol, or a method takes other arguments.
    """
    if not hasattr(value, method):
        return None
    if isinstance(value, type):
        return class_settings(base, reference, value, lambda made, _: _complete(kind, reference, made, protocol))
    whole = _complete(kind, reference, value, protocol)
    # The caller who made the object closes it.
    attributes = {"build": lambda config, context: whole, "borrowed": True, "asks": "optional"}
    return settings_of(base, reference, lambda: whole, **attributes)


def _complete(kind: Kind, reference: str, value: object, protocol: type) -> object:
    """`value`, which has all that the protocol asks for."""
    names = [name for name in {**protocol.__annotations__, **vars(protocol)} if not name.startswith("_")]
    # `hasattr` would run properties.
    there = dir(value)
    if missing := [name for name in names if name not in there]:
        raise RecipeError(
            f"{reference} is no {kind}: it has no {', '.join(missing)}",
            code="component-invalid",
            fix=f"add what is missing; class {type(value).__name__}({protocol.__name__}) inherits most of it",
        )
    for name in names:
        wanted = vars(protocol).get(name)
        if not inspect.isfunction(wanted):
            continue
        _, *passed = inspect.signature(wanted).parameters.values()
        by_name = {parameter.name for parameter in passed if parameter.kind is parameter.KEYWORD_ONLY}
        in_order = [parameter.name for parameter in passed if parameter.name not in by_name]
        try:
            inspect.signature(getattr(value, name)).bind(*in_order, **dict.fromkeys(by_name))
        except TypeError as error:
            shown = ", ".join(parameter.name for parameter in passed)
            raise RecipeError(
                f"{reference}: `{name}` is called with ({shown}), as every {kind}'s, and here: {error}",
                code="component-invalid",
                fix=f"give it these parameters ({protocol.__module__}.{protocol.__name__})",
            ) from error
    return value


class OwnFunction:
    """A user's function as a component: it receives those of the kind's values that it takes, and its settings.

    Raises `RecipeError` for anything else, and for a function that yields in place of returning.
    """

    def __init__(self, kind: Kind, reference: str, value: object, values: Collection[str], what: str) -> None:
        if not callable(value) or isinstance(value, type):
            raise not_of_kind(kind, reference, value, what)
        if inspect.isasyncgenfunction(value) or inspect.isgeneratorfunction(value):
            raise not_of_kind(kind, reference, value, f"{what}, which returns its result and does not yield it")
        self.kind: Kind = kind
        self.reference, self.name = reference, name_of(reference)
        self.function: Function = value
        # The names of what midstream passes.
        self.values = values
        self.takes = parameters_of(reference, value).keys() & set(values)

    def settings(self, base: type[SettingsT], **attributes: object) -> type[SettingsT]:
        """A subclass of `base` with the function's settings, and with `attributes`, such as its `build`."""
        return settings_of(base, self.reference, self.function, given=self.values, **attributes)

    def passed(self, settings: Any, values: Mapping[str, object]) -> dict[str, object]:
        """The arguments of a call."""
        return {name: values[name] for name in self.takes} | own_values(settings)

    async def called(self, settings: ComponentConfig, values: Mapping[str, object]) -> Any:
        """The function's result for those of the values that it takes, and its settings."""
        task = values.get("task")
        where = f", for task {task.id!r}" if isinstance(task, Task) else ""
        return await self.call(where=where, **self.passed(settings, values))

    async def call(self, *positional: object, where: str = "", **named: object) -> object:
        """The function's result; one that is not `async` has a thread, so that other runs do not wait for it."""
        with self.failing(where):
            if inspect.iscoroutinefunction(self.function):
                return await self.function(*positional, **named)
            found = await in_thread(lambda: self.function(*positional, **named))
            return await found if inspect.isawaitable(found) else found

    @contextmanager
    def failing(self, where: str = "") -> Iterator[None]:
        """Say of what the function raises that it is not the model's doing."""
        try:
            yield
        except MidstreamError:
            raise
        # What a user's function raises can be anything.
        except (Exception, SystemExit) as error:
            raise _failure(self.kind)(
                f"{self.kind} {self.name!r} raised {described(error)}{where}",
                cause=where_raised(error),
                fix="correct it",
            ) from error

    def wrong(self, value: object, fix: str) -> MidstreamError:
        """The error for a result that does not fit the kind."""
        failure = _failure(self.kind)(f"{self.kind} {self.name!r} returned {value!r:.200}", fix=fix)
        failure.retryable = False
        return failure


def _failure(kind: Kind) -> Function:
    if kind == "reward":
        return RewardError
    failures: dict[str, Function] = dict(engine=EngineError, advantage=TrainingError, loss=TrainingError)
    return partial(failures.get(kind, partial(InfrastructureError, retryable=False)), code="component-failed")


def described(error: BaseException) -> str:
    """The type and text of a user's exception."""
    return f"{type(error).__name__}: {str(error)[:_MESSAGE_CHARACTERS]}"


def where_raised(error: BaseException) -> str:
    """The line that raised an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    # A library's line does not help, and the first is midstream's call.
    own = [frame for frame in frames if not _LIBRARY.search(frame.filename)]
    frames = own[1:] or own or frames
    return f"raised in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
