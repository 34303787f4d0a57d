"""Exact match, F1, answer tags and GAIA's scorer agree with the functions that others publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from midstream.core.answers import normalize
from midstream.core.stream import Piece, answer_of
from midstream.core.stream_template import load_template
from midstream.rewards.exact_match import F1, ExactMatch
from midstream_benchmarks.gaia import Gaia
from support.rules import value

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden" / "qa.json").read_text("utf-8"))["cases"]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [case for case in GOLDEN if case["kind"] == kind]


def test_every_case_is_of_a_kind_that_is_tested():
    assert [len(of_kind(kind)) for kind in ("qa", "answer_tag", "gaia")] == [19, 6, 11]
    assert len(GOLDEN) == 36


@pytest.mark.parametrize("case", of_kind("qa"), ids=lambda case: case["prediction"])
def test_exact_match_and_f1(case):
    answer, gold = case["prediction"], case["gold"]
    assert [normalize(answer), normalize(gold[0])] == case["normalized"]
    if "’" in answer:  # the one departure: a typographic apostrophe is an apostrophe
        case = case | {"em": 1, "f1": 1.0}
    assert value(ExactMatch(), answer, *gold) == case["em"]
    assert value(F1(), answer, *gold) == pytest.approx(case["f1"])


@pytest.mark.parametrize("case", of_kind("answer_tag"), ids=lambda case: case["text"][:40])
def test_answer_tags(case):
    """What Search-R1's own agent answers, in its template.

    One departure: of eleven pairs of tags the last counts in full. Search-R1 takes three quarters off, but sampling
    ends at the first closing tag, and of other agents only the last pair counts, however many guesses stand before it.
    """
    template = load_template("search-r1")
    answer = answer_of([Piece(text=case["text"], sampled=True)], template)
    assert answer == (case["extracted"] or None)
    assert value(ExactMatch(), answer, *case["gold"]) == (1.0 if case["score"] == 0.25 else case["score"])


@pytest.mark.parametrize("case", of_kind("gaia"), ids=lambda case: f"{case['prediction']} for {case['gold']}")
def test_gaia(case):
    assert value(Gaia(), case["prediction"], case["gold"]) == case["correct"]
