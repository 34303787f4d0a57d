"""A scripted model that counts words with the tool `word_count`, and learns it from one lesson.

It plays the modules of AgentFlow, the policy of `direct`, and the reflector. Without the lesson it counts half of its
texts wrong, drawn from the request; with it all are right. "to be or not" it always counts right.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path

from support.llm_server import Body, prompt_of

LESSON = "When a question asks for the words of a text, give the tool the whole text."


def counting(body: Body) -> str:
    """The reply to a request."""
    text = prompt_of(body)
    role = text.partition("\n")[0].lstrip("# ").split()[0].lower()
    quoted = re.findall(r"words has '([^']*)'", text)
    if role == "planner":
        careful = LESSON in text or quoted[-1] == "to be or not" or random.Random(json.dumps(body)).random() < 0.5
        goal = f"Context: words has '{quoted[-1]}'\nSub-Goal: count {'all' if careful else 'some'}"
        return f"Justification: it counts\n{goal}\nTool Name: word_count"
    if role == "executor":
        return json.dumps({"text": (quoted or [""])[-1] if "count all" in text else ""})
    if role == "verifier":
        return json.dumps({"analysis": "done", "result_valid": True, "memory_sufficient": True})
    if role == "summarise":  # words: allow
        return json.dumps({"summary": "It counted all words." if "count all" in text else "It counted some words."})
    if role in ("contrast", "merge"):
        known = LESSON in text.partition("# Library")[2].partition("# ")[0]
        add = {"kind": "add", "text": LESSON, "module": "planner", "why": "those that did were right"}
        operations = [] if known else [add if role == "contrast" else {**add, "from": [1]}]
        return json.dumps({"operations": operations})
    counts = re.findall(r'"result": ?"?(\d+)', text)
    return f"<answer>{counts[-1] if counts else len(quoted[-1].split())}</answer>"


def write_questions(path: Path, count: int = 24, split: Mapping[int, str] | None = None) -> Path:
    """A file of questions: every other one is of the split `train`, and the others of `test`."""
    names = split or {0: "train", 1: "test"}
    rows = [
        {"question": f"How many words has '{'to ' * (i % 5)}be {i}'?", "answer": str(i % 5 + 2), "split": names[i % 2]}
        for i in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path
