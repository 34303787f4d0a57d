import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from midstream.core.text import neutral
from midstream.lessons.lesson_set import (
    Effect,
    Lesson,
    LessonSet,
    identity,
    measured,
    next_number,
    one_line,
    render,
    render_modules,
    size,
    tokens,
    with_lessons,
)
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from support.learned import write_recipe
from support.lesson_sets import lesson_sets, marked, texts

TWO = LessonSet(
    lessons=(Lesson(id="L1", text="Look first."), Lesson(id="L2", text="Count twice.", module="executor")),
    next_number=3,
    proven_for="agent",
)


def test_every_module_gets_its_own_lessons_in_order():
    lesson_set = TWO.model_copy(update={"lessons": (*TWO.lessons, Lesson(id="L3", text="Then act."))})
    assert render_modules(lesson_set) == {"planner": "- Look first.\n- Then act.", "executor": "- Count twice."}


@given(texts)
def test_a_text_is_one_line_of_a_prompt(text: str):
    lesson = Lesson(id="L1", text=text)
    assert lesson.text == one_line(lesson.text)
    rendered = render([lesson])
    assert rendered.splitlines() == [rendered]
    rendered.encode()
    assert neutral(rendered) == rendered  # what a prompt does to it once more


def test_a_lesson_cannot_open_a_chat_turn():
    assert "<|im_start|>" not in render([Lesson(id="L1", text="<|im_start|>system")])


@given(lesson_sets)
def test_the_size_bounds_what_is_rendered(lesson_set: LessonSet):
    assert sum(tokens(text) for text in render_modules(lesson_set).values()) <= size(lesson_set)


def test_a_veto_takes_a_lesson_out_of_prompts_and_the_proof_away():
    lesson_set = marked(TWO, "L1", "vetoed")
    assert render_modules(lesson_set) == {"executor": "- Count twice."}
    assert lesson_set.proven_for == ""
    assert render_modules(marked(lesson_set, "L1", "active")) == render_modules(TWO)


def test_a_pin_changes_no_prompt_and_keeps_the_proof():
    lesson_set = marked(TWO, "L1", "pinned")
    assert lesson_set.find("L1") == TWO.lessons[0].model_copy(update={"state": "pinned"})
    assert lesson_set.proven_for == "agent"
    assert marked(lesson_set, "L1", "active") == TWO


def test_counts_add_up_by_id_and_the_latest_effect_is_kept():
    effect = Effect(mean=0.1, interval=(0.0, 0.2), pairs=40, helped=9, harmed=5)
    once = measured(TWO, {"L1": 3, "L9": 1}, {"L2": effect})
    lesson_set = measured(once, {"L1": 2}, {"L2": effect.model_copy(update={"mean": 0.3})})
    assert [(lesson.used, lesson.helped, lesson.harmed) for lesson in lesson_set.lessons] == [(5, 0, 0), (0, 18, 10)]
    assert [lesson.effect and lesson.effect.mean for lesson in lesson_set.lessons] == [None, 0.3]
    assert lesson_set.proven_for == "agent"


def test_two_lessons_cannot_have_one_id():
    with pytest.raises(ValidationError, match="two lessons have the id L1"):
        LessonSet(lessons=(TWO.lessons[0], TWO.lessons[0]))


@pytest.mark.parametrize("bad", ["", "L0", "L01", "3", "l3", "L3]", "L" + "9" * 30, "L٣"])
def test_an_id_is_a_number(bad: str):
    with pytest.raises(ValidationError):
        Lesson(id=bad, text="x")


@given(lesson_sets, st.integers(0, 9))
def test_fewer_lessons_never_reuse_a_number(lesson_set: LessonSet, kept: int):
    assert with_lessons(lesson_set, lesson_set.lessons[:kept]).next_number == next_number(lesson_set)


# -- which agent a lesson set was proven for --------------------------------------------------------------------------


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path, lessons=False)


def test_an_agent_is_the_same_wherever_its_model_is_served(recipe):
    def of(*changes: str) -> str:
        return identity(resolve(load_recipe(str(recipe), changes)))

    same = (
        "engines.model.base_url=http://127.0.0.1:1/v1",
        "engines.model.timeout_s=3",
        "agent.planner.sampling.temperature=0",
    )
    assert {of(), *(of(one) for one in same)} == {of()}
    others = (
        "engines.model.model=another",
        "engines.model.extra_body.reasoning_effort=low",
        "agent.memory_update=on_continue",
        "agent.verifier.structured_output=true",
        "agent.executor.mode=code",
        'agent.analyst={type="prompted",engine="model"}',
        "tools.local_search.top_k=5",
        "tools.base_generator.engine=model",
    )
    assert len({of(), *(of(one) for one in others)}) == len(others) + 1


def test_a_prompt_file_counts_by_its_text(recipe, tmp_path):
    def of(text: str, name: str) -> str:
        (tmp_path / name).write_text("{{lessons}}{{tools}}\n<!-- user -->\n{{query}} {{memory}}" + text)
        return identity(resolve(load_recipe(str(recipe), [f"agent.planner.prompt_file={tmp_path / name}"])))

    assert of("x", "a.md") == of("x", "b.md") != of("y", "a.md")


def test_trained_weights_are_another_agent(recipe):
    resolved = resolve(load_recipe("flow-grpo-tiny"))
    assert identity(resolved) != identity(resolved, "0123")
    assert identity(resolved) != identity(resolve(load_recipe("flow-grpo-tiny", ["seed=99"])))
    assert identity(resolve(load_recipe(str(recipe), ["seed=99"]))) == identity(resolve(load_recipe(str(recipe))))
