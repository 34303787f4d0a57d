"""The part of a batch of prompts that no earlier pass has computed, as one pass over a trie.

held from the turn before     prompts               computed now
1 2 3                         1 2 3 4 5             4 5 9
                              1 2 3 9               (and 3 for a prompt that ends there: its logits are asked for)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from midstream.engines.local.prefixes import Prefixes, Prompt, selected
from midstream.prefix_tree.attention import Backend, KeyValues, Layout, Node, Packed
from midstream.prefix_tree.cost import BLOCKWISE, Cost
from midstream.prefix_tree.forward import using
from midstream.prefix_tree.tree import Ints, tree_of


class NewTokens:
    """Of distinct prompts the `count` tokens that `held` lacks, and how they look at those that it has.

    `paths` say where each prompt's tokens are: below `held.size` among those, from there on among the new ones.
    """

    def __init__(self, prompts: Sequence[Prompt], held: Prefixes) -> None:
        tree = self._tree = tree_of(prompts)
        ends = [path[-1] for path in tree.paths]
        place = np.full(tree.unique, -1)  # of each token among those held
        for prompt, path in zip(prompts, tree.paths, strict=True):
            found = held.find(prompt)
            place[path[: len(found)]] = found
        place[ends] = -1
        self._new = place < 0
        self._held = place[~self._new]
        rank = np.concatenate([[0], self._new.cumsum()])  # how many new tokens come before each
        self.count = int(rank[-1])
        self._last = rank[ends]  # of each prompt, among the new
        where = np.where(self._new, held.size + rank[:-1], place)
        self.paths = {prompt: where[path] for prompt, path in zip(prompts, tree.paths, strict=True)}
        self.layout = Layout(self._nodes(rank), self.count, len(self._held) + self.count)

    def _nodes(self, rank: Ints) -> tuple[Node, ...]:
        """Each segment of the trie as its held and its new part, of which one may be empty.

        Keys are those held, in the order of the trie, then the new ones.
        """
        nodes: list[Node] = []
        last_of: list[int] = []  # the node that each segment ends with
        for start, end, subtree_end, parent in self._tree.segments:
            first, last, below_end = (int(rank[at]) for at in (start, end, subtree_end))  # new tokens before them
            cut = end - (last - first)  # within a segment, those held come first
            before = last_of[parent] if parent >= 0 else -1
            if cut > start:
                nodes.append(Node(start - first, cut - first, first, first, below_end, before))
                before = len(nodes) - 1
            if cut < end:
                held = len(self._held)
                nodes.append(Node(held + first, held + last, first, last, below_end, before))
            last_of.append(len(nodes) - 1)
        return tuple(nodes)

    def cost(self, cost: Cost, backend: Backend) -> int:
        """Operations of the pass."""
        calls = len(self.layout.causal) + len(self.layout.unmasked) if backend in BLOCKWISE else 1
        pairs = int(self._tree.positions[self._new].sum()) + self.count
        return self.count * cost.token + pairs * cost.pair + calls * cost.call

    def run(
        self, model: PreTrainedModel, held: Sequence[KeyValues], backend: Backend
    ) -> tuple[list[KeyValues], torch.Tensor]:
        """Each layer's keys and values of the new tokens [1, _KvHeads, count, _D], and the prompts' logits [_S, _V]."""
        device = model.device
        ids, positions = (
            torch.from_numpy(one[self._new])[None].to(device) for one in (self._tree.ids, self._tree.positions)
        )
        index = torch.from_numpy(self._held).to(device)
        kept: dict[int, KeyValues] = {}
        past = [[selected(layer, index) for layer in held]] if len(index) else []
        with using(model, backend):
            logits = model(
                input_ids=ids,
                position_ids=positions,
                use_cache=False,
                logits_to_keep=torch.from_numpy(self._last).to(device),
                packed=Packed(layout=self.layout, backend=backend, past=past, kept=kept),
            ).logits[0]
        return [kept[layer] for layer in sorted(kept)], logits
