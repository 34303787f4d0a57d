"""Read a graph from text: an edge list, CSV, JSON, GraphML or GEXF.

Names of nodes are texts: "3" and 3 are the same node.
"""

import ast
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

MAX_NODES, MAX_EDGES = 50_000, 200_000
FORMS = "an edge list, CSV with the header source,target or source,target,weight, JSON, GraphML or GEXF"
_SOURCES, _TARGETS = ("source", "from"), ("target", "to")
Edge = tuple[Any, Any, dict[str, Any]]  # source, target, attributes


class Mistake(Exception):
    """A question that has no answer: a graph that cannot be read, an unknown node, a graph that is not connected.

    Its text has the form of midstream's errors: what happened, the cause, the fix. `code` is in docs/errors.md.
    """

    def __init__(self, what: str, *, code: str, cause: str = "", fix: str = "") -> None:
        self.what, self.code, self.cause, self.fix = what, code, cause, fix
        more = [f"\n  {label}: {text}" for label, text in (("cause", cause), ("fix", fix)) if text]
        super().__init__(what + "".join(more))


def read_graph(
    text: str, *, directed: bool | None = None, max_nodes: int = MAX_NODES, max_edges: int = MAX_EDGES
) -> Any:
    """The `networkx.Graph` in a text, whose form is recognized by how it begins.

        read_graph("a b\\nb c").number_of_edges()  # 2

    Nodes of GraphML, GEXF and JSON that each have a label (or name) of their own go by it. `directed` is for forms that
    do not say it, and otherwise converts: false joins the two directions of an edge, true makes two of each edge.

    Raises:
        Mistake: the text is no graph ("graph-invalid"), or one with too many nodes or edges ("graph-too-large").
    """
    import networkx

    start = text.lstrip("\ufeff \t\r\n")
    if not start:
        raise _invalid("the graph is empty text", "nothing was written to the file, or given")
    try:
        if start.startswith("<"):
            _check_size(len(re.findall(r"<node\b", text)), len(re.findall(r"<edge\b", text)), max_nodes, max_edges)
            graph = _read_xml(text)
        else:
            header = [cell.strip().casefold() for cell in start.partition("\n")[0].split(",")]
            if start.startswith(("{", "[")):
                nodes, edges, declared, multiple = _read_json(start)
            elif {*_SOURCES} & {*header} and {*_TARGETS} & {*header}:
                nodes, edges, declared, multiple = (), _read_csv(start), False, False
            else:
                nodes, edges, declared, multiple = (), _read_lines(start), False, False
            kinds = (networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph)
            graph = kinds[2 * multiple + (declared or directed is True)]()
            _fill(graph, nodes, edges, max_nodes, max_edges)
    except (Mistake, MemoryError, ImportError):
        raise
    except Exception as error:  # parsers raise anything on a broken file: XML, recursion, missing keys
        problem = f"{type(error).__name__}: {error}"[:300]
        raise _invalid(f"the graph cannot be read: {problem}", "the file is cut off or damaged") from error
    _check_size(graph.number_of_nodes(), graph.number_of_edges(), max_nodes, max_edges)
    if directed is not None and directed != graph.is_directed():
        graph = graph.to_directed() if directed else graph.to_undirected()
    return _labeled(graph)


def name_of(value: object) -> str:
    """The name of a node as text. Raises `Mistake` for what is neither text nor number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _invalid(f"{value!r:.100} cannot be a node", "a node is a text or a number")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _invalid(what: str, cause: str) -> Mistake:
    return Mistake(what, code="graph-invalid", cause=cause, fix=f"give {FORMS}, complete and in UTF-8")


def _check_size(nodes: int, edges: int, max_nodes: int, max_edges: int) -> None:
    if nodes > max_nodes or edges > max_edges:
        raise Mistake(
            f"the graph has more than {max_nodes:,} nodes or {max_edges:,} edges",
            code="graph-too-large",
            cause="these are the limits max_nodes and max_edges of the tool",
            fix="take a part of the graph, or raise them in the tool's table of the recipe",
        )


def _fill(graph: Any, nodes: Iterable[Any], edges: Iterable[Edge], max_nodes: int, max_edges: int) -> None:
    """Add nodes and edges, and stop at the limits. A pair of nodes may be repeated only with the same attributes."""
    for node in nodes:
        data = node if isinstance(node, dict) else {"id": node}
        graph.add_node(name_of(data["id"]))
        graph.nodes[name_of(data["id"])].update(data)
        _check_size(len(graph), 0, max_nodes, max_edges)
    for count, (source, target, data) in enumerate(edges, 1):
        pair = name_of(source), name_of(target)
        if not all(pair):
            raise _invalid(f"edge {count} has no name for one of its nodes", "a node is a text or a number")
        if not graph.is_multigraph() and graph.get_edge_data(*pair, data) != data:
            cause = "only a multigraph, as JSON with multigraph true, has parallel edges"
            raise _invalid(f"the edge of {pair[0]!r:.100} and {pair[1]!r:.100} stands twice and differs", cause)
        graph.add_edges_from([(*pair, data)])
        _check_size(len(graph), count, max_nodes, max_edges)


def _labeled(graph: Any) -> Any:
    """The graph with the nodes' labels, or names, as nodes, if each has another one."""
    import networkx

    for key in ("label", "name"):
        labels = {node: str(data.get(key, "")).strip() for node, data in graph.nodes(data=True)}
        if labels and all(labels.values()) and len({*labels.values()}) == len(labels):
            return networkx.relabel_nodes(graph, labels)
    return graph


