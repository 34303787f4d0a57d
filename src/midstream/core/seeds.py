"""Seeds derived from the purpose of a random draw, never from the time at which it happens."""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import Field

Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]  # of a setting


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed for an ordered list of names and numbers.

    Example: (run seed, task id, rollout index, turn, module). The same parts give the same seed on every machine and
    Python version; any other list gives an unrelated seed.
    """
    digest = hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
