"""Nothing that others wrote steers a terminal or deceives its reader, by whatever way it gets there."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from midstream.core import terminal
from midstream.core.terminal import CleanStream, Terminal, clean_output
from midstream.core.text import visible
from support.escapes import HOSTILE, assert_clean


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_steers_or_deceives_is_written_out(text):
    assert_clean(visible(text))
    assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize(
    "text",
    [
        "tab\tand\nline",
        "naïve Ünïcode",
        "\U0001f469\u200d\U0001f4bb",
        "می\u200cخواهم",
        "क्\u200dष",
        "שלום\u200f עולם",
        "漢字",
    ],
)
def test_the_text_of_every_script_stays(text):
    assert visible(text) == text


@given(st.text(st.characters(codec="utf-8")) | st.text('ab\x1b\x9b\x7f\u202e\u200b\u00e9\U000e0041"\\\n', max_size=20))
def test_json_stays_json_of_the_same_meaning(text):
    for form in (json.dumps(text), json.dumps({text: [text]}, ensure_ascii=False)):
        shown = visible(form)
        assert json.loads(shown) == json.loads(form)
        assert_clean(shown)


def screens(text: str) -> list[object]:
    """A text in every place that a screen has."""
    table = Table(text, text, title=text, caption=Text(text))
    table.add_row(text, Text(text, "bold red"), style="dim")
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1)
    grid.add_row(Text.assemble((text, "bold"), " ", (text, "green")))
    return [text, Text(text, "bold"), table, Panel(Group(text, grid), title=Text(text), subtitle=Text(text))]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_screen_with_hostile_text_has_only_its_own_styles(text):
    console = Terminal(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=60)
    for screen in screens(text):
        console.print(screen)
        console.print(screen, soft_wrap=True)
    with Live(console=console, get_renderable=lambda: Group(*screens(text)), auto_refresh=False) as live:
        live.refresh()
    with console.status(Text(text)):
        pass
    output = console.file.getvalue()
    assert "\x1b[1" in output
    assert_clean(output, styled=True)


def test_markup_is_text():
    console = Terminal(file=io.StringIO(), force_terminal=True)
    console.print("[red]a[/red] [link=https://evil.example]b[/link]", highlight=False)
    assert console.file.getvalue() == "[red]a[/red] [link=https://evil.example]b[/link]\n"


def test_text_that_is_written_out_has_its_place_in_a_table():
    console = Terminal(file=io.StringIO(), width=20)
    table = Table()
    table.add_row("\x1b[31m " * 6)
    console.print(table)
    lines = console.file.getvalue().splitlines()
    assert {len(line) for line in lines[2:]} == {len(lines[-1])}
    assert re.sub(r"[^\w\\\[]", "", "".join(lines)) == r"\x1b[31m" * 6


def write_everywhere(text: str) -> None:
    """Everything but Rich by which a process writes to a terminal."""
    sys.stdout.write(text + "\n")
    sys.stderr.write(text + "\n")
    logging.getLogger("midstream.test").warning("%s", text)
    Terminal(stderr=True).print(Text(text, "bold"))
    Terminal().print(text)


@pytest.mark.parametrize("live", [False, True])
def test_every_other_way_to_the_terminal_is_cleaned(monkeypatch, live):
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(logging.getLogger("midstream.test"), "propagate", False)  # pytest's handlers
    with clean_output():
        if live:  # Rich's own streams stand in place of ours
            with Live("working", console=Terminal(stderr=True), auto_refresh=False):
                for text in HOSTILE.values():
                    write_everywhere(text)
        else:
            for text in HOSTILE.values():
                write_everywhere(text)
        assert isinstance(sys.stdout, CleanStream)
    assert (sys.stdout, sys.stderr) == (streams["stdout"], streams["stderr"])
    output = streams["stdout"].getvalue() + streams["stderr"].getvalue()
    assert output.count("https://evil.example") >= 6
    assert_clean(output, styled=True)


def test_closed_streams_stay_closed(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as after `>&-`
    monkeypatch.setattr(sys, "stderr", None)
    with clean_output():
        assert sys.stdout is None
        Terminal().print("text")


def test_no_module_has_a_console_of_its_own():
    source = Path(terminal.__file__).parents[1]
    found = [
        path.name
        for path in source.rglob("*.py")
        if re.search(r"\bConsole\(|\(Console\)|rich\.print\(", path.read_text())
    ]
    assert found == ["terminal.py"]


@pytest.mark.parametrize("text", ["\u200b" * 200_000, "\u200b\u200da" * 70_000], ids=["run", "runs"])
def test_cleaning_takes_time_linear_in_the_text(text: str):
    began = time.process_time()
    shown = visible(text)
    assert shown.isascii() == ("a" in text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(("stream", "redraws"), [(io.StringIO, False), (Screen, True)])
def test_color_that_is_asked_for_makes_no_terminal_of_a_file(stream, redraws, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a Jupyter kernel
    monkeypatch.setenv("TERM", "xterm-256color")
    console = Terminal(file=stream())
    assert console.is_terminal
    assert console.redraws is redraws
