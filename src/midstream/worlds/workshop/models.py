"""The two models of the workshop, as pure functions of (messages, seed): the agent's and the reflector's.

The agent's plays the planner. It reads the prompt that it is given, lessons and order, as they are rendered, and takes
the right code with exactly the probability that `Workshop.chance` gives for them; the draw is a hash of the seed and
the whole prompt, so a request is answered alike for ever, and any other, were it one lesson longer, independently.

The reflector's plays summariser, critic and merger (`practice/prompts/`). It reads question and library from the prompt
and proposes lessons on marks whose true lesson the library lacks, true ones with probability `share_true`; where the
rollouts that it is shown all earned the same, or it is shown none, it can only guess among a mark's lessons. It errs as
`Lapses` say. Neither has any wit: what they prove is that a method's machinery and statistics work.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Message
from midstream.worlds.workshop.rules import FALSE, Rule
from midstream.worlds.workshop.tasks import Order, Workshop, ask_master, hand_in

Reply = Callable[[Sequence[Message], int], str]

WRONG_CODES = 3  # of an order: few enough that wrong answers can agree
_LESSONS = "# Lessons from earlier tasks\n\n"
_MEMORY = "\n# Memory\n"
_ACTION = "Justification: {why}\nContext: {context}\nSub-Goal: {goal}\nTool Name: {tool}"
_HEADING = re.compile(r"^# (.+)\n", re.MULTILINE)
_REWARD = re.compile(r'"reward":(\d[\d.]*)')
_PADDING = (
    " This holds in every season, for old hands and new ones, at the first bench as at the last, and in haste too."
)


# --- the agent --------------------------------------------------------------------------------------------------------


def agent_reply(world: Workshop) -> Reply:
    """The planner's model. Of an order whose marks it has no lessons on it first asks the master, in vain."""

    def reply(messages: Sequence[Message], seed: int) -> str:
        prompt = "\n\n".join(message.content for message in messages)
        order = world.order(messages[-1].content)  # where the query is; all of the prompt would take long to search
        if order is None:
            raise RecipeError(
                "a simulated agent was asked about something else than an order of the workshop",
                cause="it can play the planner on tasks of type workshop, and no other module",
                fix="give the other modules programs or another engine, as recipes/training-free-simulated.toml does",
            )
        held = world.held(lessons_of(prompt))
        strange = [rule for rule in order.rules if rule.number not in held.true and rule.number not in held.false]
        asked = ask_master.__name__ in prompt.rpartition(_MEMORY)[2]
        if strange and not asked and _draw(seed, "ask", prompt) < len(strange) / len(order.rules):
            return _ACTION.format(
                why="no lesson speaks of this mark", context=strange[0].mark, goal="ask", tool=ask_master.__name__
            )
        draw = _draw(seed, "work", prompt)
        right = draw < world.chance(order, held)
        # What is left of the draw says which code an order that goes wrong gets.
        code = order.code if right else world.code(order.number + 100_000 * (1 + int(draw * 1e6) % WRONG_CODES))
        return _ACTION.format(why="the piece is finished", context=code, goal="hand in", tool=hand_in.__name__)

    return reply


def lessons_of(prompt: str) -> list[str]:
    """The lessons that a planner's prompt holds, one a line."""
    lessons: list[str] = []
    for line in prompt.partition(_LESSONS)[2].splitlines():
        if not line.startswith("- "):
            break
        lessons.append(line[2:])
    return lessons


def _draw(seed: int, *what: str) -> float:
    """A number in [0, 1), the same for the same request."""
    return derive_seed(seed, *what) / 2**63


# --- the reflector ----------------------------------------------------------------------------------------------------


def reflector_reply(world: Workshop) -> Reply:
    """The model of summariser, critic and merger; each prompt's first heading says which it is."""
    roles = {
        "Summarise one rollout": _summary,
        "Contrast a group of rollouts": _contrast,
        "Write lessons": _contrast,
        "Merge proposed changes": _merge,
    }

    def reply(messages: Sequence[Message], seed: int) -> str:
        whole = "\n\n".join(message.content for message in messages)
        heading = whole.partition("\n")[0].removeprefix("# ").strip()
        if heading not in roles:
            raise RecipeError(
                f"a simulated reflector was given a prompt that begins with {heading[:80]!r}",
                cause="it knows its role by the first heading of the prompts that ship with midstream",
                fix=f"begin prompt files with '# ' and one of: {', '.join(roles)}",
            )
        draws = random.Random(derive_seed(seed, "optimiser", whole))
        if draws.random() < world.config.lapses.bad_json:
            return "I have read all of it with care, and this is what I think: {"
        return json.dumps(roles[heading](world, _sections(messages[1].content), draws))

    return reply


