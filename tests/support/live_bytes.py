"""How many bytes of tensors are alive at most while something runs, counted operation by operation."""

from __future__ import annotations

import weakref
from collections.abc import Callable
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
        add = self._adder()
        add(count)

        def gone() -> None:
            self._seen.discard(key)
            add(-count)

        weakref.finalize(storage, gone)

    def _adder(self) -> Callable[[int], None]:
        """What counts the bytes of a tensor that is made now."""
        return self._add

    def _add(self, count: int) -> None:
        self.now += count
        self.most = max(self.most, self.now)


class DeviceBytes(LiveBytes):
    """As if a CPU were a device: what a function wrapped by `hosting` makes is not counted in `most`, but in `host`."""

    def __init__(self) -> None:
        super().__init__()
        self.host = 0
        self._hosting = False

    def hosting(self, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """The function, whose tensors are in host memory from now on."""

        def made(*arguments: Any, **settings: Any) -> torch.Tensor:
            self._hosting = True
            try:
                return make(*arguments, **settings)
            finally:
                self._hosting = False

        return made

    def _adder(self) -> Callable[[int], None]:
        return self._add_to_host if self._hosting else self._add

    def _add_to_host(self, count: int) -> None:
        self.host += count
