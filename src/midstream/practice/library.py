"""The library: lessons with ids, where each came from, what it did, and how it is rendered into prompts.

A library is a value. Whatever changes it makes a new one: a model's and a person's operations (`operations.py`), a
person's marks and the counts of what lessons did (here). Versions on disk are `history.py`'s.


Which agent a library was proven for: a name that changes with whatever decides how the agent behaves beside it.

That is the model each module asks, the text of its prompt and its other settings, and the tools with theirs; not where
a model is served, and not how it is sampled from: one library is evaluated at several temperatures.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from midstream.agents.template import prompt_text
from midstream.core.data import Frozen
from midstream.core.lessons import Lessons, digest
from midstream.core.prompt_text import neutral

Source = Literal["learned", "person", "imported"]
CHARACTERS_PER_TOKEN = 4  # the library is rendered for models whose tokenizers it does not know
# White space is folded first; what of control characters and half surrogate pairs is left could break a prompt.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
ID = re.compile(r"L[1-9][0-9]{0,17}")
Id = Annotated[str, Field(pattern=rf"^{ID.pattern}$")]
Table = Mapping[str, Any]
_MODULES = ("planner", "executor", "verifier", "generator", "policy")  # of whichever kind the agent is
_LOOP = ("memory_update", "record_time", "template")  # what else of the loop is in the prompts
_MODEL = ("model", "extra_body", "chat_template_kwargs", "adapter")


def one_line(text: str) -> str:
    """A text as lessons hold it: white space folded, each control character and half surrogate pair a "?"."""
    return _UNPRINTABLE.sub("?", " ".join(text.split()))


class Origin(Frozen):
    """Where a lesson's present text came from. `update` counts a run's updates from 1; 0: from none.

    `tasks` and `trajectories` are the ids of what it was drawn from, `model` the reflector that wrote it.
    """

    source: Source = "learned"
    update: int = 0
    tasks: tuple[str, ...] = ()
    trajectories: tuple[str, ...] = ()
    model: str = ""
    why: str = ""


class Effect(Frozen):
    """What a change did to the mean reward: its estimate, the 95 % interval, and the pairs of rollouts behind it.

    In `helped` of the pairs the side that had it earned more, in `harmed` less. `alone`: it was measured apart from the
    other changes of its batch, not only together with them.
    """

    mean: float
    interval: tuple[float, float]
    pairs: int
    helped: int = 0
    harmed: int = 0
    alone: bool = True


class Lesson(Frozen):
    """One sentence of experience; its text is one line.

    `id` is for good: it is never given to another lesson of the same library. A person's word goes before a model's:
    "pinned" is neither changed nor deleted by learning, "vetoed" is never rendered, and nothing like it is added again.
    `used` counts the rollouts that had it in a prompt; `helped` and `harmed` the pairs of rollouts that it won and
    lost. They, like `effect` and `origin`, speak of the present text: a changed text begins anew.
    """

    id: Id
    text: Line
    module: Line = "planner"
    state: State = "active"
    origin: Origin = Origin()
    used: int = 0
    helped: int = 0
    harmed: int = 0
    effect: Effect | None = None


class Library(Frozen):
    """Lessons in the order they were added.

    `next_number` is that of the next new lesson. `proven_for` says for which agent the library as it is was accepted by
    a test (`identity` of its engines and prompts), "" for none: then it is unproven. `proven_lessons` is the digest of
    what prompts held then: a file that was changed by hand is no longer proven.
    """

    lessons: tuple[Lesson, ...] = ()
    next_number: int = Field(default=1, ge=1, le=10**17)
    proven_for: str = ""
    proven_lessons: str = ""

    @model_validator(mode="after")
    def _ids_differ(self) -> Library:
        ids = [one.id for one in self.lessons]
        twice = sorted({one for one in ids if ids.count(one) > 1}) if len(set(ids)) < len(ids) else []
        if twice:
            raise ValueError(f"two lessons have the id {twice[0]}")
        return self

    def find(self, lesson_id: str) -> Lesson | None:
        """The lesson of that id."""
        return next((one for one in self.lessons if one.id == lesson_id), None)

    @property
    def rendered(self) -> tuple[Lesson, ...]:
        """The lessons that prompts hold."""
        return tuple(one for one in self.lessons if one.state != "vetoed")


def line(text: str) -> str:
    """The line that a prompt holds for a lesson's text. No lesson can forge another, or a chat template's token."""
    return f"- {neutral(one_line(text))}"


def render(lessons: Sequence[Lesson]) -> str:
    """The text that a prompt holds: one line a lesson. Used by learning, evaluation and deployment alike."""
    return "\n".join(line(one.text) for one in lessons)


def render_modules(library: Library) -> Lessons:
    """Every module's lessons, as a rollout takes them."""
    modules = dict.fromkeys(one.module for one in library.rendered)
    return {name: render([one for one in library.rendered if one.module == name]) for name in modules}


def tokens(text: str) -> int:
    """About how many tokens a text is: four characters each, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def cost(text: str) -> int:
    """Tokens that a lesson's text takes up in a prompt, with what stands around it."""
    return tokens(line(text) + "\n")


