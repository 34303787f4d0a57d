"""Reasons why an evaluation may say too much: tasks that a run learned from, and searches for the question itself.

`learned_tasks` are exact: a run records the tasks that it learns from. `repeats_question` is a flag: did a search ask
for the question itself, almost word for word? Public questions stand on the web next to their answers, so such a search
may find the answer instead of working it out.
It is a flag to look at, not a proof: it says nothing of what the search found, a short question is sometimes its own
best query, and a search that is worded otherwise may find the question as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from midstream.core.answers import normalize
from midstream.core.task import Task, task_keys
from midstream.core.trajectory import Trajectory
from midstream.runs import RunDirectory
from midstream.runs.info import Learned

ALIKE = 0.9  # of the words of one side that stand on the other
# A shorter question and a good query for it are the same words.
FEWEST_WORDS = 5
STOP_WORDS = frozenset(
    "and are as at be by did do does for from had has have how in is it its of on or that this to was were what when "
    "where which who whom whose why will with".split()  # words: allow
)


def repeats_question(trajectory: Trajectory) -> bool:
    """Return whether any search of the trajectory nearly repeats its question.

    A search is a call of any tool with an argument named `query`, also from a command's code. Words are compared in
    normal form (`core.answers.normalize`), without `STOP_WORDS` and whatever their order; each counts as often as it
    stands there. They nearly repeat where at least 0.9 of the question's words are in the query and 0.9 of the query's
    in the question. A question of fewer than five such words is never flagged.
    """
    question = _words(trajectory.question)
    if question.total() < FEWEST_WORDS:
        return False
    for turn in trajectory.turns:
        if turn.command is None or turn.command.error:
            continue
        made = turn.observation.tool_calls if turn.observation else ()
        for arguments in (turn.command.arguments, *(call.arguments for call in made)):
            if isinstance(text := arguments.get("query"), str):
                query = _words(text)
                if (question & query).total() >= ALIKE * max(question.total(), query.total()):
                    return True
    return False


def record_learned(run: RunDirectory, purpose: str, tasks: Iterable[Task | Trajectory]) -> None:
    """Record tasks that a run learns from or decides on; those that it has recorded before are not written again."""
    found = set[str]()
    for task in tasks:
        found |= task_keys(task.id if isinstance(task, Task) else task.task_id, task.question)
    for record in run.learned.read():
        found.difference_update(record.keys)
    if found:
        run.learned.append(Learned(purpose=purpose, keys=tuple(sorted(found))))


def learned_tasks(run: RunDirectory) -> dict[str, str]:
    """The keys of all tasks that a run learned from or decided on, each with the purpose."""
    return {key: record.purpose for record in reversed(run.learned.read()) for key in record.keys}


def _words(text: str) -> Counter[str]:
    return Counter(word for word in normalize(text).split() if word not in STOP_WORDS)
