"""Seeds derived from the purpose of a random draw, never from the time at which it happens."""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

MOST_SEED = 2**63 - 1
SEED_MEANING = f"a seed is a whole number from 0 to {MOST_SEED}; equal seeds draw the same random numbers"


def _explained(value: object, validate: ValidatorFunctionWrapHandler) -> int:
    try:
        return validate(value)
    except ValueError:
        # Pydantic's own message says neither what a seed is nor its range.
        raise ValueError(SEED_MEANING) from None


Seed = Annotated[int, Field(ge=0, le=MOST_SEED), WrapValidator(_explained)]  # of a setting


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed for an ordered list of names and numbers.

    Example: (run seed, task id, rollout index, turn, module). The same parts give the same seed on every machine and
    Python version; any other list gives an unrelated seed.
    """
    digest = hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
