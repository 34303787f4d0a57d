"""Trackers that come with this package or with the documentation: each one's own reader finds the run's numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from midstream.core.events import Note, RunEvent
from midstream.lessons.commit import read_updates
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info
from midstream.trackers import tracked, trackers_of

ROOT = Path(__file__).parents[3]


def test_one_whose_library_is_missing_is_off(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not there
    run, received = RunDirectory.create(tmp_path / "run", collect_info("mine", 3, {}), ""), list[RunEvent]()
    with tracked(run, trackers_of("wandb"), received.append):
        pass
    [note] = received
    assert isinstance(note, Note)
    assert "tracker wandb is off" in note.text
    assert "ModuleNotFoundError" in note.text


READ = {
    "tensorboard": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(directory + "/run/tensorboard")
events.Reload()
found = {
    tag: [(event.step, float(event.tensor_proto.float_val[0])) for event in events.Tensors(tag)]
    for tag in events.Tags()["tensors"]
}
""",
    # wandb reads its files in a program that only uploads: here its own messages are taken out of LevelDB's log format.
    "wandb": """
import glob
from wandb.proto import wandb_internal_pb2
found, ids = {}, set()
for path in sorted(glob.glob(directory + "/wandb/offline-run-*/*.wandb")):
    ids.add(path.rsplit("run-", 1)[1])
    data, place, piece = open(path, "rb").read(), 7, b""
    while place < len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        piece = piece * (kind in (3, 4)) + data[place + 7 : place + 7 + length]  # 1 whole, 2 first, 3 middle, 4 last
        place += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(piece)
            for item in record.history.item:
                if key := item.key or "/".join(item.nested_key):
                    found.setdefault(key, []).append((record.history.step.num, float(item.value_json)))
assert len(ids) == 1, ids
""",
    "mlflow": """
import mlflow
client = mlflow.MlflowClient()
[run] = client.search_runs([client.get_experiment_by_name("midstream").experiment_id])
assert run.info.status == "FINISHED", run.info.status
assert run.data.params["recipe"] == "lessons-simulated"
found = {
    key: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, key)]
    for key in run.data.metrics
}
""",
    "trackio": """
from trackio.sqlite_storage import SQLiteStorage
[run] = SQLiteStorage.get_runs("midstream")
found = {}
for row in SQLiteStorage.get_logs("midstream", run):
    for key, value in row.items():
        if "/" in key:
            found.setdefault(key, []).append((row["step"], value))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_its_own_reader_finds_the_numbers_of_an_interrupted_and_resumed_run(name, tmp_path):
    pytest.importorskip(name, reason=f"{name} is not installed\nfix: pip install {name}", exc_type=ImportError)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path]),
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }

    def python(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    page = (ROOT / "docs" / "tracking.md").read_text(encoding="utf-8")
    (tmp_path / "own.py").write_text(page.split("```python\n")[2].partition("```")[0], encoding="utf-8")
    named = {"tensorboard": "own.py:TensorBoard", "trackio": "own.py:Trackio"}.get(name, name)
    assert python(str(Path(__file__).with_name("tracked_run.py")), "run", named).endswith("[]\n")
    read = f"directory = {str(tmp_path)!r}\n{READ[name]}\nimport json\nprint('found', json.dumps(found))"
    found = json.loads(python("-c", read).rpartition("found ")[2])
    run = RunDirectory.open(tmp_path / "run")
    rewards = [[place, record.event.reward_mean] for place, record in enumerate(read_updates(run), 1)]
    assert found["lessons/reward_mean"] == [[step, pytest.approx(value)] for step, value in rewards]
    [sampling] = {result.sampling.replace("=", "") for result in run.evaluations.read()}
    success = [[result.step, pytest.approx(result.success)] for result in run.evaluations.read()]
    assert found[f"eval/test/{sampling}/success"] == success
