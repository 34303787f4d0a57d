"""Read a graph from text: an edge list, CSV, JSON, GraphML or GEXF.

Names of nodes are texts: "3" and 3 are the same node.
"""

import ast
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

MAX_NODES, MAX_EDGES = 50_000, 200_000
FORMS = "an edge list, CSV with the header source,target or source,target,weight, JSON, GraphML or GEXF"
_ENDS = {  # the words of a header for the ends of an edge
    "source": re.compile("(source|from|src)([ _]?(node|id|name|label))*"),
    "target": re.compile("(target|to|dst|dest|destination)([ _]?(node|id|name|label))*"),
}
_OTHER_FORM = re.compile(r"%%MatrixMarket|\*Vertices|(strict\s+)?(di)?graph\b[^\n]*[{\[]\s*(\n|$)", re.IGNORECASE)
# In an edge list with commas or spaces: arrows, bullets, pairs in parentheses, adjacency lists, "b: 3".
_SIGN = re.compile(r"^[^\w\s]+$|->|=>|→|--|^[^\s:]+:(\s|$)|:\s+[\d.]+$|^[-*] |^\([^()]*$")
_GEXF = "http://www.gexf.net/1.2draft"
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
            graph = _read_xml(re.sub(r"<!--.*?-->", "", start, flags=re.DOTALL))
        else:
            if start.startswith(("{", "[")):
                nodes, edges, declared, multiple = _read_json(start)
            else:
                edges, declared = _read_rows(start)
                nodes, multiple = (), False
            kinds = (networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph)
            graph = kinds[2 * multiple + (directed is True if declared is None else declared)]()
            _fill(graph, nodes, edges, max_nodes, max_edges)
    except (Mistake, MemoryError, ImportError):
        raise
    except Exception as error:  # parsers raise anything on a broken file: XML, recursion, missing keys
        problem = f"{type(error).__name__}: {error}"[:300]
        broken = isinstance(error, SyntaxError | ValueError | csv.Error)
        cause = (
            "the text is cut off, damaged or of another form"
            if broken
            else "the graph has what this form does not allow"
        )
        raise _invalid(f"the graph cannot be read: {problem}", cause) from error
    _check_size(graph.number_of_nodes(), graph.number_of_edges(), max_nodes, max_edges)
    return _labeled(turned(graph, directed))


def turned(graph: Any, directed: bool | None) -> Any:
    """The graph with or without directions, as `read_graph` describes it.

    Raises `Mistake` if the two directions of an edge have different attributes: neither could be chosen.
    """
    import networkx

    if directed is None or directed == graph.is_directed():
        return graph
    if directed:
        return graph.to_directed()
    kept = networkx.MultiGraph() if graph.is_multigraph() else networkx.Graph()
    kept.add_nodes_from(graph.nodes(data=True))
    edges = graph.edges(data=True)
    plain = ((source, target, {key: data[key] for key in data if key != "id"}) for source, target, data in edges)
    _add_edges(kept, plain, graph.number_of_nodes(), graph.number_of_edges())
    return kept


def is_name(value: object) -> bool:
    """Whether a value can be the name of a node: a text that is not empty, or a finite number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    return isfinite(value) if isinstance(value, float) else bool(str(value).strip())


def name_of(value: Any) -> str:
    """The name of a node as text. Raises `Mistake` for what can be none."""
    if not is_name(value):
        raise _invalid(f"{value!r:.100} cannot be a node", "the name of a node is a text or a finite number")
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
    """Add nodes and edges, and stop at the limits."""
    for node in nodes:
        data = node if isinstance(node, dict) else {"id": node}
        name = name_of(data.get("id", data.get("name", "")))
        if name in graph:
            raise _invalid(f"the node {name!r:.100} is given twice", "each node has its own id")
        graph.add_node(name)
        graph.nodes[name].update(data)
        _check_size(len(graph), 0, max_nodes, max_edges)
    ids = {*graph} if any(isinstance(node, dict) for node in nodes) else None
    named = ((_end(source, ids), _end(target, ids), data) for source, target, data in edges)
    _add_edges(graph, named, max_nodes, max_edges)


def _end(value: Any, ids: set[str] | None) -> str:
    """The name of one end of an edge; with `ids`, it must be one of them."""
    name = name_of(value)
    if ids is not None and name not in ids:
        raise _invalid(f"an edge ends at {name!r:.100}, which no node has as its id", f"ids are {sorted(ids)[:5]}, ...")
    return name


def _add_edges(graph: Any, edges: Iterable[Edge], max_nodes: int, max_edges: int) -> None:
    """Add edges, and stop at the limits. A pair of nodes may be repeated only with the same attributes."""
    for count, (source, target, data) in enumerate(edges, 1):
        if not graph.is_multigraph() and graph.get_edge_data(source, target, data) != data:
            cause = "only a multigraph, as JSON with multigraph true, has parallel edges"
            raise _invalid(f"{source!r:.100} - {target!r:.100} is given twice, with different attributes", cause)
        graph.add_edges_from([(source, target, data)])
        _check_size(len(graph), count, max_nodes, max_edges)


def _labeled(graph: Any) -> Any:
    """The graph with the nodes' labels, or names, as nodes, if each has another one."""
    import networkx

    for key in ("label", "name"):
        given = {node: data.get(key) for node, data in graph.nodes(data=True)}
        labels = {
            node: str(label).strip() if isinstance(label, str | int | float) else "" for node, label in given.items()
        }
        if labels and all(labels.values()) and len({*labels.values()}) == len(labels):
            return networkx.relabel_nodes(graph, labels)
    return graph


