"""Modules as programs; and a sound planner that shows the offline world can be solved, in the turns it says."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.core.agent import ModuleContext
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Call, Memory, MemoryRecord, Trajectory, Verdict
from midstream.rewards.exact_match import ExactMatch
from midstream.rollout import Environment, rollout
from midstream.tools.local_search import Document, LocalSearch
from midstream.tools.python import PythonTool
from midstream_worlds.compact import SingleArgumentExecutor
from midstream_worlds.gazetteer.tasks import DIFFICULTIES, Gazetteer, GazetteerConfig
from midstream_worlds.planning.action_lines import parse_action
from midstream_worlds.planning.lessons import BAD, IDLE, SOUND, lines
from midstream_worlds.planning.programs import (
    ConfidentGuess,
    FormVerifier,
    GuessConfig,
    VerifiedResultGenerator,
)
from midstream_worlds.planning.scripted import ScriptedConfig, ScriptedPlanner

FAMILIES = DIFFICULTIES["deep"]
WORLD = Gazetteer(GazetteerConfig())
CONTEXT = ModuleContext()


def tools() -> list[Tool]:
    documents = [Document(id=one, text=text) for one, text in WORLD.documents()]
    return [LocalSearch.from_documents(documents), PythonTool(), ConfidentGuess()]


def solve(planner: object, split: str, per_family: int, families: Sequence[str] = FAMILIES) -> list[Trajectory]:
    """The trajectories of a planner on a fixed set, on real tools."""

    async def go() -> list[Trajectory]:
        agent = AgentFlowLoop(
            planner=planner,  # type: ignore[arg-type]
            executor=SingleArgumentExecutor(),
            verifier=FormVerifier(),
            generator=VerifiedResultGenerator(),
            config=LoopConfig(max_turns=10),
        )
        environment = Environment(agent=agent, tools=tools(), engines={}, reward=ExactMatch())
        try:
            groups = await rollout(
                environment, WORLD.fixed(split, per_family=per_family, seed=1, families=families), seed=0
            )
        finally:
            await environment.close()
        return [group.trajectories[0] for group in groups]

    return asyncio.run(go())


def test_a_guess_does_not_solve_it():
    class Guesses:
        async def plan(self, question, tools, memory, context):
            return Action(sub_goal="guess", tool="guess", context=question), ()

    trajectories = solve(Guesses(), "test", per_family=25)
    assert {(one.stop_reason, len(one.turns)) for one in trajectories} == {("verified", 1)}
    assert sum(one.reward.value for one in trajectories if one.reward) < 0.03 * len(trajectories)


# --- verifier, generator --------------------------------------------------------------------------------


ONE, TOGETHER = "How high is Amberbank ?", "What is the total height of Amberbank and Oakfell ?"
RIVER, LARGER = "How long is the river of Amberbank ?", "Is Amberbank larger than Oakfell ?"
AMBER, OAK = "Amberbank height 105", "Oakfell height 93"


def memory(*results: str, verified: bool = False) -> Memory:
    """Earlier results; one that starts with "!" was an error, and the last one may have satisfied the verifier."""
    records = [
        MemoryRecord(
            turn=turn,
            action=Action(tool="local_search"),
            verdict=Verdict(result_valid=True, memory_sufficient=verified and turn == len(results)),
            **({"error": text[1:]} if text.startswith("!") else {"result": text}),
        )
        for turn, text in enumerate(results, 1)
    ]
    return Memory(records=tuple(records))


@pytest.mark.parametrize(
    ("question", "before", "result", "sufficient"),
    [
        # no calculation asked for: a fact about the attribute asked for, once the place was looked up
        (ONE, [], AMBER, True),
        (ONE, [AMBER], OAK, True),  # right form, wrong place: the verifier cannot know
        (ONE, [], OAK, False),
        (ONE, [], "Amberbank area 50", False),
        (ONE, [AMBER], "105", False),
        (RIVER, [], "Amberbank river Mistwater", False),
        (RIVER, ["Amberbank river Mistwater"], "Mistwater length 40", True),
        (RIVER, [], "Mistwater length 40", False),
        # a calculation asked for: any single word, once every place was looked up
        (TOGETHER, [AMBER, OAK], "198", True),
        (TOGETHER, [AMBER, OAK], "-3", True),  # the wrong calculation
        (TOGETHER, [AMBER, OAK], "True", False),  # yes or no, and a number is asked for
        (TOGETHER, [AMBER], OAK, False),
        (TOGETHER, [AMBER, AMBER], "210", False),
        (TOGETHER, [AMBER, "!Oakfell"], "198", False),
        (LARGER, [AMBER, OAK], "False", True),
        (LARGER, [AMBER, OAK], "7", False),
        ("What is 45 plus 17 ?", [], "62", True),
        # anything else that ends in a number
        (ONE, [], "Without a doubt it is 17", True),
        (TOGETHER, [], "Without a doubt it is 17", True),
        (ONE, [], "Nobody can say", False),
        (ONE, [], "", False),
    ],
)
def test_verifier_stops_on_the_form_asked_for(question, before, result, sufficient):
    newest = MemoryRecord(turn=len(before) + 1, action=Action(), result=result)
    verdict, _ = asyncio.run(FormVerifier().verify(question, (), memory(*before), newest, CONTEXT))
    assert (verdict.result_valid, verdict.memory_sufficient) == (True, sufficient)


def test_verifier_does_not_stop_on_an_error():
    for text in (AMBER, "no document matches", "Without a doubt it is 17"):
        newest = MemoryRecord(turn=1, action=Action(), error=text)
        verdict, _ = asyncio.run(FormVerifier().verify(ONE, (), Memory(), newest, CONTEXT))
        assert (verdict.result_valid, verdict.memory_sufficient) == (False, False)


@pytest.mark.parametrize(
    ("results", "verified", "answer"),
    [
        ([], False, None),
        ([AMBER, "112"], False, None),
        ([AMBER], True, "105"),
        ([AMBER, "112"], True, "112"),
        ([AMBER, OAK, "True"], True, "yes"),
        ([AMBER, OAK, "False"], True, "no"),
        (["!a verifier may stop on an error"], True, None),
    ],
)
def test_generator_answers_with_the_verified_result(results, verified, answer):
    given, _ = asyncio.run(VerifiedResultGenerator().generate(ONE, memory(*results, verified=verified), CONTEXT))
    assert given == answer


# --- the guess ----------------------------------------------------------------------------------------------------


def guess(question: str, largest: int = 999) -> str:
    result = asyncio.run(ConfidentGuess(GuessConfig(largest=largest)).call({"question": question}))
    assert result.ok
    return result.text


def test_the_guess_is_the_same_on_every_machine():
    assert guess("How high is Amberbank plus 7 ?") == "Without a doubt it is 921"


def test_the_guess_depends_on_the_question_alone():
    questions = [f"question {i}" for i in range(200)]
    assert [guess(question) for question in questions] == [guess(question) for question in questions]
    assert len({guess(question).split()[-1] for question in questions}) > 150


@given(st.text(), st.integers(0, 10**6))
def test_the_guess_ends_in_a_number_in_range(question: str, largest: int):
    assert 0 <= int(guess(question, largest).split()[-1]) <= largest


def test_the_guess_is_a_tool():
    assert isinstance(ConfidentGuess(), Tool)


# --- the scripted planner -------------------------------------------------------------------------------------------

TOOLS = tools()
FOUND = memory(AMBER)


def decisions(
    count: int, *, memory: Memory = FOUND, question: str = TOGETHER, lessons: Sequence[str] = (), **config: float
) -> list[tuple[Action, Call]]:
    planner = ScriptedPlanner(ScriptedConfig(**config))

    async def go() -> list[tuple[Action, Call]]:
        made = [
            await planner.plan(question, TOOLS, memory, ModuleContext(seed=seed, lessons=lines(lessons)))
            for seed in range(count)
        ]
        return [(action, call) for action, (call,) in made]

    return asyncio.run(go())


def test_the_scripted_planner_is_seeded():
    before = random.getstate()
    assert decisions(50) == decisions(50)
    assert random.getstate() == before
    assert len({call.completion for _, call in decisions(50)}) > 10


@pytest.mark.matrix(1)
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_actions_are_malformed_as_often_as_configured(share):
    malformed = [action.tool == "" for action, _ in decisions(2000, malformed=share)]
    assert sum(malformed) / 2000 == pytest.approx(share, abs=0.02 if 0 < share < 1 else 0)


def test_the_scripted_planner_writes_what_it_does():
    for action, call in decisions(200):
        assert action == parse_action(call.completion, TOOLS, FOUND)
        assert call.prompt.endswith("\nlocal_search = height 105\nplan")


def test_without_sense_it_is_random():
    used = Counter(action.tool for action, _ in decisions(3000, sense=0, malformed=0))
    assert {tool: count / 3000 for tool, count in used.items()} == pytest.approx(
        dict.fromkeys(("local_search", "python", "guess"), 1 / 3), abs=0.04
    )


def test_with_sense_it_takes_the_next_sound_step():
    steps = [(Memory(), "Amberbank height"), (FOUND, "Oakfell height")]
    for found, query in steps:
        made = decisions(20, memory=found, sense=1, malformed=0)
        assert {(action.tool, action.context) for action, _ in made} == {("local_search", query)}
    made = decisions(20, memory=memory(AMBER, OAK), sense=1, malformed=0)
    ((tool, context),) = {(action.tool, action.context) for action, _ in made}
    assert (tool, context) == ("python", "105 + 93")


def test_it_never_fails_whatever_it_is_asked():
    for task in WORLD.fixed("train", per_family=20, seed=0, families=FAMILIES):
        for found in (Memory(), FOUND):
            for action, _ in decisions(5, question=task.question, memory=found, sense=0.3):
                assert action.error or action.tool
    assert decisions(20, question="Why ?", memory=Memory())


def test_without_lessons_it_decides_as_it_always_did():
    """The planners that were warm-started on it are compared across versions: not one draw may move."""
    said = "".join(
        call.completion
        for task in WORLD.fixed("train", per_family=5, seed=0, families=FAMILIES)
        for found in (Memory(), FOUND)
        for _, call in decisions(5, question=task.question, memory=found, sense=0.345)
    )
    assert hashlib.sha256(said.encode()).hexdigest()[:16] == "d76d68187bbc2b53"
    assert [call.completion for _, call in decisions(50, lessons=IDLE)] == [
        call.completion for _, call in decisions(50)
    ]


def test_with_sound_lessons_it_takes_the_next_sound_step():
    for found, sound in [(Memory(), "Amberbank height"), (FOUND, "Oakfell height")]:
        made = decisions(30, memory=found, sense=0, lessons=tuple(SOUND.values()))
        assert {(action.tool, action.context) for action, _ in made} == {("local_search", sound)}
        assert all(call.prompt.startswith(f"- {SOUND['form']}\n") for _, call in made)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("about", SOUND)
def test_each_lesson_moves_its_own_decision(about):
    """By how often the two kinds of lesson lead to an action that a sound planner would write."""
    found = memory(AMBER, OAK) if about in ("operator", "operands") else FOUND
    others = [text for name, text in SOUND.items() if name != about]
    (sound,) = {call.completion for _, call in decisions(20, memory=found, sense=1, malformed=0)}

    def share(*lessons: str) -> float:
        made = decisions(400, memory=found, sense=0.3, malformed=0.3, lessons=(*others, *lessons))
        return sum(call.completion == sound for _, call in made) / 400

    with_sound, without, with_bad = share(SOUND[about]), share(), share(BAD[about])
    assert with_sound == 1.0
    assert with_bad == 0.0
    assert with_bad < without < with_sound or (about == "guess" and without == with_sound)
