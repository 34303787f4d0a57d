"""The providers' own libraries speak to a server whose every answer the gateway's modules write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from midstream.gateway import anthropic_messages, chat_completions, responses
from midstream.gateway.forms import ChatReply, FormError

APIS = {
    "/v1/chat/completions": chat_completions,
    "/v1/responses": responses,
    "/v1/messages": anthropic_messages,
}
HI: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def address(full: ChatReply) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        """Answers every request with the same reply; one whose model is "broken" breaks after its stream began."""

        def do_POST(self) -> None:
            api = APIS[self.path.partition("?")[0]]
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                asked = api.read(body)
            except FormError as error:
                self.answer(error.status, json.dumps(api.error(error)))
                return
            if not asked.stream:
                self.answer(200, json.dumps(api.write(full)))
            elif asked.model == "broken":
                self.answer(
                    200,
                    api.heartbeat + api.error_event(FormError("engine", "it is broken", None, status=500)),
                    "event-stream",
                )
            else:
                blocks = api.heartbeat.join(["", *api.Stream(asked).end(full)])
                self.answer(200, blocks, "event-stream")

        def answer(self, status: int, text: str, kind: str = "json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if kind == "json" else f"text/{kind}")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_openai_chat_completions(address: str, full: ChatReply) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    reply = client.chat.completions.create(model="m", messages=HI).choices[0].message
    with client.chat.completions.stream(model="m", messages=HI, stream_options={"include_usage": True}) as stream:
        whole = stream.get_final_completion()
    assert whole.usage.total_tokens == 14
    for message in (reply, whole.choices[0].message):
        assert message.content == full.text
        assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == [
            (use.id, use.name, use.arguments) for use in full.tool_uses
        ]
    # What the library sends back is the message that it got.
    sent = [*HI, reply, {"role": "tool", "tool_call_id": "a1b2c3d4e", "content": "3"}]
    assert client.chat.completions.create(model="m", messages=sent).id == "chatcmpl-7"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=HI, extra_body={"prompt": "Hi"})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "prompt")
    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(model="broken", messages=HI, stream=True))


def test_openai_responses(address: str, full: ChatReply) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    reply = client.responses.create(model="m", input="Hi")
    with client.responses.stream(model="m", input="Hi") as stream:
        kinds = [event.type for event in stream]
        whole = stream.get_final_response()
    assert kinds.count("response.output_item.done") == 4
    for response in (reply, whole):
        assert response.output_text == full.text
        assert [(item.call_id, item.arguments) for item in response.output[2:]] == [
            (use.id, use.arguments) for use in full.tool_uses
        ]
    results = [{"type": "function_call_output", "call_id": "a1b2c3d4e", "output": "3"}]
    assert client.responses.create(model="m", input=[*HI, *reply.output, *results]).id == "resp_7"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", input="Hi", previous_response_id="resp_7")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.APIError):
        list(client.responses.create(model="broken", input="Hi", stream=True))


def test_anthropic_messages(address: str, full: ChatReply) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
    asked: Any = {"model": "m", "max_tokens": 8, "messages": HI}
    reply = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == full.text
        whole = stream.get_final_message()
    for message in (reply, whole):
        anthropic.types.Message.model_validate(message.to_dict(), strict=True)
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert [(block.id, block.name, block.input) for block in message.content[2:]] == [
            (use.id, use.name, json.loads(use.arguments)) for use in full.tool_uses
        ]
        assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("tool_use", 5, 9)
    results = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a1b2c3d4e", "content": "3"}]}
    again = asked | {"messages": [*HI, {"role": "assistant", "content": reply.content}, results]}
    assert client.messages.create(**again).id == "msg_7"
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**asked, extra_body={"container": "x"})
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.APIStatusError), client.messages.stream(**asked | {"model": "broken"}) as stream:
        stream.get_final_message()
