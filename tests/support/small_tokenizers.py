"""Real fast tokenizers, trained in a moment, and chat templates as the families of chat models have them."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = (
    "<think>2 apples and 3</think><python>print(2 + 3)</python><output>5</output><answer>5</answer>",
    "How high is the tower? It is 324 metres high, says the page.\nuser\nassistant\nsystem\ntool\n",
)
WORDS = Regex(r" ?[^\s\p{L}\p{N}]+[\r\n]*|\p{N}| ?\p{L}+|\s+")  # line breaks belong to the sign before them
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|head|>", "<|/head|>", "<|eot|>")

# As Qwen's: a default system message, tools in it, results of tools in one message of the user, old thoughts left out.
CHATML = """
{%- if messages[0].role != 'system' or tools %}
{{- '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else 'Be helpful.') }}
{%- if tools %}{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
{%- set thought_away = m.content.split('</think>')[-1] %}
{%- if m.role == 'tool' %}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- elif m.role != 'system' or not tools %}
{{- '<|im_start|>' + m.role + '\n' + (thought_away if m.role == 'assistant' else m.content) + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if thoughts %}{{ '<think>\n' }}{% endif %}{% endif %}
"""
# As Llama's: headers, contents without outer spaces, what a tool said as JSON.
HEADERS = """
{%- for m in messages %}
{{- '<|head|>' + m.role + '<|/head|>\n\n' }}
{{- (m.content | tojson if m.role == 'tool' else m.content | trim) + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\n\n' }}{% endif %}
"""
# As Mistral's first: who speaks is not named, user and assistant take turns, and nobody else speaks.
STRICT = """
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{{- '[INST] ' + m.content + ' [/INST]' if m.role == 'user' else ' ' + m.content + '<|endoftext|>' }}
{%- endfor %}
"""
# Passes over what it does not know.
FORGETFUL = """
{%- for m in messages if m.role in ('user', 'assistant') %}{{ m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}
"""


def byte_pairs(
    template: str | None = None, *, end: str = "<|im_end|>", texts: Sequence[str] = TEXTS, size: int = 400
) -> PreTrainedTokenizerFast:
    """Byte pairs as Llama 3 and Qwen have them, learnt from `texts`; <tool_call> is one token, not special."""
    inner = Tokenizer(models.BPE())
    parts = [pre_tokenizers.Split(WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    inner.pre_tokenizer = pre_tokenizers.Sequence(parts)  # type: ignore[assignment]
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    inner.train_from_iterator(texts, trainer)
    inner.add_special_tokens(list(SPECIAL))
    inner.add_tokens([AddedToken("<tool_call>", normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end)
    tokenizer.chat_template = template
    return tokenizer


def sentence_pieces() -> PreTrainedTokenizerFast:
    """As Llama 2's: a space is put before every text, and taken off when it is decoded."""
    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    inner.normalizer = normalizers.Sequence(spaces)  # type: ignore[assignment]
    steps = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    inner.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>")
