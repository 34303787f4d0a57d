"""Logs for inspect_ai's viewer, of the texts and sizes of benchmarks/view.py: `python view_inspect.py DIRECTORY`.

Run it with a Python that has inspect-ai; benchmarks/view.py --inspect PYTHON does.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from inspect_ai.event import InfoEvent, ToolEvent
from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalPlan, EvalSample, EvalSpec, EvalStats, write_eval_log
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput
from inspect_ai.scorer import Score

WORDS = "The archive lists the height of the place as 105 and names the survey that measured it. "
NOW = datetime.now(UTC)


def events_of(index: int, seed: int) -> list[InfoEvent | ToolEvent]:
    """The three events of a turn, with words of its own."""
    noise = f"{(index * 2654435761 + seed * 40503) % 2**32:08x}"
    plan = {"sub_goal": f"find {noise}", "tool": "local_search", "context": f"Turn {index}: {WORDS}{noise}"}
    arguments, result = {"query": f"height of {noise}"}, f"{WORDS}{noise} {WORDS}"
    return [
        InfoEvent(data=plan, timestamp=NOW),
        ToolEvent(id=f"c{index}", function="local_search", arguments=arguments, result=result, timestamp=NOW),
        InfoEvent(data={"signal": "CONTINUE", "analysis": noise, "tokens": list(range(40))}, timestamp=NOW),
    ]


def sample(number: int, turns: int) -> EvalSample:
    """A sample of so many turns."""
    question, answer = f"{number}: {WORDS}", str(number)
    return EvalSample(
        id=f"t{number}", epoch=1, input=question, target=answer,
        messages=[ChatMessageUser(content=question), ChatMessageAssistant(content=answer)],
        output=ModelOutput.from_content("mockllm/model", answer),
        scores={"match": Score(value="C" if number % 2 else "I", answer=answer)},
        events=[event for index in range(1, turns + 1) for event in events_of(index, number)],
    )  # fmt: skip


def write(path: Path, samples: list[EvalSample]) -> None:
    """A finished log of these samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset = EvalDataset(name=path.stem, samples=len(samples))
    spec = EvalSpec(
        created=NOW.isoformat(), task=path.stem, dataset=dataset, model="mockllm/model", config=EvalConfig()
    )
    stats = EvalStats(started_at=NOW.isoformat(), completed_at=NOW.isoformat())
    write_eval_log(EvalLog(status="success", eval=spec, plan=EvalPlan(), stats=stats, samples=samples), str(path))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    write(directory / "many" / "many.eval", [sample(number, 3) for number in range(10_000)])
    write(directory / "long" / "long.eval", [sample(0, 100_000)])
