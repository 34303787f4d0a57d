"""Exact match, F1, answer tags and GAIA's scorer agree with the functions that others publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from midstream.core.answers import extract, normalize
from midstream.rewards.exact_match import F1, ExactMatch, ExactMatchConfig
from midstream.rewards.gaia import Gaia
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
    assert value(ExactMatch(), answer, *gold) == case["em"]
    assert value(ExactMatch(ExactMatchConfig(match="contains")), answer, *gold) == case["sub_em"]
    assert value(F1(), answer, *gold) == pytest.approx(case["f1"])


@pytest.mark.parametrize("case", of_kind("answer_tag"), ids=lambda case: case["text"][:40])
def test_answer_tags(case):
    """One departure, in what is found and not in the score: a reply without a tag is an answer as a whole.

    A generator module answers without tags; in Search-R1's prompt a reply without them is malformed.
    """
    found = case["extracted"]
    if found is None:
        found = "" if "<answer>" in case["text"] else case["text"]
    assert extract(case["text"]) == found
    assert value(ExactMatch(), case["text"], *case["gold"]) == case["score"]


@pytest.mark.parametrize("case", of_kind("gaia"), ids=lambda case: f"{case['prediction']} for {case['gold']}")
def test_gaia(case):
    assert value(Gaia(), case["prediction"], case["gold"]) == case["correct"]
