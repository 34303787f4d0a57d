import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.events import TurnEvent
from midstream.core.stream_template import load_template
from midstream.core.terminal import Terminal
from midstream.core.trajectory import Call, ErrorInfo, Observation, Trajectory, Usage
from midstream.report.timeline import Timeline
from support.fake_run import broken, solved
from support.streams import cut_stream, dialogue_stream, math_stream, reply, unclosed_stream

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
ASKED = Call(role="planner", completion="...", usage=Usage(prompt_tokens=1000, completion_tokens=20, cost_usd=0.002))


def pipe(width: int = 100) -> Terminal:
    return Terminal(file=io.StringIO(), force_terminal=False, width=width)


def terminal(width: int = 80, height: int = 24) -> Terminal:
    return Terminal(
        file=io.StringIO(), force_terminal=True, width=width, height=height, _environ={"TERM": "xterm-256color"}
    )


def written(console: Terminal) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drive(shown: Timeline, trajectory: Trajectory) -> None:
    """Emit the events of a run that leaves `trajectory`, each module's reply in one piece."""

    def module(role: str, kind, value) -> None:
        shown.listen(TurnEvent(turn=turn.index, role=role, kind="start"))
        shown.listen(TurnEvent(turn=turn.index, role=role, kind="text", value=f"{role} thinks"))
        shown.listen(TurnEvent(turn=turn.index, role=role, kind="call", value=ASKED))
        shown.listen(TurnEvent(turn=turn.index, role=role, kind=kind, value=value))

    for turn in trajectory.turns:
        module("planner", "action", turn.action)
        if turn.command is not None:
            module("executor", "command", turn.command)
        shown.listen(TurnEvent(turn=turn.index, role="executor", kind="observation", value=turn.observation))
        if turn.verdict is not None:
            module("verifier", "verdict", turn.verdict)
    if trajectory.status == "ok":
        module("generator", "answer", trajectory.answer)


def lines(text: str) -> list[str]:
    return [re.sub("  +", "  ", line.strip()) for line in text.splitlines()]


def test_every_step_is_printed_in_order_with_its_time_and_tokens():
    console, run = pipe(), solved().model_copy(update={"closing_calls": (ASKED,) * 7, "cost_usd": 0.014})
    with Timeline(console, run.question) as shown:
        drive(shown, run)
        shown.finish(run)
    found = [re.sub(r"\d+\.\d\d?s", "TIME", line) for line in lines(written(console))]
    assert found == [
        "How high is Amberbank plus 7 ?",
        "",
        "turn 1",
        "sub-goal  find height  TIME  20 tokens",
        "tool  local_search",
        'command  local_search(query="Amberbank height")  TIME  20 tokens',
        "observation  Amberbank height 105  TIME",
        "verdict  CONTINUE, result valid  TIME  20 tokens",
        "",
        "turn 2",
        "sub-goal  add  TIME  20 tokens",
        "tool  python",
        'command  python(code="print(105 + 7)")  TIME  20 tokens',
        "observation  112  TIME",
        "verdict  STOP, result valid: the sum is there  TIME  20 tokens",
        "",
        "answer  112  TIME  20 tokens",
        "stopped  verified, 2 turns",
        "spent  TIME, 7 requests, 7,000 + 140 tokens, $0.0140",
        "requests  none failed",
    ]


@pytest.mark.parametrize("width", [80, 40, 24])
def test_nothing_is_wider_than_the_terminal(width):
    console = pipe(width)
    with Timeline(console, "short ?") as shown:
        drive(shown, solved())
        shown.finish(solved())
    assert max(map(len, written(console).splitlines())) <= width
    assert "112" in written(console)
    assert not any(line.endswith(" ") for line in written(console).splitlines())


def test_a_pipe_gets_no_control_codes_and_no_unfinished_text():
    console = pipe()
    with Timeline(console, "q") as shown:
        drive(shown, solved())
        shown.finish(solved())
    assert "\x1b" not in written(console)
    assert "\r" not in written(console)
    assert "planner thinks" not in written(console)


def test_labels_are_dim_and_what_they_label_is_not():
    console = terminal()
    with Timeline(console, "q") as shown:
        shown.listen(
            TurnEvent(turn=1, role="executor", kind="observation", value=Observation(status="ok", text="seen"))
        )
        shown.listen(
            TurnEvent(turn=1, role="executor", kind="observation", value=Observation(status="error", text="bad"))
        )
    assert "\x1b[2m  observation  \x1b[0mseen" in written(console)
    assert "\x1b[2m  error        \x1b[0m\x1b[31mbad\x1b[0m" in written(console)


