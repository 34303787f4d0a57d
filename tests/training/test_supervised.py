"""Transcripts, the warm start on them, and the gate before reinforcement."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midstream.agents.interleaved import InterleavedLoop, StreamConfig
from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.stream_template import load_template
from midstream.core.trajectory import Call, Score
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream.rollout import Environment, rollout
from midstream.training.learner import LocalLearner
from midstream.training.protocols import Row
from midstream.training.settings import ImitationConfig, WarmStartConfig
from midstream.training.supervised import Transcripts, collect, learning_rate, warm_start
from midstream.training.transcripts import supervised_row
from midstream_worlds.planning.scripted import ScriptedPlanner
from support.errors import coded, raises
from support.interleaved import Shout
from support.served_model import save_model


class NoReward:
    async def score(self, task, trajectory):
        return Score(value=1.0)


def row(number, length=1):
    return Row(
        prompt_ids=(7,) * length, completion_ids=(number,), old_logprobs=(), advantage=0.0, weight=1.0, kl_weight=0.0
    )


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    size=st.integers(1, 9),
    seed=st.integers(0, 1000),
    epoch=st.integers(0, 3),
)
def test_an_epoch_holds_every_row_once(lengths, size, seed, epoch):
    rows = [row(i, length) for i, length in enumerate(lengths)]
    transcripts = Transcripts(rows, size, seed)
    count = transcripts.batches_per_epoch
    batches = [transcripts.batch(epoch * count + i) for i in range(count)]
    assert Counter(one.completion_ids for batch in batches for one in batch) == Counter(
        one.completion_ids for one in rows
    )
    assert all(1 <= len(batch) <= size for batch in batches)


def test_a_batch_depends_on_its_place_alone():
    rows = [row(i, i % 7 + 1) for i in range(50)]
    forward, backward = Transcripts(rows, 8, 1), Transcripts(rows, 8, 1)
    count = 3 * forward.batches_per_epoch
    expected = [forward.batch(i) for i in range(count)]
    assert [backward.batch(i) for i in reversed(range(count))] == expected[::-1]
    assert Transcripts(rows, 8, 1).batch(11) == expected[11]
    per_epoch = forward.batches_per_epoch
    assert expected[:per_epoch] != expected[per_epoch : 2 * per_epoch]
    assert [Transcripts(rows, 8, 2).batch(i) for i in range(per_epoch)] != expected[:per_epoch]


def test_batches_hold_rows_of_similar_length():
    rows = [row(i, i % 40 + 1) for i in range(640)]
    transcripts = Transcripts(rows, 8, 1)
    spreads = []
    for i in range(transcripts.batches_per_epoch):
        lengths = [len(one.prompt_ids) for one in transcripts.batch(i)]
        spreads.append(max(lengths) - min(lengths))
    assert sum(spreads) / len(spreads) < 10  # at random it would be about 31


def test_rows_of_similar_length_waste_less_padding_than_rows_of_similar_prompts():
    rows = [supervised_row([1] * (i % 7 + 1), tuple([2] * (i * 31 % 50 + 1)), str(i)) for i in range(320)]

    def padded(similar):
        transcripts = Transcripts(rows, 8, 1, similar)
        batches = [transcripts.batch(i) for i in range(transcripts.batches_per_epoch)]
        assert sorted(row.trajectory_id for batch in batches for row in batch) == sorted(map(str, range(320)))
        return sum(len(batch) * max(row.length for row in batch) for batch in batches)

    real = sum(row.length for row in rows)
    assert padded("rows") < 1.2 * real < 1.5 * real < padded("prompts")


def test_no_transcript_is_an_error_that_says_what_to_do():
    with raises("no-transcripts", "successes_only = false"):
        Transcripts([], 4, 1)


def test_the_learning_rate_rises_and_falls():
    config = WarmStartConfig(steps=100, warmup_steps=10, learning_rate=1.0, final_share=0.1)
    rates = [learning_rate(config, step) for step in range(1, 101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(rates[9]) == pytest.approx(1 - 9 / 100)
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
    held = [learning_rate(config.model_copy(update={"hold": 0.6}), step) for step in range(1, 101)]
    assert held[9:60] == [1.0] * 51
    assert held[80] == pytest.approx(0.5)


# -- the warm start ---------------------------------------------------------------------------------------------------


def warm(build, **changes):
    """Warm-start the build's planner; returns the phases that were reported."""
    parts = parts_of(build)
    phases = []
    warm_up(parts, parts.warm_start.model_copy(update=changes), phases.append, source=parts.source)
    return phases


