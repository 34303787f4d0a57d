from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from midstream.core.trajectory import Command, Observation
from midstream.report.turn_rows import command_text, observation_rows, plain, turn_rows
from support.fake_run import broken, malformed, solved


def said(rows: list[tuple[str, Text]]) -> list[tuple[str, str]]:
    return [(label, content.plain) for label, content in rows]


def test_a_turn_reads_in_the_order_in_which_it_happened():
    labels = [label for label, _ in turn_rows(solved().turns[0])]
    assert labels == ["sub-goal", "tool", "command", "observation", "verdict"]


def test_a_malformed_action_shows_what_was_sampled():
    assert said(turn_rows(malformed(1)))[:2] == [
        ("action", "malformed: no tool named in the action"),
        ("sampled", "find height ; ;"),
    ]


def test_a_broken_turn_shows_its_code_its_calls_and_its_troubles():
    rows = said(turn_rows(broken().turns[1]))
    assert rows[2:] == [
        ("code", 'print(wikipedia(title="Oakfell"))'),
        ("call", 'wikipedia(title="Oakfell") -> error: no such page'),
        ("observation", "None"),
        ("repaired", "the reply of the planner was not JSON until it was repaired"),
        ("retry 1", "verifier: 429: slow down"),
        ("retry 2", "verifier: 503: overloaded"),
        ("broken", "EngineError: verifier failed 2 times"),
    ]


def test_code_and_invalid_commands():
    assert command_text(Command(tool="python", code="x = 1\nprint(x)")) == "x = 1\nprint(x)"
    assert command_text(Command(tool="python", arguments={"code": "x = 1\nprint(x)"})) == "x = 1\nprint(x)"
    assert command_text(Command(tool="t", arguments={"a": 1}, error="a is no text")).endswith("\ninvalid: a is no text")


def test_nothing_printed_is_said():
    assert said(observation_rows(Observation(status="ok", text=""))) == [("observation", "(empty)")]


@given(st.text(st.characters(codec=None), max_size=40))
def test_no_text_is_markup_or_steers_the_terminal(evil):
    shown = plain(f"[bold]{evil}\x1b[2J\x9b1m\x07")
    assert shown.plain.startswith("[bold]")
    assert not shown.spans
    assert not set(shown.plain) & {"\x1b", "\x9b", "\x07", "\r", "\x08", "\u202e"}
