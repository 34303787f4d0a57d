"""Evaluate agents on fixed sets of tasks, say how sure the numbers are, and compare agents."""

from midstream.evaluation.run import SetEvaluation, evaluate
from midstream.evaluation.settings import Config, SetConfig, result_name, sampling_name

__all__ = ["Config", "SetConfig", "SetEvaluation", "evaluate", "result_name", "sampling_name"]
