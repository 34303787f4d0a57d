"""A program in place of a model, so that everything here runs at once: offline.toml names it. It always counts."""

import json
import re
from typing import Any


def reply(messages: list[dict[str, str]], request: Any, seed: int) -> str:
    """The reply's text."""
    last = messages[-1]["content"]
    if messages[-1]["role"] == "tool":
        return f"<answer>{re.findall('[0-9]+', last)[-1]}</answer>"
    quoted = re.search("'(.*)'", last)
    text = quoted[1] if quoted else last
    return f"<tool_call>{json.dumps({'name': 'word_count', 'arguments': {'text': text}})}</tool_call>"