# --- forms ------------------------------------------------------------------------------------------------------------


def _read_xml(text: str) -> Any:
    """GraphML, or GEXF. Definitions of a document's own, which may grow without bound or name files, are refused."""
    import networkx

    if found := re.search(r"<!\s*(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise _invalid(f"the graph has a {found[1].upper()}", "such definitions are never read: they can name any file")
    nodes, edges = (
        re.findall(rf"<(?:\w+:)?{tag}\b((?:[^<>\"']|\"[^\"]*\"|'[^']*')*)>", text) for tag in ("node", "edge")
    )
    lacking = [word for word, tags in (("id", nodes), ("source", edges), ("target", edges))
               if not all(re.search(rf"\s{word}\s*=", tag) for tag in tags)]  # fmt: skip
    if lacking:
        raise _invalid(f"a node or edge has no {lacking[0]}", "the file is damaged")
    if re.search(r"<(\w+:)?gexf\b", text):
        # NetworkX reads 1.3 as well, but knows the names of earlier versions alone.
        nameless = re.sub(r'(<gexf\b[^>]*?)\sxmlns="[^"]*"', r"\1", text, count=1)
        graph = networkx.read_gexf(io.StringIO(re.sub(r"<gexf\b", f'<gexf xmlns="{_GEXF}"', nameless, count=1)))
    else:
        graph = networkx.parse_graphml(text)
    if len(nodes) > len(graph) or len(edges) > graph.number_of_edges():
        read = f"{len(graph):,} of {len(nodes):,} nodes and {graph.number_of_edges():,} of {len(edges):,} edges"
        raise _invalid(f"only {read} can be read", "there are several graphs, or an id is repeated")
    for *_, data in graph.edges(data=True):
        data.update(graph.graph.get("edge_default", {}) | data)
    return graph


def _read_json(text: str) -> tuple[list[Any], Iterator[Edge], bool | None, bool]:
    """Nodes, edges, directed, multigraph of node-link JSON, of {"edges": [[source, target, weight]]}, or of a list."""
    value = json.loads(text)
    table = {"edges": value} if isinstance(value, list) else value
    nodes, edges = table.get("nodes", table.get("vertices", [])), table.get("edges", table.get("links"))
    if not isinstance(nodes, list) or not isinstance(edges, list) or {"edges", "links"} <= {*table}:
        raise _invalid(
            "the JSON has no list of edges, or two", 'it is {"nodes": [...], "edges": [[source, target], ...]}'
        )
    directed, multiple = table.get("directed"), table.get("multigraph", False)
    if not isinstance(directed, bool | None) or not isinstance(multiple, bool):
        raise _invalid("directed or multigraph is neither true nor false", "JSON's true and false have no quotes")
    return nodes, map(_json_edge, edges), directed, multiple


def _json_edge(edge: Any) -> Edge:
    if isinstance(edge, dict):
        source, target = ("source", "target") if "source" in edge else ("from", "to")
        more = {key: value for key, value in edge.items() if key not in (source, target)}
        return edge.get(source, ""), edge.get(target, ""), more
    if not isinstance(edge, list) or len(edge) not in (2, 3):
        raise _invalid(f"{edge!r:.100} is not an edge", "an edge is [source, target] or [source, target, weight]")
    more = edge[2] if len(edge) == 3 else {}
    return edge[0], edge[1], more if isinstance(more, dict) else {"weight": more}


def _read_rows(text: str) -> tuple[Iterable[Edge], bool | None]:
    """Edges of rows with one sign between cells, under a header or without, and their direction if a column says it."""
    if found := _OTHER_FORM.match(text):
        raise _invalid(
            f"the form that begins with {found[0]!r} is not read", "GML, DOT, Pajek and MatrixMarket are not"
        )
    if r"\n" in text and "\n" not in text.strip():
        raise _invalid(r"the text has one line, and \n as two signs", "the shell or the model has written it so")
    text = re.sub(r"\A\s*([#%].*\n\s*)+", "", text)
    first, _, rest = text.partition("\n")
    between = next((sign for sign in "\t;," if sign in first.partition("{")[0]), " ")
    header = _cells(first.partition("{")[0], between)
    keys = [_key(cell) for cell in header]
    if {"id"} < {*keys} <= {"id", "label", "name"}:
        raise _invalid(f"the header {first!r:.100} is of a table of nodes", "a table of edges has source and target")
    if not {"source", "target"} <= {*keys} or any(not isinstance(_number(key), str) for key in keys):
        return _read_lines(text, between), None
    if len({*keys}) < len(keys) or not all(keys[1:]):
        raise _invalid(f"the header {first!r:.100} names a column twice or not at all", "each column has its own name")
    edges = list(_below(keys, csv.reader(io.StringIO(rest), strict=True, delimiter=between, skipinitialspace=True)))
    kinds = {str(data.get("type")).casefold() for *_, data in edges}
    if not edges or not kinds <= {"directed", "undirected"}:  # as in Gephi's tables
        return edges, None
    if len(kinds) > 1:
        raise _invalid("some edges are directed and some undirected", "a graph is one or the other")
    return [(source, target, data) for source, target, data in edges if data.pop("type")], kinds == {"directed"}


def _key(cell: str) -> str:
    """The attribute that a cell of a header names: words for the ends of an edge have many forms."""
    word = cell.casefold()
    for key, words in _ENDS.items():
        if words.fullmatch(word):
            return key
    return word if word in ("weight", "capacity", "type", "id") else cell


def _cells(line: str, between: str) -> list[str]:
    """The cells of one line; a separator at its end makes none."""
    row = next(csv.reader([line.strip()], strict=True, delimiter=between, skipinitialspace=True), [])
    cells = [cell.strip() for cell in row]
    return cells[:-1] if len(cells) > 1 and not cells[-1] else cells


def _below(keys: list[str], rows: Any) -> Iterator[Edge]:
    """The edges of rows below a header; ids of rows are left out, as is the nameless first column of pandas."""
    for row in rows:
        row = [cell.strip() for cell in row]
        if not any(row):
            continue
        if len(row) == len(keys) + 1 and not row[-1]:
            row.pop()
        if len(row) != len(keys):
            cause = f"it has {len(row)} cells, the header {len(keys)}"
            raise _invalid(f"line {rows.line_num} below the header does not fit it", cause)
        cells = dict(zip(keys, row, strict=True))
        source, target = cells.pop("source"), cells.pop("target")
        yield source, target, {key: _number(cell) for key, cell in cells.items() if cell and key not in ("", "id")}


def _read_lines(text: str, between: str) -> Iterator[Edge]:
    """Edges of lines `source target`, perhaps with a weight or NetworkX's `{'weight': 3}`; `#`, `%` begin comments."""
    others = {" ": ",;\t", ",": ";\t"}.get(between, "")  # another line may have them as its separator
    edges = 0
    for number, line in enumerate(text.splitlines(), 1):
        pair, brace, data = line.partition("{")
        if not line.strip() or (line.lstrip()[0] in "#%" and line.strip() != "#"):
            continue
        cells, more = _cells(pair, between), ast.literal_eval(brace + data.strip()) if brace else {}
        decimal_comma = len(cells) == 2 and between == "," and re.search(r"\s[\d.]+,\d+$", line)
        if len(cells) == 3 and not brace:
            more = {"weight": _number(cells.pop())}
        signs = between in ", " and any(_SIGN.search(cell) for cell in cells)
        mixed = any(sign in cell for cell in cells for sign in others)
        if len(cells) != 2 or isinstance(more.get("weight"), str) or decimal_comma or signs or mixed:
            cause = (
                "a line is source, target and perhaps a weight, with one sign between them; a header has these words"
            )
            raise _invalid(f"line {number} is not an edge: {line!r:.100}", cause)
        yield cells[0], cells[1], more
        edges += 1
    if not edges:
        raise _invalid("the text has no edge", "each of its lines is a comment")


def _number(text: str) -> Any:
    """The number in a text, or the text."""
    for kind in (int, float):
        try:
            return kind(text.replace("_", "?"))  # Python reads 1_0 as 10
        except ValueError:
            continue
    return text