def test_a_terminal_shows_what_is_being_written_and_gives_the_cursor_back():
    console = terminal()
    with Timeline(console, "q") as shown:
        shown.listen(TurnEvent(turn=1, role="planner", kind="start"))
        shown.listen(TurnEvent(turn=1, role="planner", kind="text", value="I shall "))
        shown.listen(TurnEvent(turn=1, role="planner", kind="text", value="look it \x1b[31mup"))
        shown._live.refresh()
    text = written(console)
    assert "I shall look it \\x1b[31mup" in text
    assert re.search(r"turn 1  planner \d\.\d+s   in all \d\.\d+s, 0 \+ 0 tokens", text)
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (20, 5)])
def test_the_live_part_fits_a_small_terminal(width, height):
    console = terminal(width, height)
    shown = Timeline(console, "q")
    shown.listen(TurnEvent(turn=1, role="planner", kind="start"))
    shown.listen(TurnEvent(turn=1, role="planner", kind="text", value="a word of many words and then one more " * 50))
    drawn = console.render_lines(shown._screen())
    assert 2 <= len(drawn) <= max(2, height // 2)
    assert all(sum(part.cell_length for part in line) <= width for line in drawn)


def test_retries_repairs_and_a_restart_are_shown():
    console = pipe()
    error = ErrorInfo(type="ToolServerError", message="gone\n  fix: start it")
    with Timeline(console, "q") as shown:
        shown.listen(TurnEvent(turn=1, role="planner", kind="start"))
        for reason in ("429: slow down", "503: [bold]overloaded"):
            shown.listen(TurnEvent(turn=1, role="planner", kind="retry", value=reason))
        repaired = ASKED.model_copy(update={"repaired": True, "failures": ("429: slow down", "503: overloaded")})
        shown.listen(TurnEvent(turn=1, role="planner", kind="call", value=repaired))
        shown.listen(TurnEvent(turn=0, role="", kind="restart", value=error))
        drive(shown, solved())
        shown.finish(solved().model_copy(update={"closing_calls": (ASKED,), "request_failures": 2}))
    found = lines(written(console))
    for line in (
        "retry 1  planner: 429: slow down",
        "retry 2  planner: 503: [bold]overloaded",
        "repaired  the reply of the planner was not JSON until it was repaired",
        "restart  the run starts again after ToolServerError: gone",
        "requests  2 request failures",
    ):
        assert found.count(line) == 1, line
    assert "2 requests, 2,000 + 40 tokens" in written(console)  # what was thrown away was paid for, too


def test_a_run_lost_to_an_error_says_so():
    console = pipe()
    with Timeline(console, "q") as shown:
        drive(shown, broken().model_copy(update={"turns": broken().turns[:1]}))
        shown.finish(broken())
    assert "stopped  error, no answer, 2 turns" in lines(written(console))
    assert "requests  4 request failures, 1 reply repaired" in lines(written(console))


def test_a_long_observation_is_cut_with_a_note_and_an_answer_is_not():
    console, long = pipe(), "\n".join(f"line {number}" for number in range(20))
    with Timeline(console, "q") as shown:
        shown.listen(TurnEvent(turn=1, role="executor", kind="observation", value=Observation(status="ok", text=long)))
        assert "… (cut here; --json has all of it)" in written(console)
        assert "line 10" in written(console)
        assert "line 11" not in written(console)
        shown.finish(solved().model_copy(update={"answer": long}))
    assert "line 19" in written(console)


@pytest.mark.parametrize(
    ("error", "how"), [(KeyboardInterrupt, "stopped by Ctrl-C"), (ValueError, "ended by an error")]
)
def test_what_was_done_and_half_written_stays_when_it_is_interrupted(error, how):
    console = terminal()

    def fail() -> None:
        with Timeline(console, "q") as shown:
            drive(shown, solved().model_copy(update={"turns": solved().turns[:1], "status": "error"}))
            shown.listen(TurnEvent(turn=2, role="planner", kind="start"))
            shown.listen(TurnEvent(turn=2, role="planner", kind="text", value="Half a thou"))
            raise error

    with pytest.raises(error):
        fail()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(console))
    assert "Amberbank height 105" in text
    assert "planner      Half a thou" in text
    assert f"{how} in turn 2 (planner) after" in text
    assert written(console).rindex(SHOW_CURSOR) > written(console).rindex(HIDE_CURSOR)


@given(st.text(st.characters(codec=None), max_size=30))
def test_no_text_of_a_model_or_tool_steers_the_terminal(evil):
    hostile = f"[bold]{evil}\x1b]0;owned\x07\x9b2J"
    run = solved()
    turn = run.turns[0].model_copy(
        update={
            "action": run.turns[0].action.model_copy(update={"sub_goal": hostile, "tool": hostile}),
            "command": run.turns[0].command.model_copy(update={"tool": hostile}),
            "observation": Observation(status="ok", text=hostile),
        }
    )
    console = pipe()
    with Timeline(console, hostile) as shown:
        drive(shown, run.model_copy(update={"turns": (turn,)}))
        shown.listen(TurnEvent(turn=1, role="verifier", kind="retry", value=hostile))
        shown.finish(run.model_copy(update={"answer": hostile}))
    assert not set(written(console)) & {"\x1b", "\x07", "\x9b", "\r", "\x08", "\u202e"}
    assert written(console).count("[bold]") >= 7


