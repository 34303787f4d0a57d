"""Make text of tools, models and files safe in prompts: it cannot start a chat turn or forge a field."""

from __future__ import annotations

import json
import re

# A `<` that opens a tag or token (not the less-than of "a < b" or "x<3"), and a `[` that opens a token ([INST],
# [/INST], [gMASK], [|user|]). Patterns start with one set of characters, so that `re` skips all others quickly.
BRACKETS = r"(?<=<)(?![\s\d=])|(?<=\[)(?=\||/?\w{0,40}[A-Z]{2}\w{0,40}\])"
# What JSON does not escape: Unicode line breaks, control characters, halves of a surrogate pair.
BREAKS = r"\x7f-\x9f\u2028\u2029\ud800-\udfff"
UNSAFE = re.compile(rf"[{BREAKS}<\[](?:(?<![<\[])|{BRACKETS})")
# In running text, which nothing parses back, only tokens of known chat templates: "<div>", "a<b>", "[DNA]" stay.
_TOKEN = re.compile(
    r"""
    <(?=  \|[^\s<>|]{1,60}\|>  |  ｜[^\s<>｜]{1,60}｜>                             # ChatML, Llama 3, GLM; DeepSeek
       |  /?(?:s|bos|eos|pad|unk|sop|eop|BOS_TOKEN|EOS_TOKEN|seed:\w{1,20})>       # Llama 2, Gemma, GLM, Cohere, Seed
       |  (?:start|end|beginning)_of_\w{1,20}>  |  </?SYS>>                        # Gemma; Llama 2
       |  /?(?:think|tool_call|tool_response)> )                                   # Qwen and kin
  | \[(?= \|\w{1,20}\|\]  |  [gs]MASK\]                                            # EXAONE; GLM
       |  /?(?:INST|THINK|ARGS|CALL_ID|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_[A-Z]{1,20})\] )    # Llama 2, Mistral
    """,
    re.VERBOSE,
)


def to_json(value: object) -> str:
    """Serialize a value as one line of JSON that is safe inside a prompt and parses back to an equal value."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Structural brackets are never followed by a bare word and "]", so the pattern matches only inside strings.
    return UNSAFE.sub(unicode_escape, text)


def neutral(text: str) -> str:
    """Escape the opening bracket of every chat-template token in `text`; everything else is unchanged."""
    return _TOKEN.sub(unicode_escape, text)


def unicode_escape(match: re.Match[str]) -> str:
    """The matched character as a JSON escape."""
    return f"\\u{ord(match[0]):04x}"


def shorten(text: str, limit: int) -> str:
    """The first `limit` characters of `text`, followed by the number of characters left out."""
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} characters more)"
