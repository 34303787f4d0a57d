"""Forward and backward passes of a batch, stage by stage: every packed token is computed once.

Where what hangs on a trunk does not fit into one pass with it, its passes attend to the trunk's keys and values as if
these were given; what flows back to them is added up, and at the end sent through the trunk. That is the chain rule
written out, so the gradient does not depend on how the batch was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from transformers import PreTrainedModel

from midstream.prefix_tree.attention import Backend, KeyValues, Layout, Packed
from midstream.prefix_tree.forward import packed_hidden, using
from midstream.prefix_tree.stages import Stage
from midstream.prefix_tree.tree import Ints
from midstream.training.batch import Batch, Chunk
from midstream.training.halves import at_least_single, head, hidden_states

Layers = list[KeyValues]  # one pass's, a layer each
ChunkLoss = Callable[[Chunk, torch.Tensor], torch.Tensor]  # (chunk, log-probabilities of its choices) -> a sum


@dataclass(frozen=True, eq=False, slots=True)
class _Forward:
    """A stage's hidden states [_K, hidden], where its packed tokens are among them, and each layer's keys and values.

    The last only where other stages go on from it.
    """

    hidden: torch.Tensor
    places: Ints
    kept: Layers


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Plan:
    """How a batch is computed: its stages, by the trie with a back end or (None) as padded rows.

    `heads_at_once` bounds the logits that are there at a time.
    """

    batch: Batch
    stages: tuple[Stage, ...]
    backend: Backend | None
    heads_at_once: int

    def logprobs(self, model: PreTrainedModel) -> torch.Tensor:
        """Log-probabilities [_U] of the batch's choices, without gradient."""
        parts: dict[int, torch.Tensor] = {}

        def visit(stage: Stage, past: list[Layers]) -> None:
            forward = self._forward(model, stage, past)
            for chunk in self._chunks(stage):
                hidden = forward.hidden[self._places(forward, stage, chunk)]
                parts[chunk.choices.start] = self._choice_logprobs(model, hidden, chunk)
            for one in stage.below:
                visit(one, [*past, forward.kept])

        with torch.no_grad(), self._attending(model):
            for stage in self.stages:
                visit(stage, [])
        return torch.cat([parts[start] for start in sorted(parts)])

    def backward(self, model: PreTrainedModel, loss: ChunkLoss) -> None:
        """Add the gradient of the losses of all chunks."""
        with self._attending(model):
            for stage in self.stages:
                self._backward(model, loss, stage, [])

    def _backward(self, model: PreTrainedModel, loss: ChunkLoss, stage: Stage, past: list[Layers]) -> None:
        """Of one stage and those below it. `past` are leaves of the graph, whose gradients are added to."""
        with recomputing(model):
            forward = self._forward(model, stage, past)
        chunks = self._chunks(stage)
        if len(chunks) == 1 and not stage.below:  # nothing to add up
            hidden = forward.hidden[self._places(forward, stage, chunks[0])]
            loss(chunks[0], self._choice_logprobs(model, hidden, chunks[0])).backward()
            return
        outputs: list[tuple[torch.Tensor, torch.Tensor]] = []  # with their gradients
        if chunks:
            outputs.append((forward.hidden, torch.zeros_like(forward.hidden)))
        for chunk in chunks:
            places = self._places(forward, stage, chunk)
            piece = forward.hidden.detach()[places].requires_grad_()
            loss(chunk, self._choice_logprobs(model, piece, chunk)).backward()
            outputs[0][1].index_add_(0, places, piece.grad)  # type: ignore[arg-type]
        if stage.below:
            leaves = [(_leaf(key), _leaf(value)) for key, value in forward.kept]
            for one in stage.below:
                self._backward(model, loss, one, [*past, leaves])
            outputs += _returned(leaves, forward.kept)
        outputs = [one for one in outputs if one[0].requires_grad]  # none do where the head alone is trained
        if outputs:
            torch.autograd.backward([one for one, _ in outputs], [gradient for _, gradient in outputs])

    def _forward(self, model: PreTrainedModel, stage: Stage, past: list[Layers]) -> _Forward:
        return self._padded(model, stage) if self.backend is None else self._packed(model, self.backend, stage, past)

    def _packed(self, model: PreTrainedModel, backend: Backend, stage: Stage, past: list[Layers]) -> _Forward:
        tree, tokens = self.batch.tree, slice(stage.start, stage.end)
        ids, positions = (torch.from_numpy(one[tokens]).to(model.device) for one in (tree.ids, tree.positions))
        layout = Layout.of(stage.segments(tree), sum(one[0][0].shape[2] for one in past))
        kept: dict[int, KeyValues] = {}
        packed = Packed(layout=layout, backend=backend, past=past, kept=kept if stage.below else None)
        hidden = packed_hidden(model, ids, positions, packed)
        return _Forward(hidden, np.arange(len(ids)), [kept[layer] for layer in sorted(kept)])

    def _padded(self, model: PreTrainedModel, stage: Stage) -> _Forward:
        """Rows one below the other, padded on the right, where causal attention never looks.

        The last token of the longest predicts nothing, and is left out, unless it is the only one.
        """
        segments = self.batch.tree.segments[stage.first : stage.last]
        width = max(1, *(one.end - one.start - 1 for one in segments))
        ids = np.zeros((len(segments), width + 1), np.int64)
        places = np.empty(stage.end - stage.start, np.int64)
        for row, one in enumerate(segments):
            length = one.end - one.start
            ids[row, :length] = self.batch.tree.ids[one.start : one.end]
            places[one.start - stage.start : one.end - stage.start] = row * width + np.arange(length)
        hidden = hidden_states(model, torch.from_numpy(ids[:, :-1]).to(model.device))
        return _Forward(hidden.flatten(0, 1), places, [])

    def _places(self, forward: _Forward, stage: Stage, chunk: Chunk) -> torch.Tensor:
        """Where a chunk's heads are among the hidden states."""
        offsets = self.batch.heads[chunk.heads] - stage.start
        return torch.from_numpy(forward.places[offsets]).to(forward.hidden.device)

    def _chunks(self, stage: Stage) -> list[Chunk]:
        return list(self.batch.chunks(stage.start, stage.end, self.heads_at_once))

    def _choice_logprobs(self, model: PreTrainedModel, hidden: torch.Tensor, chunk: Chunk) -> torch.Tensor:
        """[_u] of a chunk's choices from the hidden states [_p, hidden] of its heads, at their temperatures."""
        batch = self.batch
        logits = at_least_single(head(model, hidden))
        temperatures = batch.temperatures[chunk.heads]
        if (temperatures != 1).any():
            logits = logits / logits.new_tensor(temperatures)[:, None]
        heads = torch.from_numpy(batch.choice_heads[chunk.choices] - chunk.heads.start).to(logits.device)
        ids = torch.from_numpy(batch.choice_ids[chunk.choices]).to(logits.device)
        return logits.log_softmax(-1)[heads, ids]

    def _attending(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        return nullcontext() if self.backend is None else using(model, self.backend)


def _leaf(given: torch.Tensor) -> torch.Tensor:
    """The same numbers as a leaf of the graph, to gather what flows back to them."""
    leaf = given.detach().contiguous().requires_grad_()
    leaf.register_hook(torch.Tensor.contiguous)  # it comes in slices of a gradient, which cannot be added to
    return leaf


def _returned(leaves: Layers, kept: Layers) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What was kept of each layer, with the gradient that its leaf gathered; below the first adapter there is none."""
    pairs = zip(chain.from_iterable(kept), chain.from_iterable(leaves), strict=True)
    return [(own, leaf.grad) for own, leaf in pairs if own.requires_grad and leaf.grad is not None]


@contextmanager
def recomputing(model: PreTrainedModel) -> Iterator[None]:
    """Where gradient checkpointing is on, mark the layers it is for, and nothing inside them, as training.

    Transformers recomputes only what is in training; but dropout inside stays off, and the engine that shares the model
    needs its cache.
    """
    layers = [one for one in model.modules() if getattr(one, "gradient_checkpointing", False)]
    before = [layer.training for layer in layers]
    try:
        for layer in layers:
            layer.training = True
        yield
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.training = training
