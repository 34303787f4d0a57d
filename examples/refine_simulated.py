"""A model whose rounds of verification and refinement succeed with known probabilities: refine_simulated.toml names it.

    midstream eval examples/refine_simulated.toml --strategy dser:K=8,T=4,early_stop=no --out runs/deep
    python -m studies.refine runs/deep

Everything runs in this process, in seconds. `--set engines.model.degrade=0.6` makes a model that refinement harms,
and `python -m studies.refine` says so.
"""

from __future__ import annotations

import random
import re
from typing import Any

_SUM = re.compile(r"How much is (\d+) plus (\d+)\?")
_SOLUTION = re.compile(r"# Candidate solution\s+The sum is (\d+)")


def reply(
    messages: list[dict[str, str]], seed: int, start: float = 0.4, improve: float = 0.35, degrade: float = 0.1
) -> str:
    """Add two numbers; wrong answers are all the same, the worst case for a vote.

    Args:
        messages: the chat, whose last message has a question of `sums`.
        seed: of the draw.
        start: the probability that a first answer is right, a_0.
        improve: the probability that a round makes a wrong answer right, p.
        degrade: the probability that a round makes a right answer wrong, q.
    """
    prompt = messages[-1]["content"]
    found = _SUM.search(prompt)
    assert found is not None, "its questions are those of `sums`"
    right = sum(map(int, found.groups()))
    candidate, chance = _SOLUTION.search(prompt), start
    if candidate is not None and "# Verification" not in prompt:
        return "I have worked it out again. Verdict: correct"
    if candidate is not None:
        chance = 1 - degrade if int(candidate[1]) == right else improve
    answer = right if random.Random(seed).random() < chance else right + 1
    return f"The sum is {answer}.\n<answer>{answer}</answer>"


def sums(size: int = 60) -> list[dict[str, Any]]:
    """Sums of two numbers."""
    return [{"question": f"How much is {7 * i + 1} plus {i + 2}?", "answer": str(8 * i + 3)} for i in range(size)]
