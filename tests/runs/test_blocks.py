import gzip
import subprocess

import pytest

from midstream.core.trajectory import Score, Trajectory
from midstream.runs import segments as blocks
from midstream.runs.segments import Segments
from support.errors import raises

TRAJECTORIES = [
    Trajectory(
        id=f"t{number}#0",
        task_id=f"t{number}",
        question=f"é\u2028 {number} " * 50,
        reward=None if number == 7 else Score(value=number % 2),
        status="error" if number == 7 else "ok",
    )
    for number in range(40)
]


@pytest.fixture
def segments(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_TEXT", 4_000)
    segments = Segments(tmp_path)
    segments.write("new", TRAJECTORIES)
    return segments


def test_a_segment_of_blocks_is_text_for_zcat(segments):
    path = segments.path("new")
    with path.open("rb") as file:
        found = list(blocks.read_blocks(file))
        assert len(found) > 3
        assert sum(block.lines for block in found) == len(TRAJECTORIES)
    shown = subprocess.run(["gzip", "-dc", path], check=True, capture_output=True).stdout
    assert shown == b"".join(
        trajectory.model_dump_json(exclude_defaults=True).encode() + b"\n" for trajectory in TRAJECTORIES
    )


def test_a_file_that_another_program_packed_is_damaged(segments):
    path = segments.path("new")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())))
    with raises("file-damaged", path):
        list(segments.open("new"))


def test_a_page_an_entry_and_the_whole_are_the_same(segments):
    segment = segments.open("new")
    assert list(segment) == segments.read("new") == TRAJECTORIES
    assert len(segment) == len(TRAJECTORIES)
    assert list(segment.at([0, 1, 17, 39])) == [TRAJECTORIES[place] for place in (0, 1, 17, 39)]
    assert list(segment.at([])) == []
    entries = list(segment.entries())
    assert [(entry.id, entry.task_id) for entry in entries] == [(each.id, each.task_id) for each in TRAJECTORIES]
    assert [entry.score for entry in entries[6:9]] == [0, None, 0]
    assert [entry.status for entry in entries[6:9]] == ["ok", "error", "ok"]
    assert segments.read("new", {"t3#0", "t30#0"}) == [TRAJECTORIES[3], TRAJECTORIES[30]]


def test_only_the_blocks_of_a_page_are_unpacked(segments):
    path = segments.path("new")
    with path.open("rb") as file:
        last = list(blocks.read_blocks(file))[-1]
    data = bytearray(path.read_bytes())
    data[-12] ^= 1  # in the text of the last block
    path.write_bytes(data)
    segment = segments.open("new")
    good = len(TRAJECTORIES) - last.lines
    assert list(segment.at(range(good))) == TRAJECTORIES[:good]
    assert segments.find("eval-new/t0#0") == TRAJECTORIES[0]
    with raises("file-damaged", path):
        list(segment)


@pytest.mark.parametrize("cut", [1, 100, 3_000])
def test_a_cut_segment_is_damaged(segments, cut):
    path = segments.path("new")
    path.write_bytes(path.read_bytes()[:-cut])
    with raises("file-damaged", path):
        list(segments.open("new").entries())


def test_a_damaged_index_is_named(segments):
    path = segments.path("new")
    with path.open("rb") as file:
        index = next(blocks.read_blocks(file)).index
    data = path.read_bytes()
    path.write_bytes(data.replace(index, index[:-1] + bytes([index[-1] ^ 1]), 1))
    with raises("file-damaged", path):
        list(segments.open("new").entries())


def test_ids_that_are_too_long_for_a_header_are_read_from_the_text(tmp_path):
    odd = [Trajectory(id=f"{number}-" + "".join(map(chr, range(256, 30_000))), task_id="t") for number in range(4)]
    segments = Segments(tmp_path)
    segments.write("a", odd)
    with segments.path("a").open("rb") as file:
        assert next(blocks.read_blocks(file)).index == b""
    assert [entry.id for entry in segments.open("a").entries()] == [each.id for each in odd]
    assert segments.find("3-") == odd[3]


def test_an_error_while_writing_leaves_the_old_segment(segments):
    before = segments.path("new").read_bytes()

    def broken():
        yield TRAJECTORIES[0]
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        segments.write("new", broken())
    assert segments.path("new").read_bytes() == before
    assert sorted(path.name for path in segments.root.iterdir()) == ["eval-new.jsonl.gz"]


@pytest.mark.parametrize("field", [{"size": 0}, {"size": 1 << 40}, {"lines": 1}, {"lines": 999}])
def test_a_header_with_another_size_or_number_of_lines_is_damage(segments, field):
    path = segments.path("new")
    data = bytearray(path.read_bytes())
    size, lines = blocks._SIZES.unpack_from(data, blocks._START.size)
    blocks._SIZES.pack_into(data, blocks._START.size, field.get("size", size), field.get("lines", lines))
    path.write_bytes(data)
    for read in (lambda: list(segments.open("new")), lambda: list(segments.open("new").entries())):
        with raises("file-damaged"):
            read()
