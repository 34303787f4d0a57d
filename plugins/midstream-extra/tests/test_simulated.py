"""A simulated search: what it answers, what the agent may see of the gold answer, and its failures."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import RecipeError, ToolServerError
from midstream.core.task import Task
from midstream.core.tool import PerRun, RunProgress, Tool, ToolRun
from midstream.core.tool_calls import call_tool
from midstream.recipe.build import Build
from midstream.recipe.check import teacher
from midstream.recipe.overrides import evaluation_recipe
from midstream.recipe.schema import load_recipe
from midstream.rollout import rollout
from midstream_extra.corpus import holds
from midstream_extra.simulated import ANSWER, SimulatedConfig, read_documents, write_documents
from support.llm_server import LLMServer, prompt_of

TABLE = "wrappers.local_search.simulated"
CANARY = "zebrafinch 7731"
END = RunProgress(step=130, steps=130)


def simulated(*settings: str, record: Path | None = None, replay: Path | None = None) -> Build:
    return Build(load_recipe("zerosearch-tiny", settings), record=record, replay=replay)


def by_model(server: LLMServer, *settings: str) -> tuple[str, ...]:
    engine = json.dumps({"type": "openai_compatible", "base_url": server.base_url, "model": "m", "max_attempts": 1})
    return (f"engines.writer={engine}".replace('":', '"='), f"{TABLE}.engine=writer", *settings)


def ask(build: Build, *queries: str, task: Task, progress: RunProgress | None = END, seed: int = 1):
    """The results of one run's searches."""

    async def run():
        async with build:
            tool = build.tools[0]
            assert isinstance(tool, PerRun)
            mine = tool.for_run(ToolRun(task=task, seed=seed, progress=progress))
            assert isinstance(mine, Tool)
            return [await call_tool(mine, {"query": query}) for query in queries]

    return asyncio.run(run())


@pytest.fixture(scope="module")
def task():
    build = Build(load_recipe("zerosearch-tiny"))
    [drawn] = build.source.sample("train", 1, 3, {"lookup": 1.0, "hop": 0.0, "scale": 0.0})
    return drawn


def test_useful_documents_are_true_and_noisy_ones_are_not(task):
    facts = {text for _, text in Build(load_recipe("zerosearch-tiny")).source.documents()}
    place = task.question.split()[-2]
    useful = ask(simulated(f"{TABLE}.noise=0"), *[f"{place} height"] * 3, task=task)
    assert {one.marks[0] for one in useful} == {"useful"}
    assert {one.text for one in useful} <= facts
    assert all(one.text.startswith(f"{place} height ") for one in useful)
    noisy = ask(simulated(f"{TABLE}.noise=1"), f"{place} height", f"{place} river", task=task)
    assert {one.marks for one in noisy} == {("noisy",)}
    assert all(one.ok and one.text not in facts for one in noisy)
    assert noisy == ask(simulated(f"{TABLE}.noise=1"), f"{place} height", f"{place} river", task=task)


def test_several_documents_are_listed(task):
    [result] = ask(simulated(f"{TABLE}={{noise=0, documents=5}}"), "height", task=task)
    assert [line.partition(".")[0] for line in result.text.split("\n")] == list("12345")


@pytest.mark.slow
def test_the_share_of_noise_is_the_schedules(task):
    """At step 100 of 130 the probability is (4^(100/130) - 1)/6 = 0.317; 2,000 draws lie within four deviations."""
    progress = RunProgress(step=100, steps=130)
    results = ask(simulated(), *(f"place{number} height" for number in range(2000)), task=task, progress=progress)
    p = 0.5 * (4 ** (100 / 130) - 1) / 3
    noisy = sum("noisy" in one.marks for one in results)
    assert abs(noisy - 2000 * p) < 4 * (2000 * p * (1 - p)) ** 0.5


def test_repeated_queries_draw_again_whatever_the_order(task):
    queries = [f"{task.question.split()[-2]} height", "river"] * 20
    first = ask(simulated(), *queries, task=task)
    assert {one.marks[0] for one in first[::2]} == {"useful", "noisy"}
    other = ask(simulated(), *sorted(queries), task=task)
    assert Counter((one.text, one.marks) for one in first) == Counter((one.text, one.marks) for one in other)
    assert first != ask(simulated(), *queries, task=task, seed=2)


def test_outside_training_the_tool_itself_answers(task):
    place = task.question.split()[-2]
    [real] = ask(simulated(), f"{place} height", task=task, progress=None)
    assert real.text.startswith(f"{place} height ")
    assert real.marks == ()
    [everywhere] = ask(simulated(f"{TABLE}.everywhere=true"), f"{place} height", task=task, progress=None)
    assert everywhere.marks[0] == "useful"


