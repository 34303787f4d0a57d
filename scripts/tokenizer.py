"""Make src/midstream/engines/local/tiny_text/tokenizer.json, to the byte: `python scripts/tokenizer.py [--check]`.

It is trained on what a small model reads and writes: questions, documents and calls of the offline world, and the
prompts of midstream's own agents. With `--check` nothing is written, and a difference exits with 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from midstream.engines.local.tiny_text import tokenizer
from midstream.worlds.gazetteer.tasks import Gazetteer, GazetteerConfig

SIZE = 1024
FILE = Path(tokenizer.__file__).with_name("tokenizer.json")
SOURCE = Path(__file__).parent.parent / "src" / "midstream"


def texts() -> Iterator[str]:
    """What the tokenizer is trained on."""
    world = Gazetteer(GazetteerConfig(countries=300))
    for task in world.sample("train", 4000, 0):
        yield task.question
    for _, fact in world.documents():
        place, attribute, value = fact.split()
        yield f"The {attribute} of {place} is {value}."
        for tool, key, text in (("local_search", "query", f"{place} {attribute}"), ("python", "code", f"{value} + 7")):
            yield json.dumps({"name": tool, "arguments": {key: text}})
    for path in sorted([*SOURCE.glob("agents/prompts/*.md"), *SOURCE.glob("core/templates/*.toml")]):
        yield path.read_text(encoding="utf-8")


def main() -> int:
    """Write the file or, with `--check`, compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the file differs")
    check = parser.parse_args().check
    made = tokenizer.train_tokenizer(texts(), SIZE).to_str(pretty=True) + "\n"
    if check:
        return int(made != FILE.read_text(encoding="utf-8"))
    FILE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
