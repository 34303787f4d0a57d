"""The lessons that a tiny planner can follow, how they are drawn, and the program that looks for them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.trajectory import Message
from midstream_worlds.planning.lessons import BAD, IDLE, KNOWN, SOUND, decisions, draw_lessons, lesson_words, lines
from midstream_worlds.planning.reflector import acted_on, reply

QUESTION = "How many people live in Amberbank and Oakfell together ?"


def test_every_sentence_is_there_once_and_every_decision_has_two():
    texts = [one.text for one in KNOWN]
    assert len(set(texts)) == len(texts) == 2 * len(SOUND) + len(IDLE)
    assert SOUND.keys() == BAD.keys()
    assert {word for text in texts for word in text.split()} == lesson_words()


def test_lessons_are_read_as_they_are_rendered():
    assert decisions("") == {}
    assert decisions(lines([SOUND["guess"], IDLE[0], BAD["tool"]])) == {"guess": True, "tool": False}
    assert decisions(lines([SOUND["tool"], BAD["tool"]])) == {"tool": False}  # the later one counts
    assert decisions(lines([SOUND["tool"] + ".", "Never"])) == {}


@given(st.text())
def test_any_text_is_decisions(text):
    assert set(decisions(text)) <= set(SOUND)


def test_lessons_are_drawn_by_task_and_seed_alone():
    names = [f"t{i}" for i in range(400)]
    first = draw_lessons(names, 0.6, 1)
    assert draw_lessons(names[::-1], 0.6, 1) == first
    assert draw_lessons(names, 0.6, 2) != first
    texts = [one["planner"].splitlines() for one in first.values() if one]
    assert 0.45 < len(texts) / len(names) < 0.65  # few draws of a share come out without a sentence
    said = [line.removeprefix("- ") for one in texts for line in one]
    assert set(said) == {one.text for one in KNOWN}
    assert sum(text in SOUND.values() for text in said) > 2 * sum(text in BAD.values() for text in said)
    assert not any(draw_lessons(names, 0.0, 1).values())


# --- the reflector as a program -------------------------------------------------------------------------------------


def turn(number, text, tool, result="7"):
    return {"turn": number, "planner": text, "tool": tool, "result": result}


def search(number, what):
    return turn(number, f" goal find it\n tool local_search\n arg {what}", "local_search", f"{what} 7")


GOOD = [
    search(1, "Amberbank population"),
    search(2, "Oakfell population"),
    turn(3, " goal add\n tool python\n arg r2 + r1", "python"),
]
POOR = [
    search(1, "Amberbank area"),
    {"turn": 2, "planner": " goal find area\n arg Amberbank area", "malformed": "not of the form"},
    turn(3, " goal guess\n tool guess\n arg Oakfell", "guess", "I am certain that the answer is 7"),
    turn(4, " goal subtract\n tool python\n arg r1 - r1", "python"),
]


def test_a_sound_plan_acts_on_every_sound_sentence():
    counts = acted_on(QUESTION, GOOD)
    assert {text for text, taken in counts.items() if all(taken)} >= set(SOUND.values())
    assert counts[BAD["place"]] == [True, False]  # at first it is sound, too
    assert counts[BAD["tool"]] == [False, False, True]  # and in the end
    assert not any(counts[BAD["operator"]] + counts[BAD["attribute"]] + counts[BAD["guess"]] + counts[BAD["form"]])


def test_a_poor_plan_acts_on_bad_ones():
    counts = acted_on(QUESTION, POOR)
    assert counts[SOUND["form"]] == [True, False, True, True]
    assert counts[BAD["form"]] == [False, True, False, False]
    assert counts[SOUND["guess"]] == [True, False, True]
    assert counts[SOUND["attribute"]] == [False]
    assert counts[SOUND["tool"]] == [True, False]  # one look-up was still needed
    assert counts[BAD["operator"]] == [True]
    assert counts[SOUND["operands"]] == [False]


def test_no_text_of_a_rollout_breaks_the_summary():
    for text in ("", " arg ", "\n arg \n arg", " tool \n arg a b c d"):
        for tool in ("", "python", "local_search", "guess", "unknown"):
            acted_on("", [turn(1, text, tool)])


SUMMARY = "Summarise one rollout"  # words: allow


def ask(role, user):
    return json.loads(reply([Message(role="system", content=f"# {role}\nmore"), Message(role="user", content=user)], 3))


def summary(turns):
    rollout = "\n".join(map(json.dumps, [*turns, {"answer": "7", "reward": 0.0}]))
    return ask(SUMMARY, f"# Question\n\n{json.dumps(QUESTION)}\n\n# Rollout\n\n{rollout}\n\n# Summary")["summary"]


def contrast(rewards, lesson_set=()):
    texts = [summary(GOOD), summary(POOR)]
    rollouts = "\n".join(
        json.dumps({"rollout": number, "reward": reward, "answer": "", "summary": text})
        for number, (reward, text) in enumerate(zip(rewards, texts, strict=True), 1)
    )
    lessons = "\n".join(json.dumps({"id": name, "module": "planner", "text": text}) for name, text in lesson_set)
    parts = {"Library": f"{lessons}\nThere is room.", "Question": json.dumps(QUESTION), "Rollouts": rollouts}
    user = "\n\n".join(f"# {name}\n\n{text}" for name, text in parts.items())
    return ask("Contrast a group of rollouts", f"{user}\n\n# Operations as JSON")["operations"]


def test_what_good_rollouts_did_more_often_is_proposed():
    operations = contrast([1.0, 0.0])
    assert [one["kind"] for one in operations] == ["add", "add"]
    assert {one["text"] for one in operations} <= set(SOUND.values())


def test_where_the_wrong_ones_were_lucky_it_is_wrong():
    assert {one["text"] for one in contrast([0.0, 1.0])} <= set(BAD.values())


def test_lessons_of_the_lesson_set_are_kept_or_deleted_and_not_repeated():
    lesson_set = [("L1", SOUND["attribute"]), ("L2", BAD["attribute"]), ("L3", "Some other thing")]
    operations = contrast([1.0, 0.0], lesson_set)
    assert [(one["kind"], one["id"]) for one in operations[:2]] == [("keep", "L1"), ("delete", "L2")]
    assert not {one.get("text") for one in operations} & {text for _, text in lesson_set}


@pytest.mark.parametrize(("groups", "kept"), [((3, 1), "sound"), ((1, 3), "bad")])
def test_of_two_sentences_about_one_decision_the_one_with_more_groups_is_kept(groups, kept):
    texts = {"sound": SOUND["tool"], "bad": BAD["tool"], "other": SOUND["form"]}
    proposals = "\n".join(
        json.dumps({"proposal": number, "groups": count, "kind": "add", "text": texts[name], "module": "planner"})
        for number, (name, count) in enumerate([("sound", groups[0]), ("bad", groups[1]), ("other", 1)], 1)
    )
    operations = ask("Merge proposed changes", f"# Library\n\n\n\n# Proposals\n\n{proposals}\n\n# Operations")[
        "operations"
    ]
    assert [one["text"] for one in operations] == [texts[kept], texts["other"]]
    assert [one["from"] for one in operations] == [[1 if kept == "sound" else 2], [3]]


def test_a_summary_by_another_model_is_read_as_far_as_it_goes():
    rollouts = "\n".join(json.dumps({"reward": reward, "summary": "Never guess: 0 of 0"}) for reward in (0, 1))
    assert ask("Contrast a group of rollouts", f"# Library\n\n# Rollouts\n{rollouts}\n") == {"operations": []}


@pytest.mark.parametrize("left", [0, 1, 2])
def test_without_rollouts_it_writes_any_sentences_that_are_not_there(left):
    there = KNOWN[: len(KNOWN) - left]
    lesson_set = "\n".join(json.dumps({"id": one.text, "text": one.text}) for one in there)
    operations = ask(
        "Write lessons", f"# Library\n\n{lesson_set}\n\n# Question\n\n{json.dumps(QUESTION)}\n\n# Operations"
    )
    assert {one["text"] for one in operations["operations"]} == {one.text for one in KNOWN if one not in there}


def test_another_prompt_gets_an_empty_object():
    assert reply([Message(role="user", content="Hello")], 0) == "{}"
