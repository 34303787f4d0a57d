"""The workshop's rules, its two models as pure functions of (messages, seed), and the agent's two tools.

The agent's model is the planner. It reads lessons and order in its prompt, and gives the right code with exactly the
probability of `Workshop.chance`; the draw is a hash of the seed and the whole prompt, so that the same request always
gets the same reply, and a request that differs by one lesson an independent one.

The reflector's model is summarizer, critic and merger (`lessons/prompts/`). It reads question and lesson set in the
prompt and proposes lessons on marks whose true lesson the prompt lacks, true ones with probability `share_true`; where
all rollouts earned the same reward, or there is no rollout, it can only guess among a mark's lessons. Its other errors
are `Lapses`. Both show that a method's machinery and statistics work, nothing of a model's ability.

A lesson is recognized by the words of its mark and its method. No two lessons of a domain are near-duplicates of each
other by their letters, not even the true and the false ones of one rule: a refused duplicate is a real one.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Message
from midstream_worlds.simulated import Reply, json_lines, merged_change, sections_of

if TYPE_CHECKING:
    from midstream_worlds.workshop.tasks import Workshop


DOMAINS = ("press", "kiln", "loom", "forge")
FALSE = 4  # false lessons of each rule

_FIRST = """amber brittle coarse damp early faded glossy hollow ivory jagged knotted lacquered mottled narrow oval
pale quilted ribbed silver tapered uneven velvet woven yellow azure blunt crimson dotted embossed frosted gilded hooded
inlaid jet linen marbled notched opal pleated riveted""".split()
_SECOND = """anchor bracket clasp dowel edge flap groove hinge insert joint knob lining medal nameplate outline panel
quill rim seal tassel underside vein wedge arch border crest disc emblem fringe grip handle index jewel label
monogram neck ornament pocket ring spine""".split()
MOST_RULES = len(_FIRST)  # each word is in one mark of a domain, so that lessons of two rules differ
_VERBS = "warm wipe loosen weigh soak turn brush clamp".split()
_OBJECTS = "plate screw bench frame mould wheel basin blade trough cover".split()
_MANNERS = ("slowly", "twice", "by hand", "from below", "in the shade", "before noon", "with oil")
_SENTENCES = (
    "A {domain} order with {mark} comes out right if you {method}.",
    "For {mark} on a {domain} order, {method}.",
    "Whenever the {domain} sheet says {mark}: {method}.",
    "Never begin {mark} at the {domain} before you {method}.",
    "The {domain} spoils {mark} unless you {method}.",
    "{mark}, {domain}: remember to {method}.",
    "Good work at the {domain} starts when you {method}, if {mark} is asked for.",
    "To save time, {method} as soon as a {domain} order mentions {mark}.",
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its mark, and its lessons, the true one first. `number` counts over all domains."""

    number: int
    domain: str
    mark: str
    methods: tuple[str, ...]
    lessons: tuple[str, ...]

    @property
    def true(self) -> str:
        """The lesson that helps."""
        return self.lessons[0]

    @property
    def false(self) -> tuple[str, ...]:
        """The lessons that harm."""
        return self.lessons[1:]


def make_rules(count: int, seed: int) -> tuple[Rule, ...]:
    """`count` rules of every domain; within a domain no word of a mark and no method is used twice."""
    rules: list[Rule] = []
    for domain in DOMAINS:
        rng = random.Random(derive_seed("workshop rules", seed, domain))
        firsts, seconds = rng.sample(_FIRST, count), rng.sample(_SECOND, count)
        ways = [f"{verb} the {thing} {manner}" for verb, thing, manner in product(_VERBS, _OBJECTS, _MANNERS)]
        methods = iter(rng.sample(ways, count * (1 + FALSE)))
        for mark in map(" ".join, zip(firsts, seconds, strict=True)):
            own = tuple(next(methods) for _ in range(1 + FALSE))
            forms = rng.sample(_SENTENCES, 1 + FALSE)  # of one rule, no two lessons in the same form
            lessons = tuple(
                form.format(domain=domain, mark=mark, method=way) for form, way in zip(forms, own, strict=True)
            )
            rules.append(Rule(number=len(rules), domain=domain, mark=mark, methods=own, lessons=lessons))
    return tuple(rules)


WRONG_CODES = 3  # of an order: few enough that wrong answers can agree
_LESSONS = "# Lessons from earlier tasks\n\n"
_MEMORY = "\n# Memory\n"
_ACTION = "Justification: {why}\nContext: {context}\nSub-Goal: {goal}\nTool Name: {tool}"
_REWARD = re.compile(r'"reward":(\d[\d.]*)')
_PADDING = (
    " This holds in every season, for old hands and new ones, at the first bench as at the last, and in haste too."
)


async def hand_in(code: str) -> str:
    """Hands in the code of a finished piece, which ends the order.

    Args:
        code: the code, digits only.
    """
    return f"handed in: {code}"


async def ask_master(mark: str) -> str:
    """Asks the master of the workshop about a mark on an order.

    Args:
        mark: the mark, as it stands on the order.
    """
    return f"The master says of {mark}: you learn that by doing."


