"""The workshop's rules: marks, methods and the sentences of lessons.

A lesson is recognized by the words of its mark and its method. No two lessons of a domain are near-duplicates of each
other by their letters, not even the true and the false ones of one rule: a refused duplicate is a real one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

from midstream.core.seeds import derive_seed

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
