"""Make tokenizer.json of the engine `tiny_text`, to the byte: `python scripts/tokenizer.py [--check]`.

It is trained on what a small model reads and writes: questions, thoughts, calls and documents of the atlas's training
regions, and the prompts of midstream's own agents. With `--check` nothing is written, and a difference exits with 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from midstream_worlds.atlas.questions import documents
from midstream_worlds.atlas.rules import RULED, draw_lessons
from midstream_worlds.atlas.tasks import Atlas, AtlasConfig
from midstream_worlds.atlas.teacher import DEEDS
from midstream_worlds.tiny_text import tokenizer
from midstream_worlds.tiny_text.tokenizer import SPECIAL, TAGS

SIZE = 1024
QUESTIONS = 6000
PROMPTS = 5  # times that each prompt is read: the world's text is much longer
FILE = Path(tokenizer.__file__).with_name("tokenizer.json")
PIECES = (
    r"\d"  # a digit
    r"| ?\p{Ll}+(?:_\p{Ll}+)*|\p{Lu}\p{Ll}*"  # a word or identifier, with its space; a capitalized word without
    r"|'s\b"
    r"|[{}\":,\[\] ]*[{}\"][{}\":,\[\] ]*"  # a run of JSON's punctuation with a brace or quotation mark in it
    r"|\n+| |[^\w\s]|."
)
_MARK = re.compile("|".join(map(re.escape, (*SPECIAL, *TAGS))))
SOURCE = Path(__file__).parent.parent / "src" / "midstream"


def texts() -> Iterator[str]:
    """What the tokenizer is trained on: of the atlas no name that is held out."""
    world, draws = Atlas(AtlasConfig()), Random(0)
    for task in world.sample("train", QUESTIONS, 0):
        asked = world.asked[task.question]
        yield task.question
        for place in asked.places:
            attribute = asked.relation or asked.attribute
            yield f"I need the {attribute} of {place}."
            yield call("local_search", query=f"{place} {attribute}")
            yield draws.choice(documents()[attribute]).format(place, world.facts[place, attribute])
        if asked.sign:
            yield f"Task: {DEEDS[asked.sign]}. First: {task.answer}. Second: {task.answer}. Now I {DEEDS[asked.sign]}."
            yield call("python", code=f"{task.answer} {asked.sign} abs({task.answer})")
        yield from draw_lessons(RULED, draws, held_out=False)[1].values()
        yield "Rule: Height as found. I can answer."
    prompts = [*SOURCE.glob("agents/prompts/*.md"), *FILE.parents[1].glob("prompts/*.md")]
    for path in sorted([*prompts, *SOURCE.glob("core/templates/*.toml")]):
        yield from [path.read_text(encoding="utf-8")] * PROMPTS


def call(tool: str, **arguments: str) -> str:
    """A call, and its tool as the chat template offers it."""
    made = [{"name": tool, "arguments": given} for given in (arguments, dict.fromkeys(arguments, "string"))]
    return "\n".join(json.dumps(table, ensure_ascii=False) for table in made)


def train_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Train a tokenizer of `size` tokens, marks and bytes included, on texts; their marks are left out."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator((part for text in texts for part in _MARK.split(text)), trainer)
    made.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return made


def main() -> int:
    """Write the file or, with `--check`, compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the file differs")
    check = parser.parse_args().check
    made = train_tokenizer(texts(), SIZE).to_str() + "\n"
    if check:
        return int(made != FILE.read_text(encoding="utf-8"))
    FILE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
