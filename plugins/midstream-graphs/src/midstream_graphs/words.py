"""Results of graph algorithms in words: a sentence with the answer, then a table of at most `MAX_ROWS` rows."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

MAX_ROWS = 20
MAX_NAMES = 50  # of a list in one line
_LONGEST = 100  # characters of a name
_PLAIN = re.compile(r"[\w.+-]+(?: [\w.+-]+)*")

MAX_RESULTS = 1000  # paths or cycles, of which there can be exponentially many

Said = tuple[str, Any, Sequence[str]]  # the end of the sentence, the value, lines of a table


def shown(value: object) -> str:
    """A name or number in a text; a name with signs, which could be mistaken for the text around it, in JSON quotes."""
    if isinstance(value, float):
        return f"{value:.12g}"
    text = str(value)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... {len(text)} characters"
    quoted = json.dumps(text, ensure_ascii=False)
    visible = (sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in quoted)
    return text if _PLAIN.fullmatch(text) else "".join(visible)


class Names:
    """The names of a graph's nodes, which are places in `names`, and its edges with the attribute `weight`."""

    def __init__(self, graph: Any, names: Sequence[str], weight: str | None) -> None:
        self.graph, self.names, self.weight = graph, names, weight

    def of(self, nodes: Iterable[int]) -> list[str]:
        """The names of nodes."""
        return [self.names[node] for node in nodes]

    def weight_of(self, source: int, target: int, choose: Callable[..., float | None] = min) -> float | None:
        """The least weight, or the one that `choose` takes, of the edges between two nodes; None without weights."""
        data = self.graph.get_edge_data(source, target)
        parallel = data.values() if self.graph.is_multigraph() else [data]
        return choose((edge[self.weight] for edge in parallel if self.weight in edge), default=None)


def in_words(form: str, title: str, result: Any, names: Names) -> tuple[str, Any]:
    """(text, value) of what an algorithm has returned; `form` is a key of `FORMS`."""
    said, value, rows = FORMS[form](result, names)
    left_out = [f"[{len(rows) - 1 - MAX_ROWS:,} more rows left out]"] if len(rows) - 1 > MAX_ROWS else []
    return "\n".join([f"{title}: {said}", *rows[: MAX_ROWS + 1], *left_out]), value


def _list(names: Sequence[str], between: str = ", ") -> str:
    left_out = f"{between}[{len(names) - MAX_NAMES:,} more left out]" if len(names) > MAX_NAMES else ""
    return between.join(map(shown, names[:MAX_NAMES])) + left_out


def _count(number: int, one: str) -> str:
    return f"{number:,} {one}" + "s" * (number != 1)


def _number(result: Any, names: Names) -> Said:
    return shown(result), result, ()


def _yes(result: Any, names: Names) -> Said:
    value = bool(result[0] if isinstance(result, list) else result)  # planarity comes with its proof
    return "yes" if value else "no", value, ()


def _description(result: Any, names: Names) -> Said:
    keys = sorted({key for _, _, data in result.edges(data=True) for key in data if isinstance(key, str)})
    value = {
        "nodes": result.number_of_nodes(),
        "edges": result.number_of_edges(),
        "directed": result.is_directed(),
        "multigraph": result.is_multigraph(),
        "attributes": keys,
    }
    kind = ("directed" if value["directed"] else "undirected") + " multigraph" * value["multigraph"]
    said = f"{kind}, {_count(value['nodes'], 'node')}, {_count(value['edges'], 'edge')}, edges have "
    return said + (_list(keys) or "no attributes, such as a weight"), value, ()


def _nodes(result: Iterable[int], names: Names) -> Said:
    value = names.of(sorted(result))
    return f"{_count(len(value), 'node')}" + (f": {_list(value)}" if value else ""), value, ()


def _order(result: Iterable[int], names: Names) -> Said:
    value = names.of(result)
    return _list(value), value, ()


def _path(result: Sequence[int], names: Names, choose: Callable[..., float | None] = min) -> Said:
    value = names.of(result)
    weights = [weight for pair in pairwise(result) if (weight := names.weight_of(*pair, choose)) is not None]
    total = f", weight {shown(sum(weights))}" if weights else ""
    return f"{_list(value, ' -> ')} ({_count(len(value) - 1, 'edge')}{total})", value, ()


def _cycle(result: Sequence[Sequence[int]], names: Names) -> Said:
    value = names.of(edge[0] for edge in result)
    return f"{_list([*value, *value[:1]], ' -> ')} ({_count(len(value), 'edge')})", value, ()


def _several(result: Sequence[Sequence[int]], names: Names, *, one: str, most: int | None = MAX_RESULTS) -> Said:
    """Paths or cycles; the algorithm was stopped after one more than `most`."""
    value = [names.of(nodes) for nodes in result[:most]]
    count = _count(len(value), one) if len(value) == len(result) else f"more than {most:,} {one}s"
    return count, value, [f"{one}s:", *(_list(nodes, " -> ") for nodes in value)]


def _scores(result: Mapping[int, float] | Iterable[tuple[int, float]], names: Names) -> Said:
    ranked = sorted(dict(result).items(), key=lambda item: (-item[1], item[0]))
    value = {names.names[node]: score for node, score in ranked}
    best, score = next(iter(value.items()))
    said = f"highest at {shown(best)} with {shown(score)}, of {_count(len(value), 'node')}"
    return said, value, ["node,value", *(f"{shown(name)},{shown(score)}" for name, score in value.items())]


def _groups(result: Iterable[Iterable[int]], names: Names) -> Said:
    value = [names.of(group) for group in sorted(map(sorted, result), key=lambda group: (-len(group), group))]
    said = f"{_count(len(value), 'group')}, the largest of {_count(len(value[0]), 'node')}"
    return said, value, ["size: nodes", *(f"{len(group):,}: {_list(group)}" for group in value)]


def _colors(result: Mapping[int, int], names: Names) -> Said:
    value = {names.names[node]: result[node] for node in sorted(result)}
    groups: dict[int, list[str]] = {}
    for name, color in value.items():
        groups.setdefault(color, []).append(name)
    rows = ["color: nodes", *(f"{color}: {_list(groups[color])}" for color in sorted(groups))]
    return _count(len(groups), "color"), value, rows


def _edges(result: Any, names: Names) -> Said:
    """A set of edges, or a graph of them."""
    pairs = [tuple(edge[:2]) for edge in (result.edges() if hasattr(result, "edges") else result)]
    if not names.graph.is_directed():
        pairs = [(min(pair), max(pair)) for pair in pairs]
    weights = [names.weight_of(*pair) for pair in sorted(pairs)]
    value: list[list[Any]] = [
        names.of(pair) if weight is None else [*names.of(pair), weight]
        for pair, weight in zip(sorted(pairs), weights, strict=True)
    ]
    total = [weight for weight in weights if weight is not None]
    said = _count(len(value), "edge") + (f", weight {shown(sum(total))}" if total else "")
    head = "source,target" + ",weight" * bool(total)
    return said, value, [head, *(",".join(map(shown, row)) for row in value)] if value else ()


FORMS: Mapping[str, Callable[[Any, Names], Said]] = {
    "number": _number,
    "yes": _yes,
    "description": _description,
    "nodes": _nodes,
    "order": _order,
    "path": _path,
    "longest path": partial(_path, choose=max),
    "paths": partial(_several, one="path"),
    "cycle": _cycle,
    "cycles": partial(_several, one="cycle"),
    "basis": partial(_several, one="cycle", most=None),
    "scores": _scores,
    "groups": _groups,
    "colors": _colors,
    "edges": _edges,
}
"""How to say the result of an algorithm, by its form."""
