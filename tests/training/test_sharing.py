"""Rows that share too little are reported, with the place where they part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.agents.prompted import PlannerConfig, PromptedPlanner
from midstream.agents.rendering import prompt_text
from midstream.core.agent import ModuleContext, Planner
from midstream.core.metrics import StepMetrics
from midstream.core.sequences import joined
from midstream.core.trajectory import Call, Memory, MemoryRecord, Trajectory, Turn
from midstream.engines.scripted import ScriptedEngine
from midstream.prefix_tree.tree import tree_of
from midstream.tools.base_generator import BaseGenerator, BaseGeneratorConfig
from midstream.training.sharing import first_difference, sharing_warning
from midstream_worlds.planning.action_lines import ActionLinesConfig, ActionLinesPlanner

TOOL = BaseGenerator(BaseGeneratorConfig(), ScriptedEngine([]))
PLAN = "Context: of roll {i}, {t}\nSub-Goal: the next number\nTool Name: base_generator"


def decode(ids: Sequence[int]) -> str:
    """The tokens of a scripted engine are bytes."""
    return bytes(ids).decode(errors="replace")


def rolled_out(
    planner: Planner,
    *,
    group: int = 2,
    turns: int = 3,
    tasks: int = 2,
    result: str = "{t}",
    plan: str = PLAN,
    lessons: Callable[[int], str] = lambda i: "",
) -> list[Trajectory]:
    """What a planner is really asked and says in a step; all `{i}` and `{t}` are the rollout and the turn."""

    async def play(question: str, i: int) -> tuple[Turn, ...]:
        memory, played = Memory(), ()
        for t in range(1, turns + 1):
            engine = ScriptedEngine([plan.format(i=i, t=t)], token_ids=True)
            context = ModuleContext(engine=engine, lessons=lessons(i))
            action, calls = await planner.plan(question, [TOOL], memory, context)
            memory = memory.append(MemoryRecord(turn=t, action=action, result=result.format(i=i, t=t)))
            played = (*played, Turn(index=t, calls=calls))
        return played

    return [
        Trajectory(id=f"q{q}-{i}", task_id=f"q{q}", turns=asyncio.run(play(f"How much is {q} plus {q} ?", i)))
        for q in range(tasks)
        for i in range(group)
    ]


def of_step(trajectories: Sequence[Trajectory], role: str = "planner", step: int = 1) -> StepMetrics:
    """The step's counts, as a learner gives them."""
    runs = [run for one in trajectories for run in joined([call for call in one.calls if call.role == role])]
    tree = tree_of([run[-1].prompt_ids + run[-1].completion_ids for run in runs])
    return StepMetrics(step=step, policy_version=0, reward_mean=0.0, total_tokens=tree.total, unique_tokens=tree.unique)


def warning_of(trajectories: Sequence[Trajectory], role: str = "planner", step: int = 1) -> str | None:
    return sharing_warning(of_step(trajectories, role, step), trajectories, role, decode)


@pytest.fixture
def instructions_last(tmp_path):
    """A planner with the prompt that ships, but for its instructions, which follow the memory."""
    system, user = prompt_text("planner").split("<!-- user -->\n")
    title, rest = system.split("How to decide:")
    instructions, tools = rest.split("{{lessons}}")
    path = tmp_path / "planner.md"
    path.write_text(f"{title}{tools}<!-- user -->\n{user}\n\nHow to decide:{instructions}", encoding="utf-8")
    return PromptedPlanner(PlannerConfig(prompt_file=path))


def test_the_prompt_that_ships_shares_enough():
    played = rolled_out(PromptedPlanner(PlannerConfig()))
    assert of_step(played).sharing > 3
    assert warning_of(played) is None


@pytest.mark.parametrize("step", [1, 2])
def test_instructions_after_the_memory_are_reported_where_little_is_shared(instructions_last, step):
    played = rolled_out(instructions_last)
    enough = of_step(played, step=step)
    assert sharing_warning(enough, played, "planner", decode) is None, "above the limit"
    less = enough.model_copy(update={"unique_tokens": enough.total_tokens})
    text = sharing_warning(less, played, "planner", decode)
    assert text.startswith(f"step {step}: the rows of the update hold only 1.00 tokens for each unique one. ")
    first, second = (decode(turn.calls[0].prompt_ids) for turn in played[0].turns[:2])
    shared = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert first[:shared].rstrip().endswith("# Memory")
    assert f"first differ in 'Memory', {shared:,} tokens in." in text


