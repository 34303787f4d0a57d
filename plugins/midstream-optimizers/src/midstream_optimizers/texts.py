"""What the proposers that rewrite a text share: which texts, which rollouts as evidence, and asking for a new text.

A model is asked for the text alone between two lines:

    === text ===
    the new text
    === end ===

Small models break such forms, so a reply is read with patience (`text_in`). What comes out must be sound: a text that
lost a `{{place}}` goes back with what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from midstream.components.component import Context, ProposerConfig
from midstream.core.errors import PromptTooLongError, RecipeError
from midstream.core.text import PLACE, fill, spoken, to_json
from midstream.core.text_file import shipped_prompt
from midstream.core.texts import PROMPT, TOOLS, kind_of
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.core.trajectory import Message, Trajectory
from midstream.lessons.lesson_set import Lesson, LessonOrigin, tokens
from midstream.lessons.operations import Operation, screened
from midstream.lessons.proposer import Work, ended
from midstream.lessons.reflector import RoleCall, transcript
from midstream.lessons.replies import ParsedReply
from midstream.rollout import Group

_CHARACTERS_PER_WORD = 6
_LEAST_CHARACTERS = 400
# A text that ends otherwise was probably cut off.
_ENDINGS = tuple(".!?:;)]}>\"'`*”’。！？")
_PREFACE = re.compile(
    r"(?:here|sure|certainly|ok|okay|of course|the (?:new|better|improved|corrected|shorter))\b", re.I
)
_EXAMPLE = "the new text"  # as prompts show the form, which small models copy
_QUOTES = {'"': '"', "'": "'", "“": "”", "`": "`"}


class RewriterConfig(ProposerConfig):
    """The settings of a proposer that has a model rewrite texts.

    Attributes:
        shown: the most rollouts that a request shows
        characters: the most characters of one of them; fewer where the request is too long for the model
    """

    shown: int = Field(default=3, ge=1)
    characters: int = Field(default=6000, ge=_LEAST_CHARACTERS)

    def build(self, context: Context) -> object:
        """Build it. Raises `RecipeError` if `lessons.modules` names no text, or the run has no rewards."""
        lessons, where = context.recipe.lessons, f"the proposer {context.name!r}"
        if not any(kind_of(place) == "text" for place in lessons.modules):
            raise RecipeError(
                f"{where} rewrites texts, and lessons.modules = {list(lessons.modules)} names none",
                code="setting-conflict",
                fix='name one there, such as "planner.prompt", "tools.NAME" or "texts.NAME"',
            )
        if lessons.truth != "answer" or lessons.lessons_from != "rollouts":
            raise RecipeError(
                f"{where} learns from the rewards of rollouts",
                code="setting-conflict",
                fix="leave out lessons.truth and lessons.lessons_from",
            )
        return super().build(context)


def learned_texts(work: Work) -> list[Lesson]:
    """The texts that this run may rewrite: one a place, without those that a person pinned, or decides on."""
    waiting = {change.id for change in work.rules.waiting}
    every = (lesson for lesson in work.lesson_set.lessons if lesson.module in work.config.modules)
    own = [lesson for lesson in every if lesson.id not in waiting]
    return [lesson for lesson in own if kind_of(lesson.module) == "text" and lesson.state == "active"]


def reward_of(trajectory: Trajectory) -> float:
    """The reward of a rollout that ended."""
    assert trajectory.reward is not None
    return trajectory.reward.value


def failures(groups: Sequence[Group]) -> list[Trajectory]:
    """The rollouts that earned less than 1: the worst of every task, worst first, then the second of every task."""
    ranked = [sorted(filter(ended, group.trajectories), key=reward_of) for group in groups]
    placed = [(place, reward_of(each), each) for own in ranked for place, each in enumerate(own) if reward_of(each) < 1]
    return [trajectory for *_, trajectory in sorted(placed, key=lambda found: found[:2])]


def cut(text: str, limit: int) -> str:
    """The beginning and the end of a text of more than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[cut: {len(text) - 2 * half} characters]\n{text[-half:]}"


def evidence(trajectories: Sequence[Trajectory], limit: int) -> str:
    """Rollouts as a request shows them. They never hold a gold answer, unless the reward's feedback does."""
    shown = [
        f"Rollout {number}, question {to_json(each.question)}\n{cut(transcript(each), limit)}"
        for number, each in enumerate(trajectories, 1)
    ]
    return "\n\n".join(shown) or "(none)"


# --- a model's reply --------------------------------------------------------------------------------------------------


def text_in(reply: str) -> tuple[str, bool]:
    """The text in a model's reply, and whether it seems to be whole.

    Between the last two lines that mark it, or from the first of them on, or up to the second; else all of the reply,
    without a first line such as "Here is the text:". A code fence or quotes around all of it are taken off.
    """
    lines = spoken(reply).strip().splitlines()
    marks = [_mark(line) for line in lines]
    begins = [place for place, mark in enumerate(marks) if mark == "begin"]
    first = begins[-1] + 1 if begins else 0
    end = next((place for place in range(first, len(lines)) if marks[place] == "end"), None)
    body = lines[first:end]
    if not begins and len(body) > 1 and body[0].rstrip(" *").endswith(":") and _PREFACE.match(body[0].lstrip(" *")):
        body = body[1:]
    text = "\n".join(body).strip()
    inner = _unwrapped(text)
    return inner, bool(inner) and (end is not None or inner != text or inner.endswith(_ENDINGS))


def _mark(line: str) -> str:
    if "==" not in line:
        return ""
    word = line.strip(" \t=*#`>-").casefold()
    return {"text": "begin", "begin": "begin", "begin text": "begin", "end": "end", "end text": "end"}.get(word, "")


