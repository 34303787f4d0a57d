"""Cost of a forward pass in floating-point operations, estimated from a model's shape: no clock, so choices repeat.

Counted are matrix products, two operations a multiply-add, of the forward pass; a backward pass is twice that
throughout, and changes no comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from midstream.prefix_tree.attention import Backend, causal_lm
from midstream.prefix_tree.tree import Ints, Tree

# Operations that a CPU core does in the time around one attention kernel; measured with a small planner.
CALL = 2_500_000
# Operations a token, two a weight: between the tiny planners and tiny_text, whose steps take half as long with a trie.
# With a smaller model an update takes a fraction of a second, and sampling spends its time on draws: little is to be
# gained, and what the tiny planners of the documented runs do stays the same to the bit.
SMALLEST = 1_500_000
BLOCKWISE: tuple[Backend, ...] = ("cascade", "gather")  # back ends that make a call a segment


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Operations of a model per token (all its layers' matrices), per attention pair and per predicted token.

    `call` stands for the time around one attention kernel in every layer. `vocabulary` counts a head's logits.
    """

    token: int
    pair: int
    predicted: int
    call: int
    vocabulary: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Cost:
        """From the sizes of a model's matrices."""
        lm = causal_lm(model)
        config = lm.config.get_text_config()
        embeddings = lm.get_input_embeddings().weight.numel()
        vocabulary, width = lm.get_output_embeddings().weight.shape
        matrices = sum(weight.numel() for weight in lm.get_decoder().parameters() if weight.dim() > 1)
        return cls(
            token=2 * (matrices - embeddings),
            pair=4 * config.hidden_size * config.num_hidden_layers,
            predicted=2 * vocabulary * width,
            call=CALL * config.num_hidden_layers,
            vocabulary=vocabulary,
        )

    @property
    def counts(self) -> bool:
        """True if the model is large enough for its cost to count; if not, batches are padded, whatever they share."""
        return self.token >= SMALLEST

    def trie(self, tree: Tree, backend: Backend) -> int:
        """Of a trie's tokens, each once."""
        inner = sum(segment.subtree_end > segment.end for segment in tree.segments)
        calls = len(tree.segments) + inner if backend in BLOCKWISE else 1
        return tree.unique * self.token + tree.pairs * self.pair + calls * self.call

    def padded(self, rows: int, longest: int) -> int:
        """Of rows that are padded to one length."""
        return rows * (longest * self.token + longest * (longest + 1) // 2 * self.pair) + self.call

    def work(self, tree: Tree, predicted: Ints) -> NDArray[np.float64]:
        """Each packed token's operations in units of a token's matrices: float64 [_N].

        `predicted` are the packed indices that the language-model head runs at, each once.
        """
        work = np.asarray(1 + (tree.positions + 1) * (self.pair / self.token), np.float64)
        np.add.at(work, predicted, self.predicted / self.token)
        return work
