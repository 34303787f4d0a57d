"""Tokens of 250 recorded tool results in prompts: JSON as the tool writes it, TOON, and the shorter of both.

python benchmarks/toon.py [--tokenizer tokenizer.json] [--json]

The results come from midstream's own tools (the desks' functions, Python functions as tools, an MCP server, local
search) and from BFCL's functions, whose data is in the package bfcl-eval. They are counted as an interleaved agent's
stream holds them, and inside a line of AgentFlow's memory, which is JSON. Without `--tokenizer`, the tokenizer is a
byte-level BPE of 32,000 tokens, trained here on the standard library (code, documentation, JSON and tables written from
it), because no published one can be assumed on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import calendar
import html.entities
import json
import mimetypes
import random
import statistics
import sys
import sysconfig
import unicodedata
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from midstream.agents.rendering import result_writer
from midstream.core.text import neutral, to_json
from midstream.tools.function import tool
from midstream.tools.local_search import Document, LocalSearch, LocalSearchConfig
from midstream_benchmarks.bfcl_tasks import Bfcl, BfclConfig
from midstream_mcp.tools import McpConfig, make
from midstream_worlds.desks.tasks import Desks, DesksConfig

ROOT = Path(__file__).parents[1]
STDLIB = Path(sysconfig.get_paths()["stdlib"])
RESULTS = 250
# GPT-4's and Qwen's way to split text before merging.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass
class File:
    """A file in a listing."""

    name: str
    bytes: int
    lines: int


@tool
def list_modules(letter: str) -> list[File]:
    """The standard library's modules that begin with a letter."""
    paths = sorted(STDLIB.glob(f"{letter}*.py"))
    return [File(path.name, path.stat().st_size, path.read_bytes().count(b"\n")) for path in paths]


@tool
def month(year: int, number: int) -> dict[str, Any]:
    """A month's weeks."""
    weeks = calendar.Calendar().monthdayscalendar(year, number)
    return {"year": year, "month": calendar.month_name[number], "weeks": weeks, "leap": calendar.isleap(year)}


@tool
def characters(text: str) -> list[dict[str, Any]]:
    """Code point, name and category of each character."""
    return [
        {"character": c, "code": ord(c), "name": unicodedata.name(c, ""), "is": unicodedata.category(c)} for c in text
    ]


@tool
def local_times(zones: list[str]) -> dict[str, Any]:
    """A fixed moment in several zones."""
    moment = datetime(2026, 3, 29, 12, tzinfo=UTC)
    times = {zone: moment.astimezone(zoneinfo.ZoneInfo(zone)) for zone in zones}
    return {
        zone: {"time": time.isoformat(), "offset_h": (time.utcoffset() or moment - moment).seconds / 3600}
        for zone, time in times.items()
    }


@tool
def describe(values: list[float]) -> dict[str, float]:
    """Statistics of numbers."""
    return {"n": len(values), "mean": statistics.fmean(values), "stdev": statistics.stdev(values), "max": max(values)}


@tool
def entities(prefix: str) -> dict[str, Any]:
    """HTML entities by name."""
    found = {name: text for name, text in html.entities.html5.items() if name.startswith(prefix) and name.endswith(";")}
    return {"prefix": prefix, "count": len(found), "entities": dict(sorted(found.items())[:20])}


@tool
def order(number: int) -> dict[str, Any]:
    """An order of a shop: nested, with optional fields, as web services return them."""
    draws = random.Random(number)
    items = [
        {
            "sku": f"A-{draws.randint(100, 999)}",
            "title": draws.choice(["Lamp, brass", "Chair", "Rug (wool)"]),
            "price": draws.randint(5, 400) + 0.5,
            "quantity": draws.randint(1, 4),
        }
        for _ in range(draws.randint(1, 6))
    ]
    if draws.random() < 0.5:
        items[0]["note"] = "gift wrap; no invoice"
    address = {
        "street": f"{draws.randint(1, 90)} Mill Lane",
        "city": draws.choice(["Leeds", "York"]),
        "geo": [53.8, -1.5],
    }
    return {
        "id": number,
        "customer": {"name": "A. Byron", "address": address},
        "items": items,
        "status": draws.choice(["sent", "open"]),
    }


