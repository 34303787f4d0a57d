"""GEPA with its real package: what it is asked, what it may spend, and that nothing but the seed decides."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from midstream.core.errors import BudgetError, EngineError
from midstream.core.trajectory import Score
from midstream_optimizers import gepa_search
from midstream_optimizers.gepa_search import Gepa, GepaConfig, Place
from midstream_worlds.scripted_engine import ScriptedEngine
from readers import BASE, Reader, Remarks, adding, block, learner, lesson_set, propose
from support.errors import raises

pytest.importorskip("gepa")
TWO = {"modules": ["planner.prompt", "tools.search"]}


def test_it_finds_what_helps_within_the_rollouts():
    agent, engine = Reader(), ScriptedEngine(adding)
    found = propose(learner(Gepa(GepaConfig()), engine, agent=agent))
    [operation] = found.operations
    assert operation.text.startswith(BASE)
    assert "alpha" in operation.text
    assert "beta" in operation.text
    assert operation.origin.why.startswith("gepa: 3 candidates, score 0.00 -> 1.00 on 6 tasks of the batch")
    assert (operation.origin.model, operation.origin.tasks) == ("scripted", tuple(f"t{number}" for number in range(6)))
    assert 12 < len(agent.runs) <= 12 + 48


def test_the_model_reads_question_transcript_and_feedback_and_no_gold_answer():
    engine = ScriptedEngine(adding)
    propose(learner(Gepa(GepaConfig(shown=2)), engine))
    prompt = engine.requests[0].messages[0].content
    assert f"=== text ===\n{BASE}\n=== end ===" in prompt
    assert '## Question\n"What is ' in prompt
    assert '"result":"note on t' in prompt
    assert 'The reward was 0.00; 1 is the best. "nothing says' in prompt
    assert "Keep {{tools}}, {{lessons}}" in prompt
    assert "GOLD" not in "".join(request.messages[0].content for request in engine.requests)


def test_nothing_is_printed_written_or_left_running(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    propose(learner(Gepa(GepaConfig())))
    assert capfd.readouterr() == ("", "")
    assert os.listdir(tmp_path) == []


def test_the_same_seed_proposes_the_same_and_texts_are_merged():
    before = lesson_set(**{"planner_prompt": BASE, "tools_search": "Searches."})

    def reply(request):
        # One word belongs to each text, so that only both texts together solve every task.
        word = "alpha" if "Plan with" in request.messages[0].content else "beta"
        return block(adding(request).split("\n", 1)[1].rsplit("Remember", 1)[0] + f"Remember {word}.")

    first, second = (propose(learner(Gepa(GepaConfig()), reply, **TWO, search_rollouts=96), before) for _ in range(2))
    assert first == second
    assert [one.id for one in first.operations] == ["L1", "L2"]


def test_names_have_one_hash_in_all_processes():
    program = "from midstream_optimizers.gepa_search import Place; print(hash(Place('tools.search')))"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert int(other.stdout) == hash(Place("tools.search"))


def test_a_text_that_lost_a_place_costs_no_rollout():
    agent = Reader()
    found = propose(learner(Gepa(GepaConfig(requests=2)), lambda request: block("no place"), agent=agent))
    assert found.operations == []
    assert len(found.unreadable) == 2
    assert len(agent.runs) == 12


def test_a_candidate_that_is_not_sound_earns_nothing_with_the_reason():
    seen = []

    class Looking(Gepa):
        async def propose(self, work):
            writer = gepa_search.Writer(work, 1000)
            [text] = gepa_search.learned_texts(work)
            adapter = gepa_search._Adapter(work, [text], writer, gepa_search._Bridge())
            batch = [gepa_search._Example(group=group, score=0.0) for group in work.groups]
            made = adapter.evaluate(batch, {Place("planner.prompt"): "no place"}, capture_traces=True)
            seen.append((made.scores, adapter.make_reflective_dataset({}, made, ["planner.prompt"])))
            return []

    propose(learner(Looking(GepaConfig())))
    [(scores, dataset)] = seen
    assert scores == [0.0] * 6
    assert "It was not tried: it lacks {{tools}}, {{lessons}}" in dataset["planner.prompt"][0]["Feedback"]


def test_where_all_is_solved_or_no_rollout_is_left_nothing_is_asked():
    class Easy(Remarks):
        async def score(self, task, trajectory):
            return Score(value=1.0)

    engine = ScriptedEngine(adding)
    assert propose(learner(Gepa(GepaConfig()), engine, reward=Easy())).operations in ((), [])
    assert propose(learner(Gepa(GepaConfig()), engine, search_rollouts=3)).operations in ((), [])
    assert engine.requests == []


def test_rollouts_that_fail_count_as_the_text_before():
    agent = Reader(fails=frozenset(range(2, 40, 5)))
    found = propose(learner(Gepa(GepaConfig()), agent=agent))
    assert "alpha" in found.operations[0].text


@pytest.mark.parametrize("failure", [EngineError("the server is down"), BudgetError("the budget is spent")])
def test_a_failure_stops_the_run_as_it_is(failure):
    def reply(request):
        raise failure

    before = threading.active_count()
    with pytest.raises(type(failure), match=failure.what):
        propose(learner(Gepa(GepaConfig()), reply))
    assert threading.active_count() <= before


def test_a_run_that_is_stopped_ends_the_package_too():
    class Waiting(ScriptedEngine):
        async def sample(self, request):
            started.set()
            await asyncio.sleep(60)

    started = asyncio.Event()

    async def stopped():
        made = learner(Gepa(GepaConfig()), Waiting([]))
        from midstream.lessons.operations import Rules
        from readers import TASKS

        task = asyncio.create_task(made.propose(1, TASKS, lesson_set(), Rules(modules=made.config.modules)))
        await asyncio.wait_for(started.wait(), timeout=30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stopped())


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gepa.api", None)
    with raises("missing-extra", "midstream[gepa]"):
        propose(learner(Gepa(GepaConfig())))
