"""The values in the reflector's prompts, each as text that can forge nothing: what others wrote stands as JSON.

A rollout as the summariser reads it: one line of JSON a turn, the end last. It never holds the gold answer.

    {"turn":1,"planner":"Justification: ...","tool":"search","command":{"query":"Amberbank"},"result":"height 105"}
    {"answer":"112","stop_reason":"verified","reward":1.0}

What models and tools wrote stands in JSON strings in which no chat-template token and no line can begin, so a rollout
can forge neither another turn nor a reward.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from midstream.core.prompt_text import neutral, to_json
from midstream.core.replies import spoken
from midstream.core.trajectory import Action, Command, Trajectory, Turn
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
_TEXT, _LEAST_TEXT = 4_000, 250  # characters of one text in it: at first, and where the whole would be too long


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


def transcript(trajectory: Trajectory) -> str:
    """The turns, then the answer, why the run ended and its reward. Long texts are cut, each with a note that says so.

    Where the whole is longer than 40,000 characters its texts are cut shorter, down to 250 characters each.
    """
    limit = _TEXT
    while True:
        lines = [to_json(_shortened(_turn(turn), limit)) for turn in trajectory.turns]
        lines.append(to_json(_shortened(_end(trajectory), limit)))
        text = "\n".join(lines)
        if len(text) <= _LONGEST or limit == _LEAST_TEXT:
            return text
        limit = max(limit // 2, _LEAST_TEXT)


def _turn(turn: Turn) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {"turn": turn.index, **_decision(turn)}
    if turn.command is not None:
        shown |= _command(turn.command)
    if turn.observation is not None:
        calls: list[JsonValue] = [
            {"tool": one.tool, "arguments": dict(one.arguments), "status": one.status, "result": one.text}
            for one in turn.observation.tool_calls
        ]
        shown |= {"tool_calls": calls} if calls else {}
        shown["result" if turn.observation.status == "ok" else "error"] = turn.observation.text
    if turn.verdict is not None:
        verdict = turn.verdict
        shown["verdict"] = {"signal": verdict.signal, "valid": verdict.result_valid, "analysis": verdict.analysis}
    return shown


def _decision(turn: Turn) -> dict[str, JsonValue]:
    """What was decided, in the model's own words where a model did; of an agent without actions all that it said."""
    action = turn.action
    if action is None:
        return {"said": [spoken(call.completion) for call in turn.calls]}
    said = [spoken(call.completion) for call in turn.calls if call.role == "planner"]
    words: dict[str, JsonValue] = {"planner": said[-1]} if said else _plan(action)
    return words | ({"malformed": action.error} if action.error else {"tool": action.tool})


def _plan(action: Action) -> dict[str, JsonValue]:
    return {"sub_goal": action.sub_goal, "context": action.context}


def _command(command: Command) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {"command": dict(command.arguments) if command.code is None else command.code}
    return shown | ({"invalid": command.error} if command.error else {})


def _end(trajectory: Trajectory) -> dict[str, JsonValue]:
    reward = round(trajectory.reward.value, 4) if trajectory.reward else None
    return {"answer": trajectory.answer, "stop_reason": trajectory.stop_reason, "reward": reward}


def _shortened(value: JsonValue, limit: int) -> JsonValue:
    """`value` with every text in it, of whatever depth, at most `limit` characters long and a note."""
    if isinstance(value, str) and len(value) > limit:
        return f"{value[: limit // 2]} [cut: {len(value) - limit} characters] {value[-(limit // 2) :]}"
    if isinstance(value, dict):
        return {key: _shortened(item, limit) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_shortened(item, limit) for item in value]
    return value


_LONGEST = 40_000  # characters of a whole transcript: about 10,000 tokens
