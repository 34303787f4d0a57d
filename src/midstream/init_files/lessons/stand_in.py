"""A program in place of a model, so that everything here runs at once: offline.toml names it.

It guesses half of its answers. With the lesson that it proposes when it plays the reflector, it always counts.
"""

import json
import random
import re
from typing import Any

LESSON = "When a question asks for the words of a text, call word_count instead of guessing"


def reply(messages: list[dict[str, str]], request: Any, seed: int) -> str:
    """The reply's text."""
    if request.role == "summariser":  # the reflector's three roles
        return json.dumps({"summary": "It guessed, or it counted."})
    if request.role in ("critic", "merger"):
        add = {"kind": "add", "text": LESSON, "module": "policy", "why": "guesses fail", "from": [1]}
        return json.dumps({"operations": [add]})
    if messages[-1]["role"] == "tool":
        return f"<answer>{re.findall('[0-9]+', messages[-1]['content'])[-1]}</answer>"
    text = re.findall("'(.*)'", messages[-1]["content"])[-1]
    if "word_count instead" in messages[0]["content"] or random.Random(seed).random() < 0.5:
        return f"<tool_call>{json.dumps({'name': 'word_count', 'arguments': {'text': text}})}</tool_call>"
    return "<answer>7</answer>"
