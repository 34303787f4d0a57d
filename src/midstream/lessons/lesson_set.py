"""The set of lessons: ids, origins and measured effects, and how they are rendered into prompts.

A lesson set is a value. Every change makes a new one: operations of a model or a person (`operations.py`), a person's
edits (`editing.py`), the counts of what lessons did (here). Versions on disk are in `commit.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from midstream.agents.rendering import prompt_text
from midstream.components.own import portable, used
from midstream.core.agent import lessons_digest
from midstream.core.data import Frozen
from midstream.core.text import neutral
from midstream.core.texts import Lessons, kind_of
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN

# White space is folded first; the control characters and half surrogate pairs that are left could break a prompt.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def one_line(text: str) -> str:
    """Normalize a lesson's text: fold white space, replace control characters and half surrogate pairs by "?"."""
    return _UNPRINTABLE.sub("?", " ".join(text.split()))


def fitted(place: str, text: str) -> str:
    """Normalize a text for its place: a lesson is one line, other texts keep their lines."""
    if kind_of(place) == "lesson":
        return one_line(text)
    lines = text.replace("\r\n", "\n").split("\n")
    clean = ("\t".join(_UNPRINTABLE.sub("?", part) for part in line.split("\t")) for line in lines)
    # A line break at the end would be lost one by one, each time that a file is read.
    return "\n".join(clean).rstrip("\n")


ID = re.compile(r"L[1-9][0-9]{0,17}")
Id = Annotated[str, Field(pattern=rf"^{ID.pattern}$")]
Line = Annotated[str, AfterValidator(one_line)]
State = Literal["active", "pinned", "vetoed"]
Source = Literal["learned", "person", "imported", "recipe"]


class LessonOrigin(Frozen):
    """The origin of a lesson's present text. `update` counts a run's updates from 1; 0: none.

    `tasks` and `trajectories` are the ids of the evidence, `model` the reflector that wrote the text. The source of a
    text that the agent has without any learning is "recipe".
    """

    source: Source = "learned"
    update: int = 0
    tasks: tuple[str, ...] = ()
    trajectories: tuple[str, ...] = ()
    model: str = ""
    why: str = ""


class Bundle(Frozen):
    """Changes that passed a test together: their ids, and the effect of all of them with its 95 % interval."""

    changes: tuple[str, ...]
    mean: float
    interval: tuple[float, float]
    pairs: int


class Effect(Frozen):
    """The effect of a change on the mean reward: estimate, 95 % interval, and the pairs of rollouts behind it.

    In `helped` of the pairs the side with the change earned more, in `harmed` less. `alone`: it was measured apart from
    the other changes of its batch, not only together with them. `bundle`: it was accepted as a part of this one.
    """

    mean: float
    interval: tuple[float, float]
    pairs: int
    helped: int = 0
    harmed: int = 0
    alone: bool = True
    bundle: Bundle | None = None

    @property
    def only_in_bundle(self) -> bool:
        """True if the bundle alone was shown to help, and not this change."""
        return self.bundle is not None and (not self.alone or self.interval[0] <= 0)


class Lesson(Frozen):
    """One sentence of experience, or another text that can be learned; `module` is its place (`core.texts`).

    `id` is permanent: no other lesson of the set ever gets it. A person's mark overrides models: learning neither
    changes nor deletes a "pinned" lesson; a "vetoed" one is never rendered, and nothing like it is added again.
    `used` counts the rollouts that had it in a prompt, `helped` and `harmed` the pairs of rollouts that it won and
    lost. They, like `effect` and `origin`, describe the present text: a changed text starts from zero.
    """

    id: Id
    module: Line = "planner"
    text: str
    state: State = "active"
    origin: LessonOrigin = LessonOrigin()
    used: int = 0
    helped: int = 0
    harmed: int = 0
    effect: Effect | None = None

    @field_validator("text")
    @classmethod
    def _fit(cls, text: str, info: ValidationInfo) -> str:
        return fitted(info.data.get("module", ""), text)


