"""A scripted chat server that answers known questions from a table, and counts what it was asked about each.

It plays AgentFlow's four modules: one turn with the tool `guess`, then the answer. A question in `broken` gets status
500 for good; `slow_s` is what every reply takes. With `refusal` (a status), all requests after `allowed` get it.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping

from support.llm_server import Body, LLMServer, prompt_of


class QuestionServer(LLMServer):
    """`answers` by question. `asked` counts requests, `answered` those of the last one."""

    def __init__(self, answers: Mapping[str, str], *, broken: Collection[str] = (), slow_s: float = 0.0) -> None:
        super().__init__(self._say)
        self.answers, self.broken, self.pause_s = dict(answers), set(broken), slow_s
        self.refusal, self.allowed = 0, 0
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    def question(self, body: Body) -> str:
        """Which one a request is about; an executor, which sees none, finds its place in its context."""
        text = prompt_of(body)
        place = re.search(r"case number (\d+)", text)
        found = [question for question in self.answers if question in text]
        return list(self.answers)[int(place[1])] if place and not found else max(found, key=len)

    def answer(self, path: str, body: Body) -> tuple[int, Body]:
        time.sleep(self.pause_s)
        question = self.question(body)
        with self._lock:
            self.asked[question] += 1
        if self.refusal and self.asked.total() > self.allowed:
            return self.refusal, {"error": {"message": "not you"}}
        if question in self.broken:
            return 500, {"error": {"message": "this one fails for good"}}
        return super().answer(path, body)

    def _say(self, body: Body) -> str:
        question = self.question(body)
        role = prompt_of(body).partition("\n")[0].lstrip("# ").lower()
        if role == "planner":
            place = list(self.answers).index(question)
            return f"Justification: it helps\nContext: case number {place}\nSub-Goal: take a step\nTool Name: guess"
        if role == "executor":
            return json.dumps({"question": question.splitlines()[0]})
        if role == "verifier":
            return json.dumps({"analysis": "seen", "result_valid": True, "memory_sufficient": True})
        with self._lock:
            self.answered[question] += 1
        return f"<answer>{self.answers[question]}</answer>"


RECIPE = """
extends = "agentflow-prompted"
name = "scripted"

[tools.guess]

[rollout]
concurrency = 8
max_attempts = 1

[engines.model]
type = "openai_compatible"
model = "scripted"
base_url = "{base_url}"
max_attempts = 1
first_pause_s = 0.0
"""
