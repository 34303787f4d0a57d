"""A tool made worse: noise, missing results, stale facts, errors, latency and cut results, each with a probability.

An agent that trains on it learns to check what it gets and to ask again. Evaluations use the tool as it is, unless a
set names what is degraded.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field, JsonValue

from midstream.components.component import Context, WrapperConfig
from midstream.core.tool import PerRun, RunProgress, Tool, ToolResult, ToolRun, Wrapper
from midstream.recipe.schema import Recipe
from midstream_extra.corpus import NUMBER, Corpus, check_documents
from midstream_extra.schedule import Probability, Schedule
from midstream_extra.simulated import Draws, query_of

_NEVER = Schedule()
# In the order in which they take effect.
WAYS = ("latency", "error", "missing", "noise", "stale", "truncation")


class DegradedConfig(WrapperConfig):
    """A tool that is made worse during training. Each probability is a number, or a schedule over training.

    Attributes:
        latency: the probability that a call waits `latency_s` first
        latency_s: seconds of that wait
        error: the probability that a call fails, as an observation of the agent
        missing: the probability that a call finds nothing
        noise: the probability that made-up passages of another subject replace the result
        stale: the probability that the numbers of a result are old ones: up to a fifth lower
        truncation: the probability that only the first half of the result comes
        index: for `noise`: a file that `midstream index build` wrote; by default, the facts of `[tasks]`
    """

    latency: Probability = _NEVER
    latency_s: float = Field(default=1.0, ge=0)
    error: Probability = _NEVER
    missing: Probability = _NEVER
    noise: Probability = _NEVER
    stale: Probability = _NEVER
    truncation: Probability = _NEVER
    index: Path | None = None

    def at(self, progress: RunProgress | None) -> dict[str, float]:
        """The probability of each way at a step; None: outside training."""
        return {way: getattr(self, way).at(progress) for way in WAYS}

    @property
    def needs_corpus(self) -> bool:
        """Whether made-up passages may be drawn."""
        return bool(self.noise.start or self.noise.end)

    def check_recipe(self, where: str, recipe: Recipe) -> None:
        """Noise has documents to draw from."""
        if self.needs_corpus:
            check_documents(where, recipe, self.index)

    def wrap(self, tools: Sequence[Tool], context: Context) -> list[Tool]:
        """Make the tools worse."""
        corpus = None
        if self.needs_corpus:
            corpus = Corpus(self.index, context)
            context.build.opened.append(corpus)
        return [DegradedTool(tool, self, corpus) for tool in tools]


class DegradedTool(Wrapper):
    """A tool that is worse while an agent trains, or with `everywhere` in every run (`core.tool.PerRun`)."""

    def __init__(self, tool: Tool, config: DegradedConfig, corpus: Corpus | None) -> None:
        super().__init__(tool)
        self.call, self.close = tool.call, tool.close
        self.tool, self.config, self.corpus = tool, config, corpus

    def for_run(self, run: ToolRun) -> Tool:
        """The worse tool of one run; outside training the tool, unless `everywhere` is set."""
        inner = self.tool.for_run(run) if isinstance(self.tool, PerRun) else self.tool
        return _DegradedRun(self, inner, run) if run.progress is not None or self.config.everywhere else inner

    def probabilities(self, progress: RunProgress) -> dict[str, float]:
        """The probabilities of the ways that are set, by the settings' names."""
        inner = self.tool.probabilities(progress) if isinstance(self.tool, PerRun) else {}
        scheduled = {way: getattr(self.config, way) for way in WAYS}
        ours = {way: schedule for way, schedule in scheduled.items() if schedule != _NEVER}
        return inner | {f"wrappers.{self.name}.degraded.{way}": schedule.at(progress) for way, schedule in ours.items()}


class _DegradedRun(Wrapper):
    """The tool of one run. Each way is drawn for itself, so that each has its probability."""

    def __init__(self, degraded: DegradedTool, tool: Tool, run: ToolRun) -> None:
        super().__init__(tool)
        self._tool, self._corpus, self._config = tool, degraded.corpus, degraded.config
        self._draws = Draws(run, f"degraded {tool.name}")
        self._chances = degraded.config.at(run.progress)

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The tool's result, made worse, with a mark for each way; raises as the tool does."""
        rng, config = self._draws.next(arguments), self._config
        drawn = [way for way in WAYS if rng.random() < self._chances[way]]
        marks: tuple[str, ...] = ()
        if "latency" in drawn:
            await asyncio.sleep(config.latency_s)
            marks = ("latency",)
        if "error" in drawn:
            return ToolResult(text=f"{self.name} failed: unavailable", ok=False, marks=(*marks, "error"))
        if "missing" in drawn:
            return ToolResult(text=f"{self.name} found nothing", ok=False, marks=(*marks, "missing"))
        if "noise" in drawn and self._corpus is not None:
            found = await self._corpus.distractors(query_of(arguments), 1, rng)
            if found:
                return ToolResult(text=found[0], marks=(*marks, "noise"))
        result = await self._tool.call(arguments)
        text = result.text
        if "stale" in drawn and result.ok and (aged := NUMBER.sub(lambda found: _older(found[0], rng), text)) != text:
            text, marks = aged, (*marks, "stale")
        if "truncation" in drawn and result.ok:
            text, marks = text[: len(text) // 2], (*marks, "truncation")
        return ToolResult(text=text, ok=result.ok, calls=result.calls, marks=(*result.marks, *marks))


def _older(number: str, rng: random.Random) -> str:
    """The number, up to a fifth lower, with as many decimals; what is not a plain number, such as "007", stays."""
    if re.fullmatch(r"(?:0|[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d*)(?:\.\d+)?", number) is None:
        return number
    decimals, comma = len(number.partition(".")[2]), "," if "," in number else ""
    return f"{float(number.replace(',', '')) * rng.uniform(0.8, 0.99):{comma}.{decimals}f}"
