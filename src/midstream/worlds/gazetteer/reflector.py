"""The reflector as a program, for the offline world: it summarises, contrasts and merges by counting.

It knows the sentences of `gazetteer_lessons.py`, and can tell from a rollout how often each was acted on, whatever was
in the prompt. It does not know which of them are sound. What the good rollouts of a group did more often than the bad
ones becomes a lesson, as a language model would guess it from so few, so it is wrong now and then: where a difference
was asked for it learns "Always subtract".

It stands where a language model does (engine type "simulated") and sees what that would see: the prompts of
`practice/prompts/`, told apart by their first line. It shows that the parts work together, nothing of a model's wit.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Message
from midstream.worlds.gazetteer.lessons import BAD, KNOWN, SOUND, Decision
from midstream.worlds.gazetteer.plans import Situation

CONTRAST = 0.25  # by how much more often the good rollouts must have acted on a sentence
PROPOSED = 2  # lessons a group
_ACTED = re.compile(r"([A-Z][a-z ]+): (\d+) of ([1-9]\d*)")
_HEADING = re.compile(r"^# (.+)\n", re.MULTILINE)
_ARGUMENT = re.compile(r"\n arg ([^\n]+)")
_BY_TEXT = {one.text: one for one in KNOWN}


def reply(messages: Sequence[Message], seed: int) -> str:
    """What the program says: JSON, or, to a prompt that is none of an reflector's, an empty object."""
    role = messages[0].content.split("\n", 1)[0]
    parts = _HEADING.split(messages[1].content) if len(messages) > 1 else []
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    rng = random.Random(derive_seed(seed, *(message.content for message in messages)))
    if role == "# Summarise one rollout":
        return json.dumps({"summary": _summary(sections)})
    if role == "# Contrast a group of rollouts":
        return json.dumps({"operations": _contrast(sections, rng)})
    if role == "# Merge proposed changes":
        return json.dumps({"operations": _merge(sections)})
    if role == "# Write lessons":
        return json.dumps({"operations": [_add(one) for one in _any(sections, rng)]})
    return "{}"


def _lines(section: str) -> Iterator[dict[str, Any]]:
    """What a section holds, one line of JSON each; other lines are for people."""
    return (json.loads(line) for line in section.splitlines() if line.startswith("{"))


# --- summaries: how often each sentence was acted on ----------------------------------------------------------------


def _summary(sections: Mapping[str, str]) -> str:
    turns = [line for line in _lines(sections["Rollout"]) if "turn" in line]
    counts = acted_on(json.loads(sections["Question"]), turns)
    said = [f"{text}: {sum(taken)} of {len(taken)}" for text, taken in counts.items()]
    return f"{len(turns)} turns. Acted on, of the turns that a sentence speaks of: " + "; ".join(said)


def acted_on(question: str, turns: Sequence[Mapping[str, Any]]) -> dict[str, list[bool]]:
    """For each sentence, of the turns that it speaks of, whether the turn was as it says; `turns` as transcripts have
    them."""
    counts: dict[str, list[bool]] = {}
    used: list[str] = []
    for turn in turns:
        situation = Situation(question, used)
        for about, (soundly, badly) in _taken(situation, turn).items():
            counts.setdefault(SOUND[about], []).append(soundly)
            counts.setdefault(BAD[about], []).append(badly)
        used.append(str(turn.get("tool", "")))
    return counts


def _taken(situation: Situation, turn: Mapping[str, Any]) -> dict[Decision, tuple[bool, bool]]:
    """How each decision of a turn was taken: as the sound sentence says, as the bad one does."""
    text, tool = str(turn.get("planner", "")), str(turn.get("tool", ""))
    taken: dict[Decision, tuple[bool, bool]] = {"form": ("malformed" not in turn, "\n tool " not in text)}
    if not tool:
        return taken
    taken["guess"] = (tool != "guess", tool == "guess")
    words = found[1].split() if (found := _ARGUMENT.search(text)) else []
    if tool == "guess" or not words:
        return taken
    taken["tool"] = (tool == situation.tool(True), tool == situation.tool(False))
    if tool == "local_search":
        taken["attribute"] = _both(words[-1], situation.attribute)
        if situation.things:
            taken["place"] = _both(words[0], situation.place)
    elif len(words) == 3:
        taken["operator"] = _both(words[1], situation.operator)
        taken["operands"] = _both((words[0], words[2]), situation.operands)
    return taken


def _both(taken: Any, decision: Any) -> tuple[bool, bool]:
    return taken == decision(True), taken == decision(False)


# --- the semantic advantage: what the good rollouts did more often --------------------------------------------------


def _contrast(sections: Mapping[str, str], rng: random.Random) -> list[dict[str, Any]]:
    gaps = _gaps(list(_lines(sections["Rollouts"])))
    library = {str(line["text"]): str(line["id"]) for line in _lines(sections["Library"])}
    changes = [
        {"kind": "keep" if gap > 0 else "delete", "id": library[text], "why": _why(gap)}
        for text, gap in gaps.items()
        if text in library and abs(gap) >= CONTRAST
    ]
    new = [(gap, rng.random(), text) for text, gap in gaps.items() if gap >= CONTRAST and text not in library]
    return changes + [_add(text, _why(gap)) for gap, _, text in sorted(new, reverse=True)[:PROPOSED]]


def _gaps(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How much more often the rollouts with rewards above the mean acted on each sentence than the others did."""
    rewards = [float(one["reward"] or 0.0) for one in rollouts]
    good: dict[str, list[float]] = {}
    bad: dict[str, list[float]] = {}
    for one, reward in zip(rollouts, rewards, strict=True):
        side = good if reward > fmean(rewards) else bad
        for text, acted, spoken in _ACTED.findall(one["summary"] or ""):
            side.setdefault(text, []).append(int(acted) / int(spoken))
    return {text: fmean(good[text]) - fmean(bad[text]) for text in good if text in bad}


def _why(gap: float) -> str:
    more = "more" if gap > 0 else "less"
    return f"the good rollouts acted on it {abs(gap):.0%} {more} often than the others"


def _add(text: str, why: str = "") -> dict[str, Any]:
    return {"kind": "add", "text": text, "module": "planner", "why": why}


def _any(sections: Mapping[str, str], rng: random.Random) -> list[str]:
    """Any sentences that the library lacks, if any: what can be written without having seen a rollout."""
    there = {line["text"] for line in _lines(sections["Library"])}
    left = [one.text for one in KNOWN if one.text not in there]
    return rng.sample(left, min(PROPOSED, len(left)))


# --- the batch ------------------------------------------------------------------------------------------------------


def _merge(sections: Mapping[str, str]) -> list[dict[str, Any]]:
    """Of two sentences about one decision the one with more groups behind it; of one lesson's changes likewise."""
    best: dict[str, dict[str, Any]] = {}
    for line in _lines(sections["Proposals"]):
        known = _BY_TEXT.get(line.get("text", ""))
        key = line.get("id") or (known and known.about) or line["text"]
        if key not in best or line["groups"] > best[key]["groups"]:
            best[key] = line
    wanted = ("kind", "id", "text", "module", "why")
    return [{key: line[key] for key in wanted if key in line} | {"from": [line["proposal"]]} for line in best.values()]
