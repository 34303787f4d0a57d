"""The reflector as a program, for the atlas: it compares the values that rollouts found with the gold answer.

A model of a million parameters answers by lessons and cannot write them. This program can, for questions that ask for
one value: where most rollouts of a group found 327 as the height and the answer is 981, heights may count three times.
One group proves little (11 may be 22 times 2 or plus 11), so a rule needs two groups that agree; the gate decides.

It replaces a language model (engine type "simulated") and sees the same input: the prompts of `lessons/prompts/`,
distinguished by their first line. It shows that the parts work together, nothing of a model's ability.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from midstream.core.seeds import derive_seed
from midstream.core.stream import POLICY
from midstream.core.trajectory import Message
from midstream_worlds.atlas.rules import NUMBERS, RULED, Rule, draw_rule, rules_in
from midstream_worlds.simulated import json_lines, merged_change, sections_of

AGREE = 2  # groups that must propose a rule
_FOUND = re.compile(rf"({'|'.join(RULED)}) (\d+)")


def reply(messages: Sequence[Message], seed: int) -> str:
    """Reply in JSON to a reflector's prompt, with an empty object to any other."""
    role = messages[0].content.split("\n", 1)[0]
    sections = sections_of(messages[1].content) if len(messages) > 1 else {}
    draws = Random(derive_seed(seed, *(message.content for message in messages)))
    if role == "# Summarise one rollout":  # words: allow
        return json.dumps({"summary": _summary(list(json_lines(sections["Rollout"])))})
    if role == "# Contrast a group of rollouts":
        return json.dumps({"operations": _contrast(sections, draws)})
    if role == "# Write lessons":
        # Without rollouts: any rule.
        return json.dumps({"operations": [_add(draw_rule(draws.choice(RULED), draws, held_out=True), draws)]})
    if role == "# Merge proposed changes":
        return json.dumps({"operations": _merge(sections)})
    return "{}"


def _summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """What was looked up and calculated, in order, and the answer."""
    steps = []
    for line in lines:
        command = line.get("command")
        if "result" in line and isinstance(command, dict) and "query" in command:
            value = re.search(r"\d+", line["result"])
            steps.append(f"{str(command['query']).split(' ')[-1]} {value[0] if value else 'without a value'}")
        elif "result" in line and command:
            code = command["code"] if isinstance(command, dict) and "code" in command else command
            steps.append(f"{code} = {line['result']}")
    return ", ".join([*steps, f"answer {lines[-1]['answer']}"])


def _contrast(sections: Mapping[str, str], draws: Random) -> list[dict[str, Any]]:
    """Propose a rule that leads from the value found to the gold answer; keep or delete lessons about its attribute."""
    rollouts = list(json_lines(sections["Rollouts"]))
    answer = sections["Gold answer"].strip().strip('"')
    if not answer.isdigit() or re.search(r"\d", sections["Question"]):
        return []
    values = Counter(found[0] for rollout in rollouts if len(found := _FOUND.findall(str(rollout["summary"]))) == 1)
    (attribute, value), votes = values.most_common(1)[0] if values else (("", ""), 0)
    if 2 * votes <= len(rollouts):
        return []
    true = [
        rule
        for word, numbers in NUMBERS.items()
        for rule in (Rule(attribute, word, number) for number in numbers)
        if rule.value(int(value)) == int(answer)
    ]
    why = f"{votes} rollouts found {value} as the {attribute}; the answer is {answer}"
    changes, known = [], False
    for line in json_lines(sections["Library"]):
        stated, _ = rules_in(line["text"]).get(attribute, (None, ""))
        if stated is not None and (true or value == answer):
            known |= stated in true
            changes.append({"kind": "keep" if stated in true else "delete", "id": line["id"], "why": why})
    return changes + ([_add(draws.choice(true), draws, why)] if true and not known else [])


def _merge(sections: Mapping[str, str]) -> list[dict[str, Any]]:
    """Of each attribute the rule with the most groups, if enough agree; of a lesson the change with the most."""
    added: dict[Rule, list[dict[str, Any]]] = {}
    changed: dict[str, list[dict[str, Any]]] = {}
    for line in json_lines(sections["Proposals"]):
        if line["kind"] == "add":
            for rule, _ in rules_in(line["text"]).values():
                added.setdefault(rule, []).append(line)
        else:
            changed.setdefault(line["id"], []).append(line)

    def groups(lines: Sequence[Mapping[str, Any]]) -> int:
        return sum(line["groups"] for line in lines)

    best: dict[str, list[dict[str, Any]]] = {}
    for rule, lines in added.items():
        if groups(lines) >= max(AGREE, groups(best.get(rule.attribute, [])) + 1):
            best[rule.attribute] = lines
    merged = [*best.values(), *([max(lines, key=lambda line: line["groups"])] for lines in changed.values())]
    return [merged_change(lines[0], lines) for lines in merged]


def _add(rule: Rule, draws: Random, why: str = "") -> dict[str, Any]:
    return {"kind": "add", "text": rule.lesson(draws, held_out=True), "module": POLICY, "why": why}
