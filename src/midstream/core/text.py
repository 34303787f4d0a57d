"""Text to and from models: safe in prompts, where it cannot start a chat turn or forge a field, and read in replies."""

from __future__ import annotations

import ast
import html
import json
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence

# A `<` that opens a tag or token (not the less-than of "a < b" or "x<3"), and what opens a token otherwise: [INST],
# [/INST], [gMASK], [|user|], [e~[, ]~b], >>ANSWER<<. Patterns start with one set of characters, so that `re` skips all
# others quickly.
BRACKETS = (
    r"(?<=<)(?![\s\d=])|(?<=\[)(?=\||e~\[|unused\d|\w{1,9}_header_id\]|/?\w{0,40}[A-Z]{2}\w{0,40}\])"
    r"|(?<=\])(?=[~!<])|(?<=>)(?=>[A-Z])"
)
# What JSON does not escape: Unicode line breaks, control characters, halves of a surrogate pair.
BREAKS = r"\x7f-\x9f\u2028\u2029\ud800-\udfff"
UNSAFE = re.compile(rf"[{BREAKS}<>\[\]](?:(?<![<>\[\]])|{BRACKETS})")
# In running text, which nothing parses back, only tokens of known chat templates: "<div>", "a<b>", "[DNA]" stay. By
# opening character and family, the patterns of what follows; tests/support/chat_tokens.py has the tokens and sources.
_TOKENS = {
    "<": {
        "ChatML, Llama, Phi, GLM, gpt-oss, Granite, Kimi, LFM2, Cohere, ERNIE and most others": r"\|[^\s<>|]{1,60}\|>",
        "DeepSeek, Hunyuan": r"/?｜",
        "Gemma 4": r"\|[a-z_]{1,20}>|[a-z_]{1,20}\|>",
        "Gemma, MiniMax-01": r"(?:start|end|beginning)_(?:of|function)_\w{1,20}>|unused\d{1,4}>",
        "Llama 2, T5, GLM, ERNIE": r"/?(?:s|bos|eos|pad|unk|sop|eop|cls|sep)>|</?SYS>>|mask(?::\d{1,3})?>",
        "Cohere": r"(?:BOS|EOS|PAD|UNK|CLS|SEP|MASK|EOP)(?:_TOKEN)?>",
        "Nemotron, T5": r"SPECIAL_\d{1,4}>|extra_id_\d{1,4}>|/?(?:TOOLCALL|TOOL_RESPONSE|AVAILABLE_TOOLS)>",
        "Ling, Ring": r"role>\s{0,9}(?i:system|human|user|assistant|observation|tool)",
        "Baichuan, InternLM": r"reserved_\d{1,4}>|eo[ahs]>|TOKENS_UNUSED_\d{1,4}>",
        "TeleChat, MiniCPM": r"_(?:start|system|user|bot|end)>|用户>|AI>",
        "MiniMax, Seed, LongCat": r"/?(?:minimax:|mm:|seed:|longcat_)\w{1,30}>",
        "Code Llama, LLaVA, Qwen 1, Jamba": r"/?(?:PRE|SUF|MID|EOT|image|eom|eod|function_calls)>",
        "Qwen and kin, GLM": r"/?(?:think|tool_call|tool_response|arg_key|arg_value)>",
    },
    "[": {
        "EXAONE, BlueLM, GLM, MiniMax": r"\|\w{1,20}\|\]|[gs]MASK\]|e~\[",
        "Mistral, Llama 2": r"/?(?:INST|THINK|ARGS|CALL_ID|(?:SYSTEM_P|MODEL_S|AVAILABLE_T|TOOL_)[A-Z]{1,20})\]",
        "Kimi, BERT": r"(?:BOS|EOS|EOT|PAD|UNK|SEP|CLS|MASK)\]|(?:start|end)_header_id\]",
        "InternLM, Pangu": r"(?:UNUSED_TOKEN_|unused)\d{1,4}\]",
    },
    "]": {"MiniMax": r"~!?b[\]\[]|![a-z]~\[|<\][^\[\]<>\n]{1,30}\[>\["},
    ">": {"Falcon": r">(?:QUESTION|ANSWER|TITLE|ABSTRACT|INTRODUCTION|SUMMARY|COMMENT|DOMAIN)<<"},
}
_TOKEN = re.compile("|".join(rf"\{opening}(?={'|'.join(rest.values())})" for opening, rest in _TOKENS.items()))
# Controls except newline and tab, line separators, bidirectional overrides, lone surrogates, annotations, tags.
_STEERING = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ud800-\udfff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f"
)
# Characters without width. Scripts and emoji need them; next to ASCII they make two names look like one.
_ZERO_WIDTH = r"\xad\u061c\u180e\u200b-\u200f\u2060-\u2065\ufeff"
_HIDDEN, _STEERS = re.compile(f"[{_STEERING}{_ZERO_WIDTH}]+"), re.compile(f"[{_STEERING}]")
PLACE = re.compile(r"\{\{(\w+)\}\}")  # of a value in a prompt
# A fenced block: its language and its text. One that is never closed extends to the end.
_FENCED = re.compile(r"^[^\S\n]*```([^\n]*)\n(.*?)(?:^[^\S\n]*```[^\S\n]*$|\Z)", re.MULTILINE | re.DOTALL)
_PYTHON = ("python", "python3", "py")
_MAX_CODE = 50_000  # characters: parsing more would delay every other run


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


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace each `{{name}}` by its value; a place inside a value is left as text."""
    return PLACE.sub(lambda place: values[place[1]], template)


def visible(text: str) -> str:
    r"""Text of others made safe to show: what would steer a terminal, or deceive its reader, is written out as `\x1b`.

    Text that is JSON stays JSON of the same meaning: it holds none of the characters below U+0020 that are written out,
    and the others have the form that JSON gives them.
    """

    def written_out(match: re.Match[str]) -> str:
        whole, start, end = match.string, *match.span()
        neighbors = whole[start - 1 : start], whole[end : end + 1]
        if not _STEERS.search(match[0]) and not any("!" <= neighbor <= "~" for neighbor in neighbors):
            return match[0]
        units = match[0].encode("utf-16-be", "surrogatepass").hex()
        return re.sub("....", lambda unit: f"\\x{unit[0][2:]}" if unit[0] < "0020" else f"\\u{unit[0]}", units)

    return _HIDDEN.sub(written_out, text.replace("\r\n", "\n"))


def shorten(text: str, limit: int) -> str:
    """The first `limit` characters of `text`, followed by the number of characters left out."""
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} characters more)"


def spoken(text: str) -> str:
    """The text after a model's thinking, as valid Unicode; empty if it never stopped thinking."""
    text = text.encode("utf-8", "replace").decode()
    _, closed, rest = text.rpartition("</think>")
    if closed:
        return rest
    return "" if text.lstrip().startswith("<think>") else text


