"""Every tool at once: a recipe that has them all, on servers of this machine, and a model that calls them.

A question names its tool. The model calls it in two turns with the arguments of `ARGUMENTS`, and whatever else it
writes holds a digest of everything it was sent: a result that differs anywhere makes another trajectory.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midstream.core.engine import Request
from midstream.core.task import Task
from support.api_server import Answer, ApiServer
from support.llm_server import LLMServer, prompt_of
from support.mediawiki_server import Entry, MediaWikiServer
from support.serper_server import KEY, SerperServer

SERPER_VARIABLE, MCP_VARIABLE = "MIDSTREAM_TEST_SERPER_KEY", "MIDSTREAM_TEST_MCP_KEY"
MCP_SERVER = Path(__file__).parents[2] / "plugins" / "midstream-mcp" / "tests" / "mcp_servers" / "honest.py"
ARTICLE = (
    "<html><head><title>Toubkal</title></head><body><article>"
    + "".join(
        f"<p>Toubkal is a mountain of the High Atlas, and this is paragraph {n} of what a page says about its height, "
        f"which is 4,167 metres, its snow, its huts and the two days that most people need to climb it.</p>"
        for n in range(8)
    )
    + "</article></body></html>"
)
WIKI = {"Toubkal": Entry(text="Toubkal is a mountain.\n\n== Climate ==\nCold."), "Atlas": Entry(text="Mountains.")}
FUNCTION = '''
def word_count(text: str) -> int:
    """Counts the words of a text.

    Args:
        text: what to count in.
    """
    return len(text.split())
'''
RECIPE = """
extends = "gazetteer-prompted"
name = "every-tool"

[engines.model]
model = "m"
base_url = "{model}"
first_pause_s = 0.001

[tools.local_search]
top_k = 3

[tools.python]
engine = "model"
libraries = []

[tools.base_generator]
engine = "model"

[tools.graph]

[tools.guess]

[tools.web_search]
provider = "serper"
base_url = "{serper}"
api_key_env = "{variable}"
engine = "model"

[tools.wikipedia]
base_url = "{wiki}"

[tools.web_page]
ports = [{page_port}]
allow_private = ["127.0.0.1"]

[tools.word_count]
type = "function"
function = "{function}:word_count"

[tools.honest]
type = "mcp"
command = ["{python}", "{mcp}", "stdio"]
env_pass = ["{mcp_variable}"]
include = ["add", "environment"]
"""


@dataclass
class Everything:
    """The servers behind the tools, and the recipe that names them."""

    recipe: Path
    model: LLMServer
    arguments: dict[str, tuple[dict[str, Any], dict[str, Any]]]
    serper: SerperServer
    others: tuple[ApiServer, ...]

    @property
    def tasks(self) -> list[Task]:
        return [Task(id=name, question=f"Use {name} now.", answer="yes") for name in self.arguments]

    def requests(self) -> int:
        """How many reached any server."""
        return len(self.model.bodies) + sum(len(one.asked) for one in (self.serper, *self.others))


class Model:
    """Plays the agent's modules, the coder and the summaries."""

    def __init__(self, arguments: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
        self.arguments = arguments

    def __call__(self, body: dict[str, Any]) -> str:
        return self.say(prompt_of(body))

    def answer(self, request: Request) -> str:
        """For a scripted engine."""
        return self.say("\n".join(message.content for message in request.messages))

    def say(self, text: str) -> str:
        seen = hashlib.sha256(text.encode()).hexdigest()
        role = text.partition("\n")[0].lstrip("# ").lower()
        records = text.count('\n{"turn":')
        second = records > 0
        if role == "planner":
            tool = text.rpartition("Use ")[2].partition(" now.")[0]
            return f"Justification: {seen}\nContext: {'second' if second else 'first'}\nSub-Goal: go\nTool Name: {tool}"
        if role == "executor":
            action = json.loads(text.rpartition("# Action\n\n")[2].partition("\n\n# ")[0])
            return self.command(action)
        if role == "verifier":
            return json.dumps({"analysis": seen, "result_valid": True, "memory_sufficient": records > 1})
        if role == "generator":
            return f"<answer>{seen}</answer>"
        return f"```python\nprint('{seen}', 45 + 17)\n```" if role == "python coder" else f"The model says {seen}."

    def command(self, action: dict[str, str]) -> str:
        """Arguments, or in code mode a program that calls the tool with both."""
        if "function" in action:
            calls = "\n".join(f"print({action['function']}(**{one!r}))" for one in self.arguments[action["function"]])
            return f"```python\n{calls}\n```"
        return json.dumps(self.arguments[action["tool"]][action["context"] == "second"])


@contextmanager
def every_tool(directory: Path) -> Generator[Everything]:
    """Start every server; the MCP server starts with its tools."""
    function = directory / "my_tools.py"
    function.write_text(FUNCTION, encoding="utf-8")
    page = ApiServer(lambda asked: Answer(body=ARTICLE, headers={"Content-Type": "text/html; charset=utf-8"}))
    serper, wiki = SerperServer(key=KEY), MediaWikiServer(WIKI)
    with ExitStack() as running:
        for server in (page, serper, wiki):
            running.enter_context(server)
        arguments: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "local_search": ({"query": "height"}, {"query": "no such words"}),
            "python": ({"query": "45 plus 17"}, {"query": "45 plus 17, again"}),
            "base_generator": ({"query": "What is up?"}, {"query": "And down?"}),
            "graph": (
                {"graph": "a b\nb c", "algorithm": "diameter"},
                {"graph": "a b\nb c", "algorithm": "topological_sort", "arguments": {}},
            ),
            "guess": ({"question": "How high?"}, {"question": "How deep?"}),
            "web_search": ({"query": "Toubkal"}, {"query": "Atlas"}),
            "wikipedia": ({"query": "Toubkal"}, {"query": "Nowhere"}),
            "web_page": (
                {"url": f"{page.url}/toubkal", "query": "height"},
                {"url": f"{page.url}/atlas", "query": "huts"},
            ),
            "word_count": ({"text": "one two three"}, {"text": ""}),
            "honest_add": ({"a": 2, "b": 3}, {"a": -1, "b": 1}),
            "honest_environment": ({}, {}),
        }
        model = running.enter_context(LLMServer(Model(arguments)))
        recipe = directory / "every-tool.toml"
        recipe.write_text(
            RECIPE.format(
                model=model.base_url,
                serper=serper.search_url,
                variable=SERPER_VARIABLE,
                wiki=wiki.api_url,
                page_port=page.url.rpartition(":")[2],
                function=function,
                python=sys.executable,
                mcp=MCP_SERVER,
                mcp_variable=MCP_VARIABLE,
            ),
            encoding="utf-8",
        )
        yield Everything(recipe=recipe, model=model, arguments=arguments, serper=serper, others=(page, wiki))
