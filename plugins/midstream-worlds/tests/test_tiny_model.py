"""The small planner: a tokenizer that loses nothing of its world, and vectors that share what is trained."""

from __future__ import annotations

import asyncio
import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.trajectory import Action, Memory, MemoryRecord
from midstream.engines.local.pretrained import load_model
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream.rollout import rollout
from midstream_worlds.planning.action_lines import render_action, render_prompt
from midstream_worlds.planning.lessons import KNOWN, lines
from midstream_worlds.tiny_model import LARGEST_NUMBER, UNKNOWN, attach_redraw, redraw, redrawn_ranges

WORLD = (
    "tasks.countries=60",
    "warm_start.policy={sense=0.4,malformed=0.3}",
    'tasks.families=["lookup","arith","hop","scale","sum","diff","compare","total3"]',
)


@pytest.fixture(scope="module")
def world(ten_steps):
    return Build(load_recipe(str(ten_steps), WORLD))


@pytest.fixture(scope="module")
def tokenizer(world):
    return world.engine("policy").tokenizer


def ids_of(tokenizer, text):
    """The ids, after checking that no piece is unknown and that the text comes back."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.convert_tokens_to_ids(UNKNOWN) not in ids, text
    assert tokenizer.decode(ids) == text
    return ids


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_question_round_trips(world, tokenizer, split):
    for task in world.source.fixed(split, per_family=25, seed=1):
        ids_of(tokenizer, render_prompt(task.question, Memory()))


def test_a_planner_that_reads_lessons_knows_their_words_and_no_other_has_them(ten_steps, tokenizer):
    world = Build(load_recipe(str(ten_steps), [*WORLD, "warm_start.lessons=0.5"]))
    reader, lessons = world.engine("policy").tokenizer, lines(lesson.text for lesson in KNOWN)
    ids_of(reader, render_prompt("What is 1 plus 2 ?", Memory(), lessons))
    assert set(tokenizer.get_vocab()) < set(reader.get_vocab())
    assert tokenizer.convert_tokens_to_ids(UNKNOWN) in tokenizer.encode(lessons)


def test_what_a_scripted_run_says_and_reads_round_trips(world, tokenizer):
    """Prompts with memory, actions well-formed and malformed, on every tool."""
    environment = world.environment(planner=parts_of(world).teacher)

    async def play():
        try:
            return await rollout(environment, world.source.sample("train", 150, 5), seed=1)
        finally:
            await environment.close()

    groups = asyncio.run(play())
    calls = [call for group in groups for one in group.trajectories for call in one.calls]
    assert {turn.action.tool for group in groups for turn in group.trajectories[0].turns} >= {
        "local_search", "python", "guess",
    }  # fmt: skip
    for call in calls:
        ids_of(tokenizer, call.prompt)
        ids_of(tokenizer, call.completion)
        together = ids_of(tokenizer, call.prompt + call.completion)
        assert together == ids_of(tokenizer, call.prompt) + ids_of(tokenizer, call.completion)


def test_every_name_is_one_token(world, tokenizer):
    assert all(len(ids_of(tokenizer, " " + name)) == 1 for name in world.source.names())


@given(x=st.integers(-(10**7), 10**9), y=st.integers(0, 300), operator=st.sampled_from("+-*"))
def test_numbers_round_trip(tokenizer, x, y, operator):
    ids = ids_of(tokenizer, f" {x}")
    if 0 <= x <= LARGEST_NUMBER:
        assert len(ids) == 1
    ids_of(tokenizer, render_action("add", "python", f"{x} {operator} r2"))
    ids_of(tokenizer, f"Question What is {y} plus {abs(x)} ?\npython = {x}\nplan")
    record = MemoryRecord(turn=1, action=Action(sub_goal="add", tool="python", context="x"), result=str(x))
    ids_of(tokenizer, render_prompt("What is 1 plus 2 ?", Memory(records=(record,))))


def test_the_redrawn_tokens_are_numbers_and_names(world, tokenizer):
    (first_number, first_name), (also_first_name, size) = redrawn_ranges(world.engine("policy").model)
    assert first_name == also_first_name
    assert size == len(tokenizer)
    assert tokenizer.convert_ids_to_tokens([first_number, first_name - 1]) == [" 0", f" {LARGEST_NUMBER}"]
    names = tokenizer.convert_ids_to_tokens(list(range(first_name, size)))
    assert sorted(names) == sorted(" " + name for name in world.source.names())


# -- vectors that share their trained part ---------------------------------------------------------------------------


def embedding(model):
    return model.get_input_embeddings().weight


def test_redraw_keeps_the_shared_part_and_follows_its_seed(tiny_model):
    model, _ = tiny_model()
    before = embedding(model).detach().clone()
    redraw(model, 1)
    first = embedding(model).detach().clone()
    for start, stop in redrawn_ranges(model):
        torch.testing.assert_close(first[start:stop].mean(0), before[start:stop].mean(0), atol=1e-6, rtol=0)
        assert (first[start:stop] != before[start:stop]).any(1).all()
        assert len(first[start:stop].unique(dim=0)) == stop - start
    outside = torch.ones(len(before), dtype=torch.bool)
    for start, stop in redrawn_ranges(model):
        outside[start:stop] = False
    assert torch.equal(first[outside], before[outside])
    other, _ = tiny_model()
    redraw(other, 2)
    assert not torch.equal(embedding(other), first)
    twin, _ = tiny_model()
    redraw(twin, 1)
    assert torch.equal(embedding(twin), first)


def test_the_gradient_reaches_all_names_alike(tiny_model):
    """Training on one name moves all of them by the same vector, and no other token's row by a foreign gradient."""
    model, _ = tiny_model()
    plain, _ = tiny_model()
    attach_redraw(model)
    (numbers, names), (_, size) = redrawn_ranges(model)
    ids = torch.tensor([[names, 5, numbers + 3, 7, names + 1]])
    for each in (model, plain):
        each(input_ids=ids, labels=ids).loss.backward()
    shared, own = embedding(model).grad, embedding(plain).grad
    for start, stop in ((numbers, names), (names, size)):
        torch.testing.assert_close(shared[start:stop], own[start:stop].sum(0).expand(stop - start, -1))
        assert shared[start].any()
    torch.testing.assert_close(shared[:numbers], own[:numbers])