def warm_up(parts, config, report, source):
    async def work():
        try:
            await warm_start(
                config,
                learner=parts.learner,
                student=parts.student,
                source=source,
                make_environment=parts.make_environment,
                teacher=parts.teacher,
                validation=parts.source.fixed("validation", seed=7, per_family=1),
                seed=1,
                report=report,
                learned=lambda tasks: None,
            )
        finally:
            await parts.make_environment().close()

    asyncio.run(work())


@pytest.mark.slow
def test_the_warm_start_lowers_the_loss_and_becomes_the_reference(make_build):
    build = make_build()
    phases = warm(build, transcripts=60, steps=60)
    losses = [float(text.rsplit(" ", 1)[1]) for text in phases if "loss" in text]
    assert losses[-1] < 0.6 * losses[0]
    learner = build.policy.learner
    assert not learner.optimizer.state
    for name, tensor in learner.model.state_dict().items():
        assert torch.equal(tensor, learner.reference.state_dict()[name])


@pytest.mark.slow
def test_the_warm_start_follows_its_seed(make_build):
    builds = [make_build() for _ in range(2)]
    for build in builds:
        warm(build, transcripts=20, steps=5)
    one, other = (build.policy.learner.model.state_dict() for build in builds)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_share_of_updates_is_on_random_tokens_said_twice(make_build, monkeypatch):
    steps = []

    def step(learner, rows, learning_rate, prompt_weight, **settings):
        steps.append((rows, prompt_weight))
        return 1.0

    monkeypatch.setattr(LocalLearner, "supervised_step", step)
    for copying in (0.1, 0.0):
        parts = parts_of(make_build())
        source = SimpleNamespace(sample=parts.source.sample)  # it does not check the model, which learns nothing here
        changes = {"transcripts": 4, "steps": 150, "copying": copying}
        warm_up(parts, parts.warm_start.model_copy(update=changes), lambda text: None, source)
    plain, steps = steps[:150], steps[150:]
    copied = [place for place, (rows, _) in enumerate(plain) if rows[0].trajectory_id.startswith("copied")]
    early = sum(place < 48 for place in copied)
    assert 14 < early < 34  # of 48
    assert 2 < len(copied) - early < 20  # of 102
    for place in copied:
        rows, prompt_weight = plain[place]
        assert prompt_weight == 0
        assert all(row.prompt_ids == (*row.prompt_ids[:-1], row.prompt_ids[0]) for row in rows)
        assert all(row.completion_ids == row.prompt_ids[1:-1] for row in rows)
        assert len({row.prompt_ids for row in rows}) == 32
    kept = [step for place, step in enumerate(plain) if place not in copied]
    assert kept == steps[: len(kept)]  # transcripts follow each other as without


def collected(make_build, *, overrides=(), lessons=0.0, **changes):
    build = make_build("warm_start.policy={sense=0.7,malformed=0.2}", *overrides)
    parts = parts_of(build)
    config = ImitationConfig(transcripts=40, **changes)

    async def play():
        teacher = parts.make_environment(planner=parts.teacher)
        try:
            return await collect(teacher, parts.source, parts.student, config, 1, lambda text: None, lessons)
        finally:
            await teacher.close()

    return asyncio.run(play()), parts.student.tokenizer


def test_transcripts_hold_prompt_action_and_end_token(make_build):
    rows, tokenizer = collected(make_build)
    assert len({one.trajectory_id for one in rows}) == 40
    for one in rows:
        assert one.completion_ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(one.prompt_ids).startswith("Question ")
        assert tokenizer.decode(one.prompt_ids).endswith("\nplan")
        assert tokenizer.unk_token_id not in one.prompt_ids + one.completion_ids


def test_a_share_of_transcripts_has_lessons_in_its_prompts(make_build):
    rows, tokenizer = collected(make_build, overrides=["warm_start.lessons=0.5"], lessons=0.5)
    prompts = {one.trajectory_id: tokenizer.decode(one.prompt_ids) for one in rows}
    taught = [prompt for prompt in prompts.values() if prompt.startswith("- ")]
    assert 8 < len(taught) < 32
    assert all("\nQuestion " in prompt for prompt in taught)
    assert all(prompt.startswith("Question ") for prompt in prompts.values() if prompt not in taught)
    assert all(tokenizer.unk_token_id not in one.prompt_ids + one.completion_ids for one in rows)


def test_a_reply_that_was_cut_off_teaches_no_end(make_build, monkeypatch):
    plan = ScriptedPlanner.plan

    async def cut(self, *given):
        action, [call] = await plan(self, *given)
        return action, (call.model_copy(update={"finish_reason": "length"}),)

    monkeypatch.setattr(ScriptedPlanner, "plan", cut)
    rows, tokenizer = collected(make_build)
    assert rows
    assert all(tokenizer.eos_token_id not in one.completion_ids for one in rows)


