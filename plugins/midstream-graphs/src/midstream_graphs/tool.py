"""The graph tool: one exact algorithm of NetworkX on a graph file, or on a graph as text, in the sandbox.

The host only reads the text of files that the recipe or the user names. Parsing and algorithms, the modules next to
this one, run in a process of the sandbox, whose limits of time and memory hold for graphs of others too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from midstream.components.component import Context, Sandbox, ToolConfig
from midstream.core.errors import RecipeError, SandboxError, ToolServerError, UnsupportedError
from midstream.core.text_file import read_text
from midstream.core.tool import ToolResult
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits, Library
from midstream.sandbox.tiers import choose
from midstream_graphs.algorithms import ALGORITHMS, Answer, did_you_mean, signature
from midstream_graphs.reading import FORMS, MAX_EDGES, MAX_NODES, Mistake

NEVER_S = 3600.0  # the pool bounds its own waits and runs
_SHOWN_FILES = 20
_ENDINGS = tuple(".csv .dot .edgelist .edges .gexf .gml .graphml .gz .json .net .tsv .txt .xml".split())
_NODE = {"type": ["string", "number"]}

# The modules next to this one as a package of the sandbox, which need not have midstream. The first line of what it
# prints is "ok" or the code of a mistake.
_PROGRAM = """
import json, sys, types
modules, request = json.loads({payload!r})
for name, source in modules.items():
    module = sys.modules["graphs" + name] = types.ModuleType("graphs" + name)
    module.__package__ = "graphs"
    exec(compile(source, module.__name__, "exec"), module.__dict__)
try:
    found = sys.modules["graphs.algorithms"].work(request)
    print(found.code or "ok", found.text, sep="\\n")
except ImportError as error:
    print("missing-extra", error, sep="\\n")
"""
_MODULES = {
    name: (resources.files("midstream_graphs") / file).read_text(encoding="utf-8")
    for name, file in (
        ("", "__init__.py"),
        (".reading", "reading.py"),
        (".words", "words.py"),
        (".algorithms", "algorithms.py"),
    )
}


class GraphTool:
    """Runs one algorithm of NetworkX on a graph, by the name of its file or as text, in a process of the sandbox.

        tool = GraphTool(GraphConfig(files=("karate.graphml",)))
        await tool.call({"graph": "karate.graphml", "algorithm": "diameter"})  # "diameter of karate.graphml: 5"

    Files are those of `config.files` alone, by name. What is wrong with a call or a graph, also that it takes too long
    or too much memory, is an answer with `ok=False`.

    Raises:
        RecipeError: a file is missing, or two have one name.
        UnsupportedError: the sandbox's tier runs no programs ("no-sandbox"), or NetworkX is missing ("missing-extra").
    """

    name = "graph"
    timeout_s = NEVER_S
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "graph": {"type": "string", "description": f"the name of a graph file, or the graph as text: {FORMS}"},
            "algorithm": {
                "type": "string",
                "enum": list(ALGORITHMS),
                "description": "with its arguments (? may be left out): " + "; ".join(map(signature, ALGORITHMS)),
            },
            "arguments": {
                "type": "object",
                "description": "those of the algorithm, {} for none",
                "properties": {
                    "source": _NODE,
                    "target": _NODE,
                    "node": {**_NODE, "description": "the result for this node alone"},
                    "weight": {"type": "string", "description": "the attribute of edges to count with"},
                    "capacity": {"type": "string", "description": "the attribute of edges with their capacities"},
                    "k": {"type": "integer"},
                    "alpha": {"type": "number"},
                    "other": {"type": "string", "description": "another graph, as `graph`"},
                    "directed": {"type": "boolean", "description": "for any algorithm: read edges with a direction"},
                },
            },
        },
        "required": ["graph", "algorithm"],
        "additionalProperties": False,
    }

    def __init__(self, config: GraphConfig | None = None, sandbox: Sandbox | None = None) -> None:
        config, sandbox = config or GraphConfig(), sandbox or choose()
        if sandbox.tier == "arithmetic":
            raise UnsupportedError(
                "the tool graph does not work on sandbox tier arithmetic",
                code="no-sandbox",
                fix='set sandbox.tier = "auto"; midstream doctor shows what this machine lacks for it',
            )
        if sandbox.tier != "remote":  # there, the container's image has NetworkX
            config.check_machine("the tool graph")
        self._config = config
        self._files = graph_files(config.files)
        self._pool = PythonPool(config, sandbox, table="tools.graph")
        self.output_tokens = config.output_limit
        names = sorted(self._files)
        more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
        files = f" Graph files: {', '.join(names[:_SHOWN_FILES])}{more}." if names else ""
        self.description = (
            "Runs one graph algorithm of NetworkX and returns its exact result in words. For every question about "
            "paths, distances, parts, centrality, flows, colors or cycles of a graph; it knows the graphs you give."
            + files
        )

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The result of `arguments["algorithm"]`; raises as `answer`."""
        found = await self.answer(arguments)
        return ToolResult(text=found.text, ok=found.ok)

    async def answer(self, arguments: Mapping[str, Any]) -> Answer:
        """The result as text, with the code of what is wrong; its `value` stays in the sandbox.

        Raises:
            ToolServerError: a named file can no longer be read.
            SandboxError: no process could run the algorithm, or the container's image lacks NetworkX.
        """
        given, algorithm = arguments.get("arguments") or {}, str(arguments["algorithm"])
        try:
            if not isinstance(given, Mapping):
                raise Mistake(f"arguments = {given!r:.100} is no table", code="invalid-arguments", fix="e.g. {}")
            given = dict(given)
            name, text = self._graph(str(arguments["graph"]))
            if isinstance(given.get("other"), str):
                given["other"] = self._graph(given["other"])[1]
        except Mistake as mistake:
            return Answer(str(mistake), ok=False, code=mistake.code)
        limits = {"max_nodes": self._config.max_nodes, "max_edges": self._config.max_edges}
        request = {"name": name, "text": text, "algorithm": algorithm, "arguments": given, "limits": limits}
        result = await self._pool.run(_PROGRAM.format(payload=json.dumps([_MODULES, request])))
        code, _, text = result.text.partition("\n")
        if not result.usable:
            ended = Mistake(
                f"{algorithm} of {name} did not end: {result.text}",
                code="too-much-work",
                cause="the graph is too large for it, or there are too many results",
                fix="ask for a cheaper algorithm or a smaller graph; the recipe's [tools.graph] has the limits",
            )
            return Answer(str(ended), ok=False, code=ended.code)
        if code == "missing-extra":
            raise SandboxError(
                f"NetworkX cannot be used in the sandbox: {text}",
                code="missing-extra",
                fix="set sandbox.image to one with NetworkX, or another sandbox.tier",
                retryable=False,
            )
        return Answer(text) if code == "ok" else Answer(text, ok=False, code=code)

    def _graph(self, given: str) -> tuple[str, str]:
        """(name, text) of the graph that a call means. Raises `Mistake` for an unknown file."""
        line = given.strip()
        name = line.rpartition("/")[2]
        if (path := self._files.get(name)) is not None:
            limit = self._config.max_mb
            fix = f"name a text file in UTF-8, unpacked, of at most {limit} MB, or raise max_mb in [tools.graph]"
            return name, read_text(path, limit=limit << 20, error=ToolServerError, fix=fix)
        one_word = not set(line) & set(" ,;\t")
        like_name = one_word or name.lower().endswith(_ENDINGS) or did_you_mean(name, self._files)
        if line and like_name and "\n" not in line and line[0] not in ("{", "[", "<"):
            raise Mistake(
                f"there is no graph file {name!r:.200}",
                code="unknown-graph",
                cause="only files named in tools.graph.files are read, by their names without a directory",
                fix=did_you_mean(name, self._files)
                + (f"name one of: {', '.join(sorted(self._files)[:_SHOWN_FILES])}; or " if self._files else "")
                + f"give the graph itself: {FORMS}",
            )
        return "the graph", given

    async def close(self) -> None:
        """End the processes."""
        await self._pool.close()


