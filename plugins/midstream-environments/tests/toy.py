"""An adapter for tests: sums, and all that may go wrong in an environment."""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request

DISTRIBUTION = "pytest"


class Adapter:
    def __init__(self, wrong: str = "", count: int = 40, file: str = "") -> None:
        print("noise of the library", flush=True)  # noqa: T201
        assert sys.stdin.read() == ""
        self.wrong, self.count, self.file = wrong, count, file
        self.episodes = {}
        match wrong:
            case "import":
                import no_such_library  # noqa: F401
            case "load":
                raise ValueError("a bad setting")
            case "load exits":
                os._exit(3)
            case "load hangs":
                time.sleep(1000)

    def rows(self):
        if self.wrong == "forks":
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            with open(self.file, "w") as file:
                file.write(str(child.pid))
        rows = [
            {"case": str(n), "question": f"{n} + {n}?", "answer": str(2 * n), "family": "sum"}
            for n in range(self.count)
        ]
        if self.wrong == "splits":
            # Of these two, the first ten occur in both.
            return [
                row | {"split": split} for split in ("train", "test") for row in rows[: 10 if split == "test" else 40]
            ]
        return rows

    def score(self, case: str, answer: str):
        match self.wrong:
            case "raises":
                raise RuntimeError("a bug in the scorer")
            case "hangs":
                time.sleep(1000)
            case "backtracks":
                re.match(r"(a+)+$", "a" * 60 + "b")
            case "nan":
                return {"reward": float("nan")}
            case "text":
                return {"reward": "good"}
            case "high":
                return {"reward": 2.0}
            case "exits":
                os._exit(5)
            case "faulty":
                # The first attempts at three of ten cases fail, each in its own way.
                if int(case) % 10 < 3 and not os.path.exists(mark := f"{self.file}-{case}"):
                    with open(mark, "w"):
                        pass
                    if int(case) % 10 == 1:
                        os._exit(5)
                    if int(case) % 10 == 2:
                        time.sleep(1000)
                    raise RuntimeError("a fault")
        return {
            "reward": float(answer.strip() == str(2 * int(case))),
            "parts": {"length": len(answer)},
            "feedback": "seen",
        }

    async def run(self, case: str, base_url: str, api_key: str, model: str):
        if self.wrong == "run hangs":
            # In the event loop, where no cancellation reaches it.
            time.sleep(1000)
        if self.wrong == "cleans":
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(0.3)
                open(self.file, "w").close()
        answer = await asyncio.to_thread(ask, f"{case} + {case}?", base_url, api_key, model)
        return {"answer": answer, **self.score(case, answer)}

    def open(self, episode: str, case: str):
        random.seed(int(case))
        self.episodes[episode] = [int(case), 0]
        tools = [{"name": "draw", "description": "A random digit."}]
        return {"system": "You guess.", "text": f"A number up to {case}?", "tools": tools, "outcome": {"reward": 0.0}}

    def call(self, episode: str, tool: str, arguments):
        return {"text": str(random.randint(0, 9))}

    def reply(self, episode: str, text: str):
        state = self.episodes[episode]
        state[1] += 1
        if self.wrong == "step exits":
            os._exit(7)
        right = text.strip() == str(state[0])
        return {"text": "no", "over": right or state[1] == 3, "outcome": {"reward": float(right), "steps": state[1]}}

    def close(self, episode: str):
        del self.episodes[episode]


def ask(question, base_url, api_key, model):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": question}]}).encode()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{base_url}/chat/completions", body, headers)) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]
