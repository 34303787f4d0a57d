"""Sessions that hold several conversations at once: forks, edits, and replies that were lost and asked again."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from midstream.core.trajectory import Call

Ids = tuple[int, ...]


def call(prompt_ids: Ids, completion_ids: Ids, *, first: int = 1, delivered: bool = True) -> Call:
    """A call whose sampled tokens have the log-probabilities -`first`, -`first` - 1, ..."""
    return Call(
        role="policy",
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        logprobs=tuple(-float(first + place) for place in range(len(completion_ids))),
        delivered=delivered,
    )


@st.composite
def sessions(draw: st.DrawFn, tokens: int = 3, most: int = 10) -> list[Call]:
    """Calls of up to four conversations over few distinct tokens, so that sequences also agree by chance.

    Every sampled token has a log-probability of its own.
    """
    ids = st.lists(st.integers(2, tokens + 1), min_size=1, max_size=4).map(tuple)
    conversations: list[Ids] = [draw(ids)]
    calls: list[Call] = []
    numbers = count(1)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, len(conversations) - 1))
        what = draw(st.sampled_from(("reply", "reply", "reply", "lost", "fork", "new", "edit")))
        now = conversations[at]
        if what in ("reply", "lost"):
            said = draw(ids)
            calls.append(call(now, said, first=next(numbers) * 10, delivered=what == "reply"))
            if what == "reply":
                conversations[at] = now + said + draw(st.one_of(st.just(()), ids))
        elif what == "edit":
            place = draw(st.integers(0, len(now) - 1))
            conversations[at] = now[:place] + draw(ids) + now[place + 1 :]
        elif len(conversations) < 4:
            conversations.append(now if what == "fork" else draw(ids))
    calls.append(call(conversations[0], draw(ids), first=next(numbers) * 10))
    return calls
