"""A simulated search engine: while an agent trains, a model or a corpus answers in place of a tool.

Source: ZeroSearch, arXiv 2505.04588. Before each search it is drawn whether useful or noisy documents answer it; the
probability of noise follows a schedule over training (`schedule.Schedule`). The simulator knows the task's gold
answer, so that it can write what a useful document would hold; the agent sees the documents alone. Departures: a noisy
result never holds the gold answer's words in their order, because documents that do are left out; one result answers
equal queries of a task, so that it can be cached and recorded.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from midstream.components.component import Context, WrapperConfig
from midstream.core.engine import Engine
from midstream.core.errors import RecipeError, ToolServerError
from midstream.core.seeds import derive_seed
from midstream.core.text import PLACE, fill, neutral
from midstream.core.text_file import read_text, shipped_prompt
from midstream.core.tool import PerRun, RunProgress, Tool, ToolResult, ToolRun, Wrapper
from midstream.core.tool_calls import text_arguments
from midstream.core.trajectory import Sampling
from midstream.recipe.check import in_process, reward_components, wrappers_of
from midstream.recipe.schema import Recipe
from midstream.tools.base_generator import ask
from midstream.tools.recording import RecordingOrigin
from midstream_extra.corpus import Corpus, check_documents, holds
from midstream_extra.schedule import Probability, Schedule

Kind = Literal["useful", "noisy"]
# The mark of a result that holds the gold answer verbatim.
ANSWER = "answer copied"
# Seconds of one search; characters of a document.
TIMEOUT_S, MAX_CHARACTERS = 300.0, 1000
_PLACES = frozenset({"query", "question", "answer", "kind", "count"})
_ASKS = 2
_LABEL = re.compile(r"^\s*doc(?:ument)?\s*\d+\s*[:.)]\s*", re.IGNORECASE | re.MULTILINE)  # "Doc 1: "
_NUMBER = re.compile(r"^\s*\d{1,3}[:.)]\s+", re.MULTILINE)  # "1. ", in a reply without labels


class SimulatedConfig(WrapperConfig):
    """A tool's place is taken, during training, by a simulator with the same name and arguments.

    With an `engine`, a model writes the documents. Without one, they are passages of a corpus: true ones that match the
    query, and made-up ones. In evaluations the tool itself answers.

    Attributes:
        index: without `engine`: a file that `midstream index build` wrote; by default, the facts of `[tasks]`
        noise: the probability that a search gets noisy documents: a number, or a schedule over training
        documents: documents of a result (the paper: 5)
        sampling: of the engine (the released code: temperature 0.8, 600 tokens)
        prompt_file: replaces the prompt, with the places `{{query}}`, `{{question}}`, `{{answer}}`, `{{kind}}`
            ("useful" or "noisy") and `{{count}}`
    """

    asks = "optional"
    replaces = True

    index: Path | None = None
    noise: Probability = Schedule()
    documents: int = Field(default=5, ge=1, le=100)
    sampling: Sampling = Sampling(temperature=0.8, max_tokens=600)
    prompt_file: Path | None = None

    def check_recipe(self, where: str, recipe: Recipe) -> None:
        """There are documents to draw from, or an engine that can write them while the agent waits."""
        engine = dict(wrappers_of(recipe))[where].engine
        if engine is None:
            check_documents(where, recipe, self.index, fix=f"; or {where}.engine to a model that writes them")
            return
        SimulatorPrompt(self)  # raises for a prompt file with other places
        users = (*recipe.modules.values(), *(component for _, component, _ in reward_components(recipe)))
        if in_process(recipe, engine) and engine in {user.engine for user in users}:
            raise RecipeError(
                f"{where}.engine = {engine!r} is an engine in process that others ask",
                code="engine-in-process",
                cause="it samples once all trajectories wait for it, and one that searches does not",
                fix="name another engine",
            )

    def wrap(self, tools: Sequence[Tool], context: Context) -> list[Tool]:
        """Put one simulator, recorded like a tool, in the place of the tools."""
        build, engine = context.build, context.component.engine
        settings = self.model_dump(mode="json", exclude={"noise", "everywhere", "prompt_file"})
        if engine is None:
            settings["tasks"] = build.recipe.tasks.table()
        else:
            settings |= {"engine": context.engine_identity, "prompt": SimulatorPrompt(self).template}

        def simulator() -> Tool:
            if engine is None:
                return CorpusSimulator(self, Corpus(self.index, context))
            # It answers at any time, not in the waves of the agent's engine.
            return ModelSimulator(self, build.engine(engine, continuous=True))

        origin = RecordingOrigin(table=f"{context.name}.simulated", settings=settings)
        [made] = build.tool_tables.recorded(origin, simulator)
        return [SimulatedTool(tool, made, self) for tool in tools]


class Simulator(Tool):
    """Writes documents for a query: a tool of its own, so that results are recorded and replayed like any tool's."""

    name = "simulator"
    description = "Writes the documents that a search would return."
    parameters: Mapping[str, JsonValue] = text_arguments(
        query="what the agent searches",
        question="the task",
        answers="its gold answers, as JSON",
        kind="useful or noisy",
    )
    timeout_s = TIMEOUT_S
    # Documents are cut one by one.
    output_tokens = 100_000

    def __init__(self, config: SimulatedConfig) -> None:
        self.config = config