def find_program(text: str) -> tuple[str | None, str]:
    """Return (code, "") of the whole text if it compiles, else of its first fenced block that does.

    If any block is marked as Python, only these count. Code that is indented as a whole is moved to the left. If
    nothing compiles, the result is (None, problem of the first).
    """
    # If the whole compiles, a fence in it stands in a string.
    if _compile_error(text) is None:
        return text, ""
    blocks = [(found[1].strip("` \t\r").lower(), found[2].removesuffix("\n")) for found in _FENCED.finditer(text)]
    marked = [code for language, code in blocks if language in _PYTHON]
    candidates = marked or [code for _, code in blocks] or [text]
    for code in candidates:
        for version in (code, textwrap.dedent(code)):
            if _compile_error(version) is None:
                return version, ""
    return None, _compile_error(candidates[0]) or ""


def _compile_error(code: str) -> str | None:
    """Return why `code` is not a program; None if it is."""
    if not code.strip():
        return "the reply holds no code"
    if len(code) > _MAX_CODE:
        return f"its {len(code)} characters are more than {_MAX_CODE}"
    try:
        with warnings.catch_warnings():
            # Such as for "\d" in a string of the model's code.
            warnings.simplefilter("ignore")
            # Not compile(): nested `finally` blocks double its work each time.
            ast.parse(code)
    except SyntaxError as error:
        lines = code.split("\n")
        number = error.lineno or 0
        shown = f": {lines[number - 1].strip()[:200]}" if 0 < number <= len(lines) else ""
        return f"{type(error).__name__}: {error.msg} (line {number}{shown})"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        # The code has null bytes, or is nested too deeply.
        return f"{type(error).__name__}: {error}"
    return None


def last_box(text: str) -> str:
    """The content of the last \\boxed{}; "" if it is missing or never closed."""
    box = "\\boxed{"
    start = text.rfind(box) + len(box)
    depth = 1
    for place in range(start, len(text) if start >= len(box) else 0):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    return ""


def html_table(rows: Sequence[Mapping[str, object]], notes: Sequence[str] = ()) -> str:
    """Rows as an HTML table, whose columns are the keys of the first, and notes under it."""

    def cell(tag: str, value: object) -> str:
        text = "" if value is None else visible(str(value))
        return f'<{tag} style="text-align: left; white-space: pre-wrap">{html.escape(text)}</{tag}>'

    heads = list(rows[0]) if rows else []
    lines = [
        "".join(cell("th", head) for head in heads),
        *("".join(cell("td", row.get(h)) for h in heads) for row in rows),
    ]
    table = f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>" if rows else ""
    return table + "".join(f"<div>{html.escape(visible(note))}</div>" for note in notes)


def render_lessons(lessons: str, examples: str = "") -> str:
    """The part of a prompt that holds lessons and examples; "" without any, so that the prompt is unchanged."""
    parts = {"Lessons from earlier tasks": neutral(lessons.strip()), "Examples of good runs": neutral(examples.strip())}
    return "".join(f"# {heading}\n\n{text}\n\n" for heading, text in parts.items() if text)


def counted(count: int, noun: str, several: str = "") -> str:
    """A count with its noun: "1 turn", "2 turns"; `several` where the plural is not made with an s."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"
