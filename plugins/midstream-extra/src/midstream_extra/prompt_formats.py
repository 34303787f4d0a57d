"""Formats of `midstream lessons export`: a Python module without dependencies, and LangChain's templates."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.recipe.prompts import Prompt


def as_python(prompts: Mapping[str, Prompt]) -> str:
    """Write a module with the function `prompt`."""
    pieces = {name: prompt.pieces() for name, prompt in prompts.items()}
    options = {name: prompt.options for name, prompt in prompts.items()}
    return f'''"""Prompts as midstream sends them.

OpenAI().chat.completions.create(model=..., **prompt("NAME", query="..."))
"""

# Of each message its role, and its content, in which texts and names of places take turns.
PROMPTS = {pieces!r}
OPTIONS = {options!r}


def prompt(name, **values):
    """The fields of a request of this module: messages with the values in their places, tools, texts that stop it."""
    messages = []
    for role, content in PROMPTS[name]:
        text = "".join(values[piece] if n % 2 else piece for n, piece in enumerate(content))
        messages.append({{"role": role, "content": text.rstrip("\\n")}})
    return {{"messages": messages, **OPTIONS[name]}}
'''


def as_langchain(prompts: Mapping[str, Prompt]) -> str:
    """Write a module with a `ChatPromptTemplate` for each module of the agent."""

    def template(content: list[str]) -> str:
        # Braces are places in LangChain's templates.
        escaped = (piece.replace("{", "{{").replace("}", "}}") for piece in content)
        return "".join(f"{{{piece}}}" if number % 2 else piece for number, piece in enumerate(escaped))

    templates = {
        name: [(role, template(content)) for role, content in prompt.pieces()] for name, prompt in prompts.items()
    }
    options = {name: prompt.options for name, prompt in prompts.items()}
    return f'''"""Prompts as midstream sends them: `PROMPTS["NAME"].invoke({{"query": ...}})`."""

from langchain_core.prompts import ChatPromptTemplate

PROMPTS = {{name: ChatPromptTemplate(messages) for name, messages in {templates!r}.items()}}
# For `model.bind(**OPTIONS["NAME"])`: tools, and texts that stop a reply.
OPTIONS = {options!r}
'''
