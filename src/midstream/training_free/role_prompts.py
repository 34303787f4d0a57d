"""The values in the reflector's prompts, as text that cannot forge structure: material from others stands as JSON.

The transcript of a rollout, as the summariser reads it, is one line of JSON a turn, the end last:

    {"turn":1,"planner":"Justification: ...","tool":"search","command":{"query":"Amberbank"},"result":"height 105"}
    {"answer":"112","stop_reason":"verified","reward":1.0}

It never holds the gold answer. What models and tools wrote is in JSON strings without any chat-template token or line
break, so a rollout can forge neither another turn nor a reward.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from midstream.core.stream import POLICY
from midstream.core.text import neutral, spoken, to_json
from midstream.core.trajectory import Trajectory, Turn
from midstream.training_free.library import CHARACTERS_PER_TOKEN, Library, size
from midstream.training_free.settings import PracticeConfig

_CHARACTERS_PER_WORD = 6  # of English text with its space: models follow a limit in words better than one in tokens
_WORDS = 60  # of one lesson, where the library sets no bound
_MODULES = {
    "planner": "decides in each turn which step and which tool come next, and what "
    "the tool is to be told",  # words: allow
    "executor": "writes the call of the chosen tool; it sees the step's sub-goal and context alone, not the question",
    "verifier": "judges each result, and whether what is known suffices to answer",
    "generator": "writes the final answer from what was found",
}
_NOT_KNOWN = {  # by `practice.truth`
    "majority": "not known: a reward of 1 means that the answer is the one that most rollouts gave",
    "none": "not known, and nothing is graded: every reward is null. Judge from the rollouts alone which decisions "
    "were right: what was checked, what the evidence says, where rollouts agree and where they contradict each other.",
}
_LONGEST = 40_000  # characters of a whole transcript: about 10,000 tokens
_FEEDBACK = 1_000  # characters of a reward's feedback
_TEXT, _LEAST_TEXT = 4_000, 250  # characters of one text in it: at first, and where the whole would be too long


def about_run(config: PracticeConfig) -> dict[str, str]:
    """The values that are equal in every prompt of a run: the length of a lesson, and the modules that may have one."""
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
    lines = []
    for lesson in library.lessons:
        shown = {"id": lesson.id, "module": lesson.module, "text": lesson.text}
        lines.append(to_json(shown if lesson.state == "active" else {**shown, "state": lesson.state}))
    if not library.lessons:
        lines.append("(no lesson yet)")
    if max_tokens is not None:
        left = max_tokens - size(library)
        lines.append(f"There is room for about {_words(left)} words more." if left > 0 else "It is full: add nothing.")
    return "\n".join(lines)


def about_answer(answer: str | None, truth: str) -> str:
    """The gold answer, or what a reward means where no role may see it."""
    shown = _NOT_KNOWN["none" if truth == "none" else "majority"] if answer is None else to_json(answer)
    return f"# Gold answer\n\n{shown}\n\n"


def about_rollouts(trajectories: Sequence[Trajectory], summaries: Sequence[str | None]) -> str:
    """One line of JSON a rollout, numbered from 1; one without a summary still has its reward and its answer."""
    lines = []
    for number, (trajectory, summary) in enumerate(zip(trajectories, summaries, strict=True), 1):
        shown = {"rollout": number, **_score(trajectory), "answer": trajectory.answer, "summary": summary}
        lines.append(to_json(shown))
    return "\n".join(lines)


def _score(trajectory: Trajectory) -> dict[str, JsonValue]:
    """The reward, and what it says about the answer, if it does."""
    score = trajectory.reward
    reward: dict[str, JsonValue] = {"reward": round(score.value, 4) if score else None}
    return reward | ({"feedback": _cut_texts(score.feedback, _FEEDBACK)} if score and score.feedback else {})


def _words(tokens: int) -> int:
    """Estimate how many words so many tokens are."""
    return max(1, tokens * CHARACTERS_PER_TOKEN // _CHARACTERS_PER_WORD)


def transcript(trajectory: Trajectory) -> str:
    """Turns, answer, stop reason, reward, feedback; long texts are cut, shorter if all has over 40,000 characters."""
    limit = _TEXT
    last = {call.role: spoken(call.completion) for call in trajectory.closing_calls if call.role == POLICY}
    end = last | {"answer": trajectory.answer, "stop_reason": trajectory.stop_reason} | _score(trajectory)
    while True:
        lines = [to_json(_cut_texts(_turn(turn), limit)) for turn in trajectory.turns]
        lines.append(to_json(_cut_texts(end, limit)))
        text = "\n".join(lines)
        if len(text) <= _LONGEST or limit == _LEAST_TEXT:
            return text
        limit = max(limit // 2, _LEAST_TEXT)


def _turn(turn: Turn) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {"turn": turn.index}
    action, command, observation, verdict = turn.action, turn.command, turn.observation, turn.verdict
    if action is None:  # an agent without actions
        shown["said"] = [spoken(call.completion) for call in turn.calls]
    else:
        # The decision in the words of the planner or the policy where it is a model.
        said = {call.role: spoken(call.completion) for call in turn.calls if call.role in ("planner", POLICY)}
        shown |= said or {"sub_goal": action.sub_goal, "context": action.context}
        shown |= {"malformed": action.error} if action.error else {"tool": action.tool}
    if command is not None:
        shown["command"] = dict(command.arguments) if command.code is None else command.code
        if command.error:
            shown["invalid"] = command.error
    if observation is not None:
        calls: list[JsonValue] = [
            {"tool": call.tool, "arguments": dict(call.arguments), "status": call.status, "result": call.text}
            for call in observation.tool_calls
        ]
        if calls:
            shown["tool_calls"] = calls
        shown["result" if observation.status == "ok" else "error"] = observation.text
    if verdict is not None:
        shown["verdict"] = {"signal": verdict.signal, "valid": verdict.result_valid, "analysis": verdict.analysis}
    return shown


def _cut_texts(value: JsonValue, limit: int) -> JsonValue:
    """`value` with every text in it, at any depth, at most `limit` characters long and a note."""
    if isinstance(value, str):
        if len(value) <= limit:
            return value
        return f"{value[: limit // 2]} [cut: {len(value) - limit} characters] {value[-(limit // 2) :]}"
    if isinstance(value, dict):
        return {key: _cut_texts(item, limit) for key, item in value.items()}
    return [_cut_texts(item, limit) for item in value] if isinstance(value, Sequence) else value
