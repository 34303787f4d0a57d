"""Asking a model for a text: any reply can be read, what is unsound goes back, what stays so is on record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import PromptTooLongError
from midstream.recipe.build import Build
from midstream.recipe.lesson_sessions import lessons_parts_of
from midstream.recipe.schema import load_recipe
from midstream.runs.budget import Budget, BudgetConfig
from midstream_optimizers.feedback import Feedback, FeedbackConfig
from midstream_optimizers.texts import about, cut, failures, text_in
from midstream_worlds.scripted_engine import ScriptedEngine
from readers import BASE, Reader, adding, block, learner, lesson_set, propose
from support.errors import raises
from support.lesson_sets import marked

GOOD = "Plan with {{tools}}.\n\n{{lessons}}Be brief. alpha."


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (block("Do this."), "Do this."),
        ("<think>=== text ===\nno\n=== end ===</think>" + block("Do this."), "Do this."),
        (f"I repeat: {block('old')}\n\nAnd now:\n{block('Do this.')}", "Do this."),
        ("**=== TEXT ===**\nDo this.\n**=== END ===**\nI hope that helps!", "Do this."),
        ("== text ==\nDo this.\n== end ==", "Do this."),
        (block("```markdown\nDo this.\nAnd that\n```"), "Do this.\nAnd that"),
        ("```\nDo this.\nAnd that\n```", "Do this.\nAnd that"),
        ("Here is the improved text:\n\nDo this.", "Do this."),
        ("Do this.\n=== end ===", "Do this."),
        ('"Do this."', "Do this."),
        ('"Do" and "that".', '"Do" and "that".'),
        ("Do this:\n1. a.\n2. b.", "Do this:\n1. a.\n2. b."),
        ("=== text ===\nDo this.", "Do this."),
        ("", ""),
        (block(""), ""),
    ],
)
def test_a_text_is_found_in_what_small_models_write(reply, text):
    assert text_in(reply) == (text, bool(text))


@pytest.mark.parametrize("reply", ["=== text ===\nDo this and", "Do this and then"])
def test_a_text_that_was_cut_off_is_not_whole(reply):
    assert not text_in(reply)[1]


HOSTILE = ["=== text ===", "=== end ===", "```", '"', "`", "=" * 50, "Here it is:", "{{tools}}", "\ud800", "\n"]
replies = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=12), max_size=12).map("\n".join)
texts = st.text(alphabet="ab .{}\n", min_size=1, max_size=40).map(str.strip).filter(bool)


@given(replies)
def test_any_reply_can_be_read(reply):
    text, whole = text_in(reply)
    assert text == text.strip()
    assert text or not whole


@given(texts, replies.map(lambda reply: reply.replace("=", "")))
def test_what_stands_between_the_lines_is_the_text(text, noise):
    lines = "\n".join(text.splitlines())
    assert text_in(f"{noise}\n{block(lines)}\n{noise}") == (lines, True)


def test_a_reply_that_is_all_marks_takes_no_time():
    text_in(("=" * 10_000 + "\n") * 20)


def wrong_then(*replies):
    """A model that gives these replies to requests for a text, and then good ones."""
    left = list(replies)

    def reply(request):
        prompt = request.messages[0].content
        return left.pop(0) if left and not prompt.startswith("# Criticize") else adding(request)

    return ScriptedEngine(reply)


def corrected(engine, **settings):
    return propose(learner(Feedback(FeedbackConfig()), engine, **settings))


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (block("Plan. alpha."), "it lacks {{tools}}, {{lessons}}; keep {{tools}}, {{lessons}}, each once"),
        (block(GOOD + " {{memory}}"), "it has {{memory}}, which means nothing there"),
        (block(GOOD + " {{tools}}"), "it repeats a place"),
        (block(BASE), "L1 has this text already"),
        (block(f"{GOOD} {'word ' * 600}."), "too long"),
        ("<think>what", "it holds no text between the lines"),
        (block("(the new text)"), "it holds no text between the lines"),
        (f"=== text ===\n{GOOD} and then", "the text has no end"),
    ],
)
def test_an_unsound_text_goes_back_with_what_is_wrong(reply, problem):
    engine = wrong_then(reply)
    [operation] = corrected(engine).operations
    assert operation.text.endswith("Remember alpha.")
    assert problem in engine.requests[-1].messages[-1].content


def test_what_stays_unsound_is_on_record_and_changes_nothing():
    found = corrected(wrong_then(*[block("no")] * 3))
    assert found.operations == []
    [lost] = found.unreadable
    assert "correction of L1" in lost
    assert "it lacks {{tools}}" in lost


def test_rollouts_are_cut_where_the_models_context_is_small():
    def reply(request):
        if len(request.messages[0].content) > 4000:
            raise PromptTooLongError("the prompt is too long")
        return adding(request)

    class Long(Reader):
        async def run(self, task, context):
            made = await super().run(task, context)
            return made.model_copy(update={"answer": "x" * 5000})

    engine = ScriptedEngine(reply)
    [operation] = corrected(engine, agent=Long()).operations
    assert "Remember alpha" in operation.text
    assert max(len(request.messages[0].content) for request in engine.requests) > 4000


def test_a_prompt_that_is_too_long_even_so_is_on_record():
    def reply(request):
        raise PromptTooLongError("the prompt is too long")

    found = corrected(ScriptedEngine(reply))
    assert found.operations == []
    assert found.unreadable == ["critic, task tested: criticism of L1: the prompt is too long"]


def test_a_text_that_a_person_pinned_is_left_alone():
    engine = ScriptedEngine(adding)
    assert propose(learner(Feedback(FeedbackConfig()), engine), marked(lesson_set(), "L1", "pinned")).operations == []
    assert engine.requests == []


def test_the_worst_rollout_of_every_task_comes_first():
    made = learner(Feedback(FeedbackConfig()))
    found = failures(propose(made).groups)
    assert [one.task_id for one in found[:6]] == [f"t{number}" for number in range(6)]
    assert len(found) == 12


def test_places_are_described():
    assert about("planner.prompt") == "the instructions of its part 'planner'"
    assert about("tools.search") == "the description of its tool 'search'"
    assert about("texts.system") == "its text 'system'"


def test_a_long_rollout_keeps_its_end():
    assert cut("a" * 50 + "b" * 50, 20) == "a" * 10 + "\n[cut: 80 characters]\n" + "b" * 10


CHANGES = ["lessons.proposers=['feedback']", "lessons.modules=['planner.prompt']"]


@pytest.mark.parametrize(
    "sets",
    [
        ["lessons.proposers=['evolution']"],
        ["lessons.proposers=['examples']"],
        [*CHANGES, "lessons.truth='none'"],
        [*CHANGES, "tasks={type='gazetteer'}"],
    ],
)
def test_a_proposer_that_does_not_fit_its_recipe_is_refused(sets):
    changes = ["engines.reflector={type='workshop_writer'}", *sets]
    recipe = load_recipe("lessons-simulated", changes)
    with raises("setting-conflict"), Build(recipe, budget=Budget(BudgetConfig())) as build:
        lessons_parts_of(build)
