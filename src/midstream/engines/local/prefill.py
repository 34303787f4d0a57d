"""The first forward pass over a batch of prompts: up to the logits of the first new token of each.

Each distinct prefix is computed once, whether the group, the tasks or the turns share it, and each request's cache is
gathered from it. Where that saves nothing, and for a model that cannot attend over a trie, the distinct prompts are
padded and computed whole.

    held from the turn before     prompts               computed now
    1 2 3                         1 2 3 4 5             4 5 9
                                  1 2 3 9               (and 3 for a prompt that ends there: its logits are needed)
"""

from __future__ import annotations

import functools
import inspect
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from midstream.core.engine import Request
from midstream.prefix_tree.attention import Backend, KeyValues, Layout, Node, Packed, causal_lm, use_backend
from midstream.prefix_tree.cost import BLOCKWISE, Cost
from midstream.prefix_tree.support import TRIAL, Choice, choose
from midstream.prefix_tree.tree import Ints, common_prefix, tree_of

TOLERANCE, HALF_TOLERANCE = 1e-3, 0.1
# How many times more than padding a trie may cost: it keeps what the next turn begins with.
KEEPING = 1.05

Prompt = tuple[int, ...]
Asker = tuple[int, str]  # a trajectory's place in its rollout, and the role it asks in
Asked = Sequence[tuple[Prompt, Request]]

# -- what is held from turn to turn ------------------------------------------------------------------------------------


class Prefixes:
    """The last prompt of each live trajectory in each role: the _P tokens of their trie, with keys and values.

    A later turn's prompt begins as the one before it did; what both have in common is not computed again. `layers` are
    [1, _KvHeads, _P, _D] each. Nothing outlives the weights that computed it.
    """

    def __init__(self) -> None:
        self._weights: object = None
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self.layers: list[KeyValues] = []
        self._ids = np.zeros(0, np.int64)  # [_P]
        self._paths: dict[Prompt, Ints] = {}  # where each prompt's tokens are
        self._sorted: list[Prompt] = []
        self._asked: dict[Asker, Prompt] = {}
        self._room = 0

    @property
    def size(self) -> int:
        """Number of tokens held, _P."""
        return len(self._ids)

    def leave(self, order: int) -> None:
        """The trajectory asks no more; what it alone needed is dropped with the next batch."""
        self._asked = {asker: prompt for asker, prompt in self._asked.items() if asker[0] != order}

    def for_weights_of(self, model: PreTrainedModel) -> None:
        """Drop what other weights computed.

        PyTorch counts the changes of a tensor in place, except those through `.data` and of fused optimizers: make such
        changes between rollouts.
        """
        counts = ((id(tensor), 0 if tensor.is_inference() else tensor._version) for tensor in model.parameters())
        weights = (id(model), *counts)
        if weights != self._weights:
            self.clear()
        self._weights = weights

    def find(self, prompt: Prompt) -> Ints:
        """Where the tokens of the longest known prefix are."""
        ids = np.asarray(prompt, dtype=np.int64)
        path = np.zeros(0, np.int64)
        place = bisect(self._sorted, prompt)
        # No other has a longer prefix in common with it.
        for near in self._sorted[max(0, place - 1) : place + 1]:
            shared = common_prefix(ids, self._ids[self._paths[near]])
            if shared > len(path):
                path = self._paths[near][:shared]
        return path

    def keep(self, asked: Mapping[Asker, Prompt], paths: Mapping[Prompt, Ints], room: int) -> Ints:
        """Hold a batch's prompts, and the other live ones if that takes no more than one batch's own cache.

        `paths` say where the prompts' tokens are: below the old _P among those that were held, from there on among new
        ones. `room` is the number of tokens of the batch's cache; the largest since `clear` counts. Returns, in the
        terms of `paths`, where the keys and values of the new _P tokens are; `layers` are left to set.
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


def select_tokens(layer: KeyValues, index: torch.Tensor) -> KeyValues:
    """A layer's keys and values of the tokens `index`."""
    return layer[0].index_select(2, index), layer[1].index_select(2, index)