def test_a_model_without_redrawn_ranges_is_left_alone(tiny_model):
    model, _ = tiny_model()
    del model.config.midstream_redrawn
    before = embedding(model).detach().clone()
    redraw(model, 1)
    attach_redraw(model)
    assert not hasattr(model, "before_step")
    ids = torch.tensor([[5, 6, len(before) - 1]])
    model(input_ids=ids, labels=ids).loss.backward()
    assert torch.equal(before, embedding(model))
    assert not torch.equal(embedding(model).grad[-1], embedding(model).grad[-2])


def test_a_copy_of_a_model_redraws_itself(tiny_model):
    """The reference policy of a learner is a copy: both must be redrawn alike, each in its own weights."""
    model, _ = tiny_model()
    attach_redraw(model)
    twin = copy.deepcopy(model)
    twin.before_step(5)
    assert not torch.equal(embedding(twin), embedding(model))
    model.before_step(5)
    assert torch.equal(embedding(twin), embedding(model))


def test_an_untrained_model_follows_its_seed(tiny_model):
    one, same, other = (tiny_model(seed)[0].state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_saved_and_loaded_it_is_the_same_planner(world, tokenizer, tmp_path):
    model = world.engine("policy").model
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, reloaded = load_model(str(tmp_path), "float32", "cpu")
    assert redrawn_ranges(loaded) == redrawn_ranges(model) != []
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])
    text = "Question What is 123456 plus 7 ?\npython = -12\nplan"
    assert reloaded.encode(text, add_special_tokens=False) == ids_of(tokenizer, text) == ids_of(reloaded, text)
    redraw(loaded, 9)
    redraw(model, 9)
    assert torch.equal(embedding(model), embedding(loaded))


def test_the_sizes_are_those_of_the_settings(tiny_model):
    model, tokenizer = tiny_model(hidden_size=64, layers=3, heads=2, max_positions=96)
    config = model.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 3, 2)
    assert config.max_position_embeddings == 96
    assert config.eos_token_id == tokenizer.eos_token_id
    assert not model.training
