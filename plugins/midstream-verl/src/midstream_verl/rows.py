"""Rows of training as verl takes them: one output a row, and an order in which each rank gets its own mini-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from midstream.core.errors import UnsupportedError
from midstream.core.sequences import trainable
from midstream.core.trajectory import Trajectory
from midstream.training.protocols import Row
from midstream.training.rows import row_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One row: the place of its trajectory and its own place in it, its mini-batch, and its share of the reward.

    `reward` is the trajectory's on its last row and 0 on the others, so that their sum is the reward.
    """

    row: Row
    trajectory: int
    index: int
    minibatch: int
    reward: float

    @property
    def mask(self) -> list[int]:
        """1 for each token of the completion that the policy sampled, else 0."""
        return [int(one) for one in self.row.sampled] or [1] * len(self.row.completion_ids)


def outputs_of(batches: Sequence[Sequence[Row]], rewards: Mapping[str, float]) -> list[Output]:
    """The rows of each mini-batch as outputs; `rewards` are those of the trajectories, by their ids.

    Mini-batches without rows are left out, since they make no optimizer step, and the others numbered from 0. Rows in
    which nothing was sampled are left out too: they have no loss. Raises `UnsupportedError` for a row whose calls
    differ in their advantages.
    """
    if any(row.advantages for rows in batches for row in rows):
        raise UnsupportedError(
            "a row whose calls differ in their advantages on verl",
            code="cluster-unsupported",
            cause="verl's queue holds one advantage for each row",
            fix='set training.turns = "calls", or let training.advantage return one number for each trajectory',
        )
    found: list[tuple[Row, int]] = []
    number = 0
    for rows in batches:
        kept = [row for row in rows if row.completion_ids and (not row.sampled or any(row.sampled))]
        found += [(row, number) for row in kept]
        number += bool(kept)
    places = {name: place for place, name in enumerate(dict.fromkeys(row.trajectory_id for row, _ in found))}
    last = {row.trajectory_id: place for place, (row, _) in enumerate(found)}
    counts: dict[str, int] = defaultdict(int)
    outputs = []
    for place, (row, minibatch) in enumerate(found):
        name = row.trajectory_id
        reward = rewards[name] if last[name] == place else 0.0
        outputs.append(Output(row=row, trajectory=places[name], index=counts[name], minibatch=minibatch, reward=reward))
        counts[name] += 1
    return outputs


def idle_row(trajectories: Iterable[Trajectory], role: str) -> Row:
    """A row without a loss, for a step in which no row has a gradient: verl cannot leave a step out."""
    name, call = next(
        (one.id, call) for one in trajectories for call in one.calls if call.role == role and trainable(call)
    )
    return replace(row_of([call], advantage=0.0, kl_weight=0.0, trajectory_id=name), weight=0.0)


def rows_per_rank(minibatches: Sequence[int], ranks: int) -> int:
    """The rows that each of `ranks` has of each mini-batch, filled up: enough for the largest of them."""
    counts: dict[int, int] = defaultdict(int)
    for number in minibatches:
        counts[number] += 1
    return -(-max(counts.values(), default=0) // ranks)


def layout(minibatches: Sequence[int], lengths: Sequence[int], padding: Sequence[int], ranks: int) -> list[int]:
    """An order of rows in which each rank's equal share is its rows of mini-batch 0, then those of 1, and so on.

    verl cuts a batch into equal shares of its ranks, and each share into mini-batches of equal size. `minibatches` and
    `lengths` (tokens) are those of the rows, `padding` the places of rows without a loss that fill them up. Within a
    mini-batch the longest rows go first, each to the rank with the fewest tokens that has room.
    """
    size, spare = rows_per_rank(minibatches, ranks), list(padding)
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]  # by rank, by mini-batch
    loads = [0] * ranks
    for number in sorted(set(minibatches)):
        own: list[list[int]] = [[] for _ in range(ranks)]
        places = [place for place, one in enumerate(minibatches) if one == number]
        for place in sorted(places, key=lambda place: -lengths[place]):
            rank = min((rank for rank in range(ranks) if len(own[rank]) < size), key=lambda rank: loads[rank])
            own[rank].append(place)
            loads[rank] += lengths[place]
        for rank in range(ranks):
            own[rank] += [spare.pop() for _ in range(size - len(own[rank]))]
            shares[rank].append(own[rank])
    return [place for share in shares for part in share for place in part]