def join_cache(held: KeyValues | None, new: KeyValues) -> KeyValues:
    """A layer's keys and values of what was held, then of what is new."""
    return new if held is None else (torch.cat([held[0], new[0]], 2), torch.cat([held[1], new[1]], 2))


# -- what is computed now ----------------------------------------------------------------------------------------------


class NewTokens:
    """The `count` tokens of distinct prompts that `held` lacks, and how they attend to those that it has.

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
        """The held and the new part of each segment, one of which may be empty. Keys that are held come first."""
        nodes: list[Node] = []
        last_of: list[int] = []  # the node that each segment ends with
        for start, end, subtree_end, parent in self._tree.segments:
            first, last, below_end = (int(rank[at]) for at in (start, end, subtree_end))  # new tokens before them
            # Within a segment, those held come first.
            cut = end - (last - first)
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
            torch.from_numpy(values[self._new])[None].to(device) for values in (self._tree.ids, self._tree.positions)
        )
        index = torch.from_numpy(self._held).to(device)
        kept: dict[int, KeyValues] = {}
        past = [[select_tokens(layer, index) for layer in held]] if len(index) else []
        with use_backend(model, backend):
            logits = model(
                input_ids=ids,
                position_ids=positions,
                use_cache=False,
                logits_to_keep=torch.from_numpy(self._last).to(device),
                packed=Packed(layout=self.layout, backend=backend, past=past, kept=kept),
            ).logits[0]
        return [kept[layer] for layer in sorted(kept)], logits


# -- the pass ----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class Prefilled:
    """Where decoding begins for _R requests, their prompts padded on the left to _T tokens.

    `mask` [_R, _T] is 1 where a prompt is, `lengths` [_R] are the prompts' (both int64), `logits` [_R, _V] those of the
    first new token. `computed` is how many tokens the pass ran over, padding included.
    """

    cache: DynamicCache
    mask: torch.Tensor
    lengths: torch.Tensor
    logits: torch.Tensor
    computed: int


class Prefill:
    """An engine's prefill. Call `prefixes.clear()` when no trajectory is live."""

    def __init__(self) -> None:
        self.prefixes = Prefixes()
        self._tried: tuple[object, ...] = ()
        self._choice = Choice(None)

    def __call__(self, model: PreTrainedModel, asked: Asked) -> Prefilled:
        """Compute prompts in the cheaper way, in inference mode. No clock is read: equal batches are computed alike."""
        self.prefixes.for_weights_of(model)
        cost = Cost.of(model)
        if not cost.counts:
            return prefill_padded(model, asked)
        tried = (model, model.device, model.dtype)
        if tried != self._tried:  # once a model
            self._tried, self._choice = tried, choice_of(model)
        prompts = list(dict.fromkeys(prompt for prompt, _ in asked))
        longest = max(map(len, prompts))
        backend = self._choice.backend
        if backend is None or longest > self._choice.longest:
            return prefill_padded(model, asked)
        new = NewTokens(prompts, self.prefixes)
        if new.cost(cost, backend) > KEEPING * cost.padded(len(prompts), longest):
            return prefill_padded(model, asked)
        return self.by_trie(model, asked, new, backend)

    def by_trie(self, model: PreTrainedModel, asked: Asked, new: NewTokens, backend: Backend) -> Prefilled:
        """Only the new tokens; then each request's cache from all that is known, which is kept for the next turn."""
        fresh, logits = new.run(model, self.prefixes.layers, backend)
        device = logits.device
        paths, mask = (tensor.to(device) for tensor in _left_pad([new.paths[prompt] for prompt, _ in asked]))
        last = {(request.order, request.role): prompt for prompt, request in asked}
        place = torch.from_numpy(self.prefixes.keep(last, new.paths, room=paths.numel())).to(device)
        held, self.prefixes.layers = self.prefixes.layers or [None] * len(fresh), []
        cache = DynamicCache(config=model.config)
        # A layer at a time, so that few keys and values exist twice at once.
        for index in range(len(fresh)):
            layer = join_cache(held[index], fresh[index])
            held[index] = fresh[index] = None  # type: ignore[call-overload]
            key, value = (tensor[0][:, paths].transpose(0, 1) for tensor in layer)
            cache.update(key, value, index)
            self.prefixes.layers.append(select_tokens(layer, place))
        expand = torch.tensor(_places(asked), device=device)
        return Prefilled(cache=cache, mask=mask, lengths=mask.sum(1), logits=logits[expand], computed=new.count)


