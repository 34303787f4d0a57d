"""What live trajectories asked last: keys and values of their prompts' tokens, each distinct prefix once.

A later turn's prompt begins as the one before it did; what both have in common is not computed again.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from midstream.prefix_tree.attention import KeyValues
from midstream.prefix_tree.tree import Ints, common_prefix, tree_of

Prompt = tuple[int, ...]
Asker = tuple[int, str]  # a trajectory's place in its rollout, and the role it asks in


class Prefixes:
    """Of each live trajectory the last prompt in each role: the _P tokens of their trie.

    `layers` are their keys and values [1, _KvHeads, _P, _D]. Nothing outlives the weights that computed it.
    """

    def __init__(self) -> None:
        self._weights: object = None
        self.clear()

    def clear(self) -> None:
        """Hold nothing."""
        self.layers: list[KeyValues] = []
        self._ids = np.zeros(0, np.int64)  # [_P]
        self._paths: dict[Prompt, Ints] = {}  # where each prompt's tokens are
        self._sorted: list[Prompt] = []
        self._asked: dict[Asker, Prompt] = {}
        self._room = 0

    @property
    def size(self) -> int:
        """_P."""
        return len(self._ids)

    def leave(self, order: int) -> None:
        """The trajectory asks no more; what it alone needed goes with the next batch."""
        self._asked = {asker: prompt for asker, prompt in self._asked.items() if asker[0] != order}

    def for_weights_of(self, model: PreTrainedModel) -> None:
        """Hold nothing that other weights computed.

        PyTorch counts the changes of a tensor in place, but for those by way of `.data` and of fused optimizers: make
        such between rollouts.
        """
        counts = ((id(one), 0 if one.is_inference() else one._version) for one in model.parameters())
        weights = (id(model), *counts)
        if weights != self._weights:
            self.clear()
        self._weights = weights

    def find(self, prompt: Prompt) -> Ints:
        """Where the tokens of the longest known prefix are."""
        ids = np.asarray(prompt, dtype=np.int64)
        path = np.zeros(0, np.int64)
        place = bisect(self._sorted, prompt)
        for near in self._sorted[max(0, place - 1) : place + 1]:  # no other has a longer prefix in common with it
            shared = common_prefix(ids, self._ids[self._paths[near]])
            if shared > len(path):
                path = self._paths[near][:shared]
        return path

    def keep(self, asked: Mapping[Asker, Prompt], paths: Mapping[Prompt, Ints], room: int) -> Ints:
        """Hold a batch's prompts, and the other live ones if that takes no more than one batch's own cache.

        Args:
            asked: the batch's prompts by who asked.
            paths: where their tokens are: below the old _P among those that were held, from there on among new ones.
            room: tokens of the batch's cache; the largest since `clear` counts.

        Returns:
            In the terms of `paths`, where the keys and values of the new _P tokens are; `layers` are left to set.
        """
        self._room = max(self._room, room)
        self._asked |= asked
        held = {prompt: self._paths[prompt] for prompt in self._asked.values() if prompt not in paths} | dict(paths)
        tree = tree_of(list(held))
        if tree.unique > self._room:
            self._asked, held = dict(asked), dict(paths)
            tree = tree_of(list(held))
        place = np.empty(tree.unique, np.int64)
        for own, path in zip(tree.paths, held.values(), strict=True):
            place[own] = path
        self._ids, self._paths, self._sorted = tree.ids, dict(zip(held, tree.paths, strict=True)), sorted(held)
        return place


def selected(layer: KeyValues, index: torch.Tensor) -> KeyValues:
    """A layer's keys and values of the tokens `index`."""
    return layer[0].index_select(2, index), layer[1].index_select(2, index)


def joined(held: KeyValues | None, new: KeyValues) -> KeyValues:
    """A layer's keys and values of what was held, then of what is new."""
    return new if held is None else (torch.cat([held[0], new[0]], 2), torch.cat([held[1], new[1]], 2))
