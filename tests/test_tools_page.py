"""docs/tools.md, "Your own tool": every block, in the page's order, in one directory, as a reader would run it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.llm_server import AgentFlowReplies, LLMServer

PAGE = Path(__file__).parents[1] / "docs" / "tools.md"
PART = PAGE.read_text(encoding="utf-8").partition("\n## Search, web pages, MCP servers\n")[0]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Shop(BaseHTTPRequestHandler):
    """Sells apples."""

    def do_GET(self):
        known = self.path == "/items/apple"
        body = json.dumps({"price": 0.5}).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def shop():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


class Reader:
    """Does what the page says; `shown` is what the last command printed, `ran` what each did."""

    def __init__(self, directory: Path, shop: str, model: str):
        self.directory, self.model = directory, model
        self.environment = {**os.environ, "SHOP_URL": shop, "COLUMNS": "80", "PYTHONDONTWRITEBYTECODE": "1"}
        self.ran: dict[str, str] = {}
        self.shown = ""

    def read(self, language: str, block: str) -> None:
        head = block.partition("\n")[0]
        written = re.fullmatch(r"# (\w+\.(?:py|toml))(, continued)?", head)
        if written:
            file = self.directory / written[1]
            assert file.exists() == bool(written[2]), head
            with file.open("a") as stream:
                stream.write(block)
        elif language == "python":
            self.run([sys.executable, "-c", block], block)
        elif language == "text":
            assert plain(self.shown) == plain(block)
        else:
            for line in block.splitlines():
                self.command(line)

    def command(self, line: str) -> None:
        words = shlex.split(line)
        if words[0] == "midstream":
            words = [sys.executable, "-m", "midstream", *words[1:]]
            if "ollama" in words:
                words[words.index("--provider") : words.index("ollama") + 1] = ["--base-url", self.model]
        else:
            assert words[:3] == ["python", "-m", "pytest"]
            words = [sys.executable, *words[1:], "-p", "no:cacheprovider"]
        self.run(words, line)

    def run(self, words: list[str], line: str) -> None:
        done = subprocess.run(
            words, cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        self.shown = self.ran[line] = done.stdout


def plain(text: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"\d\.\d\d s", "0.00 s", "\n".join(line.rstrip() for line in text.strip().splitlines()))


def play(body):
    """A model that counts words or converts lengths, whichever tool it is offered."""
    text = json.dumps(body["messages"])
    if "8848" in text or "lengths" in text or "convert" in text:
        return AgentFlowReplies("lengths", {"value": 8848, "unit": "m", "to": "ft"}, turns=1, answer="29028.9 ft")(body)
    return AgentFlowReplies("word_count", {"text": "to be or not to be"}, turns=1, answer="6")(body)


@pytest.fixture(scope="module")
def read(shop, tmp_path_factory):
    """The page as it was read to its end."""
    with LLMServer(play) as model:
        reader = Reader(tmp_path_factory.mktemp("reader"), shop, model.base_url)
        for language, block in BLOCK.findall(PART):
            reader.read(language, block)
    return reader


def said(read: Reader, start: str) -> str:
    [found] = [output for line, output in read.ran.items() if line.startswith(start)]
    return plain(found)


@pytest.mark.slow
def test_every_command_and_block_runs(read):
    assert len(read.ran) == 10


@pytest.mark.slow
def test_the_tools_do_what_the_page_says(read):
    assert said(read, "midstream call my_tools.py:convert_length value").splitlines()[0] == "29028.9 ft"
    assert said(read, "midstream call my_tools.py:price").splitlines()[0] == "0.5"
    assert said(read, "midstream call lengths value").splitlines()[0] == "1000 m"
    assert "Counts the words of a text." in read.ran["midstream call my_tools.py:word_count"]
    assert "3 passed" in said(read, "python -m pytest")
    assert said(read, "midstream call lengths --recipe").startswith("lengths\n")


@pytest.mark.slow
def test_agents_use_them(read):
    solved = said(read, 'midstream solve "How many words')
    assert 'command      word_count(text="to be or not to be")' in solved
    assert "observation  6" in solved
    solved = said(read, 'midstream solve "How high')
    assert 'lengths(value=8848, unit="m", to="ft")' in solved
    assert "observation  29028.9 ft" in solved
