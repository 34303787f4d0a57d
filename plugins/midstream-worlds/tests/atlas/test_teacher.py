"""The atlas's teacher with the real tools: sound, it answers everything; clumsy, it leaves something to learn."""

from __future__ import annotations

import asyncio
import re

import pytest

from midstream.core.errors import RecipeError
from midstream.core.stream_template import load_template
from midstream.core.task import Task
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.rollout import rollout
from midstream.training.transcripts import transcript_of
from midstream_worlds.atlas.tasks import FAMILIES
from midstream_worlds.atlas.teacher import AtlasTeacherConfig
from support.errors import coded

SETTINGS = ["tasks.regions=2", "sandbox.tier=arithmetic"]


def play(*settings, split="test", per_family=10):
    """Trajectories of the teacher on a fixed set."""
    build = Build(load_recipe("atlas-teacher", [*SETTINGS, *settings]))

    async def run():
        environment = build.environment()
        tasks = build.source.fixed(split, seed=3, per_family=per_family)
        groups = await rollout(environment, tasks, seed=1)
        await environment.close()
        return [group.trajectories[0] for group in groups]

    return asyncio.run(run())


@pytest.mark.matrix(2)
@pytest.mark.parametrize("split", ["train", "validation", "test", "unseen", "real"])
def test_sound_it_answers_every_question(split):
    played = play(split=split)
    assert len(played) == 10 * len(FAMILIES)
    assert [trajectory.question for trajectory in played if trajectory.reward.value < 1] == []


def test_it_writes_thoughts_json_calls_and_the_answer_alone():
    written = [[call.completion for call in trajectory.calls] for trajectory in play(per_family=1)]
    lookup, total = written[0], written[FAMILIES.index("sum")]
    assert len(lookup) == 2
    assert lookup[0].startswith("<think>Task: find. I need the ")
    assert '</think><tool_call>{"name": "local_search", "arguments": {"query": "' in lookup[0]
    assert lookup[1].removeprefix("<think>I can answer.</think>").isdigit()
    assert len(total) == 4
    assert ", then that of " in total[0]
    assert re.match(r"<think>First: \d+\. Now that of ", total[1])
    call = re.escape('<tool_call>{"name": "python", "arguments": {"code": "')
    assert re.match(rf"<think>Second: \d+\. Now I add\.</think>{call}", total[2])


def test_it_takes_numbers_in_the_order_of_the_question():
    played = [trajectory for trajectory in play() if len(trajectory.turns) == 1 and trajectory.turns[0].command]
    codes = {trajectory.question: trajectory.turns[0].command.arguments.get("code", "") for trajectory in played}
    assert any(code.startswith("abs(") for code in codes.values())
    assert len(codes) > 3
    for question, code in codes.items():
        assert re.findall(r"\d+", question) == re.findall(r"\d+", code)


def test_it_does_not_know_a_place_that_no_document_names():
    build = Build(load_recipe("atlas-teacher", SETTINGS))
    tasks = build.source.fixed("real", seed=1, families=["unknown"], count=10)
    groups = asyncio.run(rollout(build.environment(), tasks, seed=1))
    assert {task.answer for task in tasks} == {"I do not know."}
    assert [group.trajectories[0].answer for group in groups] == [task.answer for task in tasks]
    assert {group.trajectories[0].reward.value for group in groups} == {1.0}


def test_its_transcripts_can_be_learned_in_a_native_prompt():
    """They record the tools that their prompt offered."""
    trajectory = play(per_family=1)[0]
    transcript = transcript_of(trajectory, load_template("native"))
    assert [tool["function"]["name"] for tool in transcript.tools] == ["local_search", "python"]


@pytest.mark.slow
def test_clumsy_it_fails_often_and_ends_always():
    success = {}
    for share in (0.5, 1.0):
        played = play(f"agent.policy.share={share}")
        assert {trajectory.status for trajectory in played} == {"ok"}
        assert all(trajectory.answer for trajectory in played)
        success[share] = sum(trajectory.reward.value for trajectory in played) / len(played)
    assert 0.25 < success[1.0] < 0.6 < success[0.5] < 0.9


def test_a_question_that_the_atlas_did_not_make_is_refused():
    build = Build(load_recipe("atlas-teacher", SETTINGS))
    task = Task(id="t", question="How high is Mount Everest?", answer="8849")
    with pytest.raises(RecipeError) as caught:
        asyncio.run(rollout(build.environment(), [task], seed=1))
    assert coded(caught.value, "foreign-prompt", "Mount Everest")


def test_a_template_with_other_calls_is_refused():
    with pytest.raises(RecipeError) as caught:
        AtlasTeacherConfig().check_template(load_template("tiny"))
    assert coded(caught.value, "template-mismatch", "tiny")