def prefill_padded(model: PreTrainedModel, asked: Asked) -> Prefilled:
    """Compute the distinct prompts whole, as padded rows."""
    ids, mask = (tensor.to(model.device) for tensor in _left_pad(list(dict.fromkeys(prompt for prompt, _ in asked))))
    cache = DynamicCache(config=model.config)
    logits = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
        **{_cache_keyword(type(causal_lm(model))): cache},
    ).logits[:, -1]
    expand = torch.tensor(_places(asked), device=model.device)
    cache.batch_select_indices(expand)
    return Prefilled(
        cache=cache, mask=mask[expand], lengths=mask.sum(1)[expand], logits=logits[expand], computed=ids.numel()
    )


def next_logits(
    model: PreTrainedModel, cache: DynamicCache, token: torch.Tensor, mask: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """Logits [_R, _V] after one more `token` [_R] at `position` [_R], which `mask` [_R, _T + 1] counts already."""
    return model(
        input_ids=token[:, None],
        attention_mask=mask,
        position_ids=position[:, None],
        use_cache=True,
        **{_cache_keyword(type(causal_lm(model))): cache},
    ).logits[:, -1]


@functools.cache
def _cache_keyword(kind: type[PreTrainedModel]) -> str:
    """The name of the cache among a model's arguments: transformers 5.24 renamed it, and warns of the old one."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


@torch.inference_mode(False)
def choice_of(model: PreTrainedModel) -> Choice:
    """The back end that a model can attend with, if it fills the cache as the model itself does."""
    choice = choose(model)
    if choice.backend is None:
        return choice
    own_way = f"{type(model).__name__} fills its cache in its own way"
    try:
        distance = _distance(model, choice.backend)
    except (RuntimeError, IndexError, KeyError, TypeError, ValueError) as error:
        return Choice(None, f"{own_way}: {error}".splitlines()[0])
    half = model.dtype in (torch.bfloat16, torch.float16)
    return choice if distance <= (HALF_TOLERANCE if half else TOLERANCE) else Choice(None, own_way)


@torch.inference_mode()
def _distance(model: PreTrainedModel, backend: Backend) -> float:
    """Relative distance of logits by trie and padded, of some prompts and of a token after them; the larger of both."""
    vocabulary = causal_lm(model).get_input_embeddings().weight.shape[0]
    asked = [(tuple(token % vocabulary for token in prompt), Request(role="trial")) for prompt in TRIAL]
    new = NewTokens([prompt for prompt, _ in asked], Prefixes())
    found = []
    for way in (Prefill().by_trie(model, asked, new, backend), prefill_padded(model, asked)):
        mask = torch.cat([way.mask, way.mask[:, -1:]], 1)
        token = torch.zeros_like(way.lengths)
        found.append(torch.stack([way.logits, next_logits(model, way.cache, token, mask, way.lengths)]).double())
    ours, expected = found
    return float(((ours - expected).norm(dim=(1, 2)) / expected.norm(dim=(1, 2))).max())


def _places(asked: Asked) -> list[int]:
    """Which of the distinct prompts each request has."""
    place: dict[Prompt, int] = {}
    return [place.setdefault(prompt, len(place)) for prompt, _ in asked]


def _left_pad(rows: Sequence[Prompt | Ints]) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, mask), both int64 [rows, longest], padded on the left with 0."""
    longest = max(map(len, rows))
    out = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(out)
    for place, row in enumerate(rows):
        out[place, longest - len(row) :] = torch.as_tensor(row)
        mask[place, longest - len(row) :] = 1
    return out, mask
