"""Prompt files: what they must hold, and what values can do in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.agents.template import PromptTemplate
from midstream.core.errors import RecipeError

LAYOUT = ("query", "memory")


def template(tmp_path: Path, text: str) -> PromptTemplate:
    path = tmp_path / "generator.md"
    path.write_text(text, encoding="utf-8")
    return PromptTemplate("generator", LAYOUT, path)


def test_values_go_where_their_names_stand(tmp_path: Path):
    made = template(tmp_path, "Be brief.\n{{lessons}}\n<!-- user -->\n{{query}}\n{{memory}}>\n\n")
    system, user = made.messages({"query": "{{memory}} \\1", "memory": "m"})
    assert (system.role, system.content) == ("system", "Be brief.")
    assert (user.role, user.content) == ("user", "{{memory}} \\1\nm>")
    assert made.messages({"query": "q", "memory": "", "lessons": "L"})[0].content == "Be brief.\nL"


@pytest.mark.parametrize(
    "text",
    [
        "{{query}} {{memory}}",
        "<!-- user -->\n{{memory}} {{query}}",
        "<!-- user -->\n{{query}} {{memory}} {{lessons}}",
        "<!-- user -->\n{{query}} {{memory}} {{date}}",
    ],
)
def test_a_prompt_file_that_would_not_share_is_refused(tmp_path: Path, text: str):
    with pytest.raises(RecipeError, match="prompt file") as caught:
        template(tmp_path, text)
    assert "{{query}}, {{memory}} once each in this order" in caught.value.fix


def test_a_prompt_file_that_cannot_be_read_is_refused(tmp_path: Path):
    with pytest.raises(RecipeError, match="cannot be read"):
        PromptTemplate("generator", LAYOUT, tmp_path / "none.md")