def test_a_closed_pipe_is_an_error_that_can_be_caught():
    class Closed(io.StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Terminal(file=Closed()).print("anything")


def drive_stream(shown: Timeline, trajectory: Trajectory) -> None:
    """Emit the events of an interleaved run that leaves `trajectory`."""

    def emit(turn: int, kind, value=None) -> None:
        shown.listen(TurnEvent(turn=turn, role="policy", kind=kind, value=value))

    def replied(turn: int, calls) -> None:
        for call in calls:
            emit(turn, "start")
            emit(turn, "text", call.completion)
            emit(turn, "call", call)

    for turn in trajectory.turns:
        if turn.user:
            emit(turn.index, "user", turn.user)
        replied(turn.index, turn.calls)
        if turn.action is not None:
            emit(turn.index, "action", turn.action)
            if turn.command is not None:
                emit(turn.index, "command", turn.command)
            emit(turn.index, "observation", turn.observation)
    last = len(trajectory.turns) + 1
    replied(last, trajectory.closing_calls)
    if trajectory.stop_reason == "answered":
        emit(last, "answer", trajectory.answer)


def streamed(trajectory: Trajectory, console: Terminal | None = None) -> list[str]:
    console = console or pipe()
    with Timeline(console, trajectory.question, template=load_template("artist-math")) as shown:
        drive_stream(shown, trajectory)
        shown.finish(trajectory)
    return [re.sub(r"\d+\.\d\d?s", "TIME", line) for line in lines(written(console))]


def test_a_stream_is_printed_reply_by_reply_with_its_marks():
    assert streamed(math_stream()) == [
        "What is the sum of the first 40 square numbers?",
        "▸ written by the policy  ◂ put in by tools and users",
        "",
        "reply 1",
        "▸ think  Add the squares up.  TIME  22 tokens",
        '▸ call  python(code="print(sum(n * n for n in rnge(1, 41)))")',
        "◂ error  NameError: name 'rnge' is not defined  TIME",
        "",
        "reply 2",
        "▸ think  A slip in the name.  TIME  26 tokens",
        "▸ call  total = sum(n * n for n in range(1, 41))",
        "print(total)",
        "◂ output  22140  TIME",
        "",
        "reply 3",
        "▸ think  Done.  TIME  10 tokens",
        "",
        "answer  22140  TIME  10 tokens",
        "stopped  answered, 2 turns",
        "spent  TIME, 3 requests, 600 + 58 tokens, $0.0030",
        "requests  none failed",
    ]


def test_a_reply_of_several_requests_is_printed_once_and_its_tokens_are_added_up():
    calls = (reply("<think>it prints </python>"), reply(" and more</think><answer>5</answer>"))
    found = streamed(math_stream().model_copy(update={"turns": (), "closing_calls": calls, "answer": "5"}))
    assert found.count("reply 1") == 1
    assert "▸ think  it prints </python> and more  TIME  14 tokens" in found
    assert not any("malformed" in line for line in found)


def test_a_stream_that_is_cut_off_or_malformed_says_so():
    found = streamed(cut_stream())
    assert "▸ call  print(sum(n * n for n in ra" in found
    assert "malformed  never closed: </python> is missing" in found
    assert "stopped  limit of tokens, the stream was cut off, 1 turn" in found
    assert "malformed  the policy wrote this itself, no tool did" in streamed(unclosed_stream())


def test_a_user_and_several_calls_of_a_reply_are_shown():
    found = streamed(dialogue_stream())
    assert "◂ user  Start the engine." in found
    assert found.index("▸ call  fill_tank(litres=20)") < found.index("▸ call  status()")
    assert '▸ bad call  {"name": "ignite"}' in found
    assert sum(line.startswith("reply") for line in found) == 5


@pytest.mark.parametrize("width", [80, 40, 24])
def test_no_stream_is_wider_than_the_terminal(width):
    console = pipe(width)
    streamed(math_stream(), console)
    assert max(map(len, written(console).splitlines())) <= width


def test_a_reply_that_is_interrupted_loses_nothing():
    console = terminal()

    def fail() -> None:
        with Timeline(console, "q", template=load_template("artist-math")) as shown:
            shown.listen(TurnEvent(turn=1, role="policy", kind="start"))
            shown.listen(TurnEvent(turn=1, role="policy", kind="call", value=reply("<think>it prints </python>")))
            shown.listen(TurnEvent(turn=1, role="policy", kind="start"))
            shown.listen(TurnEvent(turn=1, role="policy", kind="text", value="half a thou"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(console))
    assert "it prints </python>" in text
    assert "policy       half a thou" in text
    assert "stopped by Ctrl-C in reply 1 (policy) after" in text
