from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.task import Task
from midstream.lessons.similarity import leak_guard, ngram_similarity
from midstream_worlds.workshop.tasks import Workshop, WorkshopConfig


def leak(lesson: str, tasks: list[Task]) -> str | None:
    return leak_guard(tasks)(lesson)


def task(question: str, answer: str, *aliases: str) -> Task:
    return Task(id="t1", question=question, answer=answer, aliases=aliases)


@pytest.mark.parametrize(
    ("lesson", "known"),
    [
        ("Remember that Marie Curie is a frequent answer.", task("Who discovered radium?", "Marie Curie")),
        ("It was the madame: MARIE CURIE!", task("Who discovered radium?", "M. Curie", "Marie Curie")),
        ("Results such as 1,234 come up.", task("How high is Oakfell?", "1234.0")),
        ("The hill has 48713 stones.", task("How many?", "48713")),
        ("The capital of France is Paris.", task("What is the capital of France?", "Paris")),
        ("Answer yes if asked whether Paris is in France.", task("Is Paris in France?", "yes")),
        ("7 + 5 is 12.", task("What is 7 + 5?", "12")),
        ("Use 5, 5, 5 and 1 as 5 * (5 - 1 / 5) to make 24.", task("Make 24 from 5, 5, 5, 1.", "5 * (5 - 1 / 5)")),
        (
            "For 'which river crosses the old town of Oakfell in spring' look at a map.",
            task("Which river crosses the old town of Oakfell in spring?", "Mist"),
        ),
    ],
)
def test_caught(lesson: str, known: Task):
    assert leak(lesson, [known]) is not None


@pytest.mark.parametrize(
    ("lesson", "known"),
    [
        ("Round to 2 decimals.", task("What is 8 divided by 4?", "2")),
        ("Check for off-by-one errors.", task("How many posts has a fence of 10 rails?", "1")),
        ("Say yes or no, nothing else.", task("Is Paris in France?", "yes")),
        ("If no solution exists, say no solution.", task("Solve x = x + 1.", "no solution")),
        ("A tool call costs a turn.", task("Which letter comes first?", "A")),
        ("Convert hours into 60 minutes.", task("How many minutes has an hour and a half?", "90", "60")),
        ("Find the capital of a country before its height.", task("What is the capital of France?", "Paris")),
        ("Split a budget of 1000 into parts.", task("What is 10 to the power of 3?", "1000")),
        ("Anything at all with a 4 in it.", task("What is it?", "4")),
        ("An empty answer is no answer.", task("What?", "")),
    ],
)
def test_general_advice_passes(lesson: str, known: Task):
    assert leak(lesson, [known]) is None


def test_the_wording_that_all_questions_share_is_no_evidence():
    marks = ["red", "blue", "matte", "thick", "narrow"]
    tasks = [
        Task(id=f"t{n}", question=f"Order {n}: the sheet is {marks[n % 5]}; which setting of the press?", answer=f"{n}")
        for n in range(1, 60)
    ]
    guard = leak_guard(tasks)
    assert guard("When the order says the sheet is red, choose setting 4 of the press.") is None
    assert guard("Order 17: the sheet is matte; the setting of the press is 17.") == "it holds the answer of task 't17'"


def test_it_names_the_task_and_what_was_found():
    known = task("Which river crosses the old town of Oakfell in spring?", "Lady Mist")
    assert leak("Try Lady Mist.", [known]) == "it holds the answer of task 't1'"
    assert leak("Which river crosses Oakfell's old town in spring? In spring, Oakfell!", [known]) is not None


def test_a_possessive_hides_no_answer():
    known = task("Who discovered radium?", "Marie Curie")
    assert leak("Search for Marie Curie's birthplace.", [known]) is not None
    assert leak("Search for Marie Curie’s birthplace.", [known]) is not None


@given(st.text(), st.text(), st.text())
def test_any_texts_can_be_compared(lesson: str, question: str, answer: str):
    leak(lesson, [task(question, answer)])


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_lesson_that_is_question_and_revealing_answer_is_always_caught(question: str, before: str):
    answer = "Marie Curie of 1867"
    assert leak(f"{before} {question} {answer}", [task(question, answer)]) is not None


def test_no_lesson_of_the_workshop_is_a_leak_or_like_another():
    world = Workshop(WorkshopConfig(train=60, validation=40))
    guard = leak_guard([*world.load("train"), *world.load("validation")])
    lessons = [lesson for rule in world.rules_of("press") for lesson in rule.lessons]
    assert [lesson for lesson in lessons if guard(lesson)] == []
    assert max(ngram_similarity(one, other) for one, other in combinations(lessons, 2)) < 0.85
    known = world.load("train")[7]
    assert guard(f"Write {known.answer} for press order {known.question.split()[2]}") is not None
