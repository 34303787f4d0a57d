import errno
import json
import os
from pathlib import Path

import pytest

from midstream.runs.checkpoint import Checkpoints, find_damage
from support.errors import raises


def writer(step):
    def write(directory: Path) -> None:
        (directory / "weights.bin").write_bytes(bytes([step]) * 1000)
        (directory / "state").mkdir()
        (directory / "state" / "rng.json").write_text(str(step))

    return write


def read(directory: Path) -> int:
    weights, state = (directory / "weights.bin").read_bytes(), (directory / "state" / "rng.json").read_text()
    assert weights == bytes([int(state)]) * 1000
    return int(state)


@pytest.fixture
def root(tmp_path):
    for step in (1, 2, 3):
        Checkpoints(tmp_path).save(step, writer(step))
    return tmp_path


def names(root):
    return sorted(path.name for path in root.iterdir())


def load(root, **options):
    reports = []
    return Checkpoints(root).load_latest(read, report=reports.append, **options), reports


def test_save_keeps_the_newest_and_load_gives_the_last(root):
    assert names(root) == ["step-000002", "step-000003"]
    assert load(root) == ((3, 3), [])
    manifest = json.loads((root / "step-000003" / "MANIFEST.json").read_text())
    assert manifest["files"].keys() == {"weights.bin", "state/rng.json"}


def test_nothing_saved_loads_nothing(tmp_path):
    assert load(tmp_path) == (None, [])
    assert load(tmp_path / "missing") == (None, [])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def empty(path):
    path.write_bytes(b"")


def zeros(path):
    path.write_bytes(b"\0" * path.stat().st_size)


def directory_instead(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [flip, truncate, empty, zeros, Path.unlink, directory_instead])
@pytest.mark.parametrize("name", ["weights.bin", "state/rng.json", "MANIFEST.json"])
def test_any_damage_is_reported_and_the_previous_one_is_used(root, name, damage):
    damage(root / "step-000003" / name)
    loaded, reports = load(root)
    assert loaded == (2, 2)
    assert len(reports) == 1
    assert "step-000003" in reports[0]
    assert name in reports[0]
    assert "set aside as step-000003.corrupt" in reports[0]
    assert names(root) == ["step-000002", "step-000003.corrupt"]
    assert load(root) == ((2, 2), [])  # reported once


def test_every_flipped_bit_of_a_manifest_is_found(root):
    path = root / "step-000003" / "MANIFEST.json"
    good = path.read_bytes()
    for index, byte in enumerate(good):
        path.write_bytes(good[:index] + bytes([byte ^ 1]) + good[index + 1 :])
        # Only a space between two tokens may change unseen, and into nothing that JSON reads differently.
        if find_damage(path.parent) is None:
            assert json.loads(path.read_bytes()) == json.loads(good)
    path.write_bytes(good)
    assert find_damage(path.parent) is None


def test_a_manifest_of_another_step(root):
    os.rename(root / "step-000003", root / "step-000004")
    loaded, reports = load(root)
    assert loaded == (2, 2)
    assert "MANIFEST.json is of step 3" in reports[0]


def test_all_damaged_is_an_error_now_and_ever_after(root):
    for step in (2, 3):
        (root / f"step-{step:06d}" / "weights.bin").unlink()
    for _ in range(2):  # the second time all are set aside already: still no silent start from zero
        with raises("no-usable-checkpoint", "step-000002.corrupt", "step-000003.corrupt"):
            load(root)


def test_the_same_step_damaged_twice_loses_neither(root):
    for _ in range(2):
        (root / "step-000003" / "weights.bin").unlink()
        load(root)
        Checkpoints(root).save(3, writer(3))
    assert names(root) == ["step-000002", "step-000003", "step-000003.corrupt", "step-000003.corrupt-2"]


def test_max_step_passes_over_later_ones_untouched(root):
    (root / "step-000003" / "weights.bin").unlink()
    assert load(root, max_step=2) == ((2, 2), [])
    with raises("no-usable-checkpoint", "step 1"):
        load(root, max_step=1)
    assert names(root) == ["step-000002", "step-000003"]


def test_leftovers_of_a_crash_are_ignored_and_cleaned(root):
    (root / ".tmp-4").mkdir()
    (root / ".tmp-4" / "weights.bin").write_bytes(b"half")
    assert load(root) == ((3, 3), [])
    Checkpoints(root).save(4, writer(4))
    assert names(root) == ["step-000003", "step-000004"]


def test_only_a_half_written_first_checkpoint_loads_nothing(tmp_path):
    (tmp_path / ".tmp-1").mkdir()
    assert load(tmp_path) == (None, [])


def test_saving_a_step_again_replaces_it(root):
    Checkpoints(root).save(3, lambda directory: (directory / "x").write_text("new") and None)
    assert Checkpoints(root).load_latest(lambda directory: (directory / "x").read_text()) == (3, "new")
    assert names(root) == ["step-000002", "step-000003"]


def test_the_newest_two_are_kept(root):
    Checkpoints(root).save(4, writer(4))
    assert Checkpoints(root).steps() == [3, 4]


def test_a_failing_disk_leaves_the_others_alone(root, file_size_limit):
    with file_size_limit(500), raises("disk-full", "step-000004", "EFBIG"):
        Checkpoints(root).save(4, writer(4))
    assert names(root) == ["step-000002", "step-000003"]
    assert load(root) == ((3, 3), [])


def disk_full(directory: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")


def disk_full_below_a_runtime_error(directory: Path) -> None:
    try:
        disk_full(directory)
    except OSError:
        raise RuntimeError("unexpected pos 640 vs 534")  # noqa: B904  what torch.save does


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("write", [disk_full, disk_full_below_a_runtime_error])
def test_a_full_disk(root, write):
    with raises("disk-full", "ENOSPC"):
        Checkpoints(root).save(4, write)
    assert names(root) == ["step-000002", "step-000003"]


def test_other_errors_of_the_callbacks_go_through(root):
    def fail(directory):
        raise RuntimeError("bug")

    with pytest.raises(RuntimeError, match="bug"):
        Checkpoints(root).save(4, fail)
    with pytest.raises(RuntimeError, match="bug"):
        Checkpoints(root).load_latest(fail)
    assert names(root) == ["step-000002", "step-000003"]


def test_unreadable_is_not_damaged(root, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("midstream.runs.checkpoint.read_file", refuse)
    with raises("checkpoint-unreadable", "MANIFEST.json"):
        load(root)
    assert names(root) == ["step-000002", "step-000003"]