class GraphConfig(CodeLimits, ToolConfig):
    """Runs graph algorithms of NetworkX in the sandbox, exactly, on graph files or on a graph as text.

    The settings are `sandbox.settings.CodeLimits`, and what may be read.

    Attributes:
        files: files that a model may name, and directories whose files it may name; no other file is read
        max_mb: the largest file
        max_nodes: the most nodes of a graph
        max_edges: the most edges of a graph
    """

    component = GraphTool
    extra = "graphs"
    packages = ("networkx",)
    sandboxed = True

    files: tuple[Path, ...] = ()
    max_mb: int = Field(default=16, ge=1, le=1000)
    max_nodes: int = Field(default=MAX_NODES, ge=1)
    max_edges: int = Field(default=MAX_EDGES, ge=1)
    timeout_s: float = Field(default=10.0, ge=0.01, le=86_400)
    memory_mb: int = Field(default=1024, ge=64, le=1_000_000)
    libraries: tuple[Library, ...] = ("networkx",)

    def build(self, context: Context) -> GraphTool:
        """Build it."""
        return GraphTool(self, context.sandbox)


def graph_files(paths: Iterable[str | Path]) -> dict[str, Path]:
    """Files, and those in directories, by name. Raises `RecipeError` if one is missing or two have one name."""
    files: dict[str, Path] = {}
    for path in _each(map(Path, paths)):
        if path.name in files and path.absolute() != files[path.name].absolute():
            raise RecipeError(
                f"{files[path.name]} and {path} have one name, which is all that a model knows of them",
                code="name-clash",
                fix="rename one of them",
            )
        files[path.name] = path
    return files


def _each(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            inside = sorted(inner for inner in path.iterdir() if inner.is_file() and inner.name[0] != ".")
            if not inside:
                raise RecipeError(f"there is no file in {path}", code="file-not-found", fix="name one with graph files")
            yield from inside
        elif path.is_file():
            yield path
        else:
            fix = "correct files in the tool's table"
            raise RecipeError(f"there is no graph file {path}", code="file-not-found", fix=fix)
