"""The scripted policy: its streams, that a sensible one solves the world, that a bad one answers all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from midstream.agents.interleaved import InterleavedLoop, StreamConfig
from midstream.agents.stream_policy import Stream
from midstream.core.agent import ModuleContext
from midstream.core.errors import RecipeError
from midstream.core.stream import Piece, stream_of
from midstream.core.stream_template import load_template
from midstream.core.tool import Tool
from midstream.core.trajectory import Message, Trajectory
from midstream.rewards.exact_match import ExactMatch
from midstream.rollout import Environment, rollout
from midstream.tools.local_search import Document, LocalSearch
from midstream.tools.python import PythonTool
from midstream_worlds.gazetteer.questions import question_words
from midstream_worlds.gazetteer.tasks import Gazetteer, GazetteerConfig
from midstream_worlds.planning.programs import SPOKEN, ConfidentGuess
from midstream_worlds.planning.scripted import (
    ANSWER,
    ScriptedConfig,
    ScriptedPolicy,
    action_words,
    stream_marks,
)
from midstream_worlds.stream_format import is_strict, tags_present
from support.errors import coded

TURNS = {"lookup": 1, "arith": 1, "hop": 2, "scale": 2, "sum": 3, "diff": 3, "compare": 3}
WORLD = Gazetteer(GazetteerConfig())
TINY = load_template("tiny")
NAMES = ("local_search", "python", "guess")


def tools() -> list[Tool]:
    documents = [Document(id=one, text=text) for one, text in WORLD.documents()]
    return [LocalSearch.from_documents(documents), PythonTool(), ConfidentGuess()]


def play(sense: float, malformed: float, per_family: int, seed: int = 0) -> list[Trajectory]:
    """Its trajectories on test tasks, on real tools."""

    async def go() -> list[Trajectory]:
        policy = ScriptedPolicy(ScriptedConfig(sense=sense, malformed=malformed))
        agent = InterleavedLoop(policy=policy, template=TINY, config=StreamConfig(max_turns=4, max_tokens=400))
        environment = Environment(agent=agent, tools=tools(), engines={}, reward=ExactMatch())
        try:
            tasks = WORLD.fixed("test", per_family=per_family, seed=1, families=tuple(TURNS))
            return [group.trajectories[0] for group in await rollout(environment, tasks, seed=seed)]
        finally:
            await environment.close()

    return asyncio.run(go())


def results(trajectory: Trajectory) -> list[str]:
    """The last words of what tools said, failures left out."""
    seen = [turn.observation for turn in trajectory.turns if turn.observation and turn.observation.status == "ok"]
    return [one.text.split()[-1] for one in seen]


@pytest.fixture(scope="module")
def scripted() -> list[Trajectory]:
    return play(0.4, 0.0, per_family=30)


@pytest.mark.slow
def test_always_sensible_it_solves_every_task_in_the_turns_its_family_says():
    for one in play(1.0, 0.0, per_family=20):
        assert one.reward is not None, one.error
        assert (one.reward.value, one.stop_reason) == (1.0, "answered"), f"{one.question} {one.answer} not {one.gold}"
        assert len(one.turns) == TURNS[one.family], one.question
        assert is_strict(stream_of(one), TINY)


@pytest.mark.slow
def test_it_answers_with_the_newest_result_however_bad_the_plan(scripted):
    answered = [one for one in scripted if one.stop_reason == "answered"]
    wrong = [one for one in answered if one.reward and one.reward.value == 0]
    assert len(wrong) > len(answered) / 2
    for one in answered:
        last = results(one)[-1]
        assert one.answer == SPOKEN.get(last, last), one.question


def test_scripted_it_is_seldom_right_and_never_in_error(scripted):
    rewards = [one.reward.value for one in scripted if one.reward]
    assert len(rewards) == len(scripted), "a bad plan is data"
    assert 0.02 < sum(rewards) / len(rewards) < 0.3
    assert {turn.observation.status for one in scripted for turn in one.turns if turn.observation} == {"ok", "error"}
    assert {turn.action.tool for one in scripted for turn in one.turns if turn.action} == set(NAMES)


def test_without_an_answer_it_met_the_limit_of_turns(scripted):
    silent = [one for one in scripted if one.answer is None]
    assert silent
    assert {one.stop_reason for one in silent} == {"turn_limit"}
    assert {len(one.turns) for one in silent} == {4}


def test_malformed_replies_break_the_form_and_are_data():
    trajectories = play(0.4, 1.0, per_family=15)
    assert {one.status for one in trajectories} == {"ok"}
    assert not any(is_strict(stream_of(one), TINY) for one in trajectories)
    assert {one.stop_reason for one in trajectories} >= {"answered", "ended"}
    present = [tags_present(stream_of(one), TINY) for one in trajectories]
    assert any(not one["think"] for one in present)
    assert any(one["call"] for one in present), "a call after an open thought, or without one, is a call"


def test_the_same_seed_gives_the_same_streams():
    first, again, other = (play(0.4, 0.2, per_family=3, seed=seed) for seed in (5, 5, 6))
    assert [stream_of(one) for one in first] == [stream_of(one) for one in again]
    assert [stream_of(one) for one in first] != [stream_of(one) for one in other]


def reply(question: str, *pieces: Piece, template: str = "tiny", sense: float = 1.0) -> str:
    """One reply to a stream that is given."""
    stream = Stream(
        template=load_template(template),
        messages=(Message(role="user", content=f"Question {question}"),),
        tools={tool.name: tool for tool in TOOLS},
        max_tokens=400,
        pieces=pieces,
    )
    policy = ScriptedPolicy(ScriptedConfig(sense=sense, malformed=0.0))
    return asyncio.run(policy.reply(stream, ModuleContext(seed=1))).completion


TOOLS: Sequence[Tool] = (LocalSearch.from_documents([]), PythonTool(), ConfidentGuess())
QUESTION = "What is the area of the capital of Amberbank ?"
CASES = {
    "nothing yet": ([], "<think> find capital</think><local_search> Amberbank capital</local_search>"),
    "a place": (
        [("<local_search> Amberbank capital</local_search>", "Amberbank capital Oakfell")],
        "<think> find area</think><local_search> Oakfell area</local_search>",
    ),
    "a number": (
        [
            ("<local_search> Amberbank capital</local_search>", "Amberbank capital Oakfell"),
            ("<local_search> Oakfell area</local_search>", "Oakfell area 105"),
        ],
        "<think> answer</think><answer> 105</answer>",
    ),
    "nothing found": (
        [("<local_search> Amberbank capital</local_search>", "no document matches 'Amberbank capital'")],
        "<think> find capital</think><local_search> Amberbank capital</local_search>",
    ),
    "an error": (
        [
            ("<python> Amberbank + 7</python>", "  line 1\n    Amberbank + 7\nNameError: name 'Amberbank' is not 7"),
        ],
        "<think> find capital</think><local_search> Amberbank capital</local_search>",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_it_reads_from_the_stream(name):
    said, expected = CASES[name]
    pieces = [
        piece
        for turn, (call, output) in enumerate(said, 1)
        for piece in (
            Piece(text=f"<think> next</think>{call}", sampled=True),
            Piece(text=f"<output> {output}</output>", sampled=False),
        )
    ]
    assert reply(QUESTION, *pieces) == expected


def test_output_that_the_policy_wrote_itself_is_no_result():
    own = Piece(text="<think> next</think><output> Amberbank area 99</output>", sampled=True)
    assert "99" not in reply(QUESTION, own)


@pytest.mark.parametrize("name", ["artist-math", "native"])
def test_another_template_is_refused(name):
    with pytest.raises(RecipeError, check=coded("template-mismatch", f"'{name}'")):
        reply(QUESTION, template=name)


def test_marks_words_names_and_numbers_are_one_token_each(scripted):
    pytest.importorskip("torch", reason="the training extra is not installed")
    from midstream_worlds.tiny_model import UNKNOWN, make_tokenizer

    marks = stream_marks(TINY, NAMES)
    assert len(marks) == len(set(marks)) == 2 * (3 + len(NAMES))
    words = {*question_words(), *action_words(), ANSWER, *NAMES}
    tokenizer = make_tokenizer(words, WORLD.names(), marks)
    assert [len(tokenizer.encode(mark)) for mark in marks] == [1] * len(marks)
    unknown = tokenizer.convert_tokens_to_ids(UNKNOWN)
    for piece in (piece for one in scripted for piece in stream_of(one) if piece.sampled):
        ids = tokenizer.encode(piece.text)
        assert unknown not in ids, piece.text
        assert tokenizer.decode(ids) == piece.text
