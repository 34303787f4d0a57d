"""Recipes: one TOML file says everything about a run.

A recipe may `extends = "another"` and change some keys; `--set a.b=c` changes one more from the command line. Tables of
components hold a `type` and that component's own settings; `recipe/registry.py` lists the types. Unknown keys are
errors everywhere.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Discriminator, Field, Tag, ValidationError

from midstream.agents.agentflow import Config as LoopConfig
from midstream.agents.interleaved import Config as StreamConfig
from midstream.core.data import Frozen
from midstream.core.errors import RecipeError
from midstream.evaluation import Config as EvaluationConfig
from midstream.evaluation.study_settings import StudyConfig
from midstream.practice.settings import PracticeConfig
from midstream.report.numbers import shorten
from midstream.rollout import Config as RolloutConfig
from midstream.sandbox.settings import Config as SandboxConfig
from midstream.training.settings import LearnerConfig, TrainingConfig, WarmStartConfig

Table = dict[str, Any]
ConfigT = TypeVar("ConfigT", bound=Frozen)
# Of settings that differ, those first that make two numbers hard to compare.
_FIRST = (
    "agent.type", "agent.template", "tools", "agent.max_turns", "evaluation", "reward", "tasks", "rollout", "sandbox",
)  # fmt: skip


# The modules of each kind of agent; the first is the one whose weights are trained.
MODULES = {"agentflow": ("planner", "executor", "verifier", "generator"), "interleaved": ("policy",)}


class AgentConfig(LoopConfig):
    """The loop's settings, and a component table for each module.

    `library` is a run directory or a file whose lessons are in the modules' prompts.
    """

    type: Literal["agentflow"] = "agentflow"
    planner: Table
    executor: Table
    verifier: Table
    generator: Table
    library: Path | None = None


class InterleavedConfig(StreamConfig):
    """The stream's settings, and the component table of the one policy that writes it.

    `template` is the name of one that comes with midstream, or a TOML file; `library` as in `AgentConfig`.
    """

    type: Literal["interleaved"]
    template: str
    policy: Table
    library: Path | None = None


AGENTS: dict[str, type[AgentConfig | InterleavedConfig]] = {"agentflow": AgentConfig, "interleaved": InterleavedConfig}


def _kind(agent: Any) -> Any:
    """The kind of an agent's table, so that what is wrong is said of that kind alone."""
    return agent.get("type", "agentflow") if isinstance(agent, Mapping) else getattr(agent, "type", "agentflow")


def modules_of(agent: Mapping[str, Any]) -> tuple[str, ...]:
    """The modules of an agent's table; the first is trained."""
    return MODULES[agent.get("type", "agentflow")]


class Recipe(Frozen):
    """A whole recipe; `recipe/registry.py` resolves the tables of components."""

    name: str = Field(pattern=r"^[^/\\\x00-\x1f]+$")  # it names run directories
    description: str = ""
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    tasks: Table
    agent: Annotated[
        Annotated[AgentConfig, Tag("agentflow")] | Annotated[InterleavedConfig, Tag("interleaved")],
        Discriminator(
            _kind, custom_error_type="agent_type", custom_error_message='type is "agentflow" or "interleaved"'
        ),
    ]
    engines: dict[str, Table] = {}
    tools: dict[str, Table]
    reward: Table
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    warm_start: WarmStartConfig | None = None
    training: TrainingConfig | None = None
    practice: PracticeConfig | None = None
    learner: LearnerConfig = LearnerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    study: StudyConfig | None = None

    @property
    def trained(self) -> str:
        """The module whose weights are trained."""
        return MODULES[self.agent.type][0]

    @property
    def modules(self) -> dict[str, Table]:
        """The agent's modules, the trained one first, and their component tables."""
        return {name: getattr(self.agent, name) for name in MODULES[self.agent.type]}


def recipes_directory() -> Path:
    """Where the recipes that come with midstream lie: in the package, or in the checkout it is installed from."""
    packaged = Path(__file__).parents[1] / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "recipes"


def find_recipe(name: str) -> Path:
    """The file of a recipe given by path or by the name of one that comes with midstream."""
    path = Path(name) if name.endswith(".toml") else recipes_directory() / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in recipes_directory().glob("*.toml")))
        raise RecipeError(
            f"recipe {name!r} was not found",
            cause="it is neither a .toml file nor the name of a recipe that comes with midstream",
            fix=f"name one of: {known}",
        )
    return path


