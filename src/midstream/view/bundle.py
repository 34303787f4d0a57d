"""The viewer in one HTML file, which opens from disk; nothing is loaded from elsewhere.

It holds documents (`view/documents.py`) as gzip in base64 next to the page code. All overviews and all lists of
evaluations are there; of the trajectories, those that a reader is likely to ask for, until a number of bytes is spent.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import permutations, zip_longest
from pathlib import Path
from shlex import quote as shell_quote
from urllib.parse import quote, urlencode

from midstream.core.errors import MidstreamError, UsageError
from midstream.report import blocks
from midstream.report.blocks import Block
from midstream.report.comparison import Comparison, GroupComparison, comparison_page
from midstream.report.numbers import counted
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write
from midstream.runs.segments import Entry
from midstream.view import MAX_MB
from midstream.view.documents import Documents

_IN_BASE64 = 4 / 3
_FOR_CALLS = 0.4  # of the bytes that are left for trajectories: their prompts and tokens
_MOST_TURNS = 2_000  # of a trajectory, unless it was asked for
_MOST_TRAJECTORIES = 150  # of a run: more take long to read
AT_END = 16  # of them in the page that a run writes at its end: these take a second
_COMPARED = 4  # runs of which each is compared with each

Path_ = tuple[str, ...]  # the pieces of a document's path
Chosen = tuple[str, list[int], str]  # trajectories of a task: their part, their places in it, the task
_SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page needs JavaScript. `midstream show` prints a run in the terminal.</noscript>
{scripts}
</body>
</html>
"""
BEGINNING = _SHELL.partition("\n")[0].encode()
_POLICY = "default-src 'none'; script-src {code}; style-src {style}; img-src data:; base-uri 'none'; form-action 'none'"


class Selection:
    """Documents that are chosen while their bytes last; `size` is about what they take in a file."""

    def __init__(self, documents: Documents, most: float) -> None:
        self._documents, self.most = documents, most
        self.chosen: dict[Path_, Block] = {}
        self.size = 0.0

    def take(self, *path: str) -> Block:
        """Choose a document whatever its size."""
        document = _whole(self._documents, path)
        return self.put(path, document, _size(path, document))

    def try_to(self, *path: str, share: float = 1.0) -> Block | None:
        """Choose a document if it fits into that share of all bytes; None if it does not, or cannot be read."""
        if path in self.chosen:
            return self.chosen[path]
        try:
            document = _whole(self._documents, path, _MOST_TURNS)
        except MidstreamError:  # of a damaged part, or of a call without tokens
            return None
        if "turns_total" in document and document["turns_total"] != len(document["turns"]):  # too long
            return None
        size = _size(path, document)
        return None if self.size + size > self.most * share else self.put(path, document, size)

    def put(self, path: Path_, document: Block, size: float) -> Block:
        """Choose a document of this size."""
        self.size += size
        self.chosen[path] = document
        return document


def write_runs(places: Sequence[Path], path: Path, *, max_mb: float = MAX_MB, most: int = _MOST_TRAJECTORIES) -> None:
    """Write the runs in these places as one page of at most about `max_mb` MB, with `most` trajectories of each.

    Overviews and lists are written whatever they take. Raises `StorageError`.
    """
    documents = Documents(places)
    names = list(documents.runs.find())
    selection = Selection(documents, _room(max_mb))
    selection.take("runs")
    for name in names:
        add_overview(selection, name)
    for first, other in permutations(names, 2) if len(names) <= _COMPARED else ():
        selection.try_to("compare", first, other)
    for place, name in enumerate(names):
        add_trajectories(selection, documents, name, share=(place + 1) / len(names), most=most)
    write_page(selection, path, title=", ".join(names), start=_key((names[0],)) if len(names) == 1 else "")


def write_report(
    run: RunDirectory, path: Path | None = None, *, max_mb: float = MAX_MB, most: int = _MOST_TRAJECTORIES
) -> None:
    """Write a run as one page, by default in its directory; see `write_runs`."""
    write_runs([run.root], path or run.report_path, max_mb=max_mb, most=most)


