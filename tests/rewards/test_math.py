"""The math reward, by Math-Verify inside a real sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.components.component import Sandbox
from midstream.core.errors import RecipeError, RewardError, SandboxError, UnsupportedError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards import math
from midstream.sandbox import launch
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits
from support.errors import coded
from support.forms import misjudged
from support.sandboxes import sandbox

# Cases of Math-Verify's own tests (Hugging Face, Apache-2.0): gold, pred, whether they are equal, settings.
GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden" / "math.json").read_text("utf-8"))["cases"]
# Right, and counted as wrong: their last words are neither known nor of a question, which these cases lack. By the end
# of the reply:
NOT_READ = (
    "4\\end{array}\\right] $",  # "Special matrix: "
    "8}\\end{pmatrix} $",  # "Matrix with fractions: "
    "1\\end{pmatrix}$",  # "When multiplying by identity: "
    "which is 1,000.99€",  # "the number is not 10 which is"
    "is 19. <|im_start|>user",
    "is 2/3. <|im_start|>user",
    "I hope it is correct. <|im_start|>user",
    "position increases by 100%.",
    "assumption given the context",  # 3,800 characters after "The final answer is 20 %"
    "interest is compounded per year, and $t$ is the number of years. In this",
    "Thank you!] [Note",
    "W(x)=1orW(x)=-1",  # the box of its gold answer is not closed
)
OPTIONS = ("precision", "strict", "allow_set_relation_comp")
TIER = "standard"


def make(tier: Any = TIER, **config: Any) -> math.Math:
    options = {name: config.pop(name) for name in OPTIONS if name in config}
    reward = math.Math(math.MathConfig.model_validate({"workers": 1, **config}), sandbox(tier))
    reward._options |= options
    return reward


def score(reward: math.Math, gold: str, answer: str | None, *aliases: str) -> Any:
    task = Task(id="t", question="?", answer=gold, aliases=aliases)
    return reward.score(task, Trajectory(id="t#0", task_id="t", answer=answer))


def scores(reward: math.Math, *pairs: tuple[str, str | None], close: bool = True) -> list[Score]:
    """Scores of (gold, answer), all asked at once; then the reward is closed."""

    async def run() -> list[Score]:
        try:
            return await asyncio.gather(*(score(reward, gold, answer) for gold, answer in pairs))
        finally:
            if close:
                await reward.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def pool() -> Iterator[PythonPool]:
    """Workers for all tests that need none of their own: Math-Verify's import takes a second."""
    pool = math.Math(math.MathConfig(), sandbox("strong")).pool
    yield pool
    asyncio.run(pool.close())


@pytest.fixture(scope="module")
def warm(pool) -> Callable[..., list[Score]]:
    """`scores` by a reward with the given settings, on running workers."""
    return lambda *pairs, **config: scores(on(pool, **config), *pairs, close=False)


def on(pool: PythonPool, **config: Any) -> math.Math:
    reward = make(**config)
    reward.pool = pool
    return reward


def values(found: list[Score]) -> list[float]:
    return [score.value for score in found]


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_golden_cases_agree(warm, every: int):
    groups: dict[str, list[dict[str, Any]]] = {}
    for case in GOLDEN[::every]:
        groups.setdefault(json.dumps({name: case[name] for name in OPTIONS if name in case}), []).append(case)
    assert sum(not case["expected"] for case in GOLDEN) == 10
    wrong = []
    for config, cases in groups.items():
        given = warm(*((case["gold"], case["pred"]) for case in cases), **json.loads(config))
        wrong += [case for case, found in zip(cases, given, strict=True) if found != Score(value=case["expected"])]
    assert [case for case in wrong if not case["pred"].rstrip().endswith(NOT_READ)] == []


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_every_form_is_read_as_a_careful_person_would(pool, every: int):
    assert asyncio.run(misjudged(on(pool), "math", every)) == []


