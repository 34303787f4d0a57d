"""Rates, standings and advice of `midstream examine`, and its screen on narrow terminals."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.terminal import Terminal
from midstream.report.draw import draw
from midstream_extra.examination.report import (
    JSON_SCHEMA,
    TOKEN_IDS,
    CaseResult,
    Diagnosis,
    Probe,
    Rate,
    RoleResult,
    advice_on,
    rates_of,
    role_blocks,
    standing_of,
)

IDS = Probe(engine="model", what=TOKEN_IDS, works=True, words="6 for a short reply")
SCHEMA = Probe(engine="model", what=JSON_SCHEMA, works=True, words="replied {}")


def case(name: str = "c", said: str = "a", **checks: bool) -> CaseResult:
    return CaseResult(case=name, checks=checks, said=said, wanted="b")


def result(name: str, cases: list[CaseResult], **fields: object) -> RoleResult:
    rates = rates_of(cases)
    made = {"model": "m", "engine": "model", "asks": 5, "median_s": 0.5, **fields}
    return RoleResult(role=name, standing=standing_of(rates), rates=rates, cases=tuple(cases), **made)  # type: ignore[arg-type]


def printed(roles: list[RoleResult], probes: tuple[Probe, ...] = (IDS, SCHEMA), width: int = 80) -> str:
    advice = advice_on(roles, probes)
    works = all(role.standing != "cannot" for role in roles)
    console = Terminal(file=io.StringIO(), width=width)
    found = Diagnosis(recipe="r", roles=tuple(roles), probes=probes, advice=advice, works=works)
    console.print(draw(role_blocks(found)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_check_is_counted_over_the_cases_that_have_it() -> None:
    rates = rates_of([case(right=True), case(right=False, valid=True), case(right=True)])
    assert rates == {"right": Rate(right=2, of=3), "valid": Rate(right=1, of=1)}


@pytest.mark.parametrize(
    ("right", "of", "standing"),
    [
        (5, 5, "good"), (4, 5, "good"), (3, 5, "shaky"), (2, 5, "cannot"),
        (2, 3, "shaky"), (1, 2, "shaky"), (0, 2, "cannot"),
    ],
)  # fmt: skip
def test_thresholds_are_those_that_the_screen_states(right: int, of: int, standing: str) -> None:
    assert standing_of({"a": Rate(right=of, of=of), "b": Rate(right=right, of=of)}) == standing


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1))
def test_one_more_right_answer_never_lowers_a_standing(counts: list[tuple[int, int]]) -> None:
    order = ["cannot", "shaky", "good"]
    rates = {str(place): Rate(right=min(right, of), of=of) for place, (right, of) in enumerate(counts)}
    better = {name: Rate(right=min(rate.right + 1, rate.of), of=rate.of) for name, rate in rates.items()}
    assert order.index(standing_of(better)) >= order.index(standing_of(rates))


def test_there_is_no_advice_where_all_is_well() -> None:
    assert advice_on([result("planner", [case(right=True)])], [IDS, SCHEMA]) == ()


def test_structured_output_is_advised_only_where_it_is_off_and_enforced() -> None:
    cases = [case(**{"verdict readable": False})] * 5
    off = result("verifier", cases, structured_output=False)
    on = result("verifier", cases, structured_output=True)
    setting = "--set agent.verifier.structured_output=true"
    ignored = SCHEMA.model_copy(update={"works": False})
    assert any(setting in line for line in advice_on([off], [SCHEMA]))
    assert not any(setting in line for line in advice_on([off], [ignored]))
    assert not any(setting in line for line in advice_on([on], [SCHEMA]))


def test_another_model_is_advised_for_weak_roles_only() -> None:
    strong, weak = result("planner", [case(right=True)]), result("generator", [case(right=False)])
    [line] = advice_on([strong, weak], [IDS])
    assert "give generator a larger model, and keep this one for planner" in line
    assert "agent.generator.engine=large" in line
    assert "agent.planner.engine" not in line


def test_token_ids_matter_to_the_planner_s_engine_only() -> None:
    missing = IDS.model_copy(update={"works": False})
    planner = result("planner", [case(right=True)])
    verifier = result("verifier", [case(right=True)], engine="other")
    assert any("vLLM" in line for line in advice_on([planner, verifier], [missing]))
    assert advice_on([planner, verifier], [missing.model_copy(update={"engine": "other"})]) == ()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_screen_fits_and_says_everything(width: int) -> None:
    good = [case(f"c{number}", right=True) for number in range(4)]
    roles = [
        result("planner", [*good, case("the injection", "print(42)", right=False)]),
        result("generator", [case("two hops", "word " * 200, right=False).model_copy(update={"retries": 2})]),
        RoleResult(role="verifier", standing="not examined", skipped="its type is 'form'"),
    ]
    text = printed(roles, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    for part in ("Can m play", "4/5", "0/1", "print(42)", "sent again 2", "good", "cannot", "not examined", "larger"):
        assert part in " ".join(text.split()), part
    assert "missed: the injection" in " ".join(text.split()), "a good role still names what it missed"
    assert text.count("word") < 100


def test_what_a_model_or_server_says_cannot_steer_the_terminal() -> None:
    evil = "[bold]x[/bold] \x1b[2J\u202e"
    probe = Probe(engine="model", what=JSON_SCHEMA, works=None, words=evil)
    text = printed([result("planner", [case("c", evil, right=False)], model=evil)], (probe,), width=120)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("[bold]x[/bold]") >= 3
    assert "unknown" in text


def test_engines_are_named_where_there_are_several() -> None:
    other = SCHEMA.model_copy(update={"engine": "large", "works": False})
    assert "large: JSON schema enforced" in printed([result("planner", [case(right=True)])], (SCHEMA, other))
