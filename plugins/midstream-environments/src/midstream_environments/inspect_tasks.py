"""Tasks of Inspect (inspect_ai): its datasets, solvers and scorers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import JsonValue

from midstream.components.component import Context
from midstream.sources.finite import Split
from midstream_environments.cases import Cases, Shares, share_of
from midstream_environments.library import Library, LibraryConfig


class InspectConfig(LibraryConfig):
    """A task of Inspect. Its samples are a test set, unless `splits` says otherwise.

    Attributes:
        task: a task of an installed package (`inspect_evals/gsm8k`), or of a file (`file.py@name`)
        arguments: what the task is made with
        splits: shares of the splits, such as `{ train = 0.8, test = 0.2 }`; a question's text decides its split
        roles: models of the task's roles, such as `{ grader = "openai/gpt-4o-mini" }`, which are inspect's to reach;
            `openai-api/midstream/NAME` is the model that answers under NAME in [serve]
        score: the scorer whose value is the reward, or `SCORER.KEY` of one that gives a table; by default the first
        sandbox: of a task that needs one: `none` refuses it; `midstream` runs its Python in midstream's; `own` leaves
            inspect's (Docker) to run it
    """

    adapter = "inspect_ai"
    module = "inspect_ai"
    scores = "own loop"
    library = "inspect"
    tested = ("0.3.285",)

    task: str
    arguments: dict[str, JsonValue] = {}
    splits: Shares = {"test": 1.0}
    roles: dict[str, str] = {}
    score: str = ""
    sandbox: Literal["none", "midstream", "own"] = "none"

    @property
    def adapter_settings(self) -> dict[str, JsonValue]:
        """Without `splits`: they are midstream's."""
        return {name: value for name, value in super().adapter_settings.items() if name != "splits"}

    def build(self, context: Context) -> InspectCases:
        """The tasks."""
        return InspectCases(self.opened(context), self.splits)


class InspectCases(Cases):
    """The samples of a task of Inspect."""

    def __init__(self, library: Library, splits: Mapping[Split, float]) -> None:
        super().__init__(library)
        self._shares: dict[str, float] = {**splits}
        if "train" in splits and "validation" not in splits:
            # As of every library, a tenth; here, so that samples that ask the same stay together.
            tenth = splits["train"] / 10
            self._shares |= {"train": splits["train"] - tenth, "validation": tenth}

    def _share_out(self, rows: list[Mapping[str, Any]]) -> None:
        """Samples that ask the same are in one split."""
        super()._share_out([{**row, "split": share_of(row["asked"], self._shares)} for row in rows])
