"""Evaluate agents on fixed sets of tasks, say how sure the numbers are, and compare agents."""

from midstream.evaluation.run import SetEvaluation, evaluate
from midstream.evaluation.settings import EvaluationConfig, SetConfig, result_name, sampling_name

__all__ = ["EvaluationConfig", "SetConfig", "SetEvaluation", "evaluate", "result_name", "sampling_name"]
