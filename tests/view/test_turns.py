"""Borders of turns in a line, whatever agents and tools wrote into it, and wherever its parts begin."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.trajectory import Action, Call, Command, Message, Observation, Trajectory, Turn
from midstream.view import lines
from midstream.view.lines import OpenFile, PackedText
from midstream.view.turns import Recorded

SPOOFS = ('},{"index":', '"turns":[', '"calls":[{', "\\", '"', "]}", "{", '\\\\"', '{"index":2}', "é\u2028", "]")
TEXTS = st.lists(st.sampled_from(SPOOFS) | st.text(max_size=5), max_size=4).map("".join)
VALUES = st.recursive(
    TEXTS | st.integers(0, 9) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["index", "turns", "calls", "x", '"turns":[']) | TEXTS, inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["index", "turns", "calls"]) | TEXTS, VALUES, max_size=3)
CALLS = st.builds(
    Call,
    role=TEXTS,
    completion=TEXTS,
    messages=st.lists(st.builds(Message, role=st.just("user"), content=TEXTS, fields=OBJECTS), max_size=2).map(tuple),
    sent=OBJECTS,
    prompt_ids=st.lists(st.integers(0, 99), max_size=3).map(tuple),
)
SOME_CALLS = st.lists(CALLS, max_size=2).map(tuple)
TURNS = st.lists(
    st.builds(
        Turn,
        index=st.integers(1, 99),
        action=st.none() | st.builds(Action, sub_goal=TEXTS, tool=TEXTS),
        command=st.none() | st.builds(Command, tool=TEXTS, arguments=OBJECTS),
        observation=st.none() | st.builds(Observation, status=st.just("ok"), text=TEXTS),
        calls=SOME_CALLS,
    ),
    max_size=4,
).map(tuple)
TRAJECTORIES = st.builds(
    Trajectory,
    id=TEXTS,
    task_id=TEXTS,
    question=TEXTS,
    opening_calls=SOME_CALLS,
    turns=TURNS,
    closing_calls=SOME_CALLS,
    answer=st.none() | TEXTS,
    outcome=OBJECTS,
)


class Parts:
    """A text in parts of a size."""

    def __init__(self, text: bytes, size: int) -> None:
        self.text, self.size = text, size

    def parts(self, start: int = 0) -> Iterator[bytes]:
        for at in range(start, len(self.text), self.size):
            yield self.text[at : at + self.size]


def line_of(trajectory: Trajectory) -> bytes:
    return trajectory.model_dump_json(exclude_defaults=True).encode() + b"\n"


@pytest.mark.slow
@given(TRAJECTORIES, st.integers(1, 60), st.booleans())
def test_turns_and_frame_are_those_that_were_written(trajectory: Trajectory, size: int, in_result: bool) -> None:
    line = line_of(trajectory)
    before = b'{"set":"a","trajectory":' if in_result else b""
    text = before + line[:-1] + b"}\n" if in_result else line
    recorded = Recorded(Parts(text + b'{"id":"the next line"', size), len(before))
    recorded.scan()
    assert recorded.done
    assert not recorded.damage
    assert recorded.window(0, 99) == list(trajectory.turns)
    assert recorded.frame() == trajectory.model_copy(update={"turns": ()})
    calls = [call for turn in trajectory.turns for call in turn.calls]
    assert [recorded.call(number) for number in range(len(calls))] == calls
    assert recorded.call(len(calls)) is None
    assert recorded.calls == len(calls)


def test_arguments_that_look_like_the_next_turn() -> None:
    spoof = [{"a": 1}, {"index": 2, "calls": [{}, {}]}, {"index": 3}]
    command = Command(tool="t", arguments={"x": spoof, "turns": spoof})
    turns = tuple(Turn(index=at, command=command, calls=(Call(role="p"),)) for at in (1, 2, 3))
    recorded = Recorded(Parts(line_of(Trajectory(id="a", task_id="b", turns=turns)), 1 << 16))
    recorded.scan()
    assert recorded.window(0, 9) == list(turns)
    assert recorded.calls == 3


@pytest.mark.slow
@given(TRAJECTORIES, st.data())
def test_a_line_that_is_cut_has_the_turns_before_the_cut(trajectory: Trajectory, data: st.DataObject) -> None:
    line = line_of(trajectory)
    cut = data.draw(st.integers(0, len(line) - 2))
    recorded = Recorded(Parts(line[:cut], 20))
    recorded.scan()
    assert recorded.damage
    found = recorded.window(0, 99)
    assert found == list(trajectory.turns[: len(found)])
    if found:
        assert recorded.frame().id == trajectory.id


def test_a_turn_that_is_damaged_is_shown_as_such_among_the_others() -> None:
    turns = tuple(Turn(index=at, calls=(Call(role="p", completion="x"),)) for at in (1, 2, 3))
    line = line_of(Trajectory(id="a", task_id="b", turns=turns)).replace(b'"index":2', b'"index":"two"')
    recorded = Recorded(Parts(line, 16))
    recorded.scan()
    found = recorded.window(0, 9)
    assert (found[0], found[2]) == (turns[0], turns[2])
    assert (found[1].index, found[1].error and found[1].error.type) == (2, "damaged")


def test_a_line_without_an_end_has_the_turns_before_the_cut() -> None:
    turns = tuple(Turn(index=at, calls=(Call(role="p", completion="x"),)) for at in (1, 2, 3))
    line = line_of(Trajectory(id="a", task_id="b", turns=turns))
    cut = line.index(b'"index":3')
    recorded = Recorded(Parts(line[:cut], 16))
    recorded.scan()
    assert recorded.damage
    assert recorded.window(0, 9) == list(turns[:2])
    assert recorded.call(2) is None


def test_the_first_turns_are_known_before_the_rest_is_read() -> None:
    turn = Turn(index=1, observation=Observation(status="ok", text="x" * 10_000))
    line = line_of(Trajectory(id="a", task_id="b", question="q", turns=(turn,) * 1_000, answer="42"))
    read: list[int] = []

    class Counted(Parts):
        def parts(self, start: int = 0) -> Iterator[bytes]:
            for part in super().parts(start):
                read.append(len(part))
                yield part

    recorded = Recorded(Counted(line, 1 << 16))
    recorded.scan(3)
    assert not recorded.done
    assert recorded.found >= 3
    assert sum(read) < 200_000
    assert recorded.frame().question == "q"
    assert recorded.frame().answer is None  # it stands behind the turns
    recorded.scan(seconds=600)
    assert recorded.done
    assert recorded.found == 1_000
    assert recorded.frame().answer == "42"


def test_a_turn_that_is_too_large_says_so_and_its_neighbors_are_there() -> None:
    turns = [Turn(index=1), Turn(index=2, user="x" * 5_000), Turn(index=3)]
    recorded = Recorded(Parts(line_of(Trajectory(id="a", task_id="b", turns=tuple(turns))), 512))
    recorded.scan()
    found = recorded.window(0, 3, most=1_000)
    assert [found[0], found[2]] == [turns[0], turns[2]]
    assert found[1].error is not None
    assert found[1].error.type == "too large"


def test_packed_text_is_the_same_from_any_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lines, "_PART", 1_000)
    monkeypatch.setattr(lines, "_READ", 300)
    monkeypatch.setattr(lines, "_STRIDE", 5_000)
    text = b"".join(b"%d," % number for number in range(20_000))
    packed = gzip.compress(text)
    (tmp_path / "packed").write_bytes(packed)
    opened = PackedText(OpenFile(tmp_path / "packed"))
    assert b"".join(opened.parts()) == text
    for start in (0, 1, 4_999, 77_777, len(text) - 1):
        assert b"".join(opened.parts(start)) == text[start:]
    (tmp_path / "cut").write_bytes(packed[:-40])
    with pytest.raises(EOFError):
        list(PackedText(OpenFile(tmp_path / "cut")).parts())


def test_lines_of_any_size() -> None:
    wanted = [b"a\n", b"x" * (lines.WHOLE + 5) + b"\n", b"\n", b"y" * lines.WHOLE + b"\n", b"b\n"]
    text = b"".join(wanted) + b"torn"
    found = list(lines.lines(Parts(text, 100_000)))
    assert [text[begin:end] for begin, end, _ in found] == wanted
    assert [line for _, _, line in found] == [line if len(line) <= lines.WHOLE else None for line in wanted]
    early = list(lines.lines(Parts(text, 100_000), early=True))
    assert [(begin, line) for begin, _, line in early] == [(begin, line) for begin, _, line in found]
    torn = b"a\n" + b"x" * (lines.WHOLE + 200_000)
    assert list(lines.lines(Parts(torn, 100_000))) == [(0, 2, b"a\n")]
    assert list(lines.lines(Parts(torn, 100_000), early=True)) == [(0, 2, b"a\n"), (2, -1, None)]
