"""Templates of streams: shipped ones, users' own, and invalid ones."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from midstream.core.errors import RecipeError
from midstream.core.stream_template import Template, load_template
from support.errors import coded

SHIPPED = sorted(Path(file.name).stem for file in (resources.files("midstream.core") / "templates").iterdir())
SOUND = """
call = { open = "<run>", close = "</run>" }
tool = "python"
output = { open = "<out>", close = "</out>" }
"""


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", SHIPPED)
def test_a_template_that_ships_is_sound_and_names_its_source(name):
    template = load_template(name)
    assert (template.name, bool(template.source)) == (name, True)
    assert template.shows_lessons == (name != "tiny")  # whose policy reads no sentences


def test_zerosearch_is_search_r1_of_another_paper():
    mine, theirs = load_template("zerosearch"), load_template("search-r1")
    assert mine.source == "arXiv 2505.04588"
    assert mine == theirs.model_copy(update={"name": "zerosearch", "source": mine.source})


def test_a_file_of_ones_own(tmp_path):
    path = own(tmp_path, SOUND)
    assert load_template(path) == load_template(str(path))
    assert (load_template(path).name, load_template(path).tags.keys()) == ("mine", {"call", "output"})
    assert not load_template(path).shows_lessons


def test_a_file_may_be_like_one_that_ships(tmp_path):
    template = load_template(own(tmp_path, 'like = "artist-math"\nsystem = "Think."'))
    assert (template.system, template.think) == ("Think.", load_template("artist-math").think)


def test_places_in_values_stay_text():
    template = load_template("artist-math")
    assert template.filled("{{query}} {{tools}}", query="{{tools}}", tools="t") == "{{tools}} t"


def test_plain_text_keeps_the_line_break_at_its_end():
    small = load_template("small")
    prompt = small.filled(small.user, lessons="", query="How much is 2 + 3?")
    assert prompt.endswith("</answer>\n\nQuestion: How much is 2 + 3?\n")
    tiny = load_template("tiny")
    assert tiny.filled(tiny.user, query="How far?\n") == "Question How far?"
    chat = load_template("artist-math")
    assert not chat.filled(chat.user, lessons="", tools="", query="How much is 2 + 3?").endswith("\n")


@pytest.mark.parametrize("name", ["nope", "nope.toml", Path("nope"), "\0", "\0.toml"], ids=repr)
def test_an_unknown_name_lists_those_there_are(name):
    with pytest.raises(RecipeError, check=coded("unknown-template", repr(str(name)), fix="artist-math, direct")):
        load_template(name)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("call = 3", "call"),
        ("nonsense = 3", "nonsense"),
        ('tool = ""', "names no tool"),
        ('call = { open = "<{tool}>", close = "</run>" }', "both marks"),
        ('call = { open = "<{tool}>", close = "</{tool}>" }', "leave it out"),
        ('output_role = "tool"', 'appends = "message"'),
        ('appends = "message"\nopening = "<think>"', "no opening"),
        ('appends = "message"\nchat = false', "needs a chat"),
        ('user = "what?"', "query"),
        ('system = "{{query}}"', "query"),
        ('system = "{{memory}}"', "memory"),
        ('layout = "{text}"', "layout"),
        ('answer = { open = "<out>", close = "</answer>" }', "same mark"),
        ('answer = { open = "", close = "</answer>" }', "answer"),
    ],
)
def test_an_unsound_file_is_refused(tmp_path, change, problem):
    settings = [line for line in SOUND.splitlines() if not line or line.split(" ")[0] not in change.split()]
    with pytest.raises(RecipeError, check=coded("template-invalid", "mine.toml")) as caught:
        load_template(own(tmp_path, "\n".join([*settings, change])))
    assert re.search(problem, caught.value.cause)


def test_a_file_that_is_no_toml_is_refused(tmp_path):
    with pytest.raises(RecipeError, check=coded("file-invalid", "mine.toml")):
        load_template(own(tmp_path, "["))


def test_a_template_in_code():
    marks = {"open": "<run>", "close": "</run>"}
    assert Template.model_validate({"call": marks, "tool": "x", "output": {"open": "o", "close": "p"}}).name == ""