def write_trajectory(run: RunDirectory, id_or_prefix: str, path: Path, *, max_mb: float = MAX_MB) -> None:
    """Write one trajectory as a page, with its group and its calls as far as they fit.

    Raises `RunError` if none or several have an id that begins so, and `StorageError`.
    """
    wanted, documents = run.find_trajectory(id_or_prefix).id, Documents([run.root])
    name = next(iter(documents.runs.find()))
    segment = id_or_prefix.partition("/")[0]
    selection = Selection(documents, _room(max_mb))
    parts = [part["name"] for part in add_overview(selection, name, lists=False)["parts"]]
    for part in [segment] if segment in parts else parts:
        for place, entry in enumerate(documents.open(name, part).entries):
            if entry.id == wanted:
                at = ("run", name, "part", part)
                selection.try_to(*at)
                selection.try_to(*at, "group", entry.task_id)
                shown = selection.take(*at, "trajectory", str(place))
                _add_calls(selection, (*at, "trajectory", str(place)), shown)
                write_page(selection, path, title=wanted, start=_key((name, part, entry.task_id, f"@{place}")))
                return
    raise UsageError(f"{wanted} is in no part of {run.root}", code="trajectory-not-found", fix="give part and id")


def write_comparison(comparison: Comparison | GroupComparison, path: Path, *, max_mb: float = MAX_MB) -> None:
    """Write a comparison as one page, with the overviews of its runs. Raises `StorageError`."""
    groups = [comparison.runs] if isinstance(comparison, Comparison) else comparison.groups.values()
    documents = Documents([compared.run.root for group in groups for compared in group])
    selection = Selection(documents, _room(max_mb))
    names = list(documents.runs.find())
    pair = names[0], names[-1]
    selection.put(("compare", *pair), comparison_page(comparison), 0.0)
    for name in names:
        add_overview(selection, name)
    start = urlencode({"compare": ",".join(_key((name,)) for name in pair)}, safe=",")
    write_page(selection, path, title=" and ".join(names), start=f"?{start}")


def write_page(selection: Selection, path: Path, *, title: str, start: str) -> None:
    """Write one HTML file of the chosen documents; `start` is the address that it opens at. Raises `StorageError`."""
    if ("runs",) not in selection.chosen:
        selection.take("runs")
    document = page_html(
        {_key(path): document for path, document in selection.chosen.items()}, title=title, start=f"#/{start}"
    )
    atomic_write(path, document.encode("utf-8", "replace"))


def page_html(documents: Mapping[str, Block], *, title: str, start: str) -> str:
    """One page of documents by path, that opens at the address `start`, such as "#/RUN"."""
    # Within a script, only its end tag and the start of a comment or of another script mean something to the parser.
    code = re.sub(r"<(?=/script|!--|script)", r"\\x3c", static("view.js"), flags=re.IGNORECASE)
    first = f'location.hash||history.replaceState(null,"",{json.dumps(start)})'.replace("<", "\\u003c")
    style = static("view.css")
    return _SHELL.format(
        policy=_POLICY.format(code=f"{_hash(first)} {_hash(code)}", style=_hash(style)),
        title=escape(title),
        style=style,
        scripts=f'<script type="application/gzip" id="data">{packed(documents)}</script>\n'
        f"<script>{first}</script>\n<script>{code}</script>",
    )


# --- what is chosen ---------------------------------------------------------------------------------------------------


def add_overview(selection: Selection, name: str, *, lists: bool = True) -> Block:
    """Choose a run's overview, and the lists of its evaluations."""
    document = selection.take("run", name)
    for part in document["parts"] if lists else ():
        if part["kind"] != "step":
            selection.try_to("run", name, "part", part["name"], share=2.0)  # lists are small, and all of them wanted
    return document


def add_trajectories(
    selection: Selection, documents: Documents, name: str, *, share: float = 1.0, most: int = _MOST_TRAJECTORIES
) -> None:
    """Choose trajectories with their groups, then their prompts and tokens, until this share of all bytes is spent.

    A section at the end of the run's page says what is there, and which command shows the rest.
    """
    document = selection.chosen["run", name]
    taken: dict[Path_, Block] = {}
    until = selection.size + (share * selection.most - selection.size) * (1 - _FOR_CALLS)
    for part, places, task in _order(documents, name, document["parts"]):
        at = ("run", name, "part", part)
        found = [selection.try_to(*at, "trajectory", str(place), share=until / selection.most) for place in places]
        if any(found):
            selection.try_to(*at, share=share)
            selection.try_to(*at, "group", task, share=share)
        taken |= {(*at, "trajectory", str(place)): one for place, one in zip(places, found, strict=True) if one}
        if selection.size > until * 0.98 or len(taken) >= most:
            break
    with_calls = sum(_add_calls(selection, path, found, share=share) for path, found in taken.items())
    count = sum(part["count"] for part in document["parts"])
    words = (
        f"This file holds {len(taken):,} of the {counted(count, 'trajectory', 'trajectories')} of this run, "
        f"{with_calls:,} of them with the prompts and tokens of all calls. This command shows the rest:"
    )
    command = f"midstream view {shell_quote(document['summary']['path'])}"
    section = {"key": "file", "title": "What this file holds", "blocks": [blocks.text(words), blocks.code(command)]}
    page = document["page"]
    selection.chosen["run", name] = {**document, "page": {**page, "sections": [*page["sections"], section]}}