def agent_reply(world: Workshop) -> Reply:
    """Make the planner's model. Without lessons on an order's marks it first asks the master, in vain."""

    def draw(seed: int, *what: str) -> float:
        """A number in [0, 1), the same for the same request."""
        return derive_seed(seed, *what) / 2**63

    def reply(messages: Sequence[Message], seed: int) -> str:
        prompt = "\n\n".join(message.content for message in messages)
        order = world.order(messages[-1].content)  # the query; the whole prompt would take long to search
        held = world.held(lessons_of(prompt))
        strange = [rule for rule in order.rules if rule.number not in held.true and rule.number not in held.false]
        asked = ask_master.__name__ in prompt.rpartition(_MEMORY)[2]
        if strange and not asked and draw(seed, "ask", prompt) < len(strange) / len(order.rules):
            return _ACTION.format(
                why="no lesson speaks of this mark", context=strange[0].mark, goal="ask", tool=ask_master.__name__
            )
        place = draw(seed, "work", prompt)
        right = place < world.chance(order, held)
        # The remaining digits of the draw choose the code of an order that fails.
        code = order.code if right else world.code(order.number + 100_000 * (1 + int(place * 1e6) % WRONG_CODES))
        return _ACTION.format(why="the piece is finished", context=code, goal="hand in", tool=hand_in.__name__)

    return reply


def lessons_of(prompt: str) -> list[str]:
    """The lessons in a planner's prompt, one a line."""
    lessons: list[str] = []
    for line in prompt.partition(_LESSONS)[2].splitlines():
        if not line.startswith("- "):
            break
        lessons.append(line[2:])
    return lessons


def reflector_reply(world: Workshop) -> Reply:
    """Make the model of summarizer, critic and merger; each prompt's first heading names its role.

    Sections of a prompt cannot be forged: text of others is written there as JSON, which cannot begin a heading.
    """
    roles = {
        "Summarise one rollout": _summarize,  # words: allow
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
                code="foreign-prompt",
                fix=f"begin prompt files with '# ' and one of: {', '.join(roles)}",
            )
        draws = random.Random(derive_seed(seed, "optimiser", whole))  # words: allow
        if draws.random() < world.config.lapses.bad_json:
            return "I have read all of it with care, and this is what I think: {"
        return json.dumps(roles[heading](world, sections_of(messages[1].content), draws))

    return reply


def _summarize(world: Workshop, sections: Mapping[str, str], draws: random.Random) -> dict[str, Any]:
    order = world.order(sections.get("Question", "").strip())
    marks = ", ".join(rule.mark for rule in order.rules) or "no mark"
    return {"summary": f"The order had {marks}; it was worked on, and a code was handed in."}


def _contrast(world: Workshop, sections: Mapping[str, str], draws: random.Random) -> dict[str, Any]:
    """Propose a lesson on one of the question's marks whose true lesson the lesson set lacks."""
    order = world.order(sections.get("Question", "").strip())
    lesson_set = [lesson["text"] for lesson in json_lines(sections["Library"])]
    known = {meaning for text in lesson_set for meaning in world.meaning(text)}
    left = [rule for rule in order.rules if (rule.number, 0) not in known]
    if not left:
        return {"operations": []}
    rule = draws.choice(left)
    contrast = len(set(_REWARD.findall(sections.get("Rollouts", "")))) > 1
    true = draws.random() < (world.config.share_true if contrast else 1 / (1 + FALSE))
    new = [index for index in range(1, 1 + FALSE) if (rule.number, index) not in known]
    if not true and not new:
        return {"operations": []}
    lesson = rule.true if true else rule.lessons[draws.choice(new)]
    code_shown = any(order.code in text for text in sections.values())
    copied = f"The code of {order.domain} order {order.number} is {order.code}." if code_shown else ""
    why = f"rollouts with {rule.mark} differ in it"
    return {
        "operations": [
            {"kind": "add", "text": text, "module": "planner", "why": why}
            for text in _with_lapses(world, lesson, rule, lesson_set, copied, draws)
        ]
    }


def _with_lapses(
    world: Workshop, lesson: str, rule: Rule, lesson_set: Sequence[str], copied: str, draws: random.Random
) -> list[str]:
    """The texts that an erring reflector proposes for one lesson; `copied` gives the answer away."""
    lapses = world.config.lapses
    if copied and draws.random() < lapses.answer_copying:
        return [copied]
    if draws.random() < lapses.over_long:
        return [lesson + _PADDING * 20]
    if draws.random() < lapses.duplicate:
        return [f"Remember: {draws.choice(lesson_set)}"] if lesson_set else [lesson, f"Remember: {lesson}"]
    if draws.random() < lapses.contradictory:
        return [lesson, draws.choice([other for other in rule.lessons if other != lesson])]
    return [lesson]


def _merge(world: Workshop, sections: Mapping[str, str], draws: random.Random) -> dict[str, Any]:
    """Keep one lesson a mark, drawn in proportion to the groups that proposed it, and every unknown proposal."""
    lapses = world.config.lapses
    about: dict[Any, list[dict[str, Any]]] = {}
    for proposal in json_lines(sections["Proposals"]):
        marks = tuple(sorted({number for number, _ in world.meaning(proposal.get("text", ""))}))
        key = marks if proposal["kind"] == "add" and marks else proposal["proposal"]
        about.setdefault(key, []).append(proposal)
    operations: list[dict[str, Any]] = []
    for proposals in about.values():
        chosen = draws.choices(proposals, [max(1, proposal["groups"]) for proposal in proposals])[0]
        overlooked: list[dict[str, Any]] = []  # pass with the chosen one, though they repeat or contradict it
        for other in proposals:
            if other is not chosen:
                same = world.meaning(other["text"]) == world.meaning(chosen["text"])
                if draws.random() < (lapses.duplicate if same else lapses.contradictory):
                    overlooked.append(other)
        operations += [merged_change(kept, [kept]) for kept in (chosen, *overlooked[:1])]
    return {"operations": operations}
