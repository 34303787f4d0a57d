"""A real small chat model behind the test server: what vLLM with `return_token_ids` and run-time LoRA does, in little.

    model = ServedModel(save_model(tmp_path / "model"))
    with LLMServer(model) as server:
        model.adapters = server.adapters        # name -> path, as /v1/load_lora_adapter fills it

The planner is sampled; executor, verifier and generator are scripted. The model says a whole decision in one token, so
that a random model plans something, sometimes: training has different outcomes. vLLM itself can serve it too.
"""

from __future__ import annotations

import copy
import json
import threading
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import torch
from peft import PeftModel
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from midstream.components.component import Context, RewardConfig
from midstream.core.engine import Request
from midstream.core.task import Task
from midstream.core.trajectory import Sampling, Score, Trajectory
from midstream.engines.local.engine import generate
from midstream.engines.local.pretrained import load_model
from midstream_worlds.tiny_text.model import make_model
from midstream_worlds.tiny_text.settings import TinyTextConfig
from midstream_worlds.tiny_text.tokenizer import load_tokenizer
from support.llm_server import Body, prompt_of

CALCULATE = "Sub-Goal: calculate\nTool Name: python\nContext: 1 + 1\n"
SEARCH = "Sub-Goal: look it up\nTool Name: local_search\nContext: height\n"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


RECIPE = """
name = "over-http"
seed = 1
tasks = {{ type = "gazetteer", families = ["arith"], countries = 40 }}
reward = {{ type = "calculates" }}

[agent]
max_turns = 2
planner = {{ type = "prompted", engine = "policy", sampling = {{ temperature = 0.8, max_tokens = 4 }} }}
executor = {{ type = "prompted", engine = "server" }}
verifier = {{ type = "prompted", engine = "server" }}
generator = {{ type = "prompted", engine = "server" }}

[engines]
policy = {{ type = "openai_compatible", model = "m", base_url = "{policy_url}", token_ids = {exact}, max_attempts = 2 }}
server = {{ type = "openai_compatible", model = "m", base_url = "{url}" }}
weights = {{ type = "transformers_local", model = "{model}" }}

[tools]
local_search = {{ match = "any" }}
python = {{}}

[learner]
lora = {{ rank = 4, alpha = 8 }}

[training]
weights = "weights"
steps = 4
tasks_per_step = 3
group_size = 4
minibatches = 1
learning_rate = 3e-2
warmup_steps = 1
checkpoint_every = 2
validate_every = 4

[evaluation]
temperatures = [0.8]
validation = {{ name = "validation", split = "validation", per_family = 2, seed = 7 }}
sets = [{{ name = "test", split = "test", per_family = 4 }}]
"""


class Calculates:
    """The share of turns that used Python: an outcome that a random planner can reach and learn."""

    name, judged = "calculates", False

    def check(self, task: Task) -> None:
        pass

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        tools = [turn.action.tool for turn in trajectory.turns if turn.action]
        return Score(value=tools.count("python") / len(tools))

    async def close(self) -> None:
        pass


class CalculatesConfig(RewardConfig):
    """No settings."""

    def build(self, context: Context) -> Calculates:
        return Calculates()


def write_recipe(directory: Path, url: str, model: Path, *, policy_url: str = "", token_ids: bool = True) -> Path:
    """Write `RECIPE` for a planner served at `policy_url` (else at `url`, as the other modules); returns its path."""
    path = directory / "over-http.toml"
    path.write_text(
        RECIPE.format(url=url, policy_url=policy_url or url, model=model, exact=str(token_ids).lower()),
        encoding="utf-8",
    )
    return path


def save_shipped_weights(directory: Path) -> Path:
    """Save the small language model that comes with midstream as a Hugging Face directory; returns it."""
    tokenizer = load_tokenizer()
    make_model(TinyTextConfig(weights="atlas"), tokenizer, seed=0).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def save_model(
    directory: Path, seed: int = 0, *, pieces: Sequence[str] = (CALCULATE, SEARCH), positions: int = 2048
) -> Path:
    """Write a random chat model that says each of `pieces` in one token, and often; returns the directory."""
    tokenizer = _make_tokenizer(pieces)
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, intermediate_size=64, max_position_embeddings=positions, tie_word_embeddings=False,
            bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=None,
        )
    )  # fmt: skip
    with torch.no_grad():
        model.lm_head.weight.normal_(std=0.1)  # so that hidden states, and with them an adapter, can change the choice
        model.model.embed_tokens.weight[:, 0] = 0.2  # one feature is the same at every token: a bias for the head
        for piece in (*pieces, tokenizer.eos_token):
            model.lm_head.weight[tokenizer.convert_tokens_to_ids(piece), 0] += 1.1
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _make_tokenizer(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """Byte pairs learnt from midstream's own prompts, in a fixed order."""
    files = resources.files("midstream.agents") / "prompts"
    prompts = [(files / f"{role}.md").read_text(encoding="utf-8") for role in ("planner", "verifier", "generator")]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        prompts, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    inner.add_special_tokens(["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"])
    inner.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
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
        ids = body.get("prompt")
        text = self.tokenizer.decode(ids).removeprefix("<|system|>") if isinstance(ids, list) else prompt_of(body)
        role = text.partition("\n")[0].lstrip("# ").lower()
        if role == "planner":
            with self._lock:
                return self._plan(body)
        if role == "executor":
            return json.dumps({"code": "1 + 1"} if '"tool":"python"' in text else {"query": "height"})
        if role == "verifier":
            newest = [line for line in text.splitlines() if line.startswith('{"turn":')][-1]
            acted = "error" not in json.loads(newest)
            return json.dumps({"analysis": "seen", "result_valid": acted, "memory_sufficient": acted})
        return "<answer>2</answer>"

    def _plan(self, body: Body) -> Body:
        sampling = Sampling(temperature=body["temperature"], top_p=body["top_p"], max_tokens=body["max_tokens"])
        prompt = body.get("prompt") or self.tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_dict=False
        )
        end = self.tokenizer.eos_token_id
        request = Request(role="planner", sampling=sampling, seed=body["seed"])
        [(ids, logprobs)] = generate(self._model(body["model"]), [(tuple(prompt), request)], end_ids=(end,))
        text = self.tokenizer.decode([one for one in ids if one != end])
        choice: Body = {"index": 0, "finish_reason": "stop" if ids[-1] == end else "length"}
        if "messages" in body:
            choice |= {"message": {"role": "assistant", "content": text}}
            choice["logprobs"] = {"content": [{"logprob": value} for value in logprobs]}
        else:
            choice |= {"text": text, "logprobs": {"token_logprobs": logprobs}}
        made: Body = {"model": body["model"], "choices": [choice]}
        made["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        if body.get("return_token_ids"):
            choice["token_ids"] = list(ids)
            (made if "messages" in body else choice)["prompt_token_ids"] = prompt
        return made

    def _model(self, name: str) -> PreTrainedModel:
        """The base model, or the base model with a loaded adapter."""
        if name in self.adapters and name not in self._models:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a retired name
                loaded = PeftModel.from_pretrained(copy.deepcopy(self._models[""]), self.adapters[name])
            self._models[name] = loaded.eval()
        return self._models.get(name, self._models[""])
