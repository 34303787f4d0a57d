"""Rows for trainers: what one module was asked and replied, and the tasks of a run.

A conversation is the messages of a call and its reply. A call that a later one continues is a part of that one's
conversation: `sft` has whole conversations, `trl` a row for each reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from midstream.core.trajectory import Call, Message, Trajectory

SUCCESS = 1.0  # the reward of a task that is solved


def trl_rows(part: str, trajectory: Trajectory, module: str) -> Iterator[dict[str, Any]]:
    """A row for each reply: TRL's prompt and completion, whether the run was a success, and its reward.

    Chat models have conversational rows, others rows of text. A stream that a chat model continued inside its reply
    (the prompt ends with what it wrote so far) is one row, with the tool output in its completion.
    """
    reward = trajectory.reward.value if trajectory.reward else 0.0
    about = {"label": reward >= SUCCESS, "reward": reward, "answer": trajectory.gold or ""}
    calls = _calls(trajectory, module)
    for number, call in enumerate(calls):
        if not call.messages:
            yield {"prompt": call.prompt, "completion": call.completion, **about, **_origin(part, trajectory)}
        elif call.messages[-1].role != "assistant" or not _is_continued(call, calls[number + 1 :]):
            *prompt, reply = _conversation(call)
            yield {"prompt": _dumped(prompt), "completion": _dumped([reply]), **about, **_origin(part, trajectory)}


def sft_rows(part: str, trajectory: Trajectory, module: str) -> Iterator[dict[str, Any]]:
    """A row for each whole conversation, as `messages`; of a model without a chat, prompt and completion as text."""
    calls = _calls(trajectory, module)
    for number, call in enumerate(calls):
        if not call.messages:
            yield {"prompt": call.prompt, "completion": call.completion, **_origin(part, trajectory)}
        elif not _is_continued(call, calls[number + 1 :]):
            yield {"messages": _dumped(_conversation(call)), **_origin(part, trajectory)}


def verl_rows(part: str, trajectory: Trajectory, recipe: str) -> Iterator[dict[str, Any]]:
    """The trajectory's task as verl's `RLHFDataset` reads it; none of a dialogue, which has no answer."""
    if not trajectory.question or trajectory.gold is None:
        return
    info = {
        "index": 0,
        "split": "train" if part.startswith("step-") else "test",
        "task_id": trajectory.task_id,
        "question": trajectory.question,
        "answer": trajectory.gold,
        "attempts": 1,
        "reward_mean": trajectory.reward.value if trajectory.reward else 0.0,
    }
    yield {
        "data_source": f"midstream/{recipe}",
        "prompt": [{"role": "user", "content": trajectory.question}],
        "ability": trajectory.family or "agent",
        "reward_model": {"style": "rule", "ground_truth": trajectory.gold},
        "extra_info": info,
    }


def verl_tasks(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row for each task, in order, with the mean reward of its runs."""
    tasks: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        new = row["extra_info"]
        kept = tasks.setdefault((new["task_id"], new["question"]), row)["extra_info"]
        if kept is new:
            kept["index"] = len(tasks) - 1
        else:
            kept["attempts"] += 1
            kept["reward_mean"] += (new["reward_mean"] - kept["reward_mean"]) / kept["attempts"]
    yield from tasks.values()


def _calls(trajectory: Trajectory, module: str) -> list[Call]:
    """The calls of a module, of every one for "", whose replies the agent received."""
    return [call for call in trajectory.calls if call.error is None and call.delivered and module in ("", call.role)]


def _conversation(call: Call) -> list[Message]:
    """The messages of a call and its reply, which may continue what the model wrote before."""
    *before, last = call.messages
    if last.role == "assistant":
        return [*before, Message(role="assistant", content=last.content + call.completion)]
    return [*before, last, Message(role="assistant", content=call.completion)]


def _is_continued(call: Call, later: Sequence[Call]) -> bool:
    """Whether the conversation of a later call begins with this one."""
    *before, reply = _conversation(call)
    return any(
        list(messages) == before and continued.role == "assistant" and continued.content.startswith(reply.content)
        for other in later
        for *messages, continued in [other.messages[: len(before) + 1]]
    )


def _dumped(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [message.wire() for message in messages]


def _origin(part: str, trajectory: Trajectory) -> dict[str, str]:
    return {"part": part, "task_id": trajectory.task_id, "trajectory": trajectory.id}
