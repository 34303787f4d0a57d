"""Write tables of settings from the docstrings of their classes: `python scripts/settings.py [--check]`.

docs/recipes.md has those of midstream, the README.md of each package in plugins/ those of its components.

Every section "### KIND: `TYPE`" of a component, and every section named in TABLES, has one table: a row for each field
of the settings' class, with its default and its meaning from "Attributes:" in the docstring of the class (or of a base
class). Rows that equal a row of a base class in SHARED are left out, and a row links to that class's table; a class
without other rows has no table.

With `--check` nothing is written, and a difference or a missing docstring exits with 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import docstring_parser
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from midstream.agents.agentflow import LoopConfig
from midstream.agents.interleaved import StreamConfig
from midstream.agents.prompted import ModuleConfig
from midstream.components.component import WrapperConfig
from midstream.components.kinds import COMPONENTS, config_class
from midstream.core.trajectory import Sampling
from midstream.evaluation.settings import EvaluationConfig, SetConfig
from midstream.gateway.session import SessionSettings
from midstream.gateway.session_agent import CommandSettings
from midstream.gateway.settings import ServeConfig, ServedModel
from midstream.lessons import settings as lessons
from midstream.recipe.schema import Recipe
from midstream.rollout import RolloutConfig
from midstream.runs.budget import BudgetConfig
from midstream.sandbox.code_runner import CodeRunnerConfig
from midstream.sandbox.settings import CodeLimits, SandboxConfig
from midstream.training import settings as training
from midstream.training.losses import PolicyLoss
from midstream_environments.games import EpisodesConfig
from midstream_environments.library import LibraryConfig
from midstream_extra.schedule import Schedule
from midstream_web.api import WebApiConfig
from midstream_web.reading import EmbeddingsConfig, ReadingConfig

GROUP = "midstream.components"
ROOT = Path(__file__).parent.parent
HEAD = "| key | default | meaning |\n|---|---|---|\n"
# Settings that several components have: each has one table, and the components' tables link to it.
SHARED: dict[str, type[BaseModel]] = {
    "Modules that ask a model": ModuleConfig,
    "Limits of code": CodeLimits,
    "Supervised updates": training.SupervisedConfig,
    "`[wrappers.TOOL.TYPE]`": WrapperConfig,
    "`[agent]`: session": SessionSettings,
}
TABLES: dict[str, type[BaseModel]] = {
    **SHARED,
    "Top level": Recipe,
    "`[agent]`": LoopConfig,
    "`[agent]`: interleaved": StreamConfig,
    "`sampling`": Sampling,
    "`agent.executor.program`": CodeRunnerConfig,
    "`[sandbox]`": SandboxConfig,
    "`[rollout]`": RolloutConfig,
    "`[training]`": training.TrainingConfig,
    "`training.loss`": PolicyLoss,
    "`training.overlong`": training.OverlongConfig,
    "`training.roles.NAME`": training.TrainedRole,
    "`[warm_start]`": training.WarmStartConfig,
    "`training.supervised`": training.ImitationConfig,
    "`learner.lora`": training.LoraConfig,
    "`[evaluation]`": EvaluationConfig,
    "`[[evaluation.sets]]`": SetConfig,
    "`[lessons]`": lessons.LessonsConfig,
    "`lessons.reflector`": lessons.RoleConfig,
    "`lessons.limits`": lessons.LessonLimits,
    "`lessons.gate`": lessons.GateConfig,
    "`[budget]`": BudgetConfig,
    "`[agent]`: command": CommandSettings,
    "`[serve]`": ServeConfig,
    "`[serve.models]`": ServedModel,
    **{f"{kind}: `{name}`": config_class(kind, name) for kind, names in COMPONENTS.items() for name in names},
}


# Likewise, in the README.md of a package in plugins/.
OF_PLUGINS: dict[str, dict[str, type[BaseModel]]] = {
    "midstream-environments": {"Every library": LibraryConfig, "Every library of episodes": EpisodesConfig},
    "midstream-extra": {"A schedule": Schedule},
    "midstream-web": {
        "Web requests": WebApiConfig,
        "Passages": ReadingConfig,
        "`tools.NAME.embeddings`": EmbeddingsConfig,
    },
}


def documents() -> dict[Path, dict[str, type[BaseModel]]]:
    """The tables of each document, by the title of their section."""
    tables = {ROOT / "docs" / "recipes.md": TABLES}
    for path in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        points = tomllib.loads(path.read_text(encoding="utf-8"))["project"].get("entry-points", {}).get(GROUP, {})
        parts = [name.partition(".") for name in points]
        own: dict[str, Any] = {f"{kind}: `{name}`": config_class(kind, name) for kind, _, name in parts}  # type: ignore[arg-type]
        tables[path.with_name("README.md")] = own | OF_PLUGINS.get(path.parent.name, {})
    return tables


def main() -> int:
    """Write the tables or check them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    problems = []
    for path, tables in documents().items():
        old = path.read_text(encoding="utf-8")
        new, wrong = with_tables(old, tables)
        problems += [f"{path.relative_to(ROOT)}: {one}" for one in wrong]
        if not check:
            path.write_text(new, encoding="utf-8")
        elif new != old:
            problems.append(f"{path.relative_to(ROOT)} does not follow the settings: run python scripts/settings.py")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


