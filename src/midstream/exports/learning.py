"""Rows for trainers: what one module was asked and replied, and the tasks of a run.

A conversation is the messages of a call and its reply. A call that a later one continues is a part of that one's
conversation: `sft` has whole conversations, `trl` a row for each reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from midstream.core.trajectory import Call, Message, Trajectory

SUCCESS = 1.0  # the reward of a task that is solved


def trl_rows(part: str, trajectory: Trajectory, module: str) -> Iterator[dict[str, Any]]:
    """A row for each reply: TRL's prompt and completion, whether the run was a success, and its reward.

    Chat models have conversational rows, others rows of text. A stream that a chat model continued inside its reply
    (the prompt ends with what it wrote so far) is one row, with the tool output in its completion.
    """
    score = trajectory.reward
    calls = _calls(trajectory, module)
    for number, call in enumerate(calls):
        in_reply = bool(call.messages) and call.messages[-1].role == "assistant"
        if in_reply and _is_continued(call, calls[number + 1 :]):
            continue
        *prompt, reply = _conversation(call)
        yield {
            "prompt": _dumped(prompt) if call.messages else call.prompt,
            "completion": _dumped([reply]) if call.messages else call.completion,
            "label": score is not None and score.value >= SUCCESS,
            "reward": score.value if score else None,
            "answer": trajectory.gold or "",
            **_origin(part, trajectory),
        }


def sft_rows(part: str, trajectory: Trajectory, module: str) -> Iterator[dict[str, Any]]:
    """A row for each whole conversation, as `messages`; of a model without a chat, prompt and completion as text."""
    calls = _calls(trajectory, module)
    for number, call in enumerate(calls):
        if not call.messages:
            yield {"prompt": call.prompt, "completion": call.completion, **_origin(part, trajectory)}
        elif not _is_continued(call, calls[number + 1 :]):
            yield {"messages": _dumped(_conversation(call)), **_origin(part, trajectory)}


class VerlTasks:
    """The rows of verl's `RLHFDataset`: one for each task, with the mean reward of its runs."""

    def __init__(self, recipe: str) -> None:
        self._source = f"midstream/{recipe}"
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}

    def add(self, part: str, trajectory: Trajectory) -> bool:
        """Count a run of a task; returns whether verl can pose it: a dialogue has no question or no answer."""
        if not trajectory.question or trajectory.gold is None:
            return False
        row = self._rows.setdefault(
            (trajectory.task_id, trajectory.question),
            {
                "data_source": self._source,
                "prompt": [{"role": "user", "content": trajectory.question}],
                "ability": trajectory.family or "agent",
                "reward_model": {"style": "rule", "ground_truth": trajectory.gold},
                "extra_info": {
                    "index": len(self._rows),
                    "split": "train" if part.startswith("step-") else "test",
                    "task_id": trajectory.task_id,
                    "question": trajectory.question,
                    "answer": trajectory.gold,
                    "attempts": 0,
                    "reward_mean": 0.0,
                },
            },
        )
        info, value = row["extra_info"], trajectory.reward.value if trajectory.reward else 0.0
        info["attempts"] += 1
        info["reward_mean"] += (value - info["reward_mean"]) / info["attempts"]
        return True

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, in the order in which their tasks came."""
        yield from self._rows.values()


def _calls(trajectory: Trajectory, module: str) -> list[Call]:
    """The answered calls of a module, of every one for ""."""
    return [call for call in trajectory.calls if call.error is None and module in ("", call.role)]


def _conversation(call: Call) -> list[Message]:
    """The messages of a call and its reply, which may continue what the model wrote before."""
    *before, last = call.messages or (Message(role="user", content=call.prompt),)
    if last.role == "assistant":
        return [*before, Message(role="assistant", content=last.content + call.completion)]
    return [*before, last, Message(role="assistant", content=call.completion)]


def _is_continued(call: Call, later: Sequence[Call]) -> bool:
    """Whether the conversation of a later call begins with this one."""
    *before, reply = _conversation(call)
    for other in later:
        if len(other.messages) > len(before) and list(other.messages[: len(before)]) == before:
            continued = other.messages[len(before)]
            if continued.role == "assistant" and continued.content.startswith(reply.content):
                return True
    return False


def _dumped(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _origin(part: str, trajectory: Trajectory) -> dict[str, str]:
    return {"part": part, "task_id": trajectory.task_id, "trajectory": trajectory.id}
