import gzip
import subprocess

import pytest

from midstream.core.trajectory import Action, Call, ErrorInfo, Score, Trajectory, Turn
from midstream.runs.segments import Entry, Segment, Segments
from support.errors import raises


def trajectory(name: str, answer: str = "112") -> Trajectory:
    call = Call(role="planner", prompt_ids=(4, 17), completion_ids=(8, 3), logprobs=(-0.1, float("-inf")))
    turn = Turn(index=1, events=("call", "action"), action=Action(sub_goal="a\nb", tool="python"), calls=(call,))
    return Trajectory(id=name, task_id="t", turns=(turn,), answer=answer, reward=Score(value=1.0, parts={"em": 1.0}))


@pytest.fixture
def segments(tmp_path):
    return Segments(tmp_path)


def test_round_trip_and_equal_bytes(segments):
    failed = Trajectory(id="b", task_id="t", status="error", error=ErrorInfo(type="EngineError", message="é\u2028"))
    trajectories = [trajectory("a"), failed]
    segments.write(3, trajectories)
    assert segments.read(3) == trajectories
    path = segments.root / "step-000003.jsonl.gz"
    content = path.read_bytes()
    segments.write(3, trajectories)
    assert path.read_bytes() == content


def test_only_the_chosen_trajectories_are_read(segments):
    segments.write(1, [trajectory("a"), trajectory("b#1"), trajectory("b#10")])


def test_a_page_an_entry_and_the_whole_are_the_same(segments):
    written = [trajectory(f"t{number}") for number in range(40)]
    segments.write("new", written)
    segment = segments.open("new")
    assert list(segment) == segments.read("new") == written
    assert len(segment) == len(written)
    assert list(segment.at([0, 1, 17, 39])) == [written[place] for place in (0, 1, 17, 39)]
    assert list(segment.at([])) == []
    assert [entry.id for entry in segment.entries()] == [each.id for each in written]


def test_zcat_reads_a_segment(segments):
    segments.write(1, [trajectory("a"), trajectory("é\u2028")])
    shown = subprocess.run(["gzip", "-dc", segments.path(1)], check=True, capture_output=True).stdout
    assert shown.decode().splitlines()[0] == trajectory("a").model_dump_json(exclude_defaults=True)


def test_an_error_while_writing_leaves_the_old_segment(segments):
    segments.write("new", [trajectory("a")])
    before = segments.path("new").read_bytes()

    def broken():
        yield trajectory("b")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        segments.write("new", broken())
    assert segments.path("new").read_bytes() == before
    assert [path.name for path in segments.root.iterdir()] == ["eval-new.jsonl.gz"]


def test_empty_segment(segments):
    segments.write(1, [])
    assert segments.read(1) == []


def test_segments_are_small(segments):
    segments.write(1, [trajectory(f"t{index}") for index in range(100)])
    plain = sum(len(read.model_dump_json()) for read in segments.read(1))
    assert segments.path(1).stat().st_size < plain / 10


def test_names(segments):
    assert segments.path("bamboogle-T=0.7").name == "eval-bamboogle-T=0.7.jsonl.gz"
    odd = {segments.path(name).name for name in ("a b-T1", "a/b-T1", "a-b-T1", "../a b-T1", "問-T1", "答-T1")}
    assert len(odd) == 6, "no two evaluations share a file"
    assert not any("/" in name for name in odd)
    for name in ("step-000010.jsonl.gz", "step-000002.jsonl.gz", ".step-000003.jsonl.gz.1.tmp", "eval-a.jsonl.gz"):
        (segments.root / name).touch()
    assert segments.steps() == [2, 10]
    assert Segments(segments.root / "gone").steps() == []


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"x" + b, lambda b: gzip.compress(b"{")])
def test_damage_is_named(segments, damage):
    segments.write(1, [trajectory("a")])
    path = segments.path(1)
    path.write_bytes(damage(path.read_bytes()))
    with raises("file-damaged", path):
        segments.read(1)


def test_a_missing_segment(segments):
    with raises("file-not-found", "step-000007"):
        segments.read(7)


@pytest.fixture
def filled(segments):
    segments.write(1, [trajectory("t1-0"), trajectory("t1-1"), trajectory('t"2')])
    segments.write(2, [trajectory("t1-10"), trajectory("u/7")])
    segments.write("final", [trajectory("t1-0", answer="evaluated")])
    return segments


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("t1-10", "t1-10"), ("t1-1", "t1-1"), ('t"', 't"2'), ("u", "u/7"), ("u/7", "u/7"), ("step-000002/t", "t1-10")],
)
def test_find_by_id_or_unique_prefix(filled, wanted, found):
    assert filled.find(wanted).id == found


def test_find_in_a_named_segment(filled):
    assert filled.find("eval-final/t1-0").answer == "evaluated"


def test_an_id_in_two_segments_lists_names_that_work(filled):
    with raises("trajectory-ambiguous", "eval-final/t1-0, step-000001/t1-0"):
        filled.find("t1-0")


def test_many_matches_are_cut_short(segments):
    segments.write(1, [trajectory(f"t{index}") for index in range(50)])
    with raises("trajectory-ambiguous") as caught:
        segments.find("t")
    assert caught.value.what.endswith("step-000001/t7 and more")
    assert segments.find("t49").id == "t49"


@pytest.mark.parametrize("wanted", ["112", "x", "step-000001/u", "python"])
def test_none_found(filled, wanted):
    with raises("trajectory-not-found", wanted):
        filled.find(wanted)


def test_a_line_that_is_no_trajectory_is_listed_as_an_error_and_cannot_be_read(tmp_path):
    good = trajectory("a").model_dump_json(exclude_defaults=True).encode()
    bad = [good[:-9], b"[]", b'{"id": "a"}', b'{"id": "a", "task_id": "t", "reward": 3}']
    path = tmp_path / "part.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(line + b"\n" for line in (good, *bad))))
    segment = Segment(path)
    assert list(segment.entries()) == [Entry("a", "t", 1.0, "ok"), *[Entry("", "", None, "error")] * len(bad)]
    for place in range(1, 1 + len(bad)):
        with raises("file-damaged", "part"):
            list(segment.at([place]))
