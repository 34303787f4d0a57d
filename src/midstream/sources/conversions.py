"""From a row of a benchmark to the fields of a task: a small function for each form in which its owner publishes it.

`released` reads the form in which AgentFlow's repository holds its test sets (`test/NAME/data/data.json`). A row has
`query`, `pid` and `answer` (text, a number or a list of accepted ones), mostly `question` too; options are part of the
question's text, in MedQA twice; some questions end in a sentence on answer tags; Game of 24 has its four numbers as the
question. The parts that belong to the prompt are removed from the question.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from midstream.core.seeds import derive_seed
from midstream.core.text import last_box
from midstream.sources.questions import Fields, as_text, as_texts, by_letter, from_json, letter_of, whole
from midstream.sources.records import BadRowError, LeftOutError, json_excerpt

Row = Mapping[str, Any]
RELEASED_COLUMNS = ("pid", "query", "question", "answer", "options", "choices", "Level", "file_name")
_ON_TAGS = re.compile(r"(?<!\s)\s*When ready, output the final answer enclosed in <answer>.*", re.DOTALL)
_TOPIC = re.compile(r"""['"]topic['"]:\s*['"]([^'"]+)""")


def open_question(row: Row) -> Fields:
    """FlashRAG's form: `question` and every accepted answer in `golden_answers`."""
    found = row.get("golden_answers")
    if isinstance(found, list):
        found = [answer for answer in found if answer is not None and str(answer).strip()]
    answers = as_texts(found, "golden_answers")
    return Fields(question=as_text(row.get("question"), "question"), answer=answers[0], aliases=answers[1:])


def contest(row: Row) -> Fields:
    """A contest problem whose answer is a number: `problem` (or `question`) and `answer`, "033" or 27.0."""
    question = _first(row, "problem", "question", "Problem")
    return Fields(question=question, answer=whole(_value(row, "answer", "Answer"), "answer"))


def mathematics(row: Row) -> Fields:
    """A problem with its final answer, or with a solution whose last box is the answer."""
    family = as_text(row["subject"], "subject") if row.get("subject") else ""
    question = _first(row, "problem", "question")
    found = row.get("answer", row.get("final_answer"))
    if found is None:
        found = last_box(_first(row, "solution")).strip()
        if not found:
            raise LeftOutError("its solution has no boxed answer")
    answer = ", ".join(as_texts(found, "answer"))  # several values are one answer
    kept = {name: row[name] for name in ("level", "difficulty", "unit") if row.get(name) is not None}
    return Fields(question=question, answer=answer, family=family, metadata=kept)


def dapo(row: Row) -> Fields:
    """The problem in a chat prompt that has an instruction before and a reminder after it."""
    prompt, judged = row.get("prompt"), row.get("reward_model")
    message = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else None
    if not isinstance(message, dict) or not isinstance(judged, dict):
        raise BadRowError(f"'prompt' must be one message and 'reward_model' a table, not {json_excerpt(prompt)}")
    question = as_text(message.get("content"), "content")
    if question.startswith("Solve the following math problem"):
        question = question.partition("\n\n")[2].strip()
    before, _, last = question.rpartition("\n\n")
    if last.startswith("Remember to put your answer"):
        question = before.strip()
    return Fields(question=as_text(question, "prompt"), answer=as_text(judged.get("ground_truth"), "ground_truth"))


def afm(row: Row) -> Fields:
    """A question of AFM's web agent in `extra_info`, a table or its JSON.

    Those of several answers are left out, as its readers do.
    """
    found = from_json(row.get("extra_info"))
    if not isinstance(found, dict):
        raise BadRowError(f"'extra_info' must be a table, not {json_excerpt(found)}")
    answers = as_texts(found.get("answer"), "answer")
    if len(answers) > 1:
        raise LeftOutError("it has several answers")
    return Fields(question=as_text(found.get("question"), "question"), answer=answers[0])


def gaia(row: Row) -> Fields:
    """A question of GAIA without a file; its level is its family."""
    if row.get("file_name"):
        raise LeftOutError("it comes with a file")
    answer = as_text(row.get("Final answer"), "Final answer")
    if answer == "?":
        raise LeftOutError("its answer is kept secret")
    level = as_text(row.get("Level"), "Level")
    return Fields(question=as_text(row.get("Question"), "Question"), answer=answer, family=f"level {level}")


def gpqa(row: Row) -> Fields:
    """Four answers in an order drawn from the question, so that it is the same in every run."""
    question = as_text(row.get("Question"), "Question")
    names = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    texts = [as_text(row.get(name), name) for name in names]
    order = random.Random(derive_seed("gpqa options", question)).sample(range(4), 4)
    options = by_letter({letter: texts[place] for letter, place in zip("ABCD", order, strict=True)})
    family = as_text(row["High-level domain"], "domain") if row.get("High-level domain") else ""
    return Fields(question=question, answer="ABCD"[order.index(0)], options=options, family=family)


def medqa(row: Row) -> Fields:
    """Options by letter; the answer is `answer_idx`."""
    options = by_letter(row.get("options"))
    answer = letter_of(as_text(_value(row, "answer_idx", "answer"), "answer_idx"), options)
    return Fields(question=as_text(row.get("question"), "question"), answer=answer, options=options)


def web_walker(row: Row) -> Fields:
    """A question whose difficulty is its family; the site to begin at goes into the metadata."""
    info = row.get("info", row.get("Info"))
    found = {str(name).lower(): value for name, value in info.items()} if isinstance(info, dict) else {}
    site = row.get("root_url", row.get("Root_Url"))
    return Fields(
        question=_first(row, "question", "Question"),
        answer=_first(row, "answer", "Answer"),
        family=str(found.get("difficulty_level") or ""),
        metadata={"root_url": site} if site else {},
    )


def simple_question(row: Row) -> Fields:
    """`problem` and `answer`; the topic in `metadata` is the family."""
    topic = _TOPIC.search(str(row.get("metadata")))
    return Fields(
        question=_first(row, "problem"), answer=as_text(row.get("answer"), "answer"), family=topic[1] if topic else ""
    )


def released(row: Row) -> Fields:
    """A row of AgentFlow's repository, of any of its ten benchmarks."""
    if row.get("file_name"):
        raise LeftOutError("it comes with a file")
    question, answers = row.get("question", row["query"]), as_texts(row.get("answer"), "answer")
    if isinstance(question, list):
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in question):
            raise BadRowError(f"its numbers must be whole, not {question}")
        asked = as_text(row["query"], "query")
        return Fields(question=asked, answer=answers[0], aliases=answers[1:], metadata={"numbers": question})
    stem = _ON_TAGS.sub("", as_text(question, "question"))
    family = f"level {row['Level']}" if row.get("Level") else ""
    listed = row.get("options") or row.get("choices")
    if not listed:
        return Fields(question=stem, answer=answers[0], aliases=answers[1:], family=family)
    options = by_letter(listed)
    if isinstance(listed, list):
        # Remove the options below the question, however often they are repeated and however they are spaced.
        block = r"\s+".join(re.escape(word) for option in listed for word in str(option).split())
        stem = re.sub(rf"(?:(?<!\s)\s*(?:Choices:\s*)?{block}){{1,9}}\Z", "", stem.rstrip())
    return Fields(question=stem, answer=letter_of(answers[0], options), options=options, family=family)


def _value(row: Row, *names: str) -> Any:
    """The first of these fields that is not null."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _first(row: Row, *names: str) -> str:
    return as_text(_value(row, *names), names[0])
