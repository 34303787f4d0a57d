"""Prompts as a Python module and as LangChain's templates."""

from __future__ import annotations

import subprocess
import sys

import pytest

from midstream.cli.main import main
from midstream.core.trajectory import Message
from midstream.process import build_for
from midstream.recipe.prompts import Prompt, prompts_of
from midstream.recipe.schema import load_recipe
from midstream_extra.prompt_formats import as_langchain, as_python

QUESTION = "How high is {query} with {braces} and \\u003c ?"


@pytest.mark.parametrize(
    ("recipe", "module"), [("direct", "policy"), ("tool-calling", "policy"), ("agentflow-prompted", "planner")]
)
def test_the_module_makes_the_request_that_midstream_sends(recipe, module, capsys):
    with build_for(load_recipe(recipe), {}) as build:
        prompt = prompts_of(build)[module]
    assert main(["lessons", "export", recipe, "--format", "python"]) == 0
    space: dict = {}
    exec(capsys.readouterr().out, space)
    values = {"query": QUESTION, "memory": "", "analysis": ""}
    assert space["prompt"](module, **values) == {"messages": prompt.messages(**values), **prompt.options}


def test_braces_that_are_no_place_stay_text():
    marked = (Message(role="user", content="a {query} lesson: \ue000query\ue001"),)
    prompts = {"policy": Prompt(marked=marked)}
    space: dict = {}
    exec(as_python(prompts), space)
    assert space["prompt"]("policy", query="q")["messages"][0]["content"] == "a {query} lesson: q"
    assert "a {{query}} lesson: {query}" in as_langchain(prompts)


def test_langchain_fills_the_same_messages(capsys):
    pytest.importorskip("langchain_core")
    assert main(["lessons", "export", "direct", "--format", "langchain"]) == 0
    code = capsys.readouterr().out + 'print(PROMPTS["policy"].invoke({"query": "a {b}"}).to_string())'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "a {b}" in done.stdout
