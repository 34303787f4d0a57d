"""An MCP server over standard input and output that repeats its key, `MIDSTREAM_TEST_MCP_KEY`, wherever it can.

`python -S echoing.py` answers honestly otherwise; `python -S echoing.py MODE` also ends badly: `dies` writes the key to
standard error and ends during a call, `babbles` writes a line that is no message and ends before the handshake,
and `refuses` answers a call with an error. Each puts the key where a cut to a round number of characters would go
through it.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any
from urllib.parse import quote

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
KEY = os.environ["MIDSTREAM_TEST_MCP_KEY"]
KEYS = " ".join(f"{n:03}{KEY}" for n in range(40))  # a cut goes through one of them
ALL_FORMS = f"{KEY} {json.dumps(KEY)} {quote(KEY, safe='')} {quote(KEY, safe='').lower()} {KEYS}"


def write(text: str, stream: Any = sys.stdout) -> None:
    stream.write(text + "\n")
    stream.flush()


def send(identifier: Any, **body: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", "id": identifier, **body}))


def tool(name: str) -> dict[str, Any]:
    field = {"type": "string", "description": KEYS, "title": KEY, "default": KEY, "enum": ["x", KEY], KEY: KEY}
    schema = {"type": "object", "properties": {"text": field, "k": {"const": {KEY: [KEY]}}}, "description": ALL_FORMS}
    return {"name": name, "title": KEY, "description": ALL_FORMS, "inputSchema": schema}


def answer(method: str, identifier: Any, parameters: dict[str, Any]) -> None:
    if method == "initialize":
        server = {"name": KEY, "version": KEY, "title": KEY}
        version = parameters["protocolVersion"]
        body = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server, "instructions": KEYS}
        send(identifier, result=body)
    elif method == "tools/list":
        send(identifier, result={"tools": [tool("look"), tool(f"look_{KEY}")]})
    elif MODE == "dies":
        write(f"{KEYS} looked", sys.stderr)
        sys.exit(3)
    elif MODE == "refuses":
        send(identifier, error={"code": -32602, "message": f"looked {KEYS}", "data": KEY})
    else:
        link = {"type": "resource_link", "name": KEY, "uri": f"https://example.org/{KEY}", "mimeType": KEY}
        blob = {"uri": f"file:///{KEY}", "text": KEY, "mimeType": KEY}
        image = {"type": "image", "mimeType": KEY, "data": base64.b64encode(b"x").decode()}
        content = [{"type": "text", "text": f"looked {ALL_FORMS}"}, link, {"type": "resource", "resource": blob}, image]
        send(identifier, result={"content": content, "structuredContent": {KEY: KEY}, "_meta": {KEY: KEY}})


if MODE == "babbles":
    write(f"looked {KEYS}")
    write(KEYS, sys.stderr)
    sys.exit(3)
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        answer(request["method"], request["id"], request.get("params", {}))
