"""The engine over verl's token servers: what it asks, what it records, and what it refuses."""

import asyncio
from types import SimpleNamespace

import pytest

from midstream.core.engine import Request
from midstream.core.trajectory import Sampling
from midstream.engines.local.codec import TokenizerCodec
from midstream_verl.engine import VerlEngine
from midstream_worlds.tiny_text.tokenizer import load_tokenizer
from support.errors import raises

CODEC = TokenizerCodec(load_tokenizer())
PROMPT = tuple(CODEC.encode_text("What is it?"))


class Client:
    """Answers with the tokens of `text`, and keeps what it was asked."""

    def __init__(self, text="a tower</s> and more", *, ended=False, logprobs=None, error=None):
        ids = [*CODEC.encode_text(text), *(CODEC.end_ids[:1] if ended else ())]
        self.output = SimpleNamespace(
            token_ids=ids, log_probs=[-0.5] * len(ids) if logprobs is None else logprobs, stop_reason="completed"
        )
        self.error = error

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.asked = prompt_ids, sampling_params
        if self.error is not None:
            raise self.error
        return self.output


def sample(client, *, context=100, keep_stop=False, **sampling):
    engine = VerlEngine(client, CODEC, name="policy", context=context)
    engine.policy_version = 7
    request = Request(role="planner", prompt_ids=PROMPT, sampling=Sampling(**sampling), keep_stop=keep_stop)
    return asyncio.run(engine.sample(request))


def test_ids_go_out_and_come_in_with_their_logprobs():
    client = Client("a tower", ended=True)
    call = sample(client, temperature=0.7, max_tokens=9)
    prompt, settings = client.asked
    assert tuple(prompt) == PROMPT == call.prompt_ids
    assert (settings["temperature"], settings["top_p"], settings["max_tokens"]) == (0.7, 1.0, 9)
    assert call.completion_ids == tuple(client.output.token_ids)
    assert call.logprobs == tuple(client.output.log_probs)
    assert (call.completion, call.finish_reason, call.policy_version) == ("a tower", "stop", 7)


@pytest.mark.parametrize(("keep_stop", "text"), [(False, "a tower"), (True, "a tower</s> and more")])
def test_the_text_ends_at_a_stop_string(keep_stop, text):
    client = Client()
    call = sample(client, keep_stop=keep_stop, stop=("</s>",), max_tokens=40)
    assert client.asked[1]["stop"] == ["</s>"]
    assert (call.completion, call.finish_reason) == (text, "stop")


def test_a_reply_that_tokens_ended_is_cut_off():
    assert sample(Client("a tower"), max_tokens=9).finish_reason == "length"


def test_what_exceeds_the_context_is_refused_before_it_is_sent():
    client = Client()
    with raises("prompt-too-long", len(PROMPT)):
        sample(client, context=len(PROMPT) + 8, max_tokens=9)
    assert not hasattr(client, "asked")


def test_a_server_that_fails_is_an_infrastructure_error():
    with raises("endpoint-failed", "actor died"):
        sample(Client(error=RuntimeError("actor died")), max_tokens=9)


def test_tokens_without_logprobs_are_an_error():
    with raises("token-ids-missing", "0 log-probabilities"):
        sample(Client(logprobs=[]), max_tokens=9)