class CorpusSimulator(Simulator):
    """Draws documents from a corpus; a query has the same documents in each run of its task."""

    def __init__(self, config: SimulatedConfig, corpus: Corpus) -> None:
        super().__init__(config)
        self._corpus = corpus

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The documents, as a JSON list of texts."""
        query, kind, count = str(arguments["query"]), arguments["kind"], self.config.documents
        if kind == "useful":
            found = await self._corpus.passages(query, count)
        else:
            rng = random.Random(derive_seed("simulator", query, str(arguments["question"])))
            found = await self._corpus.distractors(query, count, rng, json.loads(str(arguments["answers"])))
        return ToolResult(text=json.dumps(found))

    async def close(self) -> None:
        """Close the corpus."""
        await self._corpus.close()


class SimulatorPrompt:
    """The prompt of a simulator: one that is trained reads the same text.

    Raises `RecipeError` for a prompt file without `{{query}}`, or with places that have no value.
    """

    def __init__(self, config: SimulatedConfig) -> None:
        self._count, own = str(config.documents), config.prompt_file
        self.template = read_text(own) if own else shipped_prompt("midstream_extra", "simulated_search")
        places = set(PLACE.findall(self.template))
        if "query" not in places or places - _PLACES:
            raise RecipeError(
                f"{config.prompt_file} has the places {', '.join(sorted(places)) or 'none'}",
                code="prompt-invalid",
                fix=f"it needs {{{{query}}}}, and may have {', '.join(sorted(_PLACES - {'query'}))}",
            )

    def text(self, *, query: str, question: str, answer: str, kind: str) -> str:
        """The prompt with these values, each in one line."""
        values = {"query": _line(query), "question": _line(question), "answer": _line(answer)}
        return fill(self.template, values | {"kind": kind, "count": self._count}).strip()


class ModelSimulator(Simulator):
    """Asks a model for documents; a reply without any is asked for once more."""

    def __init__(self, config: SimulatedConfig, engine: Engine) -> None:
        super().__init__(config)
        self._engine, self._prompt = engine, SimulatorPrompt(config)

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The documents, as a JSON list of texts, with the requests.

        Raises `ToolServerError` if the engine failed, or no reply holds a document.
        """
        answer = next(iter(json.loads(str(arguments["answers"]))), "not known")
        query, question, kind = (str(arguments[name]) for name in ("query", "question", "kind"))
        prompt = self._prompt.text(query=query, question=question, answer=answer, kind=kind)
        reply, calls = ToolResult(text=""), ()
        for _ in range(_ASKS):
            try:
                reply = await ask(self._engine, self.name, prompt, self.config.sampling)
            except ToolServerError as failure:
                failure.calls = (*calls, *failure.calls)
                raise
            calls = (*calls, *reply.calls)
            if reply.ok and (found := read_documents(reply.text, self.config)):
                return ToolResult(text=json.dumps(found), calls=calls)
            prompt += "\n\nYour last reply held no document. Write the documents, each on a line of its own."
        raise ToolServerError(
            f"the simulator wrote no document for {query!r}, but {reply.text[:200]!r}",
            code="simulation-failed",
            fix="give it a larger model, a lower sampling.temperature or more max_tokens",
            calls=calls,
        )


