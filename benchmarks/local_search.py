"""Building and asking a search index: `python benchmarks/local_search.py [--documents 50000] [--json]`.

Documents are made of words drawn by Zipf's law from 50,000, 120 of them on average, as short articles are. Queries are
two to five words of one document. "any" also asks for the three most frequent words of all, the dearest query there is.
Seconds and megabytes are of this process; the query takes place where the tool runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from midstream.tools.local_search import Document, LocalSearch, LocalSearchConfig, build_index

WORDS = [f"w{number:x}" for number in range(50_000)]
WEIGHTS = list(accumulate(1 / rank for rank in range(1, len(WORDS) + 1)))


def documents(count: int) -> Iterator[Document]:
    rng = random.Random(0)
    for number in range(count):
        words = rng.choices(WORDS, cum_weights=WEIGHTS, k=rng.randint(40, 200))
        yield Document(id=str(number), title=f"title {number}", text=" ".join(words))


def queries(count: int, among: int) -> list[str]:
    """Words of documents spread over the first `among`."""
    rng = random.Random(1)
    sources = [one.text.split() for one, _ in zip(documents(among), range(min(among, count)), strict=False)]
    return [" ".join(rng.sample(words, rng.randint(2, 5))) for words in sources]


async def ask(tool: LocalSearch, asked: Sequence[str]) -> list[float]:
    """Milliseconds of each query."""
    taken = []
    for query in asked:
        begun = time.perf_counter()
        await tool.call({"query": query})
        taken.append(1000 * (time.perf_counter() - begun))
    return sorted(taken)


def row(name: str, taken: Sequence[float]) -> dict[str, float | str]:
    at = {"p50": 0.5, "p99": 0.99}
    found = {f"{part}_ms": round(taken[int(share * (len(taken) - 1))], 3) for part, share in at.items()}
    return {"query": name, "count": len(taken), **found, "max_ms": round(taken[-1], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    asked = queries(arguments.queries, arguments.documents)
    begun = time.perf_counter()
    for _ in documents(arguments.documents):
        pass
    made = time.perf_counter() - begun
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "documents.db"
        begun = time.perf_counter()
        build_index(path, documents(arguments.documents)).close()
        built = time.perf_counter() - begun - made
        size = path.stat().st_size / 1e6
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{arguments.documents} documents: {built:.1f} s beyond {made:.1f} s of making them, {size:.0f} MB")
        print(f"peak RSS {peak:.0f} MB")
        rows = []
        for match in ("all", "any"):
            tool = LocalSearch(LocalSearchConfig(index=path, match=match, top_k=5))
            rows.append(row(match, asyncio.run(ask(tool, asked))))
            if match == "any":
                rows.append(row("any of the three most frequent", asyncio.run(ask(tool, ["w0 w1 w2"] * 20))))
            asyncio.run(tool.close())
        facts = LocalSearch.from_documents(Document(id=str(n), text=f"place{n} height {n}") for n in range(2000))
        rows.append(row("2,000 facts in memory", asyncio.run(ask(facts, [f"place{n} height" for n in range(2000)]))))
        asyncio.run(facts.close())
    for one in rows:
        print(f"{one['query']:32}{one['p50_ms']:9} p50{one['p99_ms']:9} p99{one['max_ms']:9} max (ms)")
    if arguments.json:
        print(json.dumps({"build_s": built, "file_mb": size, "peak_rss_mb": peak, "rows": rows}))


if __name__ == "__main__":
    main()
