"""How many bytes of tensors are alive at most while something runs, counted operation by operation."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """As a context: `most` is the peak, in bytes, of the tensors that were made inside it; views count once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(one.untyped_storage()) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor) and id(one.untyped_storage()) not in given | self._seen:
                self._made(one.untyped_storage())
        return result

    def _made(self, storage: torch.UntypedStorage) -> None:
        count, key = storage.nbytes(), id(storage)
        self._seen.add(key)
        self.now += count
        self.most = max(self.most, self.now)

        def gone() -> None:
            self._seen.discard(key)
            self.now -= count

        weakref.finalize(storage, gone)