def read_table(name: str, extended_by: tuple[Path, ...] = ()) -> Table:
    """The recipe's table with everything it extends merged in."""
    path = find_recipe(name).resolve()
    if path in extended_by:
        raise RecipeError(f"{path} extends itself", cause="`extends` goes round in a circle", fix="remove one of them")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise RecipeError(f"{path} is not valid TOML: {failure}", fix="correct the file at that line") from failure
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise RecipeError(
            f"extends = {_shown(base)} in {path} is no recipe",
            cause="it is not text",
            fix='e.g. extends = "agentflow-prompted"',
        )
    beside = path.with_name(f"{base}.toml")
    return merge(read_table(str(beside) if beside.is_file() else base, (*extended_by, path)), table)


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read, extend, override and validate a recipe; a `RecipeError` names each bad key and value."""
    return parse_recipe(with_overrides(read_table(name), overrides))


def parse_recipe(table: Mapping[str, Any]) -> Recipe:
    """Validate a recipe's table."""
    return validate(Recipe, table, "")


def with_overrides(table: Table, overrides: Sequence[str]) -> Table:
    """The table with every `a.b=value` applied; values are TOML, bare words are strings."""
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not all(key.split(".")):
            raise RecipeError(f"--set {override!r} is not of the form a.b=value", fix="e.g. --set training.steps=50")
        change: Any = _toml_or_text(text)
        for part in reversed(key.split(".")):
            change = {part: change}
        table = merge(table, change)
    return table


def _toml_or_text(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def merge(base: Table, changes: Table) -> Table:
    """`base` with `changes` laid over it, table by table.

    A table of another `type` replaces the base's whole; `false` in place of a table takes the base's out.
    """
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and value is False:
            del merged[key]
        elif isinstance(old, dict) and isinstance(value, dict) and value.get("type", same := old.get("type")) == same:
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def validate(kind: type[ConfigT], table: Mapping[str, Any], where: str) -> ConfigT:
    """`kind` from a table; every problem is named with its key and value."""
    try:
        return kind.model_validate(dict(table))
    except ValidationError as failure:
        # A default that another key decides is missing only because that key is wrong.
        errors = [one for one in failure.errors() if one["type"] != "default_factory_not_called"]
        problems = [
            ".".join(filter(None, [where, *map(str, _without_kind(one["loc"]))]))
            + (f" = {_shown(one['input'])}" if one["type"] != "missing" else "")  # whose input is the whole table
            + f": {one['msg']}"
            for one in errors
        ]
        raise RecipeError(
            "the recipe is invalid: " + "; ".join(problems),
            cause="a key that is unknown or missing, or a value that is impossible",
            fix="correct it in the recipe or with --set; known keys here: "
            + ", ".join(_fields_around(kind, errors[0]["loc"])),
        ) from failure


def _without_kind(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Where a value stands in the file: pydantic names the kind of the agent after "agent"."""
    kind = location[:1] == ("agent",) and location[1:2] and location[1] in AGENTS
    return (location[0], *location[2:]) if kind else location


def _fields_around(kind: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys of the table in which the last part of `location` stands."""
    for key in location[:-1]:
        if not isinstance(key, str):
            continue  # a place in a list
        if key in AGENTS:
            kind = AGENTS[key]
            continue
        field = kind.model_fields.get(key)
        inner = [one for one in _classes(field.annotation) if issubclass(one, BaseModel)] if field else []
        if not inner:
            break
        kind = inner[0]
    return list(kind.model_fields)


def _classes(annotation: Any) -> list[type]:
    """The classes that an annotation such as `tuple[X, ...]` or `X | None` is made of."""
    parts = get_args(annotation)
    if not parts:
        return [annotation] if isinstance(annotation, type) else []
    return [one for part in parts for one in _classes(part)]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def to_toml(table: Mapping[str, Any]) -> str:
    """Write a resolved recipe as TOML: plain values first, then tables; None is left out."""
    lines: list[str] = []
    _write_table(lines, table, ())
    return "\n".join(lines).strip() + "\n"


def _write_table(lines: list[str], table: Mapping[str, Any], path: tuple[str, ...]) -> None:
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping) and v is not None}
    if path and (plain or not table):
        lines.append(f"\n[{'.'.join(map(_toml_key, path))}]")
    lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            _write_table(lines, value, (*path, key))


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = "".join(c if c >= " " and c not in '"\\\x7f' else f"\\u{ord(c):04x}" for c in value)
        return f'"{escaped}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items()) + "}"
    return repr(value)


def differing_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Every setting that two resolved recipes do not share, as "agent.max_turns: 3 | 10"; names apart."""
    one, two = _flat(ours), _flat(theirs)

    def rank(key: str) -> int:
        return next((place for place, start in enumerate(_FIRST) if key.startswith(start)), len(_FIRST))

    keys = sorted((key for key in {**one, **two} if one.get(key) != two.get(key)), key=rank)
    return [f"{key}: {shorten(one.get(key, '-'), 60)} | {shorten(two.get(key, '-'), 60)}" for key in keys]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """ "agent.max_turns" -> "3"; the recipe's name and description are left out."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if not prefix and key in ("name", "description"):
            continue
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.dumps(value)
    return flat
