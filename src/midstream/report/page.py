"""What all report pages share: the page itself, its cards, how it was run, what to try next, its way to the disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from midstream.core.errors import StorageError
from midstream.core.version import __version__
from midstream.report.sections import section, text

Card = tuple[str, str, str]  # name, value as HTML, a note or ""
Part = tuple[str, str, Sequence[str]]  # key, heading, pieces of HTML


def page(title: str, summary: str, cards: Sequence[Card], parts: Sequence[Part]) -> str:
    """A whole page as HTML text; a part without any piece is left out."""
    template = Template(files("midstream.report").joinpath("page.html").read_text(encoding="utf-8"))
    shown = [part for part in parts if any(part[2])]
    return template.substitute(
        title=text(title),
        summary=text(summary),
        tiles=_tiles(cards),
        nav=" ".join(f'<a href="#{key}">{heading}</a>' for key, heading, _ in shown),
        sections="\n".join(section(key, heading, *body) for key, heading, body in shown),
        version=text(__version__),
    )


def save_page(path: Path, html: str) -> None:
    """Write a page to `path`.

    Raises:
        StorageError: the file could not be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"the report could not be written to {path}: {error}",
            cause="the directory is read-only, or the disk is full",
            fix="free space or name another path, then write the report again",
        ) from error


def _tiles(cards: Sequence[Card]) -> str:
    cells = [
        f"<div><dt>{text(name)}</dt><dd>{value}</dd>"
        + (f'<dd class="note">{text(note)}</dd>' if note else "")
        + "</div>"
        for name, value, note in cards
    ]
    return f'<dl class="tiles">{"".join(cells)}</dl>' if cells else ""


def arrow(before: str, after: str) -> str:
    """A card's value before and after; the first alone where there is no second ("-")."""
    return text(before) if after == "-" else f"<small>{text(before)} →</small> {text(after)}"


def how(run_info: Mapping[str, object], recipe_toml: str) -> list[str]:
    """How it was run: facts, and the recipe."""
    facts = "".join(f"<dt>{text(str(key))}</dt><dd>{text(str(value))}</dd>" for key, value in run_info.items())
    recipe = f"<details><summary>The recipe, as resolved</summary><pre>{text(recipe_toml)}</pre></details>"
    return [f'<dl class="facts">{facts}</dl>' if facts else "", recipe if recipe_toml else ""]


def limits(said: str) -> str:
    """What the page does not show, as a paragraph."""
    return f'<p class="limits">{text(said)}</p>' if said.strip() else ""


def next_steps(commands: Sequence[str]) -> str:
    """Command lines."""
    return f"<pre>{text(chr(10).join(commands))}</pre>" if commands else ""
