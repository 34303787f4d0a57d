"""Evolution: children of the best text, equal rollouts for each, and a last comparison with the text as it is."""

from __future__ import annotations

import pytest

from midstream.core.errors import EngineError
from midstream_optimizers.evolution import Evolution, EvolutionConfig
from midstream_worlds.scripted_engine import ScriptedEngine
from readers import BASE, Reader, adding, block, learner, lesson_set, propose


def test_what_helps_is_found_within_the_rollouts():
    agent, engine = Reader(), ScriptedEngine(adding)
    found = propose(learner(Evolution(EvolutionConfig()), engine, agent=agent))
    [operation] = found.operations
    assert "alpha" in operation.text
    assert "beta" in operation.text
    assert operation.origin.why == "evolution: the best of 4 candidates, score 0.00 -> 1.00 on the batch"
    assert operation.origin.model == "scripted"
    assert len(agent.runs) <= 12 + 48
    assert all("GOLD" not in request.messages[0].content for request in engine.requests)
    joined = [request for request in engine.requests if request.messages[0].content.startswith("# Join")]
    assert len(joined) == 1
    assert BASE in joined[0].messages[0].content


def test_the_same_seed_proposes_the_same():
    first, second = (propose(learner(Evolution(EvolutionConfig()), adding)) for _ in range(2))
    assert first == second


def test_where_nothing_helps_nothing_is_proposed():
    found = propose(learner(Evolution(EvolutionConfig()), lambda request: block(f"{BASE} More words.")))
    assert found.operations == []


def test_without_rollouts_to_try_them_a_mutation_goes_to_the_gate_untested():
    agent = Reader()
    [operation] = propose(learner(Evolution(EvolutionConfig()), agent=agent, search_rollouts=0)).operations
    assert "Remember" in operation.text
    assert len(agent.runs) == 12


def test_rollouts_that_fail_are_no_reward_of_zero():
    agent = Reader(fails=frozenset(range(13, 22)))
    [operation] = propose(learner(Evolution(EvolutionConfig()), agent=agent)).operations
    assert "alpha" in operation.text or "beta" in operation.text


def test_several_texts_take_turns():
    before = lesson_set(**{"planner_prompt": BASE, "tools_search": "Searches."})
    made = learner(Evolution(EvolutionConfig(population=2)), modules=["planner.prompt", "tools.search"])
    assert {one.id for one in propose(made, before).operations} == {"L1", "L2"}


def test_a_model_that_fails_stops_the_run():
    def reply(request):
        raise EngineError("the server is down")

    with pytest.raises(EngineError, match="down"):
        propose(learner(Evolution(EvolutionConfig()), reply))