async def recorded() -> list[tuple[str, str]]:
    """(source, text) of 250 results of real tools."""
    results: list[tuple[str, str]] = []

    async def call(source: str, made: Any, arguments: dict[str, Any]) -> None:
        results.append((source, (await made.call(arguments)).text))

    source = Desks(DesksConfig(difficulty="hard"))
    for task in source.fixed("test", seed=0)[:20]:
        dialogue = source.open(task, seed=0)
        turn = await dialogue.begin()
        for planned in dialogue.plan.turns:
            tools = {made.name: made for made in turn.tools}
            for step in planned.calls:
                if len(results) < 60:
                    await call("desks", tools[step.name], dict(step.arguments))
            turn = await dialogue.reply("done")
    bfcl = Bfcl(BfclConfig(train=0))
    for task in bfcl.fixed("test", seed=0)[::97]:  # nine of 800, of every category, each another scenario
        dialogue = bfcl.open(task, seed=0)
        await dialogue.begin()
        for turn in bfcl.expected(task):
            for step in turn:
                if len(results) < 110:
                    await call("BFCL", dialogue.functions[step.name], dict(step.arguments))
            await dialogue.reply("done")
    for letter in "abcdfghimnopst":
        await call("functions: tables", list_modules, {"letter": letter})
    for number in range(30):
        await call("functions: nested", order, {"number": number})
    for number in range(1, 13):
        await call("functions: lists", month, {"year": 2026, "number": number})
    for text in ("é", "naïve", "日本", "a+b=c", "Ωμ", "x² ≤ 4"):
        await call("functions: tables", characters, {"text": text})
    zones = sorted(zone for zone in zoneinfo.available_timezones() if zone.startswith("Europe/"))
    for start in range(0, 40, 4):
        await call("functions: tables", local_times, {"zones": zones[start : start + 4]})
    for prefix in "abcdefgh":
        await call("functions: objects", entities, {"prefix": prefix})
        await call("functions: objects", describe, {"values": [1.5, float(ord(prefix)), 7]})
    made = await asyncio.to_thread(
        make, McpConfig(command=(str(Path(sys.executable).with_name("mcp-server-time")),)), "time"
    )
    convert = next(each for each in made if each.name.endswith("convert_time"))
    for zone in zones[:35]:
        await call("MCP server", convert, {"source_timezone": "UTC", "time": "12:30", "target_timezone": zone})
    documents = [Document(id=path.name, text=path.read_text()[:400]) for path in sorted((ROOT / "docs").glob("*.md"))]
    search = LocalSearch.from_documents(documents, LocalSearchConfig(top_k=3, match="any", max_characters=300))
    words = ("memory", "sandbox", "reward", "planner", "recipe", "gate", "server", "tokens", "search", "run")
    while len(results) < RESULTS:
        await call("search", search, {"query": words[len(results) % len(words)]})
    await asyncio.gather(*(each.close() for each in made))
    return results[:RESULTS]


def trained() -> Tokenizer:
    """A byte-level BPE, trained on the standard library and on JSON and tables made of its data."""

    def texts() -> Iterator[str]:
        yield from (path.read_text(errors="replace") for path in sorted(STDLIB.glob("*.py")))
        yield from (path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
        for kind, ending in mimetypes.types_map.items():
            yield json.dumps({"type": kind, "endings": [ending], "size": len(kind)})
            yield f"{kind},{ending},{len(kind)}\n"

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=32_000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


# How agents' prompts hold a result.
PLACES: dict[str, Callable[[str], str]] = {
    "stream": neutral,
    "memory": lambda text: to_json({"turn": 1, "result": text}),
}


def compact(text: str) -> str:
    """JSON without spaces; other text as it is."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        return text


FORMS: dict[str, Callable[[str], str]] = {
    "json": str,
    "compact": compact,
    "toon": result_writer("toon"),
    "auto": result_writer("auto"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, metavar="tokenizer.json")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = asyncio.run(recorded())
    tokenizer = Tokenizer.from_file(str(options.tokenizer)) if options.tokenizer else trained()

    def tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    rows: list[dict[str, Any]] = []
    for place, hold in PLACES.items():
        counts = {form: [tokens(hold(write(text))) for _, text in results] for form, write in FORMS.items()}
        for source in [*dict.fromkeys(source for source, _ in results), "all"]:
            chosen = [number for number, (name, _) in enumerate(results) if source in (name, "all")]
            sums: dict[str, Any] = {form: sum(counts[form][number] for number in chosen) for form in FORMS}
            longer = sum(
                counts["auto"][number] > min(counts["json"][number], counts["compact"][number]) for number in chosen
            )
            rows.append({"place": place, "source": source, "results": len(chosen), **sums, "auto longer": longer})
    if options.json:
        print(json.dumps(rows))
        return
    print("place   source              results    json compact    toon    auto   auto saves   auto is longer")
    for row in rows:
        sums = "".join(f"{row[form]:8}" for form in FORMS)
        saved = 1 - row["auto"] / row["json"]
        print(f"{row['place']:8}{row['source']:20}{row['results']:7}{sums}{saved:12.1%}{row['auto longer']:12}")


if __name__ == "__main__":
    main()
