"""Rewards: a function takes any of question, answer, gold, task, trajectory and returns a number in [0, 1]."""


def exact(answer: str, gold: str) -> float:
    """1 for the gold answer, whatever its case."""
    return float(answer.strip().casefold() == gold.strip().casefold())
