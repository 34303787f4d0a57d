import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.trajectory import Action, Call, ErrorInfo, Score, Trajectory, Turn
from midstream.runs import Journal, RunDirectory, results
from midstream.runs.info import collect_info
from support.errors import raises


def trajectory(name: str, *, failed: bool = False, answer: str = "112") -> Trajectory:
    call = Call(role="planner", prompt_ids=(4, 17), completion_ids=(8,), logprobs=(float("-inf"),))
    turn = Turn(index=1, action=Action(tool="python"), calls=(call,))
    error = ErrorInfo(type="EngineError", message="503") if failed else None
    status = "error" if failed else "ok"
    reward = Score(value=1.0)
    return Trajectory(id=name, task_id=name, turns=(turn,), answer=answer, status=status, error=error, reward=reward)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.jsonl"


def write(path, name, *trajectories):
    with Journal(path, report=lambda line: None) as journal:
        results.append(journal, name, trajectories)


def test_what_is_read_is_what_was_written(path):
    written = [trajectory("a"), trajectory("b", failed=True)]
    write(path, "gaia-T0.7", *written)
    write(path, "aime-T0.7", trajectory("a"))
    assert [result.trajectory for result in results.read(path) if result.set == "gaia-T0.7"] == written
    assert [result.set for result in results.read(path)] == ["gaia-T0.7", "gaia-T0.7", "aime-T0.7"]
    assert "completion_ids" in path.read_text()
    assert "closing_calls" not in path.read_text(), "what is at its default takes no room"


def test_nothing_was_written_yet(path):
    assert list(results.read(path)) == []
    results.keep(path, lambda name, failed: False)
    assert not path.exists()


@given(st.text(max_size=40))
def test_any_text_of_a_model_survives(tmp_path_factory, answer):
    path = tmp_path_factory.mktemp("journal") / "results.jsonl"
    write(path, answer, trajectory("a", answer=answer))
    [found] = results.read(path)
    assert (found.set, found.trajectory.answer) == (answer, answer)


def test_half_a_character_of_a_models_broken_json_does_not_stop_a_run(path):
    write(path, "gaia", trajectory("a", answer="caf\ud83d"))
    assert next(results.read(path)).trajectory.answer == "caf?"


@given(st.integers(0, 2000))
def test_a_torn_wave_goes_at_most_from_its_end(tmp_path_factory, cut):
    """A kill leaves whole records; a power cut at most tears the last one, which the next start cuts off."""
    path = tmp_path_factory.mktemp("journal") / "results.jsonl"
    write(path, "gaia", trajectory("a"), trajectory("b"), trajectory("c"))
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    kept = [result.trajectory.id for result in results.read(path)]
    assert kept == ["a", "b", "c"][: len(kept)]
    write(path, "gaia", trajectory("d"))
    assert [result.trajectory.id for result in results.read(path)] == [*kept, "d"]


def test_records_go_by_set_and_by_how_they_ended(path):
    for name in ("gaia", "aime"):
        write(path, name, trajectory("a"), trajectory("b", failed=True))
    results.keep(path, lambda name, failed: name == "gaia" or not failed)
    assert [(result.set, result.trajectory.id) for result in results.read(path)] == [
        ("gaia", "a"),
        ("gaia", "b"),
        ("aime", "a"),
    ]


def test_damage_in_the_middle_is_named(path):
    write(path, "gaia", trajectory("a"), trajectory("b"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(json.dumps({"set": "gaia", "trajectory": {"id": 3}}).encode() + b"\n" + lines[1])
    with raises("file-damaged", "results.jsonl", "line 1"):
        list(results.read(path))


def test_a_run_under_way_is_found_by_id_and_by_set(tmp_path):
    run = RunDirectory.create(tmp_path / "run", collect_info("x", 0, {}), "")
    run.trajectories.write("gaia", [trajectory("t1#0"), trajectory("t3#0")])
    write(run.results_path, "aime-T=1", trajectory("t1#0", answer="7"), trajectory("t2#0"))
    assert run.find_trajectory("t2").id == "t2#0"
    assert run.find_trajectory("t3").id == "t3#0"
    assert run.find_trajectory("eval-gaia/t1").answer == "112"
    assert run.find_trajectory("eval-aime-T=1/t1#0").answer == "7"
    with raises("trajectory-ambiguous", "eval-gaia/t1#0, eval-aime-T=1/t1#0"):
        run.find_trajectory("t1")
    write(run.results_path, "gaia", trajectory("t3#0", answer="8"))
    assert run.find_trajectory("t3").answer == "8", "what is run again takes the place of the older"
    with raises("trajectory-not-found", "eval-gaia/t2"):
        run.find_trajectory("eval-gaia/t2")
