"""A plain decoder, new, with initial weights that copy.

Copying a name that was never seen is what a small model learns slowest. From ordinary random weights a model of 1 M
parameters copies no name after 0.3 M tokens of training; from `copying_weights` it copies most of them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from midstream_worlds.tiny_text.settings import TinyTextConfig
from midstream_worlds.tiny_text.tokenizer import END_ID, PAD_ID

ATLAS_WEIGHTS = Path(__file__).with_name("atlas.safetensors")  # by scripts/text_weights.py
ROPE_BASE = 1e6
# Of `copying_weights`: scores in nats of attention, and sizes of what is written next to embeddings of size 1.
BEHIND = 4.2  # by how much the places next to the right one score less, looking back
MATCH = 12.0  # how much more a key of the same tokens scores than one of other tokens
WRITE_BEFORE = 1.5  # by the first layer, of the tokens before
WRITE_FOUND = 6.0  # by the heads that find what followed the same tokens
WRITE_ATTENDED = 3.0  # by all other heads
WRITE_MLP = 0.3
FAST = 0.01  # radians a token: rotary frequencies above depend on distance, those below hardly move over a prompt


def make_model(config: TinyTextConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A decoder for the tokenizer with the weights that `config.weights` names, new ones or those of midstream."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(  # of Qwen2, the same decoder, AutoTokenizer would replace the tokenizer by Qwen's
        LlamaConfig(
            attention_bias=True,
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            intermediate_size=3 * config.hidden_size,
            max_position_embeddings=config.max_positions,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
            tie_word_embeddings=True,
            initializer_range=config.hidden_size**-0.5,
            pad_token_id=PAD_ID,
            bos_token_id=None,
            eos_token_id=END_ID,
        )
    )
    if config.weights == "atlas":
        safetensors.torch.load_model(model, ATLAS_WEIGHTS)  # float16, into float32
    else:
        copying_weights(model)
    model.generation_config.do_sample = True  # or `transformers serve` is greedy at any temperature
    return model.eval()


@torch.no_grad()
def copying_weights(model: PreTrainedModel) -> None:
    """Change the random weights of a new decoder (Llama with attention biases, or Qwen2) in place, so that it copies.

    A model copies with two layers of attention: the first looks at the tokens before, the second finds an earlier
    place where the same tokens stood before and attends to what followed there ("induction heads", arXiv 2209.11895).
    Training from random weights finds that late; here it is in the weights before any training.

    - Layer 0 looks back one token (even heads) and two (odd heads), by the biases of its queries and keys alone. RoPE
      turns a constant query and key into a sum of cosines of their distance, and the phases of the query put its peak
      at 1 or 2. Only fast frequencies take part. Each head writes what it saw through a random orthogonal basis U, into
      a subspace of its own, where later layers can read it apart from the token here.
    - Layer 1, the first half of its heads: half of a head's dimensions compare the token here with the token before a
      place, the other half the token before with the token two before that place. A place scores most where both match,
      so names that share a piece are kept apart. Only slow frequencies take part: a match must not depend on how far
      away it is.
    - Input and output embeddings are one matrix, and every attention output is the transpose of its value projection,
      so that attending to a token raises its logit.
    - Sizes decide. Where heads and MLPs write at their usual size, they drown the embeddings that queries and keys
      compare, and the second layer attends to nothing: that learns more slowly than plain random weights.

    Needs two layers at least and an even number of heads. With heads of 32 dimensions, of 16 frequencies 6 are fast.
    """
    config: Any = model.config
    hidden, heads = config.hidden_size, config.num_attention_heads
    size = hidden // heads
    pairs = torch.arange(size // 2)
    frequencies = config.rope_parameters["rope_theta"] ** (-pairs / (size // 2))
    fast = (frequencies > FAST).float()
    unit = hidden**-0.5  # standard deviation of a vector of size 1
    decoder: Any = model.model
    decoder.embed_tokens.weight.normal_(0, unit)
    for layer in decoder.layers:
        attention = layer.self_attn
        torch.nn.init.orthogonal_(attention.v_proj.weight)
        attention.o_proj.weight.copy_(attention.v_proj.weight.T * WRITE_ATTENDED * unit)
        layer.mlp.down_proj.weight *= WRITE_MLP * unit

    # A head's dimensions by what they compare (RoPE turns dimension i with dimension i + size / 2).
    here, before = ((1 - fast) * (pairs % 2 == parity) for parity in (0, 1))
    here, before = here.repeat(2).bool(), before.repeat(2).bool()
    written = here | before
    first, second = decoder.layers[0].self_attn, decoder.layers[1].self_attn
    rows = [slice(head * size, (head + 1) * size) for head in range(heads)]
    # The basis is orthogonal to what the second layer reads of the token here: what is written does not blur it.
    read = torch.cat([first.v_proj.weight[rows[head]][here] for head in range(0, heads, 2)])
    basis = torch.linalg.qr(torch.cat([read.T, torch.randn(hidden, hidden - len(read))], 1))[0][:, len(read) :]
    written_by = basis[:, : heads * int(written.sum())].chunk(heads, 1)

    # Scores are divided by sqrt(size). A place next to the right one has the sum of cos(frequency), not of 1.
    bias = math.sqrt(BEHIND * math.sqrt(size) / (fast * (1 - frequencies.cos())).sum().item())
    for head in range(heads):
        distance = 1 + head % 2
        phase = frequencies * distance
        first.q_proj.weight[rows[head]] *= 0.1
        first.k_proj.weight[rows[head]] *= 0.1
        first.k_proj.bias[rows[head]] = bias * torch.cat([fast, 0 * fast])
        first.q_proj.bias[rows[head]] = bias * torch.cat([fast * phase.cos(), -fast * phase.sin()])
        if distance == 2:  # both of a pair write the same part of a token, so that one can be compared with the other
            first.v_proj.weight[rows[head]] = first.v_proj.weight[rows[head - 1]]
        first.o_proj.weight[:, rows[head]] = 0
        first.o_proj.weight[:, rows[head]][:, written] = written_by[head] * WRITE_BEFORE * unit

    # After the norm, a dimension of the token here has size `token`, one that was written `wrote`.
    token = 1 / math.sqrt(1 + WRITE_BEFORE**2 * written.float().mean().item())
    wrote = WRITE_BEFORE * token
    for head in range(heads // 2):
        one, two = (torch.zeros(size, hidden) for _ in range(2))
        one[written], two[written] = written_by[2 * head].T, written_by[2 * head + 1].T
        query, key = (getattr(second, name).weight[rows[head]] for name in ("q_proj", "k_proj"))
        second.o_proj.weight[:, rows[head]] *= WRITE_FOUND / WRITE_ATTENDED
        query.zero_()
        key.zero_()
        query[here] = first.v_proj.weight[rows[2 * head]][here] / token
        key[here] = one[here] / wrote
        query[before] = one[before] / wrote
        key[before] = two[before] / wrote
        for part in (here, before):
            scale = math.sqrt(MATCH / 2 * math.sqrt(size) / int(part.sum()))
            query[part] *= scale
            key[part] *= scale
