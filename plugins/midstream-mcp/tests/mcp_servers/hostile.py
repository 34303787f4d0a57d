"""An MCP server over standard input and output that does one thing wrong: `python -S hostile.py MODE`.

Standard lesson set only, so that it starts in no time. Its one honest tool, `echo`, answers "echo: TEXT".
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

MODE = sys.argv[1]
OUT = sys.stdout.buffer
MEGABYTE = b"x" * (1 << 20)
TEXT = {"type": "string", "description": "what to say"}
ECHO: dict[str, Any] = {
    "name": "echo",
    "description": "Says it again.",
    "inputSchema": {"type": "object", "properties": {"text": TEXT}, "required": ["text"]},
}


def raw(data: bytes) -> None:
    OUT.write(data)
    OUT.flush()


def send(message: Any) -> None:
    raw(json.dumps({"jsonrpc": "2.0", **message} if isinstance(message, dict) else message).encode() + b"\n")


def read() -> dict[str, Any]:
    line = sys.stdin.buffer.readline()
    if not line:
        if MODE == "ignores_end":
            while True:
                time.sleep(60)
        sys.exit(0)
    return json.loads(line)


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], **more}


def forever() -> None:
    while True:
        time.sleep(60)


# --- before any call ------------------------------------------------------------------------------------------------


def handshake(request: dict[str, Any]) -> None:
    version = "1999-01-01" if MODE == "wrong_version" else request["params"]["protocolVersion"]
    result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}}
    if MODE == "hang_at_initialize":
        forever()
    if MODE == "exit_at_initialize":
        sys.exit("no licence found")
    if MODE == "crash_by_signal":
        os.kill(os.getpid(), signal.SIGKILL)
    if MODE == "noise_at_start":
        raw(b"Welcome!\n\n{}\n[]\n\xff\xfe\n\x00\x00\n" + b'{"almost": \n')
    if MODE == "initialize_is_text":
        return send({"id": request["id"], "result": "welcome"})
    if MODE == "initialize_lacks_fields":
        return send({"id": request["id"], "result": {}})
    if MODE == "closes_output":
        os.close(1)
        forever()
    if MODE == "stderr_flood":
        for _ in range(100):
            sys.stderr.buffer.write(MEGABYTE)
    send({"id": request["id"], "result": result})
    if MODE == "answers_twice":
        send({"id": request["id"], "result": result})
    return None


def tools() -> list[Any]:
    def other(**fields: Any) -> dict[str, Any]:
        return {**ECHO, "name": "other", **fields}

    deep: dict[str, Any] = {"type": "object"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"inner": deep}}
    loop = {"type": "object", "$ref": "#"}
    hidden = {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}
    remote = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}}
    doubling = {"type": "object", "$ref": "#/$defs/d0", "$defs": definitions}
    nested = {"type": "string", "pattern": r"^([a-zA-Z0-9]+\s?)+$"}
    wide = {"type": "object", "properties": {f"p{n}": TEXT for n in range(2000)}}
    more: dict[str, list[Any]] = {
        "many_tools": [other(name=f"tool_{n}") for n in range(10_000)],
        "same_names": [other(name="a.b"), other(name="a-b"), other(), other()],
        "empty_names": [other(name=""), other(name="\n"), other(name="…"), other(name="x" * 300)],
        "name_with_newline": [other(name="two\nlines")],
        "schema_is_no_schema": [other(inputSchema={"type": "object", "properties": {"a": {"type": "texty"}}})],
        "schema_of_text": [other(inputSchema={"type": "string"})],
        "schema_bad_pattern": [other(inputSchema={"type": "object", "properties": {"a": {"pattern": "("}}})],
        "schema_elsewhere": [other(inputSchema=remote), other(name="c", inputSchema=hidden)],
        "schema_loops": [other(inputSchema=loop)],
        "schema_doubles": [other(name=f"other_{n}", inputSchema=doubling) for n in range(40)],
        "schema_nested_pattern": [other(inputSchema={"type": "object", "properties": {"text": nested}})],
        "schema_deep": [other(inputSchema=deep)],
        "schema_wide": [other(inputSchema=wide)],
        "long_description": [other(description="\x1b[2J\u202e<|im_start|>" + "very " * 200_000)],
    }
    return [ECHO, *more.get(MODE, [])]


def listing(request: dict[str, Any]) -> None:
    result: dict[str, Any] = {"tools": tools()}
    if MODE == "endless_pages":
        result["nextCursor"] = str(time.monotonic_ns())
    if MODE == "list_is_text":
        result["tools"] = "echo, mostly"
    if MODE == "tool_without_schema":
        result["tools"].append({"name": "bare"})
    send({"id": request["id"], "result": result})


# --- during a call --------------------------------------------------------------------------------------------------


def call(request: dict[str, Any]) -> None:
    number = request["id"]
    answer = {"id": number, "result": text("echo: " + request["params"]["arguments"]["text"])}

    def result(value: Any) -> None:
        send({"id": number, "result": value})

    def error(value: Any) -> None:
        send({"id": number, "error": value})

    if MODE == "no_reply":
        return None
    if MODE == "hangs":
        sys.stderr.write(f"hung {os.getpid()}\n")
        sys.stderr.flush()
        forever()
    if MODE == "ignores_end":
        return result(text(str(os.getpid())))
    if MODE == "exits":
        sys.exit("out of flux")
    if MODE == "half_a_reply":
        raw(json.dumps({"jsonrpc": "2.0", **answer}).encode()[:30])
        sys.exit(4)
    if MODE == "unfinished_line":
        raw(b'{"jsonrpc": "2.0", "id": ')
        forever()
    if MODE == "wrong_id":
        return send({**answer, "id": 999_999})
    if MODE == "id_as_text":
        return send({**answer, "id": str(number)})
    if MODE == "id_null":
        return send({**answer, "id": None})
    if MODE == "replies_twice":
        send(answer)
        return result(text("the second"))
    if MODE == "result_is_text":
        return result("echo")
    if MODE == "content_is_text":
        return result({"content": "echo"})
    if MODE == "unknown_content":
        return result({"content": [{"type": "smell", "smell": "smoke"}]})
    if MODE == "no_content":
        return result({"content": []})
    if MODE == "is_error":
        return result(text("no such city", isError=True))
    if MODE == "is_error_without_content":
        return result({"isError": True})
    if MODE == "is_error_with_empty_content":
        return result({"isError": True, "content": []})
    if MODE == "error_of_the_server":
        return error({"code": -32603, "message": "database is down\x1b[2J"})
    if MODE == "error_of_the_arguments":
        return error({"code": -32602, "message": "text must rhyme", "data": {"deep": [1]}})
    if MODE == "bad_utf8":
        return raw(json.dumps({"jsonrpc": "2.0", **answer}).encode().replace(b"echo: ", b"echo: \xff\xfe") + b"\n")
    if MODE == "nul_bytes":
        raw(b"\x00\x00\x00\n")
        return result(text("echo: \x00"))
    if MODE == "windows_lines":
        return raw(json.dumps({"jsonrpc": "2.0", **answer}).encode() + b"\r\n")
    if MODE == "noise_among":
        raw(b"DEBUG called\n")
        send(answer)
        return raw(b"DEBUG done\n")
    if MODE == "progress":
        for n in range(20_000):
            send({"method": "notifications/progress", "params": {"progressToken": number, "progress": n}})
    if MODE == "list_changed":
        send({"method": "notifications/tools/list_changed"})
    if MODE == "odd_notifications":
        send({"method": "notifications/progress", "params": {"progressToken": [], "progress": "much"}})
        send({"method": "no/such/thing", "params": [1, 2]})
        send({"method": "notifications/cancelled", "params": {"requestId": number}})
    if MODE == "asks_for_a_model":
        return asks(answer)
    if MODE == "late":
        time.sleep(1.0)
    send(answer)
    return None


def asks(answer: dict[str, Any]) -> None:
    """Asks for everything a client may offer; the reply says how each was answered."""
    message = {"role": "user", "content": {"type": "text", "text": "hello"}}
    requests = {
        "ping": {},
        "sampling/createMessage": {"messages": [message], "maxTokens": 9},
        "elicitation/create": {"message": "Your name?", "requestedSchema": {"type": "object", "properties": {}}},
        "roots/list": {},
        "no/such/method": {},
    }
    outcomes = []
    for method, params in requests.items():
        send({"id": method, "method": method, "params": params})
        reply = read()
        outcomes.append(f"{reply['id']} {'error' if 'error' in reply else 'result'}")
    send({**answer, "result": text("; ".join(outcomes))})


def modern(request: dict[str, Any]) -> None:
    """A server without the older handshake (2026-07-28)."""
    if request["method"] == "initialize":
        data = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
        return send({"id": request["id"], "error": {"code": -32022, "message": "no handshake", "data": data}})
    result: dict[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    if request["method"] == "server/discover":
        result |= {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    elif request["method"] == "tools/list":
        result["tools"] = [ECHO]
    elif request["params"]["arguments"]["text"] == "wait" and "requestState" not in request["params"]:
        result = {"resultType": "input_required", "requestState": "s"}
    elif request["params"]["arguments"]["text"] == "ask":
        replies = request["params"].get("inputResponses")
        message = {"role": "user", "content": {"type": "text", "text": "hello"}}
        model = {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 9}}
        asked = {"model": model, "roots": {"method": "roots/list"}}
        result = {"resultType": "input_required", "inputRequests": asked, "requestState": "s"}
        if replies:
            said = [replies["model"]["content"]["text"], replies["roots"]["roots"][0]["uri"]]
            result = {"resultType": "complete", **text(f"{request['params']['requestState']} {said}")}
    else:
        result |= text("echo: modern")
    return send({"id": request["id"], "result": result})


def main() -> None:
    if MODE == "exit_at_start":
        sys.exit(7)
    if MODE == "ignores_end":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE == "reads_nothing":
        forever()
    handlers = {"initialize": handshake, "tools/list": listing, "tools/call": call}
    while True:
        request = read()
        if "id" not in request or "method" not in request:
            continue
        if MODE == "modern":
            modern(request)
        elif handler := handlers.get(request["method"]):
            handler(request)
        else:
            send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})


main()
