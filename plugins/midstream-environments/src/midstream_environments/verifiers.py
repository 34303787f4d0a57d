"""Tasks of verifiers (Prime Intellect): its environments, with their own rollouts and rewards."""

from __future__ import annotations

from pydantic import Field, JsonValue

from midstream.components.component import Context
from midstream_environments.cases import Cases
from midstream_environments.library import LibraryConfig


class VerifiersConfig(LibraryConfig):
    """An environment of verifiers: one of 0.4, a taskset, or one written for 0.1, by what `python` has installed.

    Attributes:
        environment: the name of its package, or the file of a module
        arguments: of 0.1 those of its `load_environment`, of 0.4 the settings of its taskset
        env: of 0.4, the other settings of its `[env]` block: `{ agent = { harness = { id = "null" } } }`
        count: the first so many of its rows, which one without end needs
    """

    adapter = "verifiers"
    module = "verifiers"
    scores = "own loop"
    library = "verifiers"
    tested = ("0.1.14", "0.4.0")

    environment: str = Field(min_length=1)
    arguments: dict[str, JsonValue] = {}
    env: dict[str, JsonValue] = {}
    count: int | None = Field(default=None, ge=1)

    def build(self, context: Context) -> Cases:
        """The tasks."""
        return Cases(self.opened(context))
