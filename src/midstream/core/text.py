"""Text in prompts and on screens.

Text of a tool, a model or a file can neither start a chat turn in a prompt nor forge a field.
"""

from __future__ import annotations

import json
import re

# Of `<` only what opens a tag or a token (not the less-than of "a < b" or "x<3"), of `[` only what opens a token
# ([INST], [/INST], [gMASK], [|user|]). Patterns start with one set of characters: `re` then skips all others quickly.
BRACKETS = r"(?<=<)(?![\s\d=])|(?<=\[)(?=\||/?\w{0,40}[A-Z]{2}\w{0,40}\])"
# What JSON leaves as it is: line breaks of any kind, control characters, halves of a surrogate pair.
BREAKS = r"\x7f-\x9f\u2028\u2029\ud800-\udfff"
UNSAFE = re.compile(rf"[{BREAKS}<\[](?:(?<![<\[])|{BRACKETS})")
# In text that people write and nobody parses back only a token of known chat templates: "<div>", "a<b>", "[DNA]" stay.
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
    """One line of JSON that is safe inside a prompt: equal to `value` when parsed, unable to forge anything."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Structural brackets are never followed by a bare word and "]", so the pattern only ever hits string contents.
    return UNSAFE.sub(unicode_escape, text)


def neutral(text: str) -> str:
    """`text` with the bracket that opens a chat-template token as a unicode escape, and nothing else changed."""
    return _TOKEN.sub(unicode_escape, text)


def unicode_escape(match: re.Match[str]) -> str:
    """The character that was found, as JSON escapes it."""
    return f"\\u{ord(match[0]):04x}"


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, with the number of those left out."""
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} characters more)"
