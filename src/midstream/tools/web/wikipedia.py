"""Wikipedia, or your own index: a page's lead section and the names of its other sections, or one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from midstream.core.component import Context, ToolConfig
from midstream.core.protocols import ToolResult
from midstream.tools import local_search
from midstream.tools.local_search import LocalSearch
from midstream.tools.web import api
from midstream.tools.web.mediawiki import MediaWiki, QueryError

_NEAR = 5  # other titles that are named
_MOST_SECTIONS = 80
_MOST_OPTIONS = 60
_EXTRA_TOKENS = 3000  # for titles and section names


class Config(api.Config, ToolConfig):
    """Settings of Wikipedia, next to those of `tools.web.api.Config`.

    `language` is the edition. `base_url` is another wiki's api.php. `index` is a file of `local_search`, whose
    documents are then the pages, without any network. `max_characters` bounds a section's text.
    """

    language: str = Field(default="en", pattern=r"^[a-z][a-z0-9-]*$")
    base_url: str | None = None
    index: Path | None = None
    max_characters: int = Field(default=6000, ge=1)

    def build(self, context: Context) -> Wikipedia:
        """Open the index, or the connection to the wiki."""
        return Wikipedia(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A heading with its level (2 is the highest) and the text below it, up to the next heading."""

    level: int
    name: str
    text: str


class Wikipedia:
    """Returns the page of a title, or the best one for a query.

    `provider` names the Wikipedia that answers; the first line of every page repeats it.

    Raises:
        RecipeError: `config.index` is not an index, or `config.base_url` not an address.
    """

    name = "wikipedia"
    description = (
        "Looks things up in Wikipedia. Give as `query` a page's title, or words to search for. Returns the lead "
        "section of the page of that title, or else of the best one found, and the names of its other sections; to "
        "read one of those, ask again with the page's title and `section`. If a title means several things it lists "
        "the pages to choose from. For established facts about people, places, things and ideas; not for news, "
        "opinions or arithmetic."
    )
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "title of a page, or words to search for"},
            "section": {"type": "string", "description": "name of a section of the page; without it, the lead"},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    timeout_s = api.NEVER_S

    def __init__(self, config: Config | None = None) -> None:
        self._config = config = config or Config()
        self.output_tokens = config.max_characters // 4 + _EXTRA_TOKENS
        self._wiki = self._index = None
        if config.index is not None:
            self.provider = f"Wikipedia (index {config.index.name})"
            self._index = LocalSearch(local_search.Config(index=config.index, match="any"))
        else:
            url = config.base_url or f"https://{config.language}.wikipedia.org/w/api.php"
            self.provider = f"Wikipedia ({config.base_url or config.language})"
            self._wiki = MediaWiki(url, config)

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """A page for `query`; `ok=False` if no page matches, or it lacks the section.

        Raises:
            ToolServerError: the wiki gave no usable answer, or the index could not be read.
        """
        query, section = (api.valid(arguments.get(name) or "") for name in ("query", "section"))
        if not query:
            return ToolResult(text="`query` is empty", ok=False)
        if self._index is not None:
            return await self._from_index(self._index, query, section)
        assert self._wiki is not None
        try:
            return await self._from_wiki(self._wiki, query, section)
        except QueryError as failure:
            return ToolResult(text=str(failure), ok=False)

    async def _from_wiki(self, wiki: MediaWiki, query: str, section: str) -> ToolResult:
        page, others = await wiki.page(query), []
        if page is None:
            found, suggestion = await wiki.search(query, 1 + _NEAR)
            if not found:
                hint = f"; did you mean {suggestion!r}?" if suggestion else ""
                return ToolResult(text=f"no page matches {query!r}{hint}", ok=False)
            title, *others = found
            page = await wiki.page(title)
        if page is None:  # the search finds pages that were deleted
            return ToolResult(text=f"no page matches {query!r}" + _listed("other pages found", others), ok=False)
        if page.ambiguous and not section:
            options = _listed("titles to choose from", (await wiki.links(page.title))[:_MOST_OPTIONS])
            text = f"{self.provider}: {page.title} may mean several things. Ask again with one title.\n"
            return ToolResult(text=text + self._cut(page.text) + options)
        came_from = f", redirected from {page.redirected_from!r}" if page.redirected_from else ""
        return self._show(f"{page.title}{came_from} ({page.url})", page.text, section, others)

    async def _from_index(self, index: LocalSearch, query: str, section: str) -> ToolResult:
        found = await index.titled(query) or await index.find(query, 1 + _NEAR)
        if not found:
            return ToolResult(text=f"no page matches {query!r}", ok=False)
        (title, text), *others = found
        return self._show(title or "(no title)", text, section, [other for other, _ in others if other])

    def _show(self, heading: str, text: str, section: str, others: Sequence[str]) -> ToolResult:
        lead, sections = split(text)
        listed = _listed("sections", [known.name for known in sections[:_MOST_SECTIONS]])
        if section:
            wanted = within(sections, section)
            if wanted is None:
                return ToolResult(text=f"{heading} has no section {section!r}{listed}", ok=False)
            return ToolResult(text=f"{self.provider}: {heading}, section {section}\n{self._cut(wanted)}")
        text = f"{self.provider}: {heading}\n{self._cut(lead) or '(no text before the first section)'}"
        return ToolResult(text=text + listed + _listed("other pages found", others))

    def _cut(self, text: str) -> str:
        limit = self._config.max_characters
        return text if len(text) <= limit else f"{text[:limit]} ...\n[cut: {len(text)} characters]"

    async def close(self) -> None:
        """Release connections, or the index."""
        for source in (self._wiki, self._index):
            if source is not None:
                await source.close()


def split(text: str) -> tuple[str, list[Section]]:
    """A page's lead and its sections, which begin with headings such as `== History ==`."""
    blocks: list[tuple[int, str, list[str]]] = [(0, "", [])]
    for line in text.splitlines():
        heading = line.strip()
        level = min(len(heading) - len(heading.lstrip("=")), len(heading) - len(heading.rstrip("=")))
        name = heading[level:-level].strip() if 2 <= level <= 6 else ""
        if name:
            blocks.append((level, name, []))
        else:
            blocks[-1][2].append(line)
    sections = [Section(level=level, name=name, text="\n".join(lines).strip()) for level, name, lines in blocks]
    return sections[0].text, sections[1:]


def within(sections: Sequence[Section], name: str) -> str | None:
    """The text of the first section of that name, with its subsections; None without such a section."""
    wanted = name.casefold().strip("= ")
    start = next((place for place, section in enumerate(sections) if section.name.casefold() == wanted), None)
    if start is None:
        return None
    parts = [sections[start].text]
    for section in sections[start + 1 :]:
        if section.level <= sections[start].level:
            break
        marks = "=" * section.level
        parts.append(f"{marks} {section.name} {marks}\n{section.text}")
    return "\n\n".join(part for part in parts if part) or "(no text)"


def _listed(what: str, names: Sequence[str]) -> str:
    return f"\n\n{what.capitalize()}: {'; '.join(names)}" if names else ""


Config.tool = Wikipedia