class LessonSet(Frozen):
    """Lessons, and other learned texts, in the order they were added.

    `next_number` is for the next new lesson. `proven_for` is the agent (`identity`) for which a test accepted the
    lesson set as it is; "" where it is unproven. `proven_lessons` is the digest of the prompts' lessons then: a file
    that was edited by hand is no longer proven.
    """

    lessons: tuple[Lesson, ...] = ()
    next_number: int = Field(default=1, ge=1, le=10**17)
    proven_for: str = ""
    proven_lessons: str = ""

    @model_validator(mode="after")
    def _ids_differ(self) -> LessonSet:
        twice = [name for name, count in Counter(lesson.id for lesson in self.lessons).items() if count > 1]
        if twice:
            raise ValueError(f"two lessons have the id {twice[0]}")
        texts = Counter(lesson.module for lesson in self.lessons if kind_of(lesson.module) == "text")
        if several := [place for place, count in texts.items() if count > 1]:
            raise ValueError(f"{several[0]} has two texts, and can have one")
        return self

    def find(self, lesson_id: str) -> Lesson | None:
        """The lesson with that id."""
        return next((lesson for lesson in self.lessons if lesson.id == lesson_id), None)

    @property
    def rendered(self) -> tuple[Lesson, ...]:
        """The lessons that prompts hold. A text as the recipe has it is in them without this set."""
        return tuple(lesson for lesson in self.lessons if lesson.state != "vetoed" and lesson.origin.source != "recipe")


def line(text: str) -> str:
    """The line that a prompt holds for a lesson's text. It can forge neither another lesson nor a chat token."""
    return f"- {neutral(one_line(text))}"


def render(lessons: Sequence[Lesson]) -> str:
    """The text that a prompt holds: one line a lesson. Learning, evaluation and deployment all use it."""
    return "\n".join(line(lesson.text) for lesson in lessons)


def render_modules(lesson_set: LessonSet) -> Lessons:
    """The texts of every place, in the form that a rollout takes."""
    places: dict[str, list[Lesson]] = {}
    for lesson in lesson_set.rendered:
        places.setdefault(lesson.module, []).append(lesson)
    return {
        place: render(lessons) if kind_of(place) == "lesson" else "\n\n".join(lesson.text for lesson in lessons)
        for place, lessons in places.items()
    }


def tokens(text: str) -> int:
    """Estimate the tokens of a text: four characters each, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def cost(place: str, text: str) -> int:
    """Tokens that a text adds to a prompt, a lesson's with the bullet and the line break around it.

    A text that replaces another adds none.
    """
    kind = kind_of(place)
    return 0 if kind == "text" else tokens((line(text) if kind == "lesson" else text) + "\n")


def size(lesson_set: LessonSet) -> int:
    """Tokens of all rendered texts, each rounded up: never less than the rendered texts have."""
    return sum(cost(lesson.module, lesson.text) for lesson in lesson_set.rendered)


def number(lesson_id: str) -> int:
    """The number in an id: 3 of "L3"."""
    return int(lesson_id.removeprefix("L"))


def next_number(lesson_set: LessonSet) -> int:
    """The first number that no lesson has had, also where a hand-written lesson set has a wrong `next_number`."""
    return max([lesson_set.next_number, *(number(lesson.id) + 1 for lesson in lesson_set.lessons)])


def with_lessons(lesson_set: LessonSet, lessons: Sequence[Lesson]) -> LessonSet:
    """Replace the lessons; the lesson set stays proven only where prompts stay the same, letter by letter."""
    changed = lesson_set.model_copy(update={"lessons": tuple(lessons), "next_number": next_number(lesson_set)})
    changed = changed.model_copy(update={"next_number": next_number(changed)})
    return changed if render_modules(changed) == render_modules(lesson_set) else proven(changed, "")


def with_bases(lesson_set: LessonSet, bases: Mapping[str, str]) -> LessonSet:
    """Set the texts that the recipe has, by place, where none was learned; no prompt changes."""
    lessons = list(lesson_set.lessons)
    for i, lesson in enumerate(lessons):  # which may come from another recipe
        if lesson.origin.source == "recipe" and lesson.module in bases:
            lessons[i] = lesson.model_copy(update={"text": fitted(lesson.module, bases[lesson.module])})
    held = {lesson.module for lesson in lessons}
    first, origin = next_number(lesson_set), LessonOrigin(source="recipe")
    missing = [(place, text) for place, text in bases.items() if place not in held]
    added = [
        Lesson(id=f"L{number}", module=place, text=text, origin=origin)
        for number, (place, text) in enumerate(missing, first)
    ]
    return with_lessons(lesson_set, (*lessons, *added))


def proven(lesson_set: LessonSet, agent: str) -> LessonSet:
    """Mark the lesson set as accepted by a test for this agent; "": for none."""
    seen = lessons_digest(render_modules(lesson_set)) if agent else ""
    return lesson_set.model_copy(update={"proven_for": agent, "proven_lessons": seen})


def measured(lesson_set: LessonSet, used: Mapping[str, int], effects: Mapping[str, Effect]) -> LessonSet:
    """Add the rollouts that used each lesson, and each measured effect with its pairs, by the lessons' ids."""
    lessons = []
    for lesson in lesson_set.lessons:
        changes: dict[str, object] = {"used": lesson.used + used.get(lesson.id, 0)}
        if effect := effects.get(lesson.id):
            changes |= {"helped": lesson.helped + effect.helped, "harmed": lesson.harmed + effect.harmed}
            changes["effect"] = effect
        lessons.append(lesson.model_copy(update=changes))
    return with_lessons(lesson_set, lessons)


