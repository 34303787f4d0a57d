"""The tasks of a run as a table that verl's `RLHFDataset` reads: the format `verl` of `midstream export`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from midstream.core.trajectory import Trajectory
from midstream.exports import Format, Origin, Row, write_parquet


def verl_rows(origin: Origin, trajectory: Trajectory) -> Iterator[Row]:
    """The trajectory's task as verl's `RLHFDataset` reads it; none of a dialogue, which has no answer."""
    if not trajectory.question or trajectory.gold is None:
        return
    info = {
        "index": 0,
        "split": "train" if origin.part.startswith("step-") else "test",
        "task_id": trajectory.task_id,
        "question": trajectory.question,
        "answer": trajectory.gold,
        "attempts": 1,
        "reward_mean": trajectory.reward.value if trajectory.reward else 0.0,
    }
    yield {
        "data_source": f"midstream/{origin.recipe}",
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


def _schema(pa: Any) -> Any:
    text, real, whole = pa.string(), pa.float64(), pa.int64()
    info = {"index": whole, "split": text, "task_id": text, "question": text, "answer": text, "attempts": whole}
    types = {
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({**info, "reward_mean": real}),
    }
    return pa.schema(types)


VERL = Format(".parquet", verl_rows, partial(write_parquet, schema_of=_schema), learns=True, combine=verl_tasks)