def test_a_model_writes_the_documents_from_query_and_answer(task):
    task = task.model_copy(update={"answer": CANARY})
    with LLMServer(lambda body: f"Doc 1: It is {CANARY}.\nDoc 2: It\n was seen.") as server:
        settings = by_model(server, f"{TABLE}={{noise=0.5, documents=5}}")
        results = ask(simulated(*settings), *(f"height {number}" for number in range(12)), task=task)
        prompts = [prompt_of(body) for body in server.bodies]
    for result in results:
        assert result.calls
        assert result.calls[0].role == "simulator"
        if result.marks[0] == "useful":
            assert (result.text, result.marks) == (f"1. It is {CANARY}.\n2. It was seen.", ("useful", ANSWER))
        else:  # the model disobeyed: what holds the answer is left out
            assert (result.text, result.marks) == ("It was seen.", ("noisy",))
    assert {result.marks[0] for result in results} == {"useful", "noisy"}
    assert all(task.question in prompt and CANARY in prompt and "height" in prompt for prompt in prompts)


def test_an_unreadable_reply_is_asked_for_once_more(task):
    replies = iter(["", "Doc 1: Amberbank is high.", "", ""])
    with LLMServer(lambda body: next(replies)) as server:
        settings = by_model(server, f"{TABLE}.noise=0")
        [result] = ask(simulated(*settings), "one", task=task)
        assert result.text == "Amberbank is high."
        assert len(result.calls) == 2
        with pytest.raises(ToolServerError) as failure:
            ask(simulated(*settings), "two", task=task)
    assert failure.value.code == "simulation-failed"
    assert len(failure.value.calls) == 2


def test_recorded_and_replayed_without_a_model(task, tmp_path):
    with LLMServer(lambda body: "Doc 1: written once") as server:
        settings = by_model(server)
        first = ask(simulated(*settings, record=tmp_path), "one", "one", "two", task=task)
        asked = len(server.bodies)
        assert asked <= 4
        ask(simulated(*settings, record=tmp_path), "one", "two", task=task)
        assert len(server.bodies) == asked
    again = ask(simulated(*settings, replay=tmp_path), "one", "one", "two", task=task)
    assert again == first


@pytest.mark.slow
def test_the_gold_answer_reaches_the_agent_in_useful_documents_alone():
    """The simulator puts the canary into every document; the policy is a program that searches what it likes."""
    recipe = load_recipe("zerosearch-tiny")
    with LLMServer(lambda body: f"Doc 1: Amberbank height {CANARY}\nDoc 2: Amberbank height 12") as server:
        settings = by_model(server, f"{TABLE}.noise=0.5", f"{TABLE}.documents=2")

        async def run():
            async with simulated(*settings) as build:
                environment = replace(build.environment(planner=teacher(recipe)), progress=END)
                tasks = [task.model_copy(update={"answer": CANARY}) for task in build.source.sample("train", 40, 5)]
                return await rollout(environment, tasks, group_size=2, seed=7)

        groups = asyncio.run(run())
    reached = noisy = 0
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        assert trajectory.status == "ok"
        carried = False
        for turn in trajectory.turns:
            for call in turn.calls:
                if call.role == "policy":
                    assert not holds(call.prompt, CANARY) or carried
                    reached += holds(call.prompt, CANARY)
            marks = turn.observation.marks if turn.observation else ()
            assert turn.observation is None or holds(turn.observation.text, CANARY) == (ANSWER in marks)
            assert ANSWER not in marks or "useful" in marks
            carried |= ANSWER in marks
            noisy += "noisy" in marks
    assert min(reached, noisy) > 10, "the test needs both kinds of documents"


def test_a_simulator_that_is_down_scores_nothing():
    recipe = load_recipe("zerosearch-tiny")
    with LLMServer(lambda body: "x", faults=[500] * 10_000) as server:

        async def run():
            async with simulated(*by_model(server)) as build:
                environment = replace(build.environment(planner=teacher(recipe)), progress=END)
                return await rollout(environment, build.source.sample("train", 10, 5), group_size=2, seed=7)

        groups = asyncio.run(run())
    ended = [trajectory for group in groups for trajectory in group.trajectories]
    searched = [one for one in ended if one.status == "error"]
    assert searched
    assert all(one.reward is None and one.error.type == "ToolServerError" for one in searched)
    assert all(not turn.observation or not turn.observation.marks for one in ended for turn in one.turns)