def test_bare_formulas_are_read_whole(warm):
    """Math-Verify alone reads one number of each of these answers, or nothing."""
    right = [
        ("3\\sqrt{13}", "3*sqrt(13)"), ("6 - 5i", "6-5i"), ("2^{1009}", "2**1009"), ("p - q", "p-q"), ("2, 3", "3, 2"),
        ("\\text{Evelyn}", "evelyn"), ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, pi/2)"), ("32000", "$32,000"),
        ("\\$32,348", "32348"),
        ("5", "5 km"), ("33", "033"), ("\\text{(C)}", "C"), ("e^2", "exp(2)"), ("5", "x = 5"),
        ("9", "<answer>9</answer>"), ("\\frac{3}{4}", "$\\mathbf{\\frac{3}{4}}$"), ("3.14", "3,14"),
        ("\\boxed{11,\\! 111,\\! 111,\\! 100}", "11111111100"), ("28\\%", "$\\boxed{28}$ pct"),
    ]  # fmt: skip
    wrong = [
        ("3\\sqrt{13}", "3"), ("3", "3\\sqrt{13}"), ("6", "6-5i"), ("2", "2x"), ("2", "2**1009"), ("3", "2, 3"),
        ("listen", "silent"), ("p - q", "q - p"), ("\\pi", "3.14"), ("\\dfrac{1}{2}", "-\\dfrac{1}{2}"), ("1", "1e6"),
        ("42", "<answer>41</answer> 42"), ("0", "\\frac{1}{0}"),
        ("12", "12²"), ("5", "$2 \\oplus 5$"), ("5", "\\boxed{x +^ 5}"), ("1", f"${'1+' * 2000}1$"),
        ("42", "42 is wrong."), ("42", "It can't be 42."), ("42", "I ruled out 42."), ("5", "5 apples"),
        ("42", ""), ("42", None), ("42", "<answer> </answer>"),
    ]  # fmt: skip
    assert values(warm(*right, *wrong)) == [1.0] * len(right) + [0.0] * len(wrong)


def test_aliases_count_as_right():
    async def run() -> list[Score]:
        reward = make()
        found = [await score(reward, "1/3", answer, "\\frac{2}{5}") for answer in ("0.4", "1/3", "1/4")]
        await reward.close()
        return found

    assert values(asyncio.run(run())) == [1.0, 1.0, 0.0]


HOSTILE = ["$9^{9^{9^9}}$", "9**9**9**9**9", "$\\sum_{n=1}^{9999999} \\frac{1}{n^3}$", "$100000000!$"]


@pytest.mark.slow
def test_answers_that_hang_are_wrong_and_say_so():
    hung = scores(make(timeout_s=0.2, workers=2), *(("7", text) for text in HOSTILE))
    assert {one.value for one in hung} == {0.0}
    assert sum(one.parts == {"timed_out": 1.0} for one in hung) >= 2  # Math-Verify may give up by itself
    assert Score(value=0.0, parts={"timed_out": 1.0}) in hung


@pytest.mark.slow
def test_a_formula_that_eats_memory_is_not_right():
    async def run() -> bool | None:
        reward = make(timeout_s=60)
        reward.pool._limits = CodeLimits(memory_mb=64, libraries=())
        task = Task(id="t", question="?", answer="7")
        found = await reward._verdict(task, ("7",), "(" * 3_000_000)
        await reward.close()
        return found

    assert not asyncio.run(run())


@pytest.mark.slow
def test_a_worker_serves_on_after_a_hang():
    [hung, after] = scores(make(timeout_s=0.3), ("7", HOSTILE[0]), ("7", "$7$"))
    assert (hung.value, after.value) == (0.0, 1.0)


INJECTED = [
    'print("True")', '{"right": true}', '\nright\n{"right": true}', "__import__('os').system('true')",
    "$\\text{'); print('{\"right\": true}'); ('}$", "'''\"\"\"\\", "\ud800", "\x00", "\u2028",
]  # fmt: skip


