"""Turns and streams as labeled rows, on the terminal and on the page."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from midstream.core.stream_template import Template, load_template
from midstream.core.terminal import Terminal
from midstream.core.trajectory import Action, Call, Command, Observation, Trajectory, Turn
from midstream.report.draw import draw, plain
from midstream.report.run import side_by_side
from midstream.report.trajectory import (
    LEGEND,
    Row,
    call_row,
    command_text,
    last_rows,
    outcome_words,
    output_row,
    part_rows,
    reply_rows,
    template_of,
    trajectory_blocks,
    turn_rows,
)
from support.fake_run import broken, malformed, solved
from support.pages import texts
from support.streams import cut_stream, dialogue_stream, math_stream, reply, unclosed_stream


def said(rows: list[Row]) -> list[tuple[str, str]]:
    return [(row.label, row.text) for row in rows]


def test_a_turn_reads_in_the_order_in_which_it_happened():
    labels = [row.label for row in turn_rows(solved().turns[0])]
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
    assert said(part_rows(Observation(status="ok", text=""))) == [("observation", "(empty)")]


@given(st.text(st.characters(codec=None), max_size=40))
def test_no_text_is_markup_or_steers_the_terminal(evil):
    shown = plain(f"[bold]{evil}\x1b[2J\x9b1m\x07")
    assert shown.plain.startswith("[bold]")
    assert not shown.spans
    assert not set(shown.plain) & {"\x1b", "\x9b", "\x07", "\r", "\x08", "\u202e"}


MATH = load_template("artist-math")
CALLING = Template.model_validate(
    {
        "think": {"open": "<reasoning>", "close": "</reasoning>"},
        "call": {"open": "<tool>", "close": "</tool>"},
        "output": {"open": "<result>", "close": "</result>"},
        "body": "json",
        "appends": "message",
    }
)


def shown(trajectory: Trajectory, template: Template | None = MATH, width: int = 80) -> str:
    console = Terminal(file=io.StringIO(), width=width)
    console.print(draw(trajectory_blocks(trajectory, template)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def labels(turn: Turn, template: Template = MATH) -> list[str]:
    return [row.label for row in turn_rows(turn, template, stream=True)]


def test_a_stream_reads_in_its_order_and_says_who_wrote_what():
    assert rows(shown(math_stream()))[:12] == [
        "What is the sum of the first 40 square numbers?",
        "▸ written by the policy ◂ put in by tools and users",
        "turn 1",
        "▸ think Add the squares up.",
        '▸ call python(code="print(sum(n * n for n in rnge(1, 41)))")',
        "◂ error NameError: name 'rnge' is not defined",
        "turn 2",
        "▸ think A slip in the name.",
        "▸ call total = sum(n * n for n in range(1, 41))",
        "print(total)",
        "◂ output 22140",
        "last reply",
    ]


def test_a_reward_has_its_parts():
    text = " ".join(rows(shown(math_stream())))
    assert "reward 1 (answer 2, relaxed format 0.5, strict format 0.5, tool success 1" in text


def test_what_is_malformed_says_what_is_wrong():
    text = rows(shown(unclosed_stream()))
    assert "malformed never closed: </think> is missing, the next mark ends it" in text
    assert "malformed the policy wrote this itself, no tool did" in text
    assert "stopped the policy ended its reply without an answer, 0 turns" in text
    text = rows(shown(cut_stream()))
    assert "malformed never closed: </python> is missing" in text
    assert "▸ cut off the limit of tokens ended the reply here" in text
    assert "stopped limit of tokens, the stream was cut off, 1 turn" in text


def test_a_dialogue_shows_user_turns_bad_calls_and_what_its_check_found():
    text = rows(shown(dialogue_stream(), CALLING))
    for line in (
        "◂ user Fill the tank with 20 litres.",
        "▸ call fill_tank(litres=20)",
        "▸ reply The tank holds 45 litres now.",
        '▸ bad call {"name": "ignite"}',
        "◂ error no function is called 'ignite'",
        "outcome not done, 3 user turns",
        "user turn 2: state 3 of 4, calls 0 of 1",
    ):
        assert text.count(line) == 1, line
    second = dialogue_stream().turns[1]
    assert labels(second, CALLING) == ["▸ call", "◂ output"], "the reply stands in the turn of its first call"


def test_without_its_template_a_reply_stays_in_one_piece():
    text = rows(shown(math_stream(), None, 200))
    assert "▸ reply <think>Done.</think><answer>22140</answer>" in text
    assert template_of({"agent": {"template": "no-such-template"}}) is None
    assert template_of({"agent": {"type": "agentflow"}}) is None
    assert template_of({"agent": {"template": "artist-math"}}) == MATH


def test_only_the_first_reply_follows_the_opening():
    opened = MATH.model_copy(update={"opening": "<think>"})
    first, later = (reply_rows([reply("So.</think>")], opened, first=one) for one in (True, False))
    assert [row.label for row in first] == ["▸ think"]
    assert [row.label for row in later] == ["▸ text"]


def test_a_call_of_the_last_reply_is_shown_as_it_was_written():
    last = math_stream().model_copy(update={"turns": (), "closing_calls": (reply("<python>print(1)</python>"),)})
    assert said(last_rows(last, MATH)) == [("▸ call", "print(1)")]


def test_a_reply_of_several_requests_is_read_as_one():
    calls = [reply("<think>it prints </python>"), reply(" and more</think><answer>5</answer>")]
    assert [(row.label, row.text) for row in reply_rows(calls, MATH, first=True)] == [
        ("▸ think", "it prints </python> and more"),
        ("▸ answer", "5"),
    ]


def test_requests_of_tools_and_users_are_no_part_of_the_stream():
    turn = math_stream().turns[1]
    busy = turn.model_copy(update={"calls": (*turn.calls, Call(role="user", completion="hello"))})
    assert turn_rows(busy, MATH, stream=True) == turn_rows(turn, MATH, stream=True)


def test_parts_of_calls_and_outputs():
    assert call_row(Action(context="x"), Command(tool="t", error="no such argument")).label == "▸ bad call"
    assert call_row(Action(context="x", error="no JSON"), None).tone == "bad"
    assert output_row(Observation(status="error", text="x")).label == "◂ error"


def test_outcomes_in_words():
    assert outcome_words({}) == []
    assert outcome_words({"success": True}) == ["done"]
    assert outcome_words({"success": True, "turns": [{"state": [2, 2]}]}) == ["done, 1 user turn"]
    assert outcome_words({"success": False, "turns": [1, {"state": [0, 2], "note": "x"}]}) == [
        "not done, 2 user turns",
        "user turn 2: state 0 of 2",
    ]


def test_counters_of_the_gateway_are_facts_and_no_check():
    counted = math_stream().model_copy(update={"outcome": {"refused: request-refused": 1, "retried": 2}})
    text = rows(shown(counted))
    assert "outcome refused: request-refused: 1" in text
    assert "retried: 2" in text
    assert not any("done" in row for row in text)


def test_the_page_marks_what_was_put_in_by_a_tone_and_by_a_sign():
    legend, math = side_by_side([("after", math_stream())], MATH)
    _, dialogue = side_by_side([("after", dialogue_stream())], MATH)
    assert (legend["text"], math["kind"], dialogue["kind"]) == (LEGEND, "runs", "runs")
    (run,) = math["runs"]
    rows = [(row["label"], row["text"], row["tone"]) for turn in run["trajectory"]["turns"] for row in turn["rows"]]
    assert ("◂ output", "22140", "put-in") in rows
    assert ("▸ think", "Add the squares up.", "") in rows
    assert run["trajectory"]["reward_parts"]["total"] == 4
    end = [row["text"] for row in dialogue["runs"][0]["trajectory"]["end"]]
    assert "user turn 3: state 2 of 4, calls 0 of 1" in end


@given(st.text(st.characters(codec=None), max_size=40), st.sampled_from(["", "<think>", "</python>", "<answer>"]))
def test_no_text_is_markup_or_steers_terminal_or_page(evil, mark):
    hostile = f"[bold]{mark}{evil}<script>\x1b[2J"
    turn = (
        math_stream()
        .turns[0]
        .model_copy(
            update={
                "user": hostile,
                "action": Action(context=hostile, error=hostile),
                "observation": Observation(status="error", text=hostile),
                "calls": (reply(hostile),),
            }
        )
    )
    outcome = {"success": False, "turns": [{evil: [0, 1]}]}
    one = math_stream().model_copy(
        update={"turns": (turn,), "closing_calls": (reply(hostile, "length"),), "outcome": outcome}
    )
    text = shown(one, width=400)
    assert "\x1b" not in text
    assert "[bold]" in text
    assert "\x1b" not in texts(side_by_side([("x", one)], MATH))
