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
from itertools import chain, permutations, zip_longest
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
from midstream.view import MAX_MB
from midstream.view.documents import Documents
from midstream.view.entries import Filter

_IN_BASE64 = 4 / 3
_FOR_CALLS = 0.4  # of the bytes that are left for trajectories: their prompts and tokens
_MOST_TURNS = 2_000  # of a trajectory, unless it was asked for
_ALL = "9" * 18
# Of a run; more take long to read.
_MOST_TRAJECTORIES = 150
# In the page that a run writes at its end, which should not wait for it: these take a second.
AT_END = 16
_COMPARED = 4  # runs of which each is compared with each

Path_ = tuple[str, ...]  # the pieces of a document's path
Chosen = tuple[str, list[int], str]  # trajectories of a task: their part, their places in it, the task
BEGINNING = b"<!doctype html>"
_POLICY = "default-src 'none'; script-src {code}; style-src {style}; img-src data:; base-uri 'none'; form-action 'none'"


class Selection:
    """Documents that are chosen while their bytes last; `size` is about what they take in a file, `most` the limit."""

    def __init__(self, documents: Documents, max_mb: float) -> None:
        if not 0 < max_mb < 1000:
            fix = "give a number of MB, such as 3"
            raise UsageError(f"--max-mb {max_mb:g} is out of range", code="setting-range", fix=fix)
        self.documents, self.size = documents, 0.0
        self.most = max_mb * 1e6 - sum(len(static(name)) for name in ("view.js", "view.css"))
        self.chosen: dict[Path_, Block] = {}
        self.take("runs")

    def take(self, *path: str) -> Block:
        """Choose a document whatever its size."""
        document = self.documents.get(path, {"limit": _ALL})
        self.size += _size(path, document)
        self.chosen[path] = document
        return document

    def try_to(self, *path: str, until: float) -> Block | None:
        """Choose a document if all of them then have at most `until` bytes; None if not, or if it cannot be read."""
        if path in self.chosen:
            return self.chosen[path]
        try:
            match path:
                case ["run", run, "part", part]:
                    document = self.documents.part(run, part, Filter())  # however long it takes
                case _:
                    document = self.documents.get(path, {"limit": str(_MOST_TURNS)})
        except MidstreamError:  # of a damaged part, or of a call without tokens
            return None
        if "turns_total" in document and document["turns_total"] != len(document["turns"]):  # too long
            return None
        size = _size(path, document)
        if self.size + size > until:
            return None
        self.size += size
        self.chosen[path] = document
        return document


def write_runs(places: Sequence[Path], path: Path, *, max_mb: float = MAX_MB, most: int = _MOST_TRAJECTORIES) -> None:
    """Write the runs in these places as one page of at most about `max_mb` MB, with `most` trajectories of each.

    Overviews and lists are written whatever they take. Raises `StorageError`.
    """
    selection = Selection(Documents(places), max_mb)
    names = list(selection.documents.runs.find())
    for name in names:
        add_overview(selection, name)
    for first, other in permutations(names, 2) if len(names) <= _COMPARED else ():
        selection.try_to("compare", first, other, until=selection.most)
    for place, name in enumerate(names, 1):
        add_trajectories(selection, name, until=selection.most * place / len(names), most=most)
    write_page(selection, path, title=", ".join(names), start=_key((names[0],)) if len(names) == 1 else "")


def write_trajectory(run: RunDirectory, id_or_prefix: str, path: Path, *, max_mb: float = MAX_MB) -> None:
    """Write one trajectory as a page, with its group and its calls as far as they fit.

    Raises `RunError` if none or several have an id that begins so, and `StorageError`.
    """
    wanted, selection = run.find_trajectory(id_or_prefix).id, Selection(Documents([run.root]), max_mb)
    name = next(iter(selection.documents.runs.find()))
    segment = id_or_prefix.partition("/")[0]
    parts = [part["name"] for part in selection.take("run", name)["parts"]]
    for part in [segment] if segment in parts else parts:
        for place, entry in enumerate(selection.documents.open(name, part).entries):
            if entry.id == wanted:
                at = ("run", name, "part", part)
                selection.try_to(*at, until=selection.most)
                selection.try_to(*at, "group", entry.task_id, until=selection.most)
                shown = selection.take(*at, "trajectory", str(place))
                _add_calls(selection, (*at, "trajectory", str(place)), shown, until=selection.most)
                write_page(selection, path, title=wanted, start=_key((name, part, entry.task_id, f"@{place}")))
                return
    raise UsageError(f"{wanted} is in no part of {run.root}", code="trajectory-not-found", fix="give part and id")


def write_comparison(comparison: Comparison | GroupComparison, path: Path, *, max_mb: float = MAX_MB) -> None:
    """Write a comparison as one page, with the overviews of its runs. Raises `StorageError`."""
    groups = [comparison.runs] if isinstance(comparison, Comparison) else comparison.groups.values()
    selection = Selection(Documents([compared.run.root for group in groups for compared in group]), max_mb)
    names = list(selection.documents.runs.find())
    pair = names[0], names[-1]
    selection.chosen["compare", *pair] = comparison_page(comparison)
    for name in names:
        add_overview(selection, name)
    start = urlencode({"compare": ",".join(_key((name,)) for name in pair)}, safe=",")
    write_page(selection, path, title=" and ".join(names), start=f"?{start}")


def write_page(selection: Selection, path: Path, *, title: str, start: str) -> None:
    """Write one HTML file of the chosen documents; `start` is the address that it opens at. Raises `StorageError`."""
    documents = {_key(path): document for path, document in selection.chosen.items()}
    # Half a surrogate pair, which a file's name may hold, has no UTF-8.
    atomic_write(path, page_html(documents, title=title, start=f"#/{start}").encode("utf-8", "replace"))


