from pathlib import Path

import pytest

from midstream.core.errors import CheckpointError
from midstream.runs.checkpoint import Checkpoints
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
    return Checkpoints(root).load_latest(read, **options)


def test_save_keeps_the_newest_and_load_gives_the_last(root):
    assert names(root) == ["step-000002", "step-000003"]
    assert load(root) == (3, 3)


def test_nothing_saved_loads_nothing(tmp_path):
    assert load(tmp_path) is None
    assert load(tmp_path / "missing") is None


def test_a_digest_is_of_names_and_content(root):
    checkpoints = Checkpoints(root)
    assert checkpoints.digest(2) != checkpoints.digest(3)
    before = checkpoints.digest(3)
    checkpoints.save(3, writer(3))
    assert checkpoints.digest(3) == before
    (root / "step-000003" / "weights.bin").rename(root / "step-000003" / "others.bin")
    assert checkpoints.digest(3) != before


def test_one_that_a_trainer_removes_meanwhile_is_passed_over(root):
    def pruned(directory: Path) -> int:
        if directory.name == "step-000003":
            Checkpoints(root).remove([3])
            raise CheckpointError("it is gone")
        return read(directory)

    assert Checkpoints(root).load_latest(pruned) == (2, 2)


def test_one_that_cannot_be_read_is_an_error_and_stays(root):
    (root / "step-000003" / "weights.bin").unlink()
    with pytest.raises(FileNotFoundError):
        load(root)
    assert names(root) == ["step-000002", "step-000003"]


def test_max_step_passes_over_later_ones(root):
    assert load(root, max_step=2) == (2, 2)
    assert load(root, max_step=1) is None


def test_leftovers_of_a_crash_are_ignored_and_cleaned(root):
    (root / ".tmp-4").mkdir()
    (root / ".tmp-4" / "weights.bin").write_bytes(b"half")
    assert load(root) == (3, 3)
    Checkpoints(root).save(4, writer(4))
    assert names(root) == ["step-000003", "step-000004"]


def test_only_a_half_written_first_checkpoint_loads_nothing(tmp_path):
    (tmp_path / ".tmp-1").mkdir()
    assert load(tmp_path) is None


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
    assert load(root) == (3, 3)


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
