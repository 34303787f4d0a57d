"""The atlas's teacher as AgentFlow's four modules: behind their real prompts, with the real tools."""

from __future__ import annotations

import asyncio
import json

from midstream.agents.formats import parse_action, parse_verdict
from midstream.core.engine import Request
from midstream.core.trajectory import Message
from midstream.recipe.build import Build
from midstream.recipe.check import teacher
from midstream.recipe.schema import load_recipe
from midstream.rollout import rollout
from midstream_worlds.atlas.tasks import FAMILIES
from support.errors import raises

SETTINGS = ["tasks.regions=2", "sandbox.tier=arithmetic"]


def play(*settings: str, per_family: int = 4):
    """Trajectories of the teacher, in the place of both engines, on a fixed set."""
    build = Build(load_recipe("text-flow-grpo", [*SETTINGS, *settings]))

    async def run():
        environment = build.environment(planner=teacher(build.recipe))
        tasks = build.source.fixed("unseen", seed=3, per_family=per_family)
        groups = await rollout(environment, tasks, seed=1)
        await environment.close()
        return [group.trajectories[0] for group in groups]

    return asyncio.run(run())


def test_sound_it_answers_every_question_in_the_reply_formats_of_the_modules():
    played = play("warm_start.policy.share=0")
    assert len(played) == 4 * len(FAMILIES)
    assert [trajectory.question for trajectory in played if trajectory.reward.value < 1] == []
    assert {trajectory.stop_reason for trajectory in played} == {"verified"}
    roles = [[call.role for call in trajectory.calls] for trajectory in played]
    assert all(said == ["planner", "executor", "verifier"] * (len(said) // 3) + ["generator"] for said in roles)


def test_with_the_long_prompts_it_reads_the_same():
    files = [f"agent.{role}.prompt_file=src/midstream/agents/prompts/{role}.md" for role in ("planner", "verifier")]
    assert all(trajectory.reward.value == 1 for trajectory in play("warm_start.policy.share=0", *files, per_family=1))


def test_clumsy_the_planner_alone_errs():
    played = play("warm_start.policy.share=1")
    assert 0.2 < sum(trajectory.reward.value for trajectory in played) / len(played) < 0.9
    turns = [turn for trajectory in played for turn in trajectory.turns]
    assert all(turn.action.error is None and turn.command.error is None for turn in turns)
    assert all(list(turn.command.arguments.values()) == [turn.action.context] for turn in turns)


def test_a_verifier_that_missed_the_end_has_the_planner_check_the_result():
    engines = [f"engines.{name}.type=atlas_agent" for name in ("policy", "modules")]
    build = Build(load_recipe("text-flow-grpo", [*SETTINGS, *engines]))
    (task,) = build.source.fixed("test", seed=0, families=["lookup"], count=1)
    question, asked = task.question, build.source.asked[task.question]
    place, attribute = asked.places[0], asked.attribute
    known = next(text for text in build.source.stated if place in text)
    action = {"sub_goal": "search", "tool": "local_search", "context": f"{place} {attribute}"}
    prompt = f"{question}\n{json.dumps({'turn': 1, 'action': action, 'result': known}, ensure_ascii=False)}"

    def reply(role: str, prompt: str) -> str:
        request = Request(role=role, messages=(Message(role="user", content=prompt),))
        return asyncio.run(build.engine("policy").sample(request)).completion

    assert parse_verdict(reply("verifier", prompt)).memory_sufficient
    assert parse_action(reply("planner", prompt), build.tools).context == action["context"]
    assert reply("generator", prompt) == f"<answer>{build.source.stated[known]}</answer>"
    with raises("foreign-prompt", "Who wrote it?"):
        reply("planner", "Who wrote it?")
