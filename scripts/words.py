"""Find words that this project's prose avoids: `python scripts/words.py [PATH ...]`, part of `make check`.

Prints each place with the plainer word, and exits with 1 if there is one. Without paths it reads everything that git
tracks. In Python files it reads comments, docstrings, other strings and names; in other files every line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# A pattern, and what to write instead. CHANGELOG.md's old entries, licenses and data are not prose of ours.
AVOID = {
    r"mend(s|ed|ing)?": "fix, repair",
    r"(?<!\.)tell(s|ing|er)?|told": "report, emit, print, say",
    r"whoever|whom|whomever": "the caller, the reader, ...",
    r"came to(?! an end)|comes of|came of": "results of",
    r"reckon\w*": "estimate, calculate, count",
    r"heed\w*|unheeded": "follow, read, use",
    r"afresh|anew": "again, from the start",
    r"farewell": "clean close",
    r"(go|goes|going|went|gone) on": "resume, continue",
    r"(?-i:is none|are none)": "is not, there is no",
    r"by way of": "through",
    r"beside": "next to, with, besides",
    r"\w*optimiser\w*": "reflector",
    r"\w*(?:colour|behaviour|favour|honour|neighbour)\w*": "American spelling",
    # `lessons.summariser` is the name of a role in recipes.
    r"(?!summariser\b)\w*(?:normal|minim|maxim|optim|summar|capital|initial|recogn|organ|general|token|serial|real|penal|util|random|"
    r"author|custom|emphas|final|parallel)is(?:e|ed|es|er|ing|ation)": "American spelling: -ize",
}
PATTERN = re.compile("|".join(rf"(?P<_{number}>\b(?:{word})\b)" for number, word in enumerate(AVOID)), re.IGNORECASE)
ALLOWED = "words: allow"  # in a comment: this line keeps its word, such as the label of a seed
SUFFIXES = {".py", ".md", ".toml", ".html", ".txt", ".yaml", ".cfg"}
QUOTED = ("/prompts/", "/forms/")  # a model's answer depends on every word of its prompt; what models write
SKIPPED = (
    "CHANGELOG.md",
    "LICENSE",
    "scripts/words.py",
    "tests/support/hostile_corpus.txt",
    "plugins/midstream-worlds/src/midstream_worlds/atlas/wordings.toml",  # what users may write
)


def found_in(path: Path) -> list[str]:
    """Each avoided word in a file, as "path:line: word (better)"."""
    hits = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if ALLOWED in line:
            continue
        for match in PATTERN.finditer(line.replace("_", " ")):
            better = list(AVOID.values())[int(str(match.lastgroup)[1:])]
            hits.append(f"{path}:{number}: {match.group()} (better: {better})")
    return hits


def main(arguments: list[str]) -> int:
    """Print what is found; returns the exit code."""
    names = subprocess.run(["git", "ls-files", *arguments], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    paths = [
        Path(name)
        for name in names
        if Path(name).suffix in SUFFIXES and name not in SKIPPED and not any(part in name for part in QUOTED)
    ]
    hits = [hit for path in paths if path.is_file() for hit in found_in(path)]
    print("\n".join(hits) or "no avoided words")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
