"""A server of an environment that does what its agent says: python server.py PORT text|luck|json|tools ROOM."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

kind, room = sys.argv[2], int(sys.argv[3])
sessions, lucky, resets = {}, {}, Counter()
WORD = {"type": "string", "description": "a word"}
ANYTHING = {"type": "object"}
BOTH = {"word": WORD, "times": {"type": "integer"}}
ACTIONS = {
    "text": {"properties": {"metadata": ANYTHING, "word": WORD}, "required": ["word"]},
    "luck": {"properties": {"word": WORD}},
    "json": {"properties": {"metadata": ANYTHING, **BOTH}, "required": ["word", "times"]},
    "tools": {"properties": {"type": {}, "tool_name": {}, "arguments": {}}},
}
TOOL = {"name": "say", "description": "Says a word.", "input_schema": {"type": "object", "properties": {"word": WORD}}}


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def step(session, action):
    if action.get("type") == "list_tools":
        return {"observation": {"tools": [TOOL]}, "reward": None, "done": False}
    called = action.get("arguments", action)
    if not isinstance(called.get("word"), str) or (kind == "json" and not isinstance(called.get("times"), int)):
        return {"message": "Invalid message", "code": "VALIDATION_ERROR"}
    word = called["word"]
    say(f"heard {word}")
    if word == "raise":
        return {"message": "no such word", "code": "EXECUTION_ERROR"}
    if word == "exit":
        say("these are its last words")
        os._exit(3)
    if word == "hang":
        time.sleep(1000)
    if word == "child":
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        word = str(child.pid)
    sessions[session] += 1
    # With "luck", every second episode of a seed has rewards, whatever its agent does.
    reward = None if word == "free" else 0.25 if kind != "luck" else 0.25 * lucky[session]
    done = word == "stop" or sessions[session] == 4
    if word in ("timeout", "invalid_args"):
        error = {"error_type": word, "message": "too late"}
        return {"observation": {"tool_name": "say", "result": None, "error": error}, "reward": None, "done": False}
    if kind == "tools":
        result = {"content": [{"type": "text", "text": word}], "is_error": word == "wrong"}
        return {"observation": {"tool_name": "say", "result": result, "error": None}, "reward": reward, "done": done}
    return {"observation": {"said": word, "list": [], "other": None}, "reward": reward, "done": done}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        schema = {"action": ACTIONS[kind]}
        self.answer({"/health": {"status": "healthy"}, "/schema": schema, "/metadata": {"name": "Words"}}[self.path])

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        session = asked["session"]
        if asked["type"] == "close":
            sessions.pop(session, None)
            self.answer({})
        elif asked["type"] == "reset" and len(sessions) >= room:
            self.answer({"message": "no room", "code": "CAPACITY_REACHED"})
        elif asked["type"] == "reset":
            sessions[session] = 0
            resets[asked["data"]["seed"]] += 1
            lucky[session] = resets[asked["data"]["seed"]] % 2
            said = f"Say a word ({asked['data']['seed']})."
            self.answer({"observation": {"said": said}, "reward": 0.5, "done": False})
        else:
            self.answer(step(session, asked["data"]))

    def answer(self, said):
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
