import io
import re

from hypothesis import given
from hypothesis import strategies as st

from midstream.core.terminal import Terminal
from midstream.core.trajectory import ErrorInfo, Trajectory
from midstream.report.draw import draw
from midstream.report.trajectory import trajectory_blocks
from support.fake_run import broken, lost, solved, turn, unsolved


def shown(found, width: int = 100) -> str:
    console = Terminal(file=io.StringIO(), width=width, force_terminal=False)
    console.print(draw(found))
    return console.file.getvalue()


def test_a_solved_trajectory_reads_turn_by_turn():
    text = shown(trajectory_blocks(solved()))
    order = [
        "How high is",
        "turn 1",
        "find height",
        "local_search",
        "Amberbank height 105",
        "turn 2",
        "STOP",
        "answer",
        "gold",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "1  (exact match 1)" in text


def test_malformed_actions_and_lost_runs_are_shown_as_such():
    text = shown(trajectory_blocks(unsolved()))
    assert "malformed: no tool named in the action" in text
    assert "find height ; ;" in text
    text = shown(trajectory_blocks(lost().model_copy(update={"gold": "Orla [b]Vane[/b]"})))
    assert "lost to EngineError: the endpoint answered 503 three times" in text
    assert "Orla [b]Vane[/b]" in text
    frame = '  File "mine.py", line 3, in agent\n    1 / 0'
    raised = f"Traceback (most recent call last):\n{frame}\nZeroDivisionError: by zero\n"
    foreign = lost().model_copy(update={"error": ErrorInfo(type="ZeroDivisionError", message=raised)})
    text = shown(trajectory_blocks(foreign))
    assert 'lost to File "mine.py", line 3, in agent: ZeroDivisionError: by zero\n' in text
    assert "--json" in text
    assert "1 / 0" not in text


def test_a_broken_turn_shows_what_it_holds_and_what_broke_it():
    rows = [re.sub("  +", "  ", line.strip()) for line in shown(trajectory_blocks(broken())).splitlines()]
    for part in (
        'code  print(wikipedia(title="Oakfell"))',
        'call  wikipedia(title="Oakfell") -> error: no such page',
        "retry 1  verifier: 429: slow down",
        "repaired  the reply of the planner was not JSON until it was repaired",
        "broken  EngineError: verifier failed 2 times",
        "retry 1  generator: timed out",
        "lost to EngineError: verifier failed 2 times",
        "run 1  failed: ToolServerError: gone",
        "requests  4 request failures, 1 reply repaired",
    ):
        assert part in rows, part


@given(st.text(st.characters(codec=None), max_size=40))
def test_no_text_is_read_as_markup_or_steers_the_terminal(evil):
    hostile = f"[bold]{evil}[/nonsense]\x1b[31m"
    one = Trajectory(
        id="1",
        task_id="1",
        question=hostile,
        turns=(turn(1, hostile, hostile, {"q": hostile}, hostile),),
        answer=hostile,
        gold=hostile,
    )
    text = shown(trajectory_blocks(one), 400)
    assert "[bold]" in text
    assert "[/nonsense]" in text
    assert "\x1b" not in text