def size(library: Library) -> int:
    """Tokens of all that is rendered, each lesson rounded up: never less than the rendered texts have."""
    return sum(cost(one.text) for one in library.rendered)


def number(lesson_id: str) -> int:
    """The number in an id: 3 of "L3"."""
    return int(lesson_id.removeprefix("L"))


def next_number(library: Library) -> int:
    """The first number that no lesson has had, also where a hand-written library does not say so."""
    return max([library.next_number, *(number(one.id) + 1 for one in library.lessons)])


def with_lessons(library: Library, lessons: Sequence[Lesson]) -> Library:
    """The library with these lessons instead; it stays proven only where prompts stay the same, letter by letter."""
    changed = library.model_copy(update={"lessons": tuple(lessons), "next_number": next_number(library)})
    changed = changed.model_copy(update={"next_number": next_number(changed)})
    same = render_modules(changed) == render_modules(library)
    return changed if same else proven(changed, "")


def proven(library: Library, agent: str) -> Library:
    """The library as a test has accepted it for this agent; "": for none."""
    seen = digest(render_modules(library)) if agent else ""
    return library.model_copy(update={"proven_for": agent, "proven_lessons": seen})


def pinned(library: Library, lesson_id: str) -> Library:
    """The lesson is kept as it is by learning. An id that is not there changes nothing, here and below."""
    return _marked(library, lesson_id, "pinned")


def vetoed(library: Library, lesson_id: str) -> Library:
    """The lesson is no longer rendered, and learning adds nothing like it again."""
    return _marked(library, lesson_id, "vetoed")


def released(library: Library, lesson_id: str) -> Library:
    """The lesson is neither pinned nor vetoed."""
    return _marked(library, lesson_id, "active")


def counted(
    library: Library,
    *,
    used: Mapping[str, int] | None = None,
    helped: Mapping[str, int] | None = None,
    harmed: Mapping[str, int] | None = None,
) -> Library:
    """The library with so many more rollouts and pairs counted, by the lessons' ids."""
    more = {"used": used or {}, "helped": helped or {}, "harmed": harmed or {}}
    lessons = [
        one.model_copy(update={name: getattr(one, name) + counts.get(one.id, 0) for name, counts in more.items()})
        for one in library.lessons
    ]
    return library.model_copy(update={"lessons": tuple(lessons)})


def with_effect(library: Library, lesson_id: str, effect: Effect) -> Library:
    """The library with a lesson's measured effect."""
    return with_lessons(library, [_updated(one, lesson_id, "effect", effect) for one in library.lessons])


def _marked(library: Library, lesson_id: str, state: State) -> Library:
    return with_lessons(library, [_updated(one, lesson_id, "state", state) for one in library.lessons])


def _updated(lesson: Lesson, lesson_id: str, name: str, value: object) -> Lesson:
    return lesson.model_copy(update={name: value}) if lesson.id == lesson_id else lesson


def identity(resolved: Table, weights: str = "") -> str:
    """The agent of a resolved recipe, as "qwen2.5:7b, gpt-4o (8c1f0e6a2b4d)": its models, and a digest of all of it.

    Args:
        resolved: a recipe with every default filled in (`recipe_check.check`).
        weights: the digest of a checkpoint that the planner samples from, "" for the weights that the recipe names.
    """
    agent, engines = resolved["agent"], resolved["engines"]
    modules = {name: _module(name, agent[name], engines) for name in _MODULES if name in agent}
    asked = [one["engine"] for one in modules.values() if "engine" in one]
    whole = {
        "modules": modules,
        "loop": {key: agent[key] for key in _LOOP if key in agent},
        "tools": {name: _with_model(table, engines) for name, table in resolved["tools"].items()},
        "weights": weights,
        # The weights of a model without a name come from its seed and its warm start.
        "start": {} if all("model" in one for one in asked) else {k: resolved.get(k) for k in ("seed", "warm_start")},
    }
    names = dict.fromkeys(str(one.get("model", one.get("type"))) for one in asked)
    text = json.dumps(whole, sort_keys=True)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{', '.join(names) or 'programs'} ({digest})"


def _module(name: str, table: Table, engines: Table) -> Table:
    """A module's settings; a prompt file counts by what it says, not by where it lies."""
    settings = {key: value for key, value in table.items() if key not in ("sampling", "prompt_file")}
    if table["type"] == "prompted":
        role = "executor_code" if table.get("mode") == "code" else name
        settings["prompt"] = prompt_text(role, Path(table["prompt_file"]) if "prompt_file" in table else None)
    return _with_model(settings, engines)


def _with_model(table: Table, engines: Table) -> dict[str, Any]:
    """A table with what its engine is in place of what the recipe calls it."""
    if "engine" not in table:
        return dict(table)
    engine = engines[table["engine"]]
    model = {key: engine[key] for key in _MODEL if key in engine} if "model" in engine else dict(engine)
    return {**table, "engine": model}


State = Literal["active", "pinned", "vetoed"]
Line = Annotated[str, AfterValidator(one_line)]