def test_successes_alone_can_be_asked_for(make_build):
    everything, _ = collected(make_build)
    successes, _ = collected(make_build, successes_only=True)
    assert 0 < len(successes) < len(everything)
    assert set(successes) < set(everything)


# -- an interleaved policy, and a file ---------------------------------------------------------------------------------


class Adder:
    """A policy that calls Python once and answers with what it printed."""

    async def reply(self, stream, context):
        done = len(stream.pieces) > 0
        text = "<think> answer</think><answer> 105</answer>" if done else "<think> plus</think><python> 1 + 1</python>"
        return Call(role="policy", prompt=stream.request().prompt, completion=text, finish_reason="stop")


def test_a_stream_is_one_row_whose_tool_output_is_not_learnt(make_build):
    parts = parts_of(make_build())
    agent = InterleavedLoop(policy=Adder(), template=load_template("tiny"), config=StreamConfig())
    environment = Environment(agent=agent, tools=[Shout()], engines={}, reward=NoReward())
    config = ImitationConfig(transcripts=3)
    rows = asyncio.run(collect(environment, parts.source, parts.student, config, 1, lambda text: None))
    assert len(rows) == 3
    codec = parts.student.codec
    output = codec.encode_text("<output> 1 + 1!</output>")
    first = codec.encode_text("<think> plus</think><python> 1 + 1</python>")
    last = codec.encode_text("<think> answer</think><answer> 105</answer>")
    for one in rows:
        assert one.completion_ids == (*first, *output, *last, parts.student.tokenizer.eos_token_id)
        assert one.sampled == (True,) * len(first) + (False,) * len(output) + (True,) * (len(last) + 1)
        assert parts.student.tokenizer.decode(one.prompt_ids).startswith("Question ")


def test_a_file_takes_the_place_of_the_teacher(make_build, tmp_path):
    parts = parts_of(make_build())
    path = tmp_path / "transcripts.jsonl"
    line = {"prompt": "Question 1 plus 1 ?", "stream": [{"text": " goal find height", "sampled": True}]}
    path.write_text(json.dumps(line), encoding="utf-8")
    config = WarmStartConfig(file=path, steps=30, batch_size=1, learning_rate=1e-2)
    phases = []
    # Neither the tasks nor the teacher are asked for anything.
    warm_up(parts, config, phases.append, source=None)
    losses = [float(text.rsplit(" ", 1)[1]) for text in phases if "loss" in text]
    assert losses[-1] < 0.5 * losses[0]


def test_prompts_of_a_file_are_not_learnt_unless_that_is_asked():
    assert load_recipe("artist-math-7b", ["warm_start={file='t.jsonl'}"]).warm_start.prompt_weight == 0
    assert WarmStartConfig(file="t.jsonl").prompt_weight == 0
    assert WarmStartConfig(file="t.jsonl", prompt_weight=0.2).prompt_weight == 0.2
    assert WarmStartConfig().prompt_weight == 0.1


# -- a chat model as the student ---------------------------------------------------------------------------------------


def test_transcripts_of_a_chat_model_are_encoded_as_the_student_would_be_asked(tmp_path):
    """The teacher is a prompted planner: its prompts are chat messages, and the student's template makes them ids."""
    model = save_model(tmp_path / "model")
    teacher = "training.supervised.planner={type='prompted', engine='policy', sampling={max_tokens=4}}"
    overrides = [f"engines.policy.model={model}", "tasks.families=['arith']", "training.algorithm=supervised", teacher]
    with Build(load_recipe("flow-grpo-lora", overrides)) as build:
        parts = parts_of(build)
        environment = parts.make_environment(planner=parts.training.supervised.planner)
        config = ImitationConfig(transcripts=3)

        async def play():
            rows = await collect(environment, parts.source, parts.student, config, 1, lambda text: None)
            tasks = parts.source.sample("train", 3, derive_seed(1, "transcripts", 0))
            return rows, await rollout(environment, tasks, seed=derive_seed(1, "transcripts", 0))

        rows, groups = asyncio.run(play())
    calls = [call for group in groups for call in group.trajectories[0].calls if call.role == "planner"]
    assert calls[0].messages
    assert [row.prompt_ids for row in rows] == [call.prompt_ids for call in calls]


def test_a_teacher_must_be_a_planner_that_exists():
    with pytest.raises(RecipeError, check=coded("unknown-type", "training.supervised.planner.type = 'clever'")):
        resolve(load_recipe("flow-grpo-tiny", ["training.supervised.planner={type='clever'}"]))
    with pytest.raises(RecipeError, check=coded("unknown-engine", "training.supervised.planner.engine = 'strong'")):
        resolve(load_recipe("flow-grpo-tiny", ["training.supervised.planner={type='prompted', engine='strong'}"]))