def test_no_text_forges_a_verdict(warm):
    assert set(values(warm(*(("7", text) for text in INJECTED)))) == {0.0}


@given(st.text(alphabet="7$\\{}()[]^_\"'\n ax=<,.%frac", max_size=30))
def test_any_answer_is_right_or_wrong(warm, text):
    assert values(warm(("123456", text))) == [0.0]


@pytest.mark.parametrize("gold", ["", " ", "$$"])
def test_a_gold_answer_without_anything_to_compare_is_an_error(warm, gold):
    with pytest.raises(RewardError, check=coded("task-unfit", "'t'")) as caught:
        warm((gold, "7"))
    assert not caught.value.retryable


@pytest.mark.parametrize("gold", ["", "$$", "$\\frac{1}{2$"])
def test_a_task_whose_gold_answer_states_nothing_is_refused(gold):
    with pytest.raises(RecipeError, check=coded("task-unfit", "'t'")):
        make().check(Task(id="t", question="?", answer=gold))


@pytest.mark.slow
def test_a_gold_answer_that_hangs_is_an_error_not_a_wrong_answer():
    with pytest.raises(RewardError, check=coded("task-unfit", "'t'", HOSTILE[0].strip("$"))):
        scores(make(timeout_s=0.2), (HOSTILE[0], "7"))


@pytest.mark.slow
def test_a_dead_worker_is_an_error_not_a_wrong_answer(monkeypatch):
    async def run() -> None:
        reward = make()
        await score(reward, "7", "\\sqrt{49}")
        [worker] = reward.pool._idle
        monkeypatch.setattr(worker, "alive", lambda: True)
        worker.stop()
        with pytest.raises(SandboxError):
            await score(reward, "7", "\\sqrt{50}")
        assert (await score(reward, "7", "\\sqrt{50}")).value == 0.0  # nothing was kept of the failure
        await reward.close()

    asyncio.run(run())


def test_equal_pairs_are_compared_once(warm, monkeypatch):
    runs = []
    run = PythonPool.run

    async def counted(pool: PythonPool, code: str) -> Any:
        runs.append(code)
        return await run(pool, code)

    monkeypatch.setattr(PythonPool, "run", counted)
    roots = [("2\\sqrt{3}", "$\\sqrt{12}$")] * 5
    other = [("2\\sqrt{3}", "$\\sqrt{13}$"), ("$\\sqrt{13}$", "$\\sqrt{12}$")]
    assert values(warm(*roots, *other)) == [1.0] * 5 + [0.0] * 2
    assert len(runs) == 3


def test_numbers_and_words_are_compared_without_a_process(monkeypatch):
    monkeypatch.delattr(PythonPool, "run")
    pairs = [("7", "$7$"), ("7", "8"), ("1/3", "0.333333"), ("June 20", "May 20")]
    assert values(scores(make(), *pairs)) == [1.0, 0.0, 1.0, 0.0]


def test_settings_reach_math_verify(warm):
    pairs = [("0.33", "0.334"), ("$x+1$", "$y+1$"), ("$(1,2)$", "$1 < x < 2$")]
    assert values(warm(*pairs, allow_set_relation_comp=False)) == [0.0, 0.0, 0.0]
    assert values(warm(*pairs)) == [0.0, 0.0, 1.0]
    assert values(warm(*pairs, precision=2, strict=False)) == [1.0, 1.0, 1.0]


def test_tier_arithmetic_is_refused():
    with pytest.raises(UnsupportedError, check=coded("sandbox-tier", '"arithmetic"')):
        math.Math(math.MathConfig(), Sandbox(tier="arithmetic"))


def test_without_math_verify_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(math, "find_installed", lambda names: launch.find_installed(("no_such_library",)))
    with pytest.raises(UnsupportedError, check=coded("missing-extra", "Math-Verify")):
        make()