def read_documents(reply: str, config: SimulatedConfig) -> list[str]:
    """The documents of a reply, each in one line and cut: "Doc 1: ...", or "1. ..."; a text without either is one."""
    parts = (_LABEL if _LABEL.search(reply) else _NUMBER).split(reply)
    texts = [" ".join(neutral(part).split()) for part in (parts[1:] or parts)]
    return [text[:MAX_CHARACTERS].rstrip() for text in texts if text][: config.documents]


def write_documents(documents: Sequence[str]) -> str:
    """The reply that `read_documents` reads as these documents, if they are of a result of it."""
    return "\n".join(f"Doc {place}: {text}" for place, text in enumerate(documents, 1))


class SimulatedTool(Wrapper):
    """A tool, and its simulator in its place while an agent trains (`core.tool.PerRun`)."""

    def __init__(self, tool: Tool, simulator: Tool, config: SimulatedConfig) -> None:
        super().__init__(tool)
        self.call, self.close = tool.call, tool.close
        self.tool, self.simulator, self.config = tool, simulator, config

    def for_run(self, run: ToolRun) -> Tool:
        """The simulator of one run; outside training the tool, unless `everywhere` is set."""
        if run.progress is not None or self.config.everywhere:
            return _SimulatedRun(self, run)
        return self.tool.for_run(run) if isinstance(self.tool, PerRun) else self.tool

    def probabilities(self, progress: RunProgress) -> dict[str, float]:
        """The probability of noise at a step, by the setting's name."""
        return {f"wrappers.{self.name}.simulated.noise": self.config.noise.at(progress)}


class _SimulatedRun(Wrapper):
    """The tool of one run: draws useful or noisy for each search, and has the simulator write the documents."""

    def __init__(self, simulated: SimulatedTool, run: ToolRun) -> None:
        super().__init__(simulated)
        self.timeout_s = TIMEOUT_S
        self._simulator, self._task, self._draws = simulated.simulator, run.task, Draws(run, simulated.name)
        self._noise = simulated.config.noise.at(run.progress)

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Documents as the tool lists them, marked useful or noisy; raises as the simulator does."""
        kind: Kind = "noisy" if self._draws.next(arguments).random() < self._noise else "useful"
        query, answers = query_of(arguments), self._task.answers
        asked = {"query": query, "question": self._task.question, "answers": json.dumps(answers), "kind": kind}
        result = await self._simulator.call(asked)
        found: Sequence[str] = json.loads(result.text) if result.ok else ()
        copied = [any(holds(text, answer) for answer in answers) for text in found]
        if kind == "noisy":
            found, copied = [text for text, copy in zip(found, copied, strict=True) if not copy], []
        marks = (kind, ANSWER) if any(copied) else (kind,)
        if not found:
            return ToolResult(text=f"no document matches {query[:200]!r}", ok=False, calls=result.calls, marks=marks)
        text = found[0] if len(found) == 1 else "\n".join(f"{place}. {text}" for place, text in enumerate(found, 1))
        return ToolResult(text=text, calls=result.calls, marks=marks)


class Draws:
    """The random numbers of one run's calls of a tool: they depend on the arguments, and on how often these came."""

    def __init__(self, run: ToolRun, tool: str) -> None:
        self._seed, self._tool, self._times = run.seed, tool, Counter[str]()

    def next(self, arguments: Mapping[str, JsonValue]) -> random.Random:
        """The generator of the next call; concurrent calls draw alike in any order."""
        asked = json.dumps(arguments, sort_keys=True)
        self._times[asked] += 1
        return random.Random(derive_seed(self._seed, self._tool, asked, self._times[asked]))


def query_of(arguments: Mapping[str, JsonValue]) -> str:
    """What a call searches: its text, or with several arguments all of them as JSON."""
    texts = [value for value in arguments.values() if isinstance(value, str)]
    return texts[0] if len(texts) == len(arguments) == 1 else json.dumps(arguments, sort_keys=True)


def _line(text: str) -> str:
    return " ".join(neutral(text).split())
