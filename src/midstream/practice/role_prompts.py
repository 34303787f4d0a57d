"""The values in the reflector's prompts, each as text that can forge nothing: what others wrote stands as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.core.prompt_text import neutral, to_json
from midstream.core.trajectory import Trajectory
from midstream.practice.library import CHARACTERS_PER_TOKEN, Library, size
from midstream.practice.settings import PracticeConfig

_CHARACTERS_PER_WORD = 6  # of English text, its space counted: models keep to words better than to tokens
_WORDS = 60  # of one lesson, where the library sets no bound
_MODULES = {
    "planner": "decides in each turn which step and which tool come next, and what the tool is to be told",
    "executor": "writes the call of the chosen tool; it sees the step's sub-goal and context alone, not the question",
    "verifier": "judges each result, and whether what is known suffices to answer",
    "generator": "writes the final answer from what was found",
}


def about_run(config: PracticeConfig) -> dict[str, str]:
    """What is the same in every prompt of a run: how long a lesson may be, and whom it may be for."""
    bound = config.library.lesson_tokens
    lines = [f"  - {name}: {_MODULES[name]}" if name in _MODULES else f"  - {name}" for name in config.modules]
    return {
        "words": str(_words(bound) if bound else _WORDS),
        "modules": neutral("\n".join(lines)),
        "module": config.modules[0],
        "changes": str(config.changes_per_group),
    }


def about_library(library: Library, max_tokens: int | None) -> str:
    """One line of JSON a lesson, and how much more the library may hold."""
    lines = [
        to_json({"id": one.id, "module": one.module, "text": one.text} | _state(one.state)) for one in library.lessons
    ]
    if max_tokens is not None:
        left = max_tokens - size(library)
        lines.append(f"There is room for about {_words(left)} words more." if left > 0 else "It is full: add nothing.")
    return "\n".join(lines if library.lessons else ["(no lesson yet)", *lines])


def about_answer(answer: str | None) -> str:
    """The gold answer, or what a reward means where nobody may see one."""
    if answer is not None:
        return f"# Gold answer\n\n{to_json(answer)}\n\n"
    return "# Gold answer\n\nnot known: a reward of 1 means that the answer is the one that most rollouts gave\n\n"


def about_rollouts(trajectories: Sequence[Trajectory], summaries: Sequence[str | None]) -> str:
    """One line of JSON a rollout, numbered from 1; without a summary its reward and answer still tell something."""
    lines = []
    for number, (one, summary) in enumerate(zip(trajectories, summaries, strict=True), 1):
        reward = round(one.reward.value, 4) if one.reward else None
        lines.append(to_json({"rollout": number, "reward": reward, "answer": one.answer, "summary": summary}))
    return "\n".join(lines)


def _state(state: str) -> dict[str, str]:
    return {} if state == "active" else {"state": state}


def _words(count: int) -> int:
    """About how many words so many tokens are."""
    return max(1, count * CHARACTERS_PER_TOKEN // _CHARACTERS_PER_WORD)