# --- the agent that a lesson set is proven for ------------------------------------------------------------------------

Table = Mapping[str, Any]
# Other settings of the agent that its prompts show.
_LOOP = ("memory_update", "memory_result_tokens", "template")
_MODEL = ("model", "extra_body", "chat_template_kwargs")


def identity(resolved: Table, weights: str = "") -> str:
    """Name the agent of a resolved recipe, e.g. "qwen2.5:7b, gpt-4o (8c1f0e6a2b4d)": its models and a digest.

    The digest covers what decides how the agent behaves besides the lessons: the model of each module, the text of its
    prompt and its other settings, and the tools. Where a model is served and how it is sampled from do not count: one
    lesson set is evaluated at several temperatures.

    Args:
        resolved: a recipe with every default filled in (`recipe.check.resolve`).
        weights: the digest of a checkpoint that the planner samples from, "" for the weights that the recipe names.
    """
    # The modules of agents, which most readers of lessons do not need.
    from midstream.agents.prompted import PromptedModule
    from midstream.components.kinds import MODULE_KINDS, config_class, registered

    agent, engines = resolved["agent"], resolved["engines"]
    modules: dict[str, dict[str, Any]] = {}
    for name in MODULE_KINDS:
        if name not in agent:
            continue
        table = agent[name]
        settings = {key: value for key, value in table.items() if key not in ("sampling", "prompt_file")}
        module = config_class(name, table["type"]).component if table["type"] in registered(name) else None
        if isinstance(module, type) and issubclass(module, PromptedModule):
            # A prompt file counts by its text, not by its path.
            file = "executor_code" if table.get("mode") == "code" else module.prompt or module.role
            own = Path(table["prompt_file"]) if "prompt_file" in table else None
            settings["prompt"] = prompt_text(file, own, package=module.package)
        modules[name] = _with_model(settings, engines)
    # An agent of your own has no modules.
    if not modules:
        own = {key: value for key, value in agent.items() if key not in ("sampling", "lessons")}
        modules["agent"] = _with_model(own, engines)
    models = [module["engine"] for module in modules.values() if "engine" in module]
    own_code = [each.digest for each in used({"agent": agent, **resolved["tools"]})]
    whole = {
        "modules": modules,
        "loop": {key: agent[key] for key in _LOOP if key in agent},
        "tools": {name: _with_model(table, engines) for name, table in resolved["tools"].items()},
        "weights": weights,
        # The code of an agent, of its modules and tools of your own.
        **({"own": own_code} if own_code else {}),
        # A model without a name gets its weights from the seed and the warm start.
        "start": {}
        if all("model" in model for model in models)
        else {key: resolved.get(key) for key in ("seed", "warm_start")},
    }
    names = dict.fromkeys(str(model.get("model", model.get("type"))) for model in models)
    text = json.dumps(portable(whole), sort_keys=True)
    name = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{', '.join(names) or 'programs'} ({name})"


def _with_model(table: Table, engines: Table) -> dict[str, Any]:
    """The table with its engine's model in place of the engine's name in the recipe."""
    if "engine" not in table:
        return dict(table)
    engine = engines[table["engine"]]
    model = {key: engine[key] for key in _MODEL if key in engine} if "model" in engine else dict(engine)
    return {**table, "engine": model}


def split(named: str | Path) -> tuple[Path, int | None]:
    """Split `RUN@VERSION` into path and version; any other path has no version."""
    path, _, wanted = str(named).rpartition("@")
    if Path(path).is_dir() and wanted.isdecimal() and not Path(named).exists():
        return Path(path), int(wanted)
    return Path(named), None
