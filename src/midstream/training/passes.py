"""Plans of how the rows of a batch are computed: as a trie or as padded rows, in stages that fit into memory.

Where what descends from a trunk does not fit into one pass with it, its passes attend to the trunk's keys and values as
if these were given; their gradients are added up, and at the end sent through the trunk. That is the chain rule written
out, so the gradient does not depend on how the batch was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, compress, pairwise, repeat

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from midstream.core.errors import TrainingError, UnsupportedError
from midstream.prefix_tree.attention import Backend, KeyValues, causal_lm, stage_hidden, use_backend
from midstream.prefix_tree.cost import Cost
from midstream.prefix_tree.stages import TreeStage, stages_of
from midstream.prefix_tree.support import Choice
from midstream.prefix_tree.tree import Ints, Tree, tree_of
from midstream.training.protocols import Row
from midstream.training.settings import LOGITS, LearnerConfig

Layers = list[KeyValues]  # of one pass, by layer

# -- rows as packed tokens ---------------------------------------------------------------------------------------------
#
# Three levels, because rows share prefixes: a head is a packed position at a sampling temperature, where the
# language-model head runs once; a choice is a head and one of the tokens that were drawn there; a token is one row's.


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """Some heads of a batch, their choices, and the indices [_m] of the tokens that made them."""

    heads: slice
    choices: slice
    tokens: Ints


# (chunk, log-probabilities of its choices, entropies at their heads if these are asked for) -> a sum
ChunkLoss = Callable[[Chunk, torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class PackedBatch:
    """_P heads in packed order, _U choices ordered by head, _M tokens ordered by row.

    `heads` [_P] are packed indices, `temperatures` [_P] theirs. `choice_heads` and `choice_ids` [_U] index heads and
    name token ids; `choices` [_M] index choices. `rows` are in the order of their tokens, and row i's are those from
    `row_ends[i]` up to `row_ends[i + 1]`.
    """

    tree: Tree
    rows: tuple[Row, ...]
    row_ends: Ints
    heads: Ints
    temperatures: NDArray[np.float64]
    choice_heads: Ints
    choice_ids: Ints
    choices: Ints

    @classmethod
    def of(cls, rows: Sequence[Row], tree: Tree, paths: Sequence[Ints]) -> PackedBatch:
        """`paths[i]` are the packed indices of row i's tokens in `tree`."""
        places = [_sampled_places(row) for row in rows]
        lengths = [len(own) for own in places]
        predictors = np.concatenate([path[own - 1] for path, own in zip(paths, places, strict=True)])
        ids = tree.ids[np.concatenate([path[own] for path, own in zip(paths, places, strict=True)])]
        kinds, kind = np.unique([row.temperature or 1.0 for row in rows], return_inverse=True)
        head_keys = predictors * len(kinds) + np.repeat(kind, lengths)
        span = int(ids.max(initial=0)) + 1
        choice_keys, choices = np.unique(head_keys * span + ids, return_inverse=True)
        heads, choice_heads = np.unique(choice_keys // span, return_inverse=True)
        return cls(
            tree=tree,
            rows=tuple(rows),
            row_ends=np.cumsum([0, *lengths]),
            heads=heads // len(kinds),
            temperatures=kinds[heads % len(kinds)],
            choice_heads=choice_heads,
            choice_ids=choice_keys % span,
            choices=choices,
        )

    def chunks(self, start: int, end: int, size: int) -> Iterator[Chunk]:
        """The heads at packed indices [start, end), at most `size` at a time, with their choices and tokens."""
        first, last = np.searchsorted(self.heads, [start, end]).tolist()
        for a, b in pairwise([*range(first, last, size), last]):
            u, v = np.searchsorted(self.choice_heads, [a, b]).tolist()
            tokens = np.flatnonzero((self.choices >= u) & (self.choices < v))
            yield Chunk(slice(a, b), slice(u, v), tokens)

    def per_token(self, values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
        """A number a row, repeated for its tokens: [_M], of `like`'s kind."""
        return like.new_tensor(values).repeat_interleave(torch.from_numpy(np.diff(self.row_ends)).to(like.device))

    def recorded(self, like: torch.Tensor) -> torch.Tensor:
        """Each token's log-probability as it was recorded: [_M], of `like`'s kind."""
        return self._of_tokens([row.old_logprobs for row in self.rows], like)

    def advantages(self, like: torch.Tensor) -> torch.Tensor:
        """Each token's advantage: [_M], of `like`'s kind."""
        return self._of_tokens(
            [row.advantages or (row.advantage,) * len(row.completion_ids) for row in self.rows], like
        )

    def _of_tokens(self, values: Sequence[Sequence[float]], like: torch.Tensor) -> torch.Tensor:
        """Values of every completion token of each row, for the sampled ones: [_M]."""
        return like.new_tensor(
            [
                value
                for row, own in zip(self.rows, values, strict=True)
                for value in compress(own, row.sampled or repeat(True))
            ]
        )

    def by_row(self, values: torch.Tensor) -> list[tuple[float, ...]]:
        """Values of choices [_U], row by row, one for each completion token; 0 for those that were not sampled."""
        left = iter(values[torch.from_numpy(self.choices).to(values.device)].tolist())
        return [
            tuple(next(left) if sampled else 0.0 for sampled in row.sampled or repeat(True, len(row.completion_ids)))
            for row in self.rows
        ]


def require_prompt(row: Row) -> None:
    """Refuse a row whose first token nothing predicts."""
    if not row.prompt_ids:
        raise TrainingError(
            f"a row of trajectory {row.trajectory_id} has no prompt",
            code="empty-prompt",
            fix="record at least one prompt token (the tokenizer's first one)",
        )


def _sampled_places(row: Row) -> Ints:
    """Positions of a row's sampled tokens in its sequence."""
    require_prompt(row)
    start = len(row.prompt_ids)
    if row.sampled:
        return start + np.flatnonzero(row.sampled)
    return np.arange(start, start + len(row.completion_ids))


# -- plans -------------------------------------------------------------------------------------------------------------


def plan_of(rows: Sequence[Row], tree: Tree, attention: Choice, cost: Cost, config: LearnerConfig) -> PassPlan:
    """A plan for `rows`, whose trie is `tree`. Trie and padded rows differ in rounding alone."""
    heads_at_once = max(1, LOGITS // cost.vocabulary)
    # Equal sequences once (rollouts of one task often sample the same action), from the shortest on.
    distinct = sorted(dict.fromkeys(row.prompt_ids + row.completion_ids for row in rows), key=len)
    chunks = list(padded_chunks([len(sequence) for sequence in distinct], config.chunk_tokens))
    padded = sum(cost.padded(len(chunk), len(distinct[chunk[-1]])) for chunk in chunks)
    backend = attention.backend if len(distinct[-1]) <= attention.longest else None
    if backend and (config.attention != "auto" or (cost.counts and cost.trie(tree, backend) < padded)):
        batch = PackedBatch.of(rows, tree, tree.paths)
        stages = stages_of(tree, config.chunk_tokens, cost.work(tree, batch.heads))
        return PassPlan(batch=batch, stages=stages, backend=backend, heads_at_once=heads_at_once)
    flat = tree_of(distinct, share=False)
    place = {sequence: flat.paths[i] for i, sequence in enumerate(distinct)}
    return PassPlan(
        batch=PackedBatch.of(rows, flat, [place[row.prompt_ids + row.completion_ids] for row in rows]),
        stages=tuple(
            TreeStage(chunk.start, chunk.stop, flat.segments[chunk.start].start, flat.segments[chunk.stop - 1].end)
            for chunk in chunks
        ),
        backend=None,
        heads_at_once=heads_at_once,
    )


def padded_chunks(lengths: Sequence[int], limit: int) -> Iterator[range]:
    """Places of rows, in order, in pieces of at most `limit` padded tokens (a longer row goes alone)."""
    first = longest = 0
    for i, length in enumerate(lengths):
        longest = max(longest, length)
        if i > first and (i + 1 - first) * longest > limit:
            yield range(first, i)
            first, longest = i, length
    if lengths:
        yield range(first, len(lengths))


@dataclass(frozen=True, eq=False, slots=True)
class _Forward:
    """Result of one stage's forward pass.

    `hidden` [_K, hidden] are its last hidden states, `places` where its packed tokens are among them. `kept` are the
    keys and values of each layer, where stages below this one need them.
    """

    hidden: torch.Tensor
    places: Ints
    kept: Layers


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class PassPlan:
    """Plan of how a batch is computed: its stages, by the trie with a back end or (None) as padded rows.

    `heads_at_once` bounds how many positions the language-model head runs at in one call.
    """

    batch: PackedBatch
    stages: tuple[TreeStage, ...]
    backend: Backend | None
    heads_at_once: int

    def logprobs(self, model: PreTrainedModel) -> torch.Tensor:
        """Log-probabilities [_U] of the batch's choices, without gradient."""
        parts: dict[int, torch.Tensor] = {}

        def visit(stage: TreeStage, past: list[Layers]) -> None:
            forward = self._forward(model, stage, past)
            for chunk in self._chunks(stage):
                hidden = forward.hidden[self._places(forward, stage, chunk)]
                parts[chunk.choices.start], _ = self._choices(model, hidden, chunk)
            for below in stage.below:
                visit(below, [*past, forward.kept])

        with torch.no_grad(), self._attend(model):
            for stage in self.stages:
                visit(stage, [])
        return torch.cat([parts[start] for start in sorted(parts)])

    def backward(self, model: PreTrainedModel, loss: ChunkLoss, *, entropy: bool = False) -> None:
        """Add the gradient of the losses of all chunks, which receive entropies if `entropy`."""

        def of(hidden: torch.Tensor, chunk: Chunk) -> torch.Tensor:
            return loss(chunk, *self._choices(model, hidden, chunk, entropy=entropy))

        with self._attend(model):
            for stage in self.stages:
                self._backward(model, of, stage, [])

    def _backward(
        self,
        model: PreTrainedModel,
        loss: Callable[[torch.Tensor, Chunk], torch.Tensor],
        stage: TreeStage,
        past: list[Layers],
    ) -> None:
        """Of one stage and those below it. `past` are leaves of the graph, which gather their gradients."""
        with recompute_layers(model):
            forward = self._forward(model, stage, past)
        chunks = self._chunks(stage)
        # There is nothing to add up.
        if len(chunks) == 1 and not stage.below:
            hidden = forward.hidden[self._places(forward, stage, chunks[0])]
            loss(hidden, chunks[0]).backward()
            return
        outputs: list[tuple[torch.Tensor, torch.Tensor]] = []  # with their gradients
        if chunks:
            outputs.append((forward.hidden, torch.zeros_like(forward.hidden)))
        for chunk in chunks:
            places = self._places(forward, stage, chunk)
            piece = forward.hidden.detach()[places].requires_grad_()
            loss(piece, chunk).backward()
            outputs[0][1].index_add_(0, places, piece.grad)  # type: ignore[arg-type]
        if stage.below:
            leaves = [(_leaf(key), _leaf(value)) for key, value in forward.kept]
            for below in stage.below:
                self._backward(model, loss, below, [*past, leaves])
            for kept, leaf in zip(chain.from_iterable(forward.kept), chain.from_iterable(leaves), strict=True):
                if leaf.grad is not None:
                    outputs.append((kept, leaf.grad))
        # No output needs a gradient where the head alone is trained, and no keys do below the first adapter.
        outputs = [(output, gradient) for output, gradient in outputs if output.requires_grad]
        if outputs:
            torch.autograd.backward([output for output, _ in outputs], [gradient for _, gradient in outputs])

    def _forward(self, model: PreTrainedModel, stage: TreeStage, past: list[Layers]) -> _Forward:
        if self.backend is None:
            return self._forward_padded(model, stage)
        hidden, kept = stage_hidden(model, self.batch.tree, stage, self.backend, past, keep=bool(stage.below))
        return _Forward(hidden, np.arange(len(hidden)), kept)

    def _forward_padded(self, model: PreTrainedModel, stage: TreeStage) -> _Forward:
        """Rows one below the other, padded on the right, where causal attention never looks.

        The last token of the longest predicts nothing, and is left out, unless it is the only one.
        """
        segments = self.batch.tree.segments[stage.first : stage.last]
        width = max(1, *(segment.end - segment.start - 1 for segment in segments))
        ids = np.zeros((len(segments), width + 1), np.int64)
        places = np.empty(stage.end - stage.start, np.int64)
        for row, segment in enumerate(segments):
            length = segment.end - segment.start
            ids[row, :length] = self.batch.tree.ids[segment.start : segment.end]
            places[segment.start - stage.start : segment.end - stage.start] = row * width + np.arange(length)
        hidden = hidden_states(model, torch.from_numpy(ids[:, :-1]).to(model.device))
        return _Forward(hidden.flatten(0, 1), places, [])

    def _places(self, forward: _Forward, stage: TreeStage, chunk: Chunk) -> torch.Tensor:
        """Where a chunk's heads are among the hidden states."""
        offsets = self.batch.heads[chunk.heads] - stage.start
        return torch.from_numpy(forward.places[offsets]).to(forward.hidden.device)

    def _chunks(self, stage: TreeStage) -> list[Chunk]:
        return list(self.batch.chunks(stage.start, stage.end, self.heads_at_once))

    def _choices(
        self, model: PreTrainedModel, hidden: torch.Tensor, chunk: Chunk, *, entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[_u] of a chunk's choices from the hidden states [_p, hidden] of its heads, at their temperatures.

        Their log-probabilities, and the entropies at their heads (in nats) if `entropy`.
        """
        batch = self.batch
        logits = at_least_single(head(model, hidden))
        temperatures = batch.temperatures[chunk.heads]
        if (temperatures != 1).any():
            logits = logits / logits.new_tensor(temperatures)[:, None]
        heads = torch.from_numpy(batch.choice_heads[chunk.choices] - chunk.heads.start).to(logits.device)
        ids = torch.from_numpy(batch.choice_ids[chunk.choices]).to(logits.device)
        logprobs = logits.log_softmax(-1)
        return logprobs[heads, ids], -(logprobs.exp() * logprobs).sum(-1)[heads] if entropy else None

    def _attend(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        return nullcontext() if self.backend is None else use_backend(model, self.backend)


def _leaf(given: torch.Tensor) -> torch.Tensor:
    """The same numbers as a leaf of the graph, to gather their gradient."""
    leaf = given.detach().contiguous().requires_grad_()
    # The gradient comes in slices of another one, which cannot be added to.
    leaf.register_hook(torch.Tensor.contiguous)
    return leaf


@contextmanager
def recompute_layers(model: PreTrainedModel) -> Iterator[None]:
    """Where gradient checkpointing is on, mark the layers it is for, and nothing inside them, as training.

    Transformers recomputes only what is in training; but dropout inside stays off, and the engine that shares the model
    needs its cache.
    """
    layers = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
    before = [layer.training for layer in layers]
    try:
        for layer in layers:
            layer.training = True
        yield
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.training = training


# -- a model in two halves ---------------------------------------------------------------------------------------------


def hidden_states(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Last hidden states [rows, _T, hidden]. Rows are padded on the right, where causal attention never looks."""
    return causal_lm(model).get_decoder()(input_ids=ids, use_cache=False).last_hidden_state


def head(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [..., _V] of hidden states."""
    return causal_lm(model).get_output_embeddings()(hidden)


def at_least_single(logits: torch.Tensor) -> torch.Tensor:
    """Logits of a half-precision model in single precision, where their softmax belongs; others as they are."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@torch.no_grad()
def require_plain_head(model: PreTrainedModel) -> None:
    """Refuse a model that changes hidden states before its head, or logits after it.

    In one forward pass the head answers with a ramp: an output that differs from it was scaled or capped, also where
    the model's own logits are too small to show it.
    """
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def answer(head: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        ramp = torch.linspace(-100, 100, output.numel(), device=output.device, dtype=output.dtype).view_as(output)
        seen.append((inputs[0], ramp))
        return ramp

    hook = causal_lm(model).get_output_embeddings().register_forward_hook(answer)
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    hidden, ramp = seen[0]
    expected = hidden_states(model, ids)
    if torch.allclose(hidden, expected, atol=1e-3, rtol=1e-2) and torch.allclose(logits.to(ramp), ramp):
        return
    raise UnsupportedError(
        f"{type(model).__name__} scales or caps its logits",
        code="unsupported-model",
        cause="the learner computes log-probabilities from the head on the last hidden states alone",
        fix="train a model that does neither (such as Llama, Qwen, Mistral, GPT-2)",
    )