def _unwrapped(text: str) -> str:
    """The text without a code fence or quotes around all of it."""
    lines = text.splitlines()
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```" and text.count("```") == 2:
        return "\n".join(lines[1:-1]).strip()
    close = _QUOTES.get(text[:1])
    if close and len(text) > 2 and text.endswith(close) and not {text[0], close} & set(text[1:-1]):
        return text[1:-1].strip()
    return text


def _named(places: Sequence[str]) -> str:
    return ", ".join(f"{{{{{place}}}}}" for place in places)


# --- asking for one ---------------------------------------------------------------------------------------------------


@dataclass
class Writer:
    """Asks the critic's model for texts. `unreadable` are the replies that could not be used, for the record."""

    work: Work
    characters: int
    unreadable: list[str] = field(default_factory=list)

    def values(self, lesson: Lesson, **more: str) -> dict[str, str]:
        """What every prompt says of a text; `text` is its present version unless `more` has another."""
        places = PLACE.findall(lesson.text)
        rules = [f"- Write at most {self._limit(lesson) * CHARACTERS_PER_TOKEN // _CHARACTERS_PER_WORD} words."]
        if places:
            rules.insert(0, f"- Keep {_named(places)}, each once and letter by letter: values are put in there.")
        return {"about": about(lesson.module), "text": lesson.text, "rules": "\n".join(rules), **more}

    async def remark(self, name: str, prompt: str, values: Mapping[str, str], shown: Sequence[Trajectory]) -> str:
        """A reply in words, "" without one. `prompt` is the name of a file in `prompts/`."""

        def read(reply: str, repair: bool) -> ParsedReply[str]:
            text = spoken(reply).strip()
            return ParsedReply(value=text) if text else ParsedReply(problem="it holds no text")

        answer = await self._ask(name, _filled(prompt, values, shown), read)
        return answer.value or ""

    async def rewrite(
        self,
        name: str,
        lesson: Lesson,
        prompt: str | Callable[[int], str],
        *,
        why: str,
        values: Mapping[str, str] | None = None,
        shown: Sequence[Trajectory] = (),
        refuse: Callable[[str], str] = lambda text: "",
    ) -> Operation | None:
        """A new version of a text as an operation; None if no reply holds one that is sound.

        `name` is the request's in seeds and records. `prompt` is a file in `prompts/`, or a function from the most
        characters of a rollout to the whole prompt. `refuse` says what else is wrong with a text.
        """

        def read(reply: str, repair: bool) -> ParsedReply[str]:
            text, whole = text_in(reply)
            if not text or text.strip(" .()").casefold() == _EXAMPLE:
                return ParsedReply(problem="it holds no text between the lines === text === and === end ===")
            if not (whole or repair):
                return ParsedReply(problem="the text has no end: write the line === end === after it")
            problem = self.unsound(lesson, text) or refuse(text)
            return ParsedReply(problem=problem) if problem else ParsedReply(value=text)

        whole = _filled(prompt, self.values(lesson) | dict(values or {}), shown) if isinstance(prompt, str) else prompt
        answer = await self._ask(name, whole, read)
        if answer.value is None:
            return None
        origin = LessonOrigin(
            update=self.work.step,
            tasks=tuple(dict.fromkeys(each.task_id for each in shown)),
            trajectories=tuple(each.id for each in shown),
            model=answer.model,
            why=why,
        )
        return Operation(kind="modify", id=lesson.id, text=answer.value, origin=origin)

    def unsound(self, lesson: Lesson, text: str) -> str:
        """The reason why a text may not replace this one, "" if it may."""
        wanted, found = PLACE.findall(lesson.text), PLACE.findall(text)
        if sorted(wanted) != sorted(found):
            lost = [place for place in wanted if place not in found]
            foreign = [place for place in found if place not in wanted]
            faults = [f"it lacks {_named(lost)}"] if lost else []
            faults += [f"it has {_named(foreign)}, which means nothing there"] if foreign else []
            return f"{' and '.join(faults) or 'it repeats a place'}; keep {_named(wanted) or 'no place'}, each once"
        _, [outcome] = screened(
            self.work.lesson_set, [Operation(kind="modify", id=lesson.id, text=text)], self.work.rules
        )
        return outcome.refused

    async def _ask(
        self, name: str, prompt: Callable[[int], str], read: Callable[[str, bool], ParsedReply[str]]
    ) -> ParsedReply[str]:
        """The reading of a reply. Rollouts are cut shorter until the model's context has room for the prompt."""
        work, limit = self.work, self.characters
        answer: ParsedReply[str]
        while True:
            purpose = RoleCall("critic", work.step, f"{work.name}: {name}")
            try:
                answer = await work.reflector.ask(purpose, (Message(role="user", content=prompt(limit)),), read)
            except PromptTooLongError as failure:
                limit //= 2
                if limit >= _LEAST_CHARACTERS:
                    continue
                answer = ParsedReply(flaws=(f"{purpose.name}: {failure.what}",))
            self.unreadable += answer.flaws
            return answer

    def _limit(self, lesson: Lesson) -> int:
        """The most tokens of a new version."""
        own = tokens(lesson.text)
        return max(self.work.rules.max_tokens or 2 * own, own)


def _filled(prompt: str, values: Mapping[str, str], shown: Sequence[Trajectory]) -> Callable[[int], str]:
    text = shipped_prompt("midstream_optimizers", prompt)
    return lambda limit: fill(text, {**values, "rollouts": evidence(shown, limit)})


def about(place: str) -> str:
    """What the text of a place is."""
    if place.endswith(PROMPT):
        return f"the instructions of its part {place.removesuffix(PROMPT)!r}"
    _, _, name = place.partition(".")
    return f"the description of its tool {name!r}" if place.startswith(TOOLS) else f"its text {name!r}"
