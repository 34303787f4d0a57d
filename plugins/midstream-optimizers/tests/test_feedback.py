"""Textual gradients: a criticism of what failed, a correction, and shorter texts."""

from __future__ import annotations

from midstream.lessons.lesson_set import LessonOrigin, LessonSet
from midstream_optimizers.feedback import Feedback, FeedbackConfig
from midstream_worlds.scripted_engine import ScriptedEngine
from readers import BASE, adding, block, learner, lesson_set, propose


def proposed(engine, before=None):
    return propose(learner(Feedback(FeedbackConfig()), engine), before)


def test_a_text_is_corrected_after_the_criticism_of_failed_rollouts():
    engine = ScriptedEngine(adding)
    [operation] = proposed(engine).operations
    assert (operation.kind, operation.id) == ("modify", "L1")
    assert operation.text == f"{BASE} Remember alpha."
    criticize, correct = (request.messages[0].content for request in engine.requests)
    assert '"feedback":"nothing says alpha"' in criticize
    assert '"result":"note on t0"' in criticize
    assert "GOLD" not in criticize + correct
    assert "The text names no alpha and no beta" in correct
    origin = operation.origin
    assert (origin.update, origin.model, origin.tasks) == (1, "scripted", ("t0", "t1", "t2"))
    assert origin.trajectories == ("t0#0", "t1#0", "t2#0")
    assert origin.why == "feedback: The text names no alpha and no beta"


def test_every_text_has_one_candidate():
    before = lesson_set(**{"planner_prompt": BASE, "tools_search": "Searches."})
    made = learner(Feedback(FeedbackConfig()), modules=["planner.prompt", "tools.search"])
    assert [one.id for one in propose(made, before).operations] == ["L1", "L2"]


def test_a_shorter_version_must_be_shorter():
    engine = ScriptedEngine(
        lambda request: (
            block(BASE + " And more.")
            if len(request.messages) == 1 and "# Shorten" in request.messages[0].content
            else adding(request)
        )
    )
    made = []

    class Keeping(Feedback):
        async def propose(self, work):
            made.append(await super().propose(work))
            return made[0]

    # The learner lets versions of one text compete: here is what was suggested.
    propose(learner(Keeping(FeedbackConfig(shorter=True)), engine))
    corrected, shorter = made[0].operations
    assert corrected.text.endswith("alpha.")
    assert shorter.text == BASE.replace("Be brief.", "Brief.")
    assert shorter.origin.why == "feedback: the same in fewer words, 11 -> 10 tokens"
    assert "it is not shorter" in engine.requests[-1].messages[-1].content


def test_where_nothing_failed_nothing_is_criticized():
    engine = ScriptedEngine(adding)
    [text] = lesson_set().lessons
    learned = text.model_copy(update={"text": f"{BASE} alpha beta", "origin": LessonOrigin()})
    assert proposed(engine, LessonSet(lessons=(learned,))).operations == []
    assert engine.requests == []