def test_what_changes_at_the_beginning_is_reported(tmp_path):
    """A different lesson for each rollout stands before everything else."""
    path = tmp_path / "planner.md"
    path.write_text(prompt_text("planner").replace("{{lessons}}", "").replace("# Planner", "{{lessons}}# Planner"))
    planner = PromptedPlanner(PlannerConfig(prompt_file=path))
    played = rolled_out(planner, group=4, turns=1, tasks=1, lessons=lambda i: f"{i} is a number to try.")
    text = warning_of(played)
    assert "first differ in 'Lessons from earlier tasks'" in text


def test_long_results_are_nothing_that_another_order_would_fix():
    """Only what tools said is long, and it is the last of the prompt."""
    played = rolled_out(PromptedPlanner(PlannerConfig()), turns=2, result="{i} and {t}, " * 2000)
    text = warning_of(played)
    assert "first differ in 'Memory'" in text


def test_long_replies_are_reported_as_what_the_policy_wrote():
    plan = "{i} thinks. " * 1000 + PLAN
    played = rolled_out(PromptedPlanner(PlannerConfig()), turns=1, plan=plan)
    text = warning_of(played)
    prompt = len(played[0].calls[0].prompt_ids)
    assert f"share all of their prompt and first differ in what the policy wrote, {prompt:,} tokens in:" in text


def test_a_prompt_without_headings_is_reported_by_the_line_before():
    played = rolled_out(ActionLinesPlanner(ActionLinesConfig()), turns=2, tasks=1, plan=" goal {i} " + "more " * 20)
    assert "first differ after 'Question " in warning_of(played)


def stream(task: str, i: int) -> Trajectory:
    """A policy that writes one stream of two replies, with a tool's words in between."""
    prompt, said, output, end = f"Question {task}", f"<think>{i} " * 20, f"<output>{i}</output>", f"{i} it is."
    calls = []
    for before, completion in ((prompt, said), (prompt + said + output, end)):
        ids = tuple(completion.encode())
        calls.append(
            Call(role="policy", prompt_ids=tuple(before.encode()), completion_ids=ids, logprobs=(0.0,) * len(ids))
        )
    return Trajectory(id=f"{task}-{i}", task_id=task, closing_calls=tuple(calls))


def test_a_stream_is_one_row_and_parts_in_what_the_policy_wrote():
    played = [stream(task, i) for task in ("a", "b") for i in range(3)]
    text = warning_of(played, "policy")
    assert "first differ in what the policy wrote, 17 tokens in" in text  # "Question a<think>"


def test_most_tasks_name_the_place(instructions_last):
    """One whose rollouts all ended after their first turn has no memory to part in."""
    short = rolled_out(instructions_last, turns=1, tasks=1)
    long = [one.model_copy(update={"task_id": f"long {one.task_id}"}) for one in rolled_out(instructions_last)]
    played = [*short, *long]
    less = of_step(played).model_copy(update={"unique_tokens": of_step(played).total_tokens})
    assert "first differ in 'Memory'" in sharing_warning(less, played, "planner", decode)


def test_nothing_to_compare_is_no_warning():
    played = rolled_out(ActionLinesPlanner(ActionLinesConfig()), turns=1, plan=" goal {t}")
    alone = [stream(str(i), i) for i in range(3)]
    assert warning_of(alone, "policy") is None, "no two rows of a task"
    low = StepMetrics(step=1, policy_version=0, reward_mean=0.0, total_tokens=5, unique_tokens=5)
    assert sharing_warning(low, played, "planner", decode) is None, "rows of a task that are all the same"
    uncounted = StepMetrics(step=1, policy_version=0, reward_mean=0.0)
    assert uncounted.sharing is None
    assert sharing_warning(uncounted, [stream("a", i) for i in range(3)], "policy", decode) is None


TEXTS = st.text(alphabet="# Ab\n", max_size=8).map(lambda text: tuple(text.encode()))


@given(st.lists(st.tuples(TEXTS.filter(bool), TEXTS.filter(bool)), min_size=2, max_size=6))
def test_any_rows_part_where_a_naive_search_says(pairs):
    runs = [[Call(role="planner", prompt_ids=prompt, completion_ids=completion)] for prompt, completion in pairs]
    rows = {prompt + completion for prompt, completion in pairs}
    found = first_difference(runs, decode)
    if len(rows) == 1:
        assert found is None
        return
    shared = 0
    while len({row[: shared + 1] for row in rows}) == 1:
        shared += 1
    assert found[1] == shared
    in_replies = shared >= min(len(dict((p + c, p) for p, c in pairs)[row]) for row in rows)
    assert (found[0] == "in what the policy wrote") is in_replies
