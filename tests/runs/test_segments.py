import gzip

import pytest

from midstream.core.errors import RunError
from midstream.core.trajectory import Action, Call, ErrorInfo, Score, Trajectory, Turn
from midstream.runs.segments import (
    evaluation_segment,
    find_in_segments,
    read_chosen,
    read_segment,
    segment_steps,
    step_segment,
    write_segment,
)


def trajectory(name: str, answer: str = "112") -> Trajectory:
    call = Call(role="planner", prompt_ids=(4, 17), completion_ids=(8, 3), logprobs=(-0.1, float("-inf")))
    turn = Turn(index=1, events=("call", "action"), action=Action(sub_goal="a\nb", tool="python"), calls=(call,))
    return Trajectory(id=name, task_id="t", turns=(turn,), answer=answer, reward=Score(value=1.0, parts={"em": 1.0}))


def test_round_trip_and_equal_bytes(tmp_path):
    path = step_segment(tmp_path, 3)
    failed = Trajectory(id="b", task_id="t", status="error", error=ErrorInfo(type="EngineError", message="é\u2028"))
    trajectories = [trajectory("a"), failed]
    write_segment(path, trajectories)
    assert path.name == "step-000003.jsonl.gz"
    assert read_segment(path) == trajectories
    content = path.read_bytes()
    write_segment(path, trajectories)
    assert path.read_bytes() == content


def test_only_the_chosen_trajectories_are_read(tmp_path):
    path = step_segment(tmp_path, 1)
    write_segment(path, [trajectory("a"), trajectory("b#1"), trajectory("b#10")])
    assert [one.id for one in read_chosen(path, {"b#1", "gone"})] == ["b#1"]
    path.write_bytes(gzip.compress(b"[]\n7\n" + gzip.decompress(path.read_bytes())))
    assert [one.id for one in read_chosen(path, {"a"})] == ["a"]


def test_empty_segment(tmp_path):
    write_segment(step_segment(tmp_path, 1), [])
    assert read_segment(step_segment(tmp_path, 1)) == []


def test_segments_are_small(tmp_path):
    path = step_segment(tmp_path, 1)
    write_segment(path, [trajectory(f"t{index}") for index in range(100)])
    plain = sum(len(item.model_dump_json()) for item in read_segment(path))
    assert path.stat().st_size < plain / 10


def test_names(tmp_path):
    assert evaluation_segment(tmp_path, "bamboogle-T=0.7").name == "eval-bamboogle-T=0.7.jsonl.gz"
    odd = {
        evaluation_segment(tmp_path, name).name
        for name in ("a b-T1", "a/b-T1", "a-b-T1", "../a b-T1", "問-T1", "答-T1")
    }
    assert len(odd) == 6, "no two evaluations share a file"
    assert not any("/" in name for name in odd)
    for name in ("step-000010.jsonl.gz", "step-000002.jsonl.gz", ".step-000003.jsonl.gz.1.tmp", "eval-a.jsonl.gz"):
        (tmp_path / name).touch()
    assert segment_steps(tmp_path) == [2, 10]
    assert segment_steps(tmp_path / "gone") == []


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"", lambda b: b"x" + b, lambda b: gzip.compress(b"{")])
def test_damage_is_named(tmp_path, damage):
    path = step_segment(tmp_path, 1)
    write_segment(path, [trajectory("a")])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunError, match=r"step-000001\.jsonl\.gz is damaged"):
        read_segment(path)


def test_a_missing_segment(tmp_path):
    with pytest.raises(RunError, match="no segment step-000007"):
        read_segment(step_segment(tmp_path, 7))


@pytest.fixture
def paths(tmp_path):
    held = {
        step_segment(tmp_path, 1): [trajectory("t1-0"), trajectory("t1-1"), trajectory('t"2')],
        step_segment(tmp_path, 2): [trajectory("t1-10"), trajectory("u/7")],
        evaluation_segment(tmp_path, "final"): [trajectory("t1-0", answer="evaluated")],
    }
    for path, trajectories in held.items():
        write_segment(path, trajectories)
    return sorted(held)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("t1-10", "t1-10"), ("t1-1", "t1-1"), ('t"', 't"2'), ("u", "u/7"), ("u/7", "u/7"), ("step-000002/t", "t1-10")],
)
def test_find_by_id_or_unique_prefix(paths, wanted, found):
    assert find_in_segments(paths, wanted).id == found


def test_find_in_a_named_segment(paths):
    assert find_in_segments(paths, "eval-final/t1-0").answer == "evaluated"


def test_an_id_in_two_segments_lists_names_that_work(paths):
    with pytest.raises(RunError, match=r"could be eval-final/t1-0, step-000001/t1-0"):
        find_in_segments(paths, "t1-0")


def test_many_matches_are_cut_short(tmp_path):
    path = step_segment(tmp_path, 1)
    write_segment(path, [trajectory(f"t{index}") for index in range(50)])
    with pytest.raises(RunError) as caught:
        find_in_segments([path], "t")
    assert caught.value.what.endswith("step-000001/t7 and more")
    assert find_in_segments([path], "t49").id == "t49"


@pytest.mark.parametrize("wanted", ["112", "x", "step-000001/u", "python"])
def test_none_found(paths, wanted):
    with pytest.raises(RunError, match="no trajectory"):
        find_in_segments(paths, wanted)
