"""Hostile texts for a terminal, and the check that none of them had an effect."""

from __future__ import annotations

import re

TARGET = "https://evil.example"
MARK = "38;5;201"  # a color that no screen of midstream has
HOSTILE = {
    "color": f"\x1b[{MARK}mpink\x1b[0m",
    "clear": f"\x1b[2J\x1b[3J\x1b[1;1H\x1b[{MARK}m",
    "line": "\x1b[1A\x1b[2K\x1b[9D",
    "clipboard": "\x1b]52;c;ZXZpbA==\x07\x1b]52;c;ZXZpbA==\x1b\\",
    "link": f"\x1b]8;;{TARGET}\x1b\\safe\x1b]8;;\x1b\\",
    "title": "\x1b]0;evil\x07\x1b]2;evil\x1b\\\x1bkevil\x1b\\",
    "answerback": "\x1b[c\x1b[6n\x1b]11;?\x07\x05\x1bP$qm\x1b\\",
    "charset": "\x1b(0\x0e\x0f\x1b#8\x1bc",
    "c1": f"\x9b{MARK}m\x9d0;evil\x9c\x90q\x9c\x85\x84",
    "carriage_return": f"harmless\rerror: {TARGET}\x08\x08\x0b\x0c\x00\x7f",
    "bidi": "abc\u202edcba\u202c \u2066x\u2069 \u2028\u2029",
    "zero_width": "pay\u200bpal \ufeffroot \u200eadmin\u200f a\u00adb a\u2060b",
    "tags": "ok" + "".join(chr(0xE0000 + ord(letter)) for letter in "evil"),
    "surrogate": "x\ud800y\udc9b",
    "markup": f"[link={TARGET}]x[/link] [bold red]y[/] [/nothing]",
}
_BY_RICH = re.compile(r"\x1b\[[\d;]*m|\x1b\[\?25[lh]|\x1b\[\d*[AK]|\r")
_EFFECT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ud800-\udfff\U000e0000-\U000e007f]"
    "|(?<=[a-z])[\u00ad\u200b-\u200f\u2060\ufeff]|[\u00ad\u200b-\u200f\u2060\ufeff](?=[a-z])"
)


def assert_clean(output: str, *, styled: bool = False) -> None:
    """Nothing in `output` steers a terminal; with `styled`, apart from the sequences that Rich itself writes."""
    found = [match for match in re.findall(r"\x1b\[([\d;]*)m", output) if MARK in match]
    assert found == []
    plain = _BY_RICH.sub("", output) if styled else output
    effects = [plain[max(0, match.start() - 20) : match.end() + 20] for match in _EFFECT.finditer(plain)]
    assert effects == []
