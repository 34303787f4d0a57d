"""The run directory: journal, metrics, trajectories, checkpoints, resume."""

from midstream.runs.checkpoint import Checkpoints
from midstream.runs.directory import RunDirectory
from midstream.runs.files import atomic_write, fsync_directory
from midstream.runs.info import RUN_FORMAT, EvaluationInfo, RunInfo, RunState, RunStatus
from midstream.runs.journal import Journal, read_records

__all__ = [
    "RUN_FORMAT",
    "Checkpoints",
    "EvaluationInfo",
    "Journal",
    "RunDirectory",
    "RunInfo",
    "RunState",
    "RunStatus",
    "atomic_write",
    "fsync_directory",
    "read_records",
]