def _sections(prompt: str) -> dict[str, str]:
    """The texts below a prompt's headings; what others wrote stands there as JSON, so it cannot begin one."""
    parts = _HEADING.split(prompt)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _order_of(world: Workshop, sections: Mapping[str, str]) -> Order:
    order = world.order(sections.get("Question", "").strip())
    if order is None:
        raise RecipeError(
            "a simulated reflector was asked about something else than an order of the workshop",
            cause="it knows nothing of other tasks",
            fix='set tasks.type = "workshop", or give the reflector another engine',
        )
    return order


def _summary(world: Workshop, sections: Mapping[str, str], draws: random.Random) -> dict[str, Any]:
    order = _order_of(world, sections)
    marks = ", ".join(rule.mark for rule in order.rules) or "no mark"
    return {"summary": f"The order had {marks}; it was worked on, and a code was handed in."}


def _contrast(world: Workshop, sections: Mapping[str, str], draws: random.Random) -> dict[str, Any]:
    """A lesson on one of the question's marks whose true lesson the library lacks."""
    order = _order_of(world, sections)
    library = list(_texts(sections["Library"]))
    known = {one for text in library for one in world.meaning(text)}
    left = [rule for rule in order.rules if (rule.number, 0) not in known]
    if not left:
        return {"operations": []}
    rule = draws.choice(left)
    contrast = len(set(_REWARD.findall(sections.get("Rollouts", "")))) > 1
    true = draws.random() < (world.config.share_true if contrast else 1 / (1 + FALSE))
    new = [which for which in range(1, 1 + FALSE) if (rule.number, which) not in known]
    if not true and not new:
        return {"operations": []}
    lesson = rule.true if true else rule.lessons[draws.choice(new)]
    gives_away = [text for text in sections.values() if order.code in text]
    copied = f"The code of {order.domain} order {order.number} is {order.code}." if gives_away else ""
    texts = _with_lapses(world, lesson, rule, library, copied, draws)
    return {"operations": [_add(text, f"rollouts with {rule.mark} differ in it") for text in texts]}


def _with_lapses(
    world: Workshop, lesson: str, rule: Rule, library: Sequence[str], copied: str, draws: random.Random
) -> list[str]:
    """What is proposed in place of one lesson, or beside it, where the reflector errs."""
    lapses = world.config.lapses
    if copied and draws.random() < lapses.answer_copying:
        return [copied]
    if draws.random() < lapses.over_long:
        return [lesson + _PADDING * 20]
    if draws.random() < lapses.duplicate:
        return [f"Remember: {draws.choice(library)}"] if library else [lesson, f"Remember: {lesson}"]
    if draws.random() < lapses.contradictory:
        return [lesson, draws.choice([one for one in rule.lessons if one != lesson])]
    return [lesson]


def _merge(world: Workshop, sections: Mapping[str, str], draws: random.Random) -> dict[str, Any]:
    """One lesson a mark, drawn among those proposed, each as often as groups proposed it; what it cannot read stays."""
    about: dict[Any, list[dict[str, Any]]] = {}
    for one in _objects(sections["Proposals"]):
        marks = tuple(sorted({number for number, _ in world.meaning(one.get("text", ""))}))
        about.setdefault(marks if one["kind"] == "add" and marks else one["proposal"], []).append(one)
    operations: list[dict[str, Any]] = []
    for proposals in about.values():
        chosen = draws.choices(proposals, [max(1, one["groups"]) for one in proposals])[0]
        others = [one for one in proposals if one is not chosen]
        overlooked = [one for one in others if draws.random() < _oversight(world, one, chosen)]
        operations += [_merged(one) for one in (chosen, *overlooked[:1])]
    return {"operations": operations}


def _oversight(world: Workshop, one: Mapping[str, Any], chosen: Mapping[str, Any]) -> float:
    """The chance that a proposal passes beside the chosen one, though it says the same or the contrary."""
    lapses = world.config.lapses
    same = world.meaning(one["text"]) == world.meaning(chosen["text"])
    return lapses.duplicate if same else lapses.contradictory


def _merged(proposal: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: proposal[key] for key in ("kind", "id", "text", "module", "why") if key in proposal}
    return {**kept, "from": [proposal["proposal"]]}


def _add(text: str, why: str) -> dict[str, Any]:
    return {"kind": "add", "text": text, "module": "planner", "why": why}


def _texts(library: str) -> Iterator[str]:
    """The texts of a library in a prompt, one line of JSON a lesson."""
    return (one["text"] for one in _objects(library))


def _objects(lines: str) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in lines.splitlines() if line.startswith("{"))
