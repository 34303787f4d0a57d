"""The boundary to the terminal: what others wrote (servers, models, files) is cleaned here, and nowhere before.

Rich's styles and the live displays are all that may steer the terminal. `Terminal` is a Rich console that cleans every
text before it is laid out and styled; `clean_output` cleans all else that the process writes: `print`, messages of
argparse, log records, warnings, tracebacks.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderHook
from rich.file_proxy import FileProxy
from rich.protocol import rich_cast
from rich.segment import Segment
from rich.text import Text

from midstream.core.text import visible


class Terminal(Console):
    """A Rich console that shows foreign text safely: cleaned, and never read as markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, force_jupyter=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Rich's; every text passes here before it is wrapped, so that what is written out has its place."""
        options, found = options or self.options, rich_cast(renderable)
        if isinstance(found, str):
            found = self.render_str(found, highlight=options.highlight)
        if isinstance(found, Text) and visible(found.plain) != found.plain:
            cleaned = found.blank_copy()
            for piece in found.render(self):
                cleaned.append(visible(piece.text), piece.style)
            found = cleaned
        return super().render(found, options)

    @property
    def redraws(self) -> bool:
        """True if lines can be drawn again: in a terminal. `FORCE_COLOR`, which Jupyter sets, gives a file colors."""
        return self._force_terminal or (self.is_terminal and self.file.isatty())

    @Console.file.getter  # type: ignore[misc, attr-defined]
    def file(self) -> Any:
        """The stream below all cleaning, since Rich's own escape sequences go there."""
        found = Console.file.fget(self)  # type: ignore[attr-defined]
        while isinstance(found, CleanStream | FileProxy):
            found = found.stream if isinstance(found, CleanStream) else found.rich_proxied_file
        return found

    def on_broken_pipe(self) -> None:
        """Rich's, called where a write failed. It would end the program; its caller ends the command."""
        raise BrokenPipeError

    def push_render_hook(self, hook: RenderHook) -> None:
        """Rich's, called when a live display starts: its proxies of the streams would turn escapes into styles."""
        super().push_render_hook(hook)
        for name in ("stdout", "stderr"):
            if isinstance(stream := getattr(sys, name), FileProxy):
                setattr(sys, name, CleanStream(stream))


def plain_text(renderable: RenderableType, width: int = 100) -> str:
    """Return what a terminal would show, without colors."""
    text = io.StringIO()
    console = Terminal(width=width, file=text, color_system=None)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


class CleanStream:
    """A text stream that writes out what would steer the terminal.

    It has no `fileno`: argparse and tracebacks then leave out colors, which would be written out, too.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.encoding, self.errors = getattr(stream, "encoding", "utf-8"), getattr(stream, "errors", "strict")

    def write(self, text: str) -> int:
        """Write `text`, cleaned; returns its length."""
        self.stream.write(visible(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self.stream.isatty()


@contextmanager
def clean_output() -> Iterator[None]:
    """Context in which standard output and error are cleaned; a closed one is None, and stays so.

    An exception leaves them so: the interpreter prints the traceback of a bug after this context has ended.
    """
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and cast(TextIO, CleanStream(stream)) for stream in streams)
    yield
    sys.stdout, sys.stderr = streams
