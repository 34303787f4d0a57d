"""The run directory: journal, metrics, trajectories, checkpoints, resume."""

from midstream.runs.directory import RunDirectory
from midstream.runs.info import RUN_FORMAT, EvaluationInfo
from midstream.runs.journal import Journal

__all__ = ["RUN_FORMAT", "EvaluationInfo", "Journal", "RunDirectory"]