@pytest.mark.parametrize(
    ("reply", "documents"),
    [
        ("Doc 1: a\nDoc 2: b", ["a", "b"]),
        ("1. a b\n   c\n2) d", ["a b c", "d"]),
        ("Here they are:\nDocument 1: a\nDocument 2:\n", ["a"]),
        ("just a text\nin two lines", ["just a text in two lines"]),
        ("  \n", []),
        ("1. a\n2. b\n3. c\n4. d\n5. e\n6. f", ["a", "b", "c", "d", "e"]),
        ("Doc 1: <|im_end|> go", ["\\u003c|im_end|> go"]),
        ("Doc 1: The area\n12.5 km is far\nDoc 2: rules:\n1. none", ["The area 12.5 km is far", "rules: 1. none"]),
        ("The area\n12.5 km is far", ["The area 12.5 km is far"]),
        ("1990: the war began\n1991: it ended", ["1990: the war began 1991: it ended"]),
        (
            "1. The area\n12.5 km is far\n2. 1990: the war\n1990: began",
            ["The area 12.5 km is far", "1990: the war 1990: began"],
        ),
    ],
)
def test_documents_of_a_reply(reply, documents):
    assert read_documents(reply, SimulatedConfig()) == documents


words = st.sampled_from(["Doc", "Document 1:", "Doc 2.", "12.5", "1.", "2)", "1990:", ":", "a", "high", "é"])
lines = st.lists(words, min_size=1, max_size=5).map(" ".join)


@given(st.lists(lines, max_size=5))
def test_what_is_written_is_read_as_it_was(documents):
    assert read_documents(write_documents(documents), SimulatedConfig()) == documents


@given(st.lists(lines, min_size=1, max_size=5))
def test_lines_without_labels_are_split_at_numbers_of_a_list_alone(texts):
    reply = "\n".join(f"{place}. {text}" for place, text in enumerate(texts, 1))
    assert read_documents(reply, SimulatedConfig()) == texts
    assert read_documents(
        "\n".join(f"{place}.5 {text}" for place, text in enumerate(texts, 1970)), SimulatedConfig()
    ) == [" ".join(f"{place}.5 {text}" for place, text in enumerate(texts, 1970))]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (["wrappers.web.simulated={}"], "unknown-tool"),
        ([f"{TABLE}.engine=nobody"], "unknown-engine"),
        ([f"{TABLE}.engine=policy"], "engine-in-process"),
        ([f"{TABLE}.noise=1.5"], "recipe-invalid"),
        (["wrappers.local_search.degraded.noise={start=0, shape='cosine'}"], "recipe-invalid"),
        (["evaluation.validation.wrappers.nothing.degraded.error=0.5"], "unknown-tool"),
    ],
)
def test_what_does_not_fit_is_refused(settings, code):
    with pytest.raises(RecipeError) as refused:
        simulated(*settings)
    assert refused.value.code == code


def test_a_prompt_without_the_query_is_refused(tmp_path):
    (tmp_path / "prompt.md").write_text("Write {{count}} texts about {{topic}}.")
    with LLMServer(lambda body: "x") as server:
        settings = by_model(server, f"{TABLE}.prompt_file={tmp_path / 'prompt.md'}")
        with pytest.raises(RecipeError) as refused:
            simulated(*settings)
    assert refused.value.code == "prompt-invalid"


def test_an_evaluation_does_not_need_the_simulator():
    """Its tables go, unless it answers there too; so `--tools` may leave out the tool."""
    settings = ("engines.writer={type='openai_compatible', model='m', base_url='http://127.0.0.1:1/v1'}",)
    settings += (f"{TABLE}.engine='writer'", "wrappers.local_search.degraded.error=0.5")
    recipe = evaluation_recipe("zerosearch-tiny", overrides=settings)
    assert recipe.wrappers == {}
    kept = evaluation_recipe("zerosearch-tiny", overrides=[*settings, f"{TABLE}.everywhere=true"])
    assert kept.wrappers["local_search"]["simulated"].engine == "writer"
    assert len(kept.wrappers["local_search"]) == 1


def test_another_prompt_is_another_recording(task, tmp_path):
    prompt = tmp_path / "prompt.md"
    with LLMServer(lambda body: f"Doc 1: {prompt_of(body)[:5]}") as server:
        settings = by_model(server, f"{TABLE}.prompt_file={prompt}", f"{TABLE}.noise=0")
        texts = []
        for text in ("first {{query}}", "other {{query}}"):
            prompt.write_text(text)
            [result] = ask(simulated(*settings, record=tmp_path / "tools"), "one", task=task)
            texts.append(result.text)
    assert texts == ["first", "other"]


def test_a_search_key_is_needed_where_the_tool_itself_answers(monkeypatch):
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    settings = ("tools.web_search.provider=serper", "wrappers.web_search.simulated.documents=5", "warm_start=false")
    with Build(load_recipe("zerosearch-tiny", [*settings, "evaluation.at=none"])) as build:
        assert "web_search" in [tool.name for tool in build.tools]
    for more in ("evaluation.at=end", "wrappers.web_search.simulated=false"):
        with Build(load_recipe("zerosearch-tiny", [*settings, more])) as build:
            with pytest.raises(RecipeError) as refused:
                _ = build.tools
            assert refused.value.code == "missing-key"
