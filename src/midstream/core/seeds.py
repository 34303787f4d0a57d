"""Seeds derived from what a random draw is for, never from when it happens."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from an ordered list of names and numbers, e.g. (run seed, task id, rollout index, turn, module).

    The same parts give the same seed on every machine and Python version; any other list gives an unrelated one.
    """
    digest = hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
