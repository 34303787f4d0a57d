"""An interleaved stream as text: the marks that thoughts, tool calls, tool output and the answer stand between.

    <think>2 apples and 3</think><python>print(2 + 3)</python><output>5</output><answer>5</answer>
    sampled ------------------------------------------------- environment ----- sampled ------------

A template is data (`templates/*.toml`, or a file of the user's own). The agent is driven by it, the format rewards read
the stream by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from midstream.core.data import Frozen
from midstream.core.trajectory import Trajectory

BlockKind = Literal["think", "call", "output", "answer", "text"]


class Marks(Frozen):
    """What a part of the stream begins and ends with."""

    open: str
    close: str


class Template(Frozen):
    """How a policy writes, and how the environment answers.

    `call` may hold "{tool}": each tool then has marks of its own, by its name. Marks without it belong to the tool
    called `tool`, or, where that is "", the call's body names its tool. `body` is how a call is written: "text", the
    tool's one required argument (a code fence around it is taken off); "json", an object or a list of objects with
    `name` and `arguments`; "python", a list of Python calls with literal arguments. `appends` says where output goes:
    "inline", into the reply that sampling then resumes, or "message", as a chat message of `output_role` after the
    reply has ended with all its calls. `answer` None: the answer is what the last reply says outside of thoughts, or
    the last \\boxed{} in it where `boxed`.
    `system` and `user` are the prompt, with places {{tools}}, {{lessons}}, {{query}}; `opening` is what the environment
    writes at the start of the stream. `chat` False: the prompt is plain text, for a base model.
    """

    name: str
    source: str
    think: Marks | None = None
    call: Marks
    tool: str = ""
    body: Literal["text", "json", "python"] = "text"
    output: Marks
    answer: Marks | None = None
    boxed: bool = False
    appends: Literal["inline", "message"] = "inline"
    output_role: Literal["user", "tool"] = "user"
    chat: bool = True
    system: str = ""
    user: str = "{{query}}"
    opening: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of the stream: `sampled` by the policy, or put in by the environment (`turn` is where it stands)."""

    text: str
    sampled: bool
    turn: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A part of the stream between its marks, or text outside of all marks.

    `closed`: its closing mark is there. `nested`: an opening mark stands inside it. `tool` is what a call's marks or
    body name. `sampled`: the policy wrote its opening mark.
    """

    kind: BlockKind
    body: str
    closed: bool = True
    nested: bool = False
    sampled: bool = True
    tool: str = ""


def load_template(name: str | Path) -> Template:
    """The template of that name, or of a TOML file. Raises `RecipeError`."""
    raise NotImplementedError


def stream_of(trajectory: Trajectory) -> list[Piece]:
    """The stream of an interleaved trajectory after its prompt, in order: every call's text and what was appended."""
    raise NotImplementedError


def blocks(pieces: Sequence[Piece], template: Template) -> list[Block]:
    """The stream's parts in order. Total: any text gives blocks."""
    raise NotImplementedError


def tags_present(pieces: Sequence[Piece], template: Template) -> dict[str, bool]:
    """For the relaxed format: "think", "call", "output", "answer" (those the template has) to whether each is there.

    A tag is there if its opening mark and, later, its closing mark are; output counts only from the environment.
    """
    raise NotImplementedError


def is_strict(pieces: Sequence[Piece], template: Template) -> bool:
    """The strict format: every tag of the template is there, each closed, none nested, in order.

    In order: thoughts before each call and before the answer, every call followed by its output, one answer, at the end.
    """
    raise NotImplementedError


def escape_marks(text: str, template: Template) -> str:
    """`text` with every mark of the template in it broken by an escape, so that tool output cannot forge one."""
    raise NotImplementedError
