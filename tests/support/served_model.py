"""A real small chat model behind the test server: what vLLM with `return_token_ids` and run-time LoRA does, in little.

    model = ServedModel(save_model(tmp_path / "model"))
    with LLMServer(model) as server:
        model.adapters = server.adapters        # name -> path, as /v1/load_lora_adapter fills it

The planner is sampled; executor, verifier and generator are scripted. The model says a whole decision in one token, so
that a random model plans something, sometimes: training has outcomes to tell apart.
"""

from __future__ import annotations

import copy
import json
import threading
import warnings
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PhiConfig, PhiForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from midstream.core.protocols import Request
from midstream.core.trajectory import Sampling
from midstream.engines.transformers_local import generate, load_model
from support.llm_server import Body, completion, prompt_of

CALCULATE = "Sub-Goal: calculate\nTool Name: python\nContext: 1 + 1\n"
SEARCH = "Sub-Goal: look it up\nTool Name: local_search\nContext: height\n"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save_model(directory: Path) -> Path:
    """Write a random chat model with its tokenizer; returns the directory."""
    tokenizer = _make_tokenizer()
    torch.manual_seed(0)
    model = PhiForCausalLM(
        PhiConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=2048, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=None,
        )
    )  # fmt: skip
    with torch.no_grad():
        model.lm_head.weight.normal_(std=0.2)  # so that hidden states, and with them an adapter, can change the choice
        for piece in (CALCULATE, SEARCH, tokenizer.eos_token):
            model.lm_head.bias[tokenizer.convert_tokens_to_ids(piece)] = 6.0
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte pairs learnt from midstream's own prompts."""
    prompts = [file.read_text(encoding="utf-8") for file in (resources.files("midstream.agents") / "prompts").iterdir()]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        prompts, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    inner.add_special_tokens(["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"])
    inner.add_tokens([AddedToken(piece, normalized=False) for piece in (CALCULATE, SEARCH)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


class ServedModel:
    """The `reply` of an `LLMServer`."""

    def __init__(self, directory: Path) -> None:
        model, self.tokenizer = load_model(str(directory), "float32", "cpu")
        self._models: dict[str, PreTrainedModel] = {"": model}
        self.adapters: Mapping[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, body: Body) -> str | Body:
        text = prompt_of(body)
        role = text.partition("\n")[0].lstrip("# ").lower()
        if role == "planner":
            with self._lock:
                return self._plan(body)
        if role == "executor":
            return json.dumps({"code": "1 + 1"} if '"tool":"python"' in text else {"query": "height"})
        if role == "verifier":
            acted = '"status":"ok"' in text
            return json.dumps({"analysis": "seen", "result_valid": acted, "memory_sufficient": acted})
        return "<answer>2</answer>"

    def _plan(self, body: Body) -> Body:
        sampling = Sampling(temperature=body["temperature"], top_p=body["top_p"], max_tokens=body["max_tokens"])
        prompt = self.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=False)
        end = self.tokenizer.eos_token_id
        request = Request(role="planner", sampling=sampling, seed=body["seed"])
        [(ids, logprobs)] = generate(self._model(body["model"]), [(tuple(prompt), request)], end_ids=(end,))
        made: dict[str, Any] = completion(body, self.tokenizer.decode([one for one in ids if one != end]))
        if body.get("return_token_ids"):
            made["prompt_token_ids"], made["choices"][0]["token_ids"] = prompt, list(ids)
            made["choices"][0]["logprobs"] = {"content": [{"logprob": value} for value in logprobs]}
        return made

    def _model(self, name: str) -> PreTrainedModel:
        """The base model, or the base model with a loaded adapter."""
        if name in self.adapters and name not in self._models:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a retired name
                loaded = PeftModel.from_pretrained(copy.deepcopy(self._models[""]), self.adapters[name])
            self._models[name] = loaded.eval()
        return self._models.get(name, self._models[""])