def with_tables(document: str, tables: dict[str, type[BaseModel]]) -> tuple[str, list[str]]:
    """The document with every table of settings replaced, and what is missing."""
    everywhere = SHARED | {title: base for more in OF_PLUGINS.values() for title, base in more.items()}
    titles = re.split(r"^(#{2,3} .+\n)", document, flags=re.MULTILINE)
    places = {heading.strip("# \n"): number + 1 for number, heading in enumerate(titles) if heading.startswith("##")}
    problems = [f"a section on no component: {title}" for title in places if ": `" in title and title not in tables]
    for title, config in tables.items():
        found = meanings(config)
        problems += [f"no meaning: {config.__name__}.{name}" for name in config.model_fields if name not in found]
        problems += [f"no field: {config.__name__}.{name}" for name in found if name not in config.model_fields]
        # Other learners have the settings of the local one, too.
        base = training.LearnerConfig.model_fields if config.__bases__ == (training.LearnerConfig,) else {}
        rows = [row for name, row in rows_of(config).items() if name not in base]
        bases = [(name, base) for name, base in everywhere.items() if config is not base and issubclass(config, base)]
        for _, base in bases:
            rows = [row for row in rows if row not in rows_of(base).values()]
        for shared, _ in bases if rows else ():
            anchor = re.sub(r"[^\w\- ]", "", shared.lower()).replace(" ", "-")
            page = "" if shared in tables else "../../docs/recipes.md"
            rows.append(f"| more: [{shared}]({page}#{anchor}) | | |")
        body = titles[places[title]] if title in places else ""
        without = re.sub(re.escape(HEAD) + r"(\|.*\n)*", "\0", body)
        if without.count("\0") != bool(rows):
            problems.append(f"needs a section with {'one' if rows else 'no'} table of settings: {title}")
        elif rows:
            titles[places[title]] = without.replace("\0", HEAD + "\n".join(rows) + "\n")
    return "".join(titles), problems


def rows_of(config: type[BaseModel]) -> dict[str, str]:
    """The row of each field, by its name."""
    found = meanings(config)
    return {name: f"| `{name}` | {default(info)} | {found.get(name)} |" for name, info in config.model_fields.items()}


def meanings(config: type[BaseModel]) -> dict[str, str]:
    """The meanings of the fields, from the docstrings of the class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if base.__module__.startswith("midstream") and base.__doc__:
            parsed = docstring_parser.parse(base.__doc__, docstring_parser.DocstringStyle.GOOGLE)
            attributes = [item for item in parsed.params if item.args[0] == "attribute"]
            found |= {item.arg_name: " ".join((item.description or "").split()) for item in attributes}
    return found


def default(info: FieldInfo) -> str:
    """The default of a field as the tables show it."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Sampling):
        changed = value.model_dump(exclude_defaults=True)
        return ", ".join(f"`{name} = {json.dumps(setting)}`" for name, setting in changed.items())
    if isinstance(value, BaseModel):
        return "see right"
    return "none" if value is None or value is PydanticUndefined else f"`{json.dumps(value, default=str)}`"


if __name__ == "__main__":
    sys.exit(main())