def page_html(documents: Mapping[str, Block], *, title: str, start: str) -> str:
    """One page of documents by path, that opens at the address `start`, such as "#/RUN"."""
    # Within a script, only its end tag and the start of a comment or of another script mean something to the parser.
    code = re.sub(r"<(?=/script|!--|script)", r"\\x3c", static("view.js"), flags=re.IGNORECASE)
    first = f'location.hash||history.replaceState(null,"",{json.dumps(start)})'.replace("<", "\\u003c")
    style = static("view.css")
    # No time is in it: equal documents give equal bytes.
    data = base64.b64encode(gzip.compress(_json(documents), 9, mtime=0)).decode("ascii")
    policy = _POLICY.format(code=f"{_hash(first)} {_hash(code)}", style=_hash(style))
    inline = {
        "<title>midstream</title>": f"<title>{escape(title)}</title>",
        '<link rel="stylesheet" href="view.css">': f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{style}</style>",
        '<script src="view.js" defer></script>': f'<script type="application/gzip" id="data">{data}</script>\n'
        f"<script>{first}</script>\n<script>{code}</script>",
    }
    page = static("index.html")
    for linked, content in inline.items():
        page = page.replace(linked, content)
    return page


# --- what is chosen ---------------------------------------------------------------------------------------------------


def add_overview(selection: Selection, name: str) -> None:
    """Choose a run's overview, the lists of its evaluations, and what failed in the last ones."""
    evaluated = [part["name"] for part in selection.take("run", name)["parts"] if part["kind"] != "step"]
    for part in evaluated:
        # They are small, and all of them wanted.
        selection.try_to("run", name, "part", part, until=2 * selection.most)
    for part in evaluated[-4:]:  # causes need whole trajectories, of which a long run has many
        selection.try_to("run", name, "part", part, "failures", until=selection.most)


def add_trajectories(selection: Selection, name: str, *, until: float, most: int) -> None:
    """Choose at most `most` trajectories with their groups, then their prompts and tokens, until so many bytes.

    A section at the end of the run's page says what is there, and which command shows the rest.
    """
    document = selection.chosen["run", name]
    taken: dict[Path_, Block] = {}
    without_calls = selection.size + (until - selection.size) * (1 - _FOR_CALLS)
    for part, places, task in _order(selection.documents, name, document["parts"]):
        at = ("run", name, "part", part)
        paths = [(*at, "trajectory", str(place)) for place in places]
        found = {path: shown for path in paths if (shown := selection.try_to(*path, until=without_calls))}
        if found:
            selection.try_to(*at, until=until)
            selection.try_to(*at, "group", task, until=until)
        taken |= found
        # A trajectory that is smaller than the others may still fit; to look for it takes long.
        if selection.size > without_calls * 0.98 or len(taken) >= most:
            break
    with_calls = sum(_add_calls(selection, path, shown, until=until) for path, shown in taken.items())
    count = sum(part["count"] for part in document["parts"])
    words = (
        f"This file holds {len(taken):,} of the {counted(count, 'trajectory', 'trajectories')} of this run, "
        f"{with_calls:,} of them with the prompts and tokens of all calls. This command shows the rest:"
    )
    command = f"midstream view {shell_quote(document['summary']['path'])}"
    section = {"key": "file", "title": "What this file holds", "blocks": [blocks.text(words), blocks.code(command)]}
    # The document is kept for other pages, too.
    page = document["page"]
    selection.chosen["run", name] = {**document, "page": {**page, "sections": [*page["sections"], section]}}


def _add_calls(selection: Selection, path: Path_, document: Block, *, until: float) -> bool:
    """Choose what the calls of a trajectory sent and sampled; whether all fit."""
    calls = [*document["opening_calls"], *(call for turn in document["turns"] for call in turn["calls"])]
    whole = True
    for call in [*calls, *document["closing"]]:
        at = (*path, "call", str(call["n"]))
        whole &= selection.try_to(*at, until=until) is not None
        whole &= not call["tokens"] or selection.try_to(*at, "tokens", until=until) is not None
    return whole


def _order(documents: Documents, name: str, parts: Sequence[Block]) -> Iterator[Chosen]:
    """Yield what a reader is likely to open, the likeliest first.

    In rounds a wrong and a right one of each evaluation and a group of the first, middle and last step; then the other
    steps.
    """
    steps = [part for part in parts if part["kind"] == "step"]
    ends = [steps[place] for place in sorted({0, len(steps) // 2, len(steps) - 1})] if steps else []
    first = [*(part for part in parts if part["kind"] != "step"), *ends]
    lists = [found for part in first for found in _choices(documents, name, part)]
    yield from (chosen for round in zip_longest(*lists) for chosen in round if chosen)
    # Read one at a time: there may be thousands.
    for part in steps:
        if part not in ends:
            yield from chain.from_iterable(_choices(documents, name, part))


def _choices(documents: Documents, name: str, part: Block) -> list[list[Chosen]]:
    """The groups of a step, or the wrong and the right ones of an evaluation; none of a part that cannot be read."""
    try:
        entries = documents.open(name, part["name"]).entries
    except (MidstreamError, OSError):  # which is among the run's warnings
        return []
    if part["kind"] != "step":
        sides: tuple[list[Chosen], list[Chosen]] = ([], [])
        for place, entry in enumerate(entries):
            sides[entry.score is not None and entry.score >= 1].append((part["name"], [place], entry.task_id))
        return list(sides)
    by_task: dict[str, list[int]] = {}
    for place, entry in enumerate(entries):
        by_task.setdefault(entry.task_id, []).append(place)
    return [[(part["name"], places, task) for task, places in by_task.items()]]


# --- files ------------------------------------------------------------------------------------------------------------


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


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