# --- forms ------------------------------------------------------------------------------------------------------------


def _read_xml(text: str) -> Any:
    """GraphML, or GEXF. Definitions of a document's own, which may grow without bound or name files, are refused."""
    import networkx

    if found := re.search(r"<!\s*(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise _invalid(f"the graph has a {found[1].upper()}", "such definitions are never read: they can name any file")
    if re.search(r"<node\b(?![^<>]*\sid\s*=)|<edge\b(?![^<>]*\ssource\s*=)|<edge\b(?![^<>]*\starget\s*=)", text):
        raise _invalid("a node has no id, or an edge no source or target", "the file is damaged")
    if re.search(r"<(\w+:)?gexf\b", text):
        return networkx.read_gexf(io.StringIO(text))
    return networkx.parse_graphml(text)


def _read_json(text: str) -> tuple[list[Any], Iterator[Edge], bool, bool]:
    """Nodes, edges, directed, multigraph of node-link JSON, of {"edges": [[source, target, weight]]}, or of a list."""
    value = json.loads(text)
    table = {"edges": value} if isinstance(value, list) else value
    nodes, edges = table.get("nodes", []), table.get("edges", table.get("links"))
    if not isinstance(nodes, list) or not isinstance(edges, list):
        raise _invalid("the JSON has no list of edges", 'it is {"nodes": [...], "edges": [[source, target], ...]}')
    return nodes, map(_json_edge, edges), table.get("directed") is True, table.get("multigraph") is True


def _json_edge(edge: Any) -> Edge:
    if isinstance(edge, dict):
        more = {key: value for key, value in edge.items() if key not in ("source", "target")}
        return edge["source"], edge["target"], more
    if not isinstance(edge, list) or len(edge) not in (2, 3):
        raise _invalid(f"{edge!r:.100} is not an edge", "an edge is [source, target] or [source, target, weight]")
    return edge[0], edge[1], {"weight": edge[2]} if len(edge) == 3 else {}


def _read_csv(text: str) -> Iterator[Edge]:
    """Edges of rows under a header; columns other than source and target are attributes."""
    rows = csv.reader(io.StringIO(text), strict=True)
    header = [cell.strip() for cell in next(rows)]
    known = dict.fromkeys(_SOURCES, "source") | dict.fromkeys(_TARGETS, "target")
    keys = [known.get(key.casefold(), key) for key in header]
    if len({*keys}) < len(keys) or not all(keys):
        raise _invalid(f"the header {','.join(header)!r:.200} repeats or lacks a name", "columns have names")
    for row in filter(None, rows):
        if len(row) != len(keys):
            cause = f"it has {len(row)} cells, the header {len(keys)}"
            raise _invalid(f"line {rows.line_num} of the CSV does not fit its header", cause)
        cells = dict(zip(keys, map(str.strip, row), strict=True))
        source, target = cells.pop("source"), cells.pop("target")
        yield source, target, {key: _number(cell) for key, cell in cells.items() if cell}


def _read_lines(text: str) -> Iterator[Edge]:
    """Edges of lines `source target`, perhaps with a weight or NetworkX's `{'weight': 3}`; `#`, `%` begin comments."""
    for number, line in enumerate(text.splitlines(), 1):
        pair, brace, data = line.partition("{")
        parts = [part.strip() for part in pair.split(",") if part.strip()] if "," in pair else pair.split()
        if not line.strip() or line.lstrip()[0] in "#%":
            continue
        more = ast.literal_eval(brace + data.strip()) if brace else {}
        if len(parts) == 3 and not brace:
            more = {"weight": _number(parts.pop())}
        if len(parts) != 2 or isinstance(more.get("weight"), str):
            cause = "a line is source, target and perhaps a weight, with spaces or commas between"
            raise _invalid(f"line {number} is not an edge: {line!r:.100}", cause)
        yield parts[0], parts[1], more


def _number(text: str) -> Any:
    """The number in a text, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
