"""An adapter for tests: sums, with everything that an environment may do, and all that may go wrong in it."""

import os
import random
import time
import urllib.request
import json

DISTRIBUTION = "pytest"


class Adapter:
    def __init__(self, wrong: str = "", count: int = 20) -> None:
        print("noise of the library")
        self.wrong, self.count = wrong, count
        if wrong == "import":
            import no_such_library  # noqa: F401
        if wrong == "load":
            raise ValueError("a bad setting")
        if wrong == "exit":
            os._exit(3)
        if wrong == "load-hangs":
            time.sleep(1000)
        self.episodes = {}

    def rows(self):
        return [{"case": str(n), "question": f"{n} + {n}?", "answer": str(2 * n), "split": "", "family": "sum"} for n in range(self.count)]

    def score(self, case: str, answer: str):
        match self.wrong:
            case "raise":
                raise RuntimeError("a bug in the scorer")
            case "hang":
                time.sleep(1000)
            case "nan":
                return {"reward": float("nan")}
            case "exits":
                os._exit(5)
        return {"reward": float(answer.strip() == str(2 * int(case))), "parts": {"length": len(answer)}}

    async def run(self, case: str, seed: int, base_url: str, api_key: str, model: str):
        import asyncio

        def ask():
            body = {"model": model, "messages": [{"role": "user", "content": f"{case} + {case}?"}]}
            request = urllib.request.Request(
                f"{base_url}/chat/completions", json.dumps(body).encode(), {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)["choices"][0]["message"]["content"]

        answer = await asyncio.to_thread(ask)
        return {"answer": answer, **self.score(case, answer)}

    def open(self, episode: str, case: str, seed: int):
        random.seed(seed)
        self.episodes[episode] = [int(case), 0]
        return {"text": f"Guess a number up to {case}.", "tools": [{"name": "hint", "description": "A hint."}], "outcome": {"reward": 0.0}}

    def call(self, episode: str, tool: str, arguments):
        return {"text": str(random.randint(0, 9)), "ok": True}

    def reply(self, episode: str, text: str):
        self.episodes[episode][1] += 1
        over = text.strip() == str(self.episodes[episode][0]) or self.episodes[episode][1] == 3
        return {"text": "no", "over": over, "outcome": {"reward": float(text.strip() == str(self.episodes[episode][0]))}}

    def close(self, episode: str):
        del self.episodes[episode]
