"""The small language model: a name is the same tokens everywhere, weights that copy, a chat template as any model's."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from midstream.core.engine import Request
from midstream.core.stream_template import load_template
from midstream.core.trajectory import Call, Message
from midstream.engines.local.codec import TokenizerCodec
from midstream_worlds.tiny_text.model import make_model
from midstream_worlds.tiny_text.settings import TinyTextConfig
from midstream_worlds.tiny_text.tokenizer import SPECIAL, TAGS, load_tokenizer
from support.errors import raises
from support.interleaved import Shout, play

TOKENIZER = load_tokenizer()
CODEC = TokenizerCodec(TOKENIZER, "policy")
NATIVE = load_template("native")
NAMES = ("Kyoto", "New Jyväskylä", "Saint Ouagadougou", "Port-Vila", "Zürich", "Rio de Janeiro", "O'Higgins", "Ávila 7")
CONTEXT: Any = SimpleNamespace(name="policy", recipe=SimpleNamespace(warm_seed=0))
SHAPES = [TinyTextConfig(), TinyTextConfig(hidden_size=256, layers=6, heads=8)]


def tokens(text: str) -> list[str]:
    return TOKENIZER.convert_ids_to_tokens(TOKENIZER.encode(text, add_special_tokens=False))


# -- tokenizer -------------------------------------------------------------------------------------------------------


@given(
    st.text()
    | st.lists(st.sampled_from([*SPECIAL, *TAGS, *NAMES, " ", "  ", "\n", '"', "'s", '": {"', "42"])).map("".join)
)
def test_any_text_comes_back(text: str):
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text
    ids = CODEC.encode_text(text)
    assert CODEC.tokenizer.decode(ids) == text
    assert not {TOKENIZER.convert_tokens_to_ids(mark) for mark in SPECIAL} & set(ids)


@pytest.mark.matrix(3)
@given(st.sampled_from(NAMES) | st.from_regex(r"[A-ZÄÖÜÉŁÑ][a-zäöüéłñßœ]{0,12}", fullmatch=True))
@pytest.mark.parametrize(
    ("before", "after"), [(" ", "."), ('"', '"}}'), ("(", ")"), ("[", "]"), (" ", "'s"), ('": "', " height"), ("", "?")]
)
def test_a_name_is_the_same_tokens_everywhere(before: str, after: str, name: str):
    found = tokens(f"of{before}{name}{after}")
    own = tokens(name)
    assert any(found[i : i + len(own)] == own for i in range(len(found)))


def test_marks_are_one_token_each_and_tags_are_not_special():
    added = {token.content: token.special for token in TOKENIZER.added_tokens_decoder.values()}
    assert added == dict.fromkeys(SPECIAL, True) | dict.fromkeys(TAGS, False)
    assert [tokens(f"a{mark}b") for mark in added] == [["a", mark, "b"] for mark in added]


def test_digits_are_single_and_json_comes_in_runs():
    assert tokens("1234.5") == ["1", "2", "3", "4", ".", "5"]
    assert tokens('{"name": "python", "arguments": {"code": "1 + 2"}}') == [
        *('{"', "name", '":Ġ"', "python", '",Ġ"', "arguments", '":Ġ{"', "code", '":Ġ"', "1", "Ġ", "+", "Ġ", "2", '"}}')
    ]


# -- chat template ---------------------------------------------------------------------------------------------------


class Says:
    """A model that says the replies, each to its end token."""

    name, token_exact, codec = "says", True, CODEC

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []

    async def sample(self, request: Request) -> Call:
        self.requests.append(request)
        text = self.replies.pop(0)
        return Call(
            role=request.role,
            prompt_ids=request.prompt_ids,
            completion=text,
            completion_ids=(*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id),
            finish_reason="stop",
            sampling=request.sampling,
        )

    async def close(self) -> None: ...


def call_of(code: str) -> str:
    return f'<tool_call>{{"name": "a", "arguments": {{"code": "{code}"}}}}</tool_call>'


@pytest.mark.parametrize("system", ["", NATIVE.system])
def test_a_stream_is_the_ids_of_its_conversation(system: str):
    """Thoughts, one call, two calls, an answer: read by the agent, and rendered from the start by the chat template."""
    engine = Says(
        f"<think>Ávila first.</think>{call_of('Ávila <|end|>')}", f"{call_of('1')}{call_of('2')}", "<think>so</think>42"
    )
    trajectory = play(engine, template=NATIVE.model_copy(update={"system": system}), tools=[Shout("a")])
    assert trajectory.answer == "42"
    assert [turn.observation.status for turn in trajectory.turns] == ["ok"] * 3
    last = trajectory.calls[-1]
    messages = [
        message.wire()
        for message in (*engine.requests[-1].messages, Message(role="assistant", content=last.completion))
    ]
    tools = [dict(tool) for tool in engine.requests[-1].tools]
    whole = TOKENIZER.apply_chat_template(messages, tools=tools, return_dict=False)
    assert whole == [*last.prompt_ids, *last.completion_ids]


def test_calls_are_rendered_from_fields_as_from_text():
    function = {"name": "a", "arguments": {"code": "Ávila"}}
    said = {"role": "assistant", "content": "<think>hm</think>"}
    fields = {**said, "tool_calls": [{"type": "function", "function": function}]}
    as_json = {**said, "tool_calls": [{"function": {"name": "a", "arguments": '{"code": "Ávila"}'}}]}
    text = {"role": "assistant", "content": f"<think>hm</think>{call_of('Ávila')}"}
    rendered = [TOKENIZER.apply_chat_template([message], tokenize=False) for message in (fields, as_json, text)]
    assert rendered == [f"<|assistant|><think>hm</think>{call_of('Ávila')}<|end|>"] * 3


def test_tools_are_offered_in_the_form_of_calls():
    offered = [{"type": "function", "function": {"name": "a", "parameters": dict(Shout("a").parameters)}}]
    user = {"role": "user", "content": "How?"}
    text = TOKENIZER.apply_chat_template([user], tools=offered, tokenize=False, add_generation_prompt=True)
    assert text == '<|system|>{"name": "a", "arguments": {"code": "string"}}<|end|><|user|>How?<|end|><|assistant|>'
    rules = {"role": "system", "content": "Rules."}
    assert TOKENIZER.apply_chat_template([rules, user], tools=offered, tokenize=False) == (
        '<|system|>Rules.\n{"name": "a", "arguments": {"code": "string"}}<|end|><|user|>How?<|end|>'
    )


# -- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=["1M", "5M"])
def test_new_weights_copy(shape: TinyTextConfig):
    """Random tokens said twice: layer 0 looks one and two back, layer 1 at what followed the first time."""
    model = make_model(shape, TOKENIZER, seed=0)
    model.set_attn_implementation("eager")
    once = torch.randint(len(SPECIAL + TAGS), len(TOKENIZER), (8, 48), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        output = model(torch.cat([once, once], 1), output_attentions=True)
    looking, finding = output.attentions[:2]  # [8, heads, 96, 96] each
    for head in range(shape.heads):
        back = 1 + head % 2
        assert looking[:, head].diagonal(-back, 1, 2)[:, 2:].mean() >= 0.9
    for head in range(shape.heads // 2):
        followed = finding[:, head].diagonal(-47, 1, 2)[:, 1:]  # [8, 48]
        assert followed.mean() >= 0.3
    assert (output.logits[:, 48:-1].argmax(-1) == once[:, 1:]).float().mean() >= 0.25


def test_a_saved_model_is_an_ordinary_directory(tmp_path):
    model = make_model(SHAPES[0], TOKENIZER, seed=3)
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    engine = TinyTextConfig(weights=tmp_path).build(CONTEXT)
    text = f"<|user|>How high is New Jyväskylä?<|end|><|assistant|><think>{call_of('Kyoto 42')}"
    ids = torch.tensor([TOKENIZER.encode(text)])
    with torch.inference_mode():
        logits = model(ids).logits
        for other, tokenizer in (
            (AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)),
            (engine.model, engine.tokenizer),
        ):
            assert tokenizer.encode(text) == ids[0].tolist()
            assert tokenizer.chat_template == TOKENIZER.chat_template
            assert torch.equal(other(ids).logits, logits)


def test_weights_that_are_no_saved_model_are_refused(tmp_path):
    missing = tmp_path / "policy"
    with raises("file-not-found", str(missing)):
        TinyTextConfig(weights=missing).build(CONTEXT)
    missing.mkdir()
    with raises("model-not-loaded", str(missing)):
        TinyTextConfig(weights=missing).build(CONTEXT)
    make_model(SHAPES[0], TOKENIZER, seed=0).save_pretrained(missing)
    other = copy.deepcopy(TOKENIZER)
    other.add_tokens("Kyoto")
    other.save_pretrained(missing)
    with raises("model-not-loaded", str(missing), len(TOKENIZER), len(other)):
        TinyTextConfig(weights=missing).build(CONTEXT)


def test_a_device_that_is_not_there_is_refused():
    with raises("no-device", "nowhere"):
        TinyTextConfig(device="nowhere").build(CONTEXT)


@pytest.mark.parametrize("sizes", [{"heads": 3}, {"hidden_size": 100}, {"heads": 16}, {"layers": 1}])
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int]):
    with pytest.raises(ValidationError):
        TinyTextConfig(**sizes)


# -- the shipped file ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_tokenizer_is_made_to_the_byte():
    script = Path(__file__).parents[3] / "scripts" / "tokenizer.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True)
