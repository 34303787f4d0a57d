"""What of a run fits its prompts: results are cut as they enter memory, and a memory that is too long as a whole.

What is cut says so, and depends on the memory alone: prompts repeat exactly. The trajectory keeps every result whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from midstream.core.tool_calls import CHARACTERS_PER_TOKEN, cut_result
from midstream.core.trajectory import Action, Memory, MemoryRecord, Observation

_SHORTEST_RESULT = 200  # characters: shorter results are not cut further, their turns are left out


def fitting(observation: Observation, tokens: int) -> Observation:
    """The observation as memory and verifier see it: with at most `tokens` of its text, at four characters a token."""
    text = cut_result(observation.text, tokens * CHARACTERS_PER_TOKEN)
    return observation if text is observation.text else observation.model_copy(update={"text": text})


def smaller_memories(memory: Memory) -> Iterator[Memory]:
    """Ever smaller versions of a memory, to try one after the other, until the prompt with it fits the model's context.

    First the longest results are cut to half of their length, a quarter, and so on; then the older half of the turns
    keeps nothing but "[cut]", then three quarters, and so on.
    """
    records = memory.records
    longest = max((len(record.result or record.error or "") for record in records), default=0) // 2
    while longest >= _SHORTEST_RESULT:
        records = tuple(_cut(record, longest) for record in memory.records)
        yield memory.model_copy(update={"records": records})
        longest //= 2
    gone = 0
    while gone < len(records):
        gone += -(-(len(records) - gone) // 2)
        empty = tuple(MemoryRecord(turn=record.turn, action=Action(), result="[cut]") for record in records[:gone])
        yield memory.model_copy(update={"records": (*empty, *records[gone:])})


def _cut(record: MemoryRecord, limit: int) -> MemoryRecord:
    texts = {name: getattr(record, name) for name in ("result", "error")}
    return record.model_copy(update={name: text and cut_result(text, limit) for name, text in texts.items()})
