"""The reflector as a program, for the offline world: it summarizes, contrasts and merges by counting.

It knows the sentences of `lessons.py`, and counts how often a rollout acted on each, whatever was in the prompt. It
does not know which of them are sound. What the good rollouts of a group did more often than the bad ones becomes a
lesson, as a language model would guess it from so few, so it is wrong now and then: where a difference was asked for it
learns "Always subtract".

It replaces a language model (engine type "simulated") and sees the same input: the prompts of `lessons/prompts/`,
distinguished by their first line. It shows that the parts work together, nothing of a model's ability.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Message
from midstream_worlds.planning.lessons import BAD, BY_TEXT, KNOWN, SOUND, Decision
from midstream_worlds.planning.words import Situation
from midstream_worlds.simulated import json_lines, merged_change, sections_of

CONTRAST = 0.25  # a sentence becomes a lesson if the good rollouts acted on it this much more often
PROPOSED = 2  # lessons of a group
_ACTED = re.compile(r"([A-Z][a-z ]+): (\d+) of ([1-9]\d*)")
_ARGUMENT = re.compile(r"\n arg ([^\n]+)")


def reply(messages: Sequence[Message], seed: int) -> str:
    """Reply in JSON to a reflector's prompt, with an empty object to any other."""
    role = messages[0].content.split("\n", 1)[0]
    sections = sections_of(messages[1].content) if len(messages) > 1 else {}
    rng = random.Random(derive_seed(seed, *(message.content for message in messages)))
    if role == "# Summarise one rollout":  # words: allow
        turns = [line for line in json_lines(sections["Rollout"]) if "turn" in line]
        counts = acted_on(json.loads(sections["Question"]), turns)
        said = "; ".join(f"{text}: {sum(taken)} of {len(taken)}" for text, taken in counts.items())
        summary = f"{len(turns)} turns. Acted on, of the turns that a sentence speaks of: {said}"
        return json.dumps({"summary": summary})
    if role == "# Contrast a group of rollouts":
        return json.dumps({"operations": _contrast(sections, rng)})
    if role == "# Write lessons":
        # Without rollouts: any sentences that the lesson set lacks.
        lesson_set = {line["text"] for line in json_lines(sections["Library"])}
        left = [lesson.text for lesson in KNOWN if lesson.text not in lesson_set]
        return json.dumps({"operations": [_add(text) for text in rng.sample(left, min(PROPOSED, len(left)))]})
    if role == "# Merge proposed changes":
        return json.dumps({"operations": _merge(sections)})
    return "{}"


def acted_on(question: str, turns: Sequence[Mapping[str, Any]]) -> dict[str, list[bool]]:
    """Map each sentence to whether it was followed, for each turn that it speaks of; `turns` as in transcripts."""
    counts: dict[str, list[bool]] = {}
    steps: list[tuple[str, str]] = []
    failed: set[str] = set()
    for turn in turns:
        for about, (soundly, badly) in _decisions(Situation(question, steps, failed), turn).items():
            counts.setdefault(SOUND[about], []).append(soundly)
            counts.setdefault(BAD[about], []).append(badly)
        if "result" in turn:
            steps.append((str(turn["tool"]), str(turn["result"])))
        else:
            failed.add(str(turn.get("tool", "")))
    return counts


def _decisions(situation: Situation, turn: Mapping[str, Any]) -> dict[Decision, tuple[bool, bool]]:
    """Map each decision of a turn to whether it followed the sound sentence, and whether the bad one."""

    def both(taken: object, decision: Callable[[bool], object]) -> tuple[bool, bool]:
        return taken == decision(True), taken == decision(False)

    text, tool = str(turn.get("planner", "")), str(turn.get("tool", ""))
    taken: dict[Decision, tuple[bool, bool]] = {"form": ("malformed" not in turn, "\n tool " not in text)}
    if not tool:
        return taken
    guess = situation.topic.guess
    taken["guess"] = (tool != guess, tool == guess)
    words = found[1].split() if (found := _ARGUMENT.search(text)) else []
    if tool == guess or not words:
        return taken
    taken["tool"] = both(tool, situation.tool)
    if tool == situation.topic.search:
        taken["attribute"] = both(words[1:2], lambda sound: [situation.attribute(sound)])
        if situation.things:
            taken["place"] = both(words[0], situation.place)
    elif tool == "python" and len(words) == 3:
        taken["operator"] = both(words[1], situation.operator)
        taken["operands"] = both((words[0], words[2]), situation.operands)
    return taken


def _contrast(sections: Mapping[str, str], rng: random.Random) -> list[dict[str, Any]]:
    """Propose what the good rollouts did more often; keep or delete lessons of the lesson set likewise."""
    gaps = _gaps(list(json_lines(sections["Rollouts"])))
    lesson_set = {str(line["text"]): str(line["id"]) for line in json_lines(sections["Library"])}
    changes = [
        {"kind": "keep" if gap > 0 else "delete", "id": lesson_set[text], "why": _why(gap)}
        for text, gap in gaps.items()
        if text in lesson_set and abs(gap) >= CONTRAST
    ]
    new = [(gap, rng.random(), text) for text, gap in gaps.items() if gap >= CONTRAST and text not in lesson_set]
    return changes + [_add(text, _why(gap)) for gap, _, text in sorted(new, reverse=True)[:PROPOSED]]


def _gaps(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How much more often the rollouts with rewards above the mean acted on each sentence than the others did."""
    rewards = [float(rollout["reward"] or 0.0) for rollout in rollouts]
    good: dict[str, list[float]] = {}
    bad: dict[str, list[float]] = {}
    for rollout, reward in zip(rollouts, rewards, strict=True):
        side = good if reward > fmean(rewards) else bad
        for text, acted, spoken in _ACTED.findall(rollout["summary"] or ""):
            side.setdefault(text, []).append(int(acted) / int(spoken))
    return {text: fmean(good[text]) - fmean(bad[text]) for text in good if text in bad}


def _merge(sections: Mapping[str, str]) -> list[dict[str, Any]]:
    """Keep, of two sentences about one decision or two changes of one lesson, the one proposed by more groups."""
    best: dict[str, dict[str, Any]] = {}
    for line in json_lines(sections["Proposals"]):
        known = BY_TEXT.get(line.get("text", ""))
        key = line.get("id") or (known and known.about) or line["text"]
        if key not in best or line["groups"] > best[key]["groups"]:
            best[key] = line
    return [merged_change(line, [line]) for line in best.values()]


def _why(gap: float) -> str:
    more = "more" if gap > 0 else "less"
    return f"the good rollouts acted on it {abs(gap):.0%} {more} often than the others"


def _add(text: str, why: str = "") -> dict[str, Any]:
    return {"kind": "add", "text": text, "module": "planner", "why": why}