def _add_calls(selection: Selection, path: Path_, document: Block, *, share: float = 1.0) -> bool:
    """Choose what the calls of a trajectory sent and sampled; whether all fit."""
    calls = [*document["opening_calls"], *(call for turn in document["turns"] for call in turn["calls"])]
    whole = True
    for call in [*calls, *document["closing"]]:
        at = (*path, "call", str(call["n"]))
        whole &= selection.try_to(*at, share=share) is not None
        whole &= not call["tokens"] or selection.try_to(*at, "tokens", share=share) is not None
    return whole


def _order(documents: Documents, name: str, parts: Sequence[Block]) -> Iterator[Chosen]:
    """(part, places, task) of what a reader is likely to open, the likeliest first.

    In rounds a wrong and a right one of each evaluation and a group of the first, middle and last step; then the other
    steps.
    """
    steps = [part["name"] for part in parts if part["kind"] == "step"]
    ends = dict.fromkeys(steps[place] for place in (0, len(steps) // 2, -1)) if steps else {}
    lists: list[list[Chosen]] = []
    for part in (part["name"] for part in parts if part["kind"] != "step"):
        sides: tuple[list[Chosen], list[Chosen]] = ([], [])
        for place, entry in enumerate(_entries(documents, name, part)):
            sides[entry.score is not None and entry.score >= 1].append((part, [place], entry.task_id))
        lists += sides
    lists += [_groups(documents, name, part) for part in ends]
    yield from (chosen for round in zip_longest(*lists) for chosen in round if chosen)
    for part in steps:
        if part not in ends:
            yield from _groups(documents, name, part)


def _groups(documents: Documents, name: str, part: str) -> list[Chosen]:
    by_task: dict[str, list[int]] = {}
    for place, entry in enumerate(_entries(documents, name, part)):
        by_task.setdefault(entry.task_id, []).append(place)
    return [(part, places, task) for task, places in by_task.items()]


def _entries(documents: Documents, name: str, part: str) -> list[Entry]:
    """The trajectories of a part; none of one that cannot be read, which is among the run's warnings."""
    try:
        return documents.open(name, part).entries
    except (MidstreamError, OSError):
        return []


def _whole(documents: Documents, path: Path_, turns: int | None = None) -> Block:
    """A document with all that it lists; of a trajectory at most so many turns."""
    match path:
        case ["run", run, "part", part]:
            return documents.part(run, part)
        case ["run", run, "part", part, "trajectory", place]:
            return documents.trajectory(run, part, int(place), limit=turns)
    return documents.get(path, {})


# --- files ------------------------------------------------------------------------------------------------------------


def packed(documents: Mapping[str, Block]) -> str:
    """Documents as gzip in base64; equal documents give equal text."""
    return base64.b64encode(gzip.compress(_json(documents), 9, mtime=0)).decode("ascii")


def static(name: str) -> str:
    """A file of the page code."""
    return files("midstream.view").joinpath("static", name).read_text(encoding="utf-8")


def _size(path: Path_, document: Block) -> float:
    """About the bytes that a document takes in a file."""
    return len(zlib.compress(_json({_key(path): document}), 6)) * _IN_BASE64


def _json(documents: Mapping[str, Block]) -> bytes:
    # In ASCII, where halves of surrogate pairs are escapes.
    return json.dumps(documents, separators=(",", ":"), allow_nan=False).encode("ascii")


def _key(path: Path_) -> str:
    return "/".join(quote(piece, safe="!'()*~", errors="surrogatepass") for piece in path)


def _room(max_mb: float) -> float:
    """The bytes for documents."""
    if not 0 < max_mb < 1000:
        raise UsageError(
            f"--max-mb {max_mb:g} is out of range", code="setting-range", fix="give a number of MB, such as 3"
        )
    return max_mb * 1e6 - sum(len(static(name)) for name in ("view.js", "view.css"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
