"""GGUF files of tiny Hugging Face models, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer

Q = gguf.GGMLQuantizationType
_PARTS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write_gguf(
    directory: str,
    path: Path,
    *,
    kind: Any = Q.F32,
    architecture: str = "",
    tokenizer: bool = True,
    split: str = "qwen2",
    only: str = "",
    settings: dict[str, str] | None = None,
    heads_by_layer: bool = False,
    extra: str = "",
) -> Path:
    """Write the model of a directory; matrices have quantization `kind`, `only` those whose name has that part.

    `extra`: the name of one more tensor.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(directory)
    config = model.config
    name = architecture or config.model_type
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    head_count = config.num_attention_heads
    writer.add_head_count([head_count] * config.num_hidden_layers if heads_by_layer else head_count)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if config.model_type == "qwen3":
        writer.add_key_length(config.head_dim)
    for key, value in (settings or {}).items():
        writer.add_string(f"{name}.{key}", value)
    if tokenizer:
        _add_tokenizer(writer, directory, split)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for long_name, tensor in model.state_dict().items():
        value = tensor.float().numpy()
        part = long_name.split(".")[-2]
        if config.model_type == "llama" and part in heads:
            value = value.reshape(heads[part], 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
        short = long_name
        for theirs, ours in sorted(_PARTS.items(), key=lambda pair: -len(pair[0])):
            short = short.replace(f"{theirs}.", f"{ours}.")
        short = short.replace("model.layers.", "blk.")
        quantized = kind if value.ndim == 2 and only in short and value.shape[-1] % 32 == 0 else Q.F32
        writer.add_tensor(short, gguf.quants.quantize(np.ascontiguousarray(value), quantized), raw_dtype=quantized)
    if extra:
        writer.add_tensor(extra, np.ones(config.hidden_size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any, directory: str, split: str) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = set(tokenizer.all_special_tokens) | set(tokenizer.added_tokens_encoder)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    types = (gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens)
    writer.add_token_types(list(types))
    # Its pairs are found from scores where it has no merges.
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
