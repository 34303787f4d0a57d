"""Tools made worse: each way with its probability, in training alone or where a set says so."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest

from midstream.core.task import Task
from midstream.core.tool import RunProgress, ToolResult, ToolRun
from midstream.core.tool_calls import call_tool
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream_extra.degraded import DegradedConfig, DegradedTool

TASK = Task(id="t", question="How high is Amberbank ?", answer="105")


class Echo:
    name, description, timeout_s, output_tokens = "echo", "says it again", 5.0, 100
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}}

    async def call(self, arguments):
        return ToolResult(text=f"{arguments['text']} was 2000.50 in 1990")

    async def close(self):
        pass


def results(config: DegradedConfig, count: int, *, progress: RunProgress | None = RunProgress(step=1, steps=2)):  # noqa: B008
    tool = DegradedTool(Echo(), config, None).for_run(ToolRun(task=TASK, seed=3, progress=progress))

    async def ask():
        return [await call_tool(tool, {"text": f"height {number}"}) for number in range(count)]

    return asyncio.run(ask())


@pytest.mark.parametrize("way", ["error", "missing", "stale", "truncation"])
def test_each_way_has_its_probability(way):
    """1,000 draws at 0.3 lie within four deviations, and only that way is marked."""
    found = results(DegradedConfig(**{way: 0.3}), 1000)
    counts = Counter(one.marks for one in found)
    assert set(counts) == {(), (way,)}
    assert abs(counts[(way,)] - 300) < 4 * (1000 * 0.3 * 0.7) ** 0.5
    assert all(one.text.endswith("was 2000.50 in 1990") for one in found if not one.marks)


def test_what_each_way_does():
    [error] = results(DegradedConfig(error=1), 1)
    [missing] = results(DegradedConfig(missing=1), 1)
    [stale] = results(DegradedConfig(stale=1), 1)
    [cut] = results(DegradedConfig(truncation=1), 1)
    assert (error.ok, missing.ok, stale.ok, cut.ok) == (False, False, True, True)
    whole = "height 0 was 2000.50 in 1990"
    assert cut.text == whole[: len(whole) // 2]
    old, new = whole.split(), stale.text.split()
    assert [one for one, other in zip(old, new, strict=True) if one != other] == ["2000.50", "1990"]
    assert 1600 <= float(new[3]) < 2000
    assert len(new[3].partition(".")[2]) == 2
    assert 1592 <= int(new[5]) < 1990


def test_latency_counts_towards_the_tools_limit():
    class Slow(Echo):
        timeout_s = 0.05

    tool = DegradedTool(Slow(), DegradedConfig(latency=1, latency_s=5), None)
    mine = tool.for_run(ToolRun(task=TASK, seed=3, progress=RunProgress(step=1, steps=1)))
    assert not asyncio.run(call_tool(mine, {"text": "x"})).ok


def test_outside_training_the_tool_is_as_it_is():
    assert {one.marks for one in results(DegradedConfig(error=1), 5, progress=None)} == {()}


def test_schedules_follow_training():
    config = DegradedConfig(error={"start": 0.0, "end": 1.0, "shape": "linear"})
    shares = []
    for step in (0, 50, 100):
        found = results(config, 400, progress=RunProgress(step=step, steps=100))
        shares.append(sum("error" in one.marks for one in found) / 400)
    assert shares[0] == 0
    assert shares[2] == 1
    assert 0.4 < shares[1] < 0.6


def test_noise_is_made_up_from_the_worlds_facts():
    recipe = load_recipe(
        "zerosearch-tiny", ["wrappers.local_search.simulated=false", "wrappers.local_search.degraded.noise=1"]
    )

    async def run():
        async with Build(recipe) as build:
            facts = {text for _, text in build.source.documents()}
            place = next(iter(build.source.names()))
            tool = build.tools[0].for_run(ToolRun(task=TASK, seed=1, progress=RunProgress(step=1, steps=1)))
            found = [await call_tool(tool, {"query": f"{place} height"}) for _ in range(20)]
            return facts, [one.text for one in found if "noise" in one.marks]

    facts, noisy = asyncio.run(run())
    assert len(noisy) == 20
    assert not facts.intersection(noisy)


def test_a_set_may_be_evaluated_on_a_worse_tool():
    async def run():
        async with Build(load_recipe("zerosearch-tiny")) as build:
            sets = {chosen.name: chosen for chosen in build.recipe.evaluation.sets}
            made = ToolRun(task=TASK, seed=1)
            place = next(iter(build.source.names()))
            found = {}
            for name in ("test", "failing-40"):
                [tool] = [tool for tool in build.environment(chosen=sets[name]).tools if tool.name == "local_search"]
                mine = tool.for_run(made)
                answers = [await call_tool(mine, {"query": f"{place} height"}) for _ in range(200)]
                found[name] = sum("error" in one.marks for one in answers)
            return found

    found = asyncio.run(run())
    assert found["test"] == 0
    assert 50 < found["failing-40"] < 110


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("1,050,000 people", r"(?:8[4-9]\d|9\d\d|1,0[0-3]\d),\d{3} people"),
        ("3.75 m", r"[23]\.\d\d m"),
        ("agent 007 of 1.2.3", r"agent 007 of 1\.2\.3"),
        ("0 or none", r"0 or none"),
    ],
)
def test_stale_numbers_keep_their_form(text, pattern):
    class Said(Echo):
        async def call(self, arguments):
            return ToolResult(text=text)

    tool = DegradedTool(Said(), DegradedConfig(stale=1), None)
    mine = tool.for_run(ToolRun(task=TASK, seed=3, progress=RunProgress(step=1, steps=1)))
    assert re.fullmatch(pattern, asyncio.run(call_tool(mine, {"text": "x"})).text)


def test_a_sets_schedule_is_at_its_end():
    config = DegradedConfig(error={"start": 0.0, "end": 1.0}, everywhere=True)
    mine = DegradedTool(Echo(), config, None).for_run(ToolRun(task=TASK, seed=3))
    assert not asyncio.run(call_tool(mine, {"text": "x"})).ok
