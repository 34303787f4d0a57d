"""What taking one page of 1 MB apart costs: CPU-seconds and peak memory of a fresh process, page by page.

python benchmarks/web_page.py [--limit-s 60] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from contextlib import suppress

from midstream.tools.local_search import passages
from midstream_web.page import NoPage, Page, read_page
from midstream_web.reading import by_words

SIZE = 1_000_000
WORDS = "The river rises in the hills north of the town and turns east beyond the old mill. "
PAGES = {
    "an article of 20 kB": lambda: _article(20_000),
    "an article": lambda: _article(SIZE),
    "links": lambda: "<p>" + "".join(f'<a href="/{i}">l{i}</a>' for i in range(SIZE // 22)),
    "paragraphs of four words": lambda: "<p>one two thr four</p>" * (SIZE // 23),
    "tags that are never closed": lambda: "<div>ab" * (SIZE // 7),
    "one tag with 100,000 attributes": lambda: "<p " + " ".join(f"a{i}=b" for i in range(100_000)) + ">text",
}


def main() -> None:
    """Every page in a process of its own, ended at the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-s", type=float, default=60.0, help="seconds for one page")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--page", choices=PAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.page:
        print(json.dumps(_read(options.page)))
        return
    rows = [{"page": page, **_measured(page, options.limit_s)} for page in PAGES]
    for row in rows:
        took = f"not done in {options.limit_s:g} s"
        if "cpu_s" in row:
            took = f"{row['cpu_s']:8.2f} s {row['peak_mb']:6.0f} MB"
        print(f"{row['page']:35} {took}", file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(rows))


def _measured(page: str, limit_s: float) -> dict[str, float]:
    command = [sys.executable, __file__, "--page", page]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"not_within_s": limit_s}
    return json.loads(done.stdout)


def _read(name: str) -> dict[str, float]:
    _take_apart(_article(2000))  # imports, and the first use of everything
    content = PAGES[name]()
    began = time.process_time()
    _take_apart(content)
    return {"cpu_s": time.process_time() - began, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _take_apart(content: str) -> None:
    body = f"<html><head><title>A page</title></head><body>{content}</body></html>".encode()
    page = Page(url="http://example.org/", body=body, media_type="text/html", charset="utf-8")
    with suppress(NoPage):  # some hold nothing worth reading
        text = read_page(page).text
        by_words([text[start:end] for start, end in passages(text, 1200, 200)], "river mill")


def _article(size: int) -> str:
    paragraph = f"<p>{WORDS * 6}</p>"
    return f"<article>{paragraph * (size // len(paragraph))}</article>"


if __name__ == "__main__":
    main()
