"""Small random Hugging Face chat models of several families, saved as a user would have them.

directory = save_chat_model(tmp_path / "model", "qwen3")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as hf  # loads a class where it is first used: gemma3's take seconds
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

POSITIONS = 64
SPECIAL = ("<pad>", "<eos>", "<|system|>", "<|user|>", "<|assistant|>", "<think/>")
VOCABULARY = (*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()))
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think/>"
    "{% endif %}{% endif %}"
)
_SHARED: Mapping[str, Any] = {
    "vocab_size": len(VOCABULARY), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": POSITIONS, "initializer_range": 0.3,
    "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
_HEADS: Mapping[str, Any] = {**_SHARED, "head_dim": 8}
_MIXED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES: Mapping[str, Callable[[], hf.PreTrainedModel]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_SHARED)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**_SHARED)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_HEADS)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**_SHARED, sliding_window=8)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**_HEADS, **_MIXED, query_pre_attn_scalar=8)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**_HEADS, **_MIXED, query_pre_attn_scalar=8)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=len(VOCABULARY), n_embd=16, n_layer=2, n_head=2, n_positions=POSITIONS, initializer_range=0.3,
            bos_token_id=1, eos_token_id=1,
        )
    ),
}  # fmt: skip


def save_chat_model(directory: Path, family: str, *, seed: int = 0, template: str | None = TEMPLATE) -> Path:
    """Write a random model, a tokenizer of bytes and a chat template; returns the directory."""
    # Byte-level BPE: transformers reads any tokenizer of a Qwen2 as one, whatever was saved.
    inner = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(VOCABULARY)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    inner.add_special_tokens(list(SPECIAL))
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = template
    torch.manual_seed(seed)
    FAMILIES[family]().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@torch.no_grad()
def forward_logprobs(
    model: Any, prompt: tuple[int, ...], completion: tuple[int, ...], temperature: float = 1.0
) -> list[float]:
    """Of a completion's tokens, by one plain forward pass over its own sequence alone."""
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()
