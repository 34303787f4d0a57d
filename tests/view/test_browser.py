"""The viewer in a real browser: pages, filters, addresses, keyboard, votes, phones, screen readers, hostile text."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from midstream.core.trajectory import Action, Call, Command, Message, Observation, Score, Trajectory, Turn, Verdict
from midstream.lessons.commit import History
from midstream.runs import RunDirectory
from midstream.view.bundle import write_runs
from support.evaluations import write
from support.learned import write_waiting

EVIL = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> javascript:alert(1) \x1b[31m"
)
BIDI = "abc\u202edef\u2066ghi"


@pytest.fixture(scope="module")
def runs(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two equal runs, and one with hostile text wherever a model, a tool or a user writes."""
    root = tmp_path_factory.mktemp("view")
    for name in ("first", "second", "hostile"):
        shutil.copytree(finished_run, root / name)
    RunDirectory(root / "hostile").trajectories.write(1, [hostile(0), hostile(1)])
    return root


def hostile(place: int) -> Trajectory:
    call = Call(role="planner", completion=EVIL, messages=(Message(role="user", content=EVIL + BIDI),))
    turn = Turn(
        index=1,
        action=Action(sub_goal=EVIL, tool="python", context=BIDI),
        command=Command(tool="python", arguments={EVIL: EVIL}),
        observation=Observation(status="ok", text=EVIL + "x" * 2_000_000),
        verdict=Verdict(result_valid=True, memory_sufficient=False, analysis=BIDI),
        calls=(call,),
    )
    return Trajectory(
        id=f"evil-{place}", task_id=EVIL, question=EVIL, answer=BIDI, gold=EVIL, turns=(turn,), rollout_index=place,
        reward=Score(float(place), feedback=EVIL),
    )  # fmt: skip


@contextmanager
def viewing(*arguments: Any, cwd: Path | None = None) -> Iterator[str]:
    """A `midstream view` process; yields its address."""
    command = [sys.executable, "-m", "midstream", "view", *map(str, arguments), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with viewing(*(runs / name for name in ("first", "second", "hostile"))) as address:
        yield address


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """A function that opens an address; at the end no page has written an error or asked another host."""
    contexts, problems = [], list[str]()

    def open_(address: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        host = address.split("/")[2]
        page.on(
            "response", lambda reply: problems.append(f"{reply.status} {reply.url}") if reply.status >= 400 else None
        )
        page.on("request", lambda request: problems.append(request.url) if host not in request.url else None)
        page.goto(address)
        page.get_by_role("heading", level=1).wait_for()
        return page

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


def group_of(address: str, page: Any, run: str = "first", part: str = "step-000010") -> str:
    """The address of the first group of a part."""
    document = page.request.get(f"{address}api/run/{run}/part/{part}").json()
    task = document["entries"][0]["task"]
    return f"{address}#/{run}/{part}/" + page.evaluate("encodeURIComponent", task)


def serious(page: Any) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found if each["impact"] in ("serious", "critical")]


def test_every_page_opens_and_axe_finds_nothing_serious(address: str, open_page: Any):
    page = open_page(f"{address}#/")
    assert page.get_by_role("link", name="first").count() >= 1
    group = group_of(address, page)
    failures, which = "#/first/step-000010?view=failures", "#/?compare=first,second&which=next"
    for place in ("#/", "#/first", "#/first/step-000010", failures, "#/?compare=first,second", which):
        page.goto(f"{address}{place}")
        page.get_by_role("heading", level=1).wait_for()
        assert serious(page) == [], place
    for behind in ("", "/0", "/0/1", "/0/1/2"):
        page.goto(group + behind)
        page.get_by_role("heading", level=1).wait_for()
        assert serious(page) == [], behind
    page.get_by_role("main").get_by_text("Completion").first.wait_for()


def test_a_filter_stands_in_the_address_and_the_back_button_leaves_it(address: str, open_page: Any):
    page = open_page(f"{address}#/first/step-000010")
    document = page.request.get(f"{address}api/run/first/part/step-000010").json()["entries"]
    solved = [entry for entry in document if entry["reward"] == 1]
    assert 0 < len(solved) < len(document)
    page.get_by_role("combobox", name="reward").select_option("1")
    page.get_by_text(re.compile(rf"^{len(solved)} rollouts? fits?")).wait_for()
    assert "reward=1" in page.url
    copied = open_page(page.url)
    copied.get_by_text(re.compile(rf"^{len(solved)} rollouts? fits?")).wait_for()
    page.get_by_role("combobox", name="reward").select_option("")
    page.get_by_role("searchbox", name="Search text").fill("no text has this")
    page.get_by_text("0 rollouts fit").wait_for()


def test_two_runs_are_chosen_and_compared(address: str, open_page: Any):
    page = open_page(f"{address}#/")
    for name in ("first", "second"):
        page.get_by_role("row", name=re.compile(rf"\b{name}\b")).get_by_role("checkbox").check()
    page.get_by_role("button", name=re.compile("^Compare")).click()
    page.wait_for_url(re.compile("compare=(first,second|second,first)"))
    # The list of runs has a table, too, so only the words show that the comparison is there.
    page.get_by_text("the same").first.wait_for()


def test_a_person_says_which_answer_is_better_by_keys_and_takes_it_back(open_page: Any, tmp_path: Path):
    first = write(tmp_path / "a", {f"t{number}": [1.0] for number in range(3)})
    other = write(tmp_path / "b", {f"t{number}": [0.0] for number in range(3)})
    with viewing(first, other) as address:
        page = open_page(f"{address}#/?compare=a,b")
        page.get_by_role("link", name="Which is better?").click()
        page.get_by_text("0 of 3 questions judged").wait_for()
        assert "A" not in page.inner_text("main").split()
        assert serious(page) == []
        page.keyboard.press("1")
        page.get_by_text("Question 2 of 3").wait_for()
        page.get_by_role("button", name="Equal").click()
        page.get_by_text("2 of 3 questions judged").wait_for()
        page.keyboard.press("k")
        page.get_by_role("button", name="Equal", pressed=True).wait_for()
        page.keyboard.press("x")
        page.get_by_text("1 of 3 questions judged").wait_for()
        page.get_by_role("link", name="To the comparison").click()
        page.get_by_text("of 1 task (exact 95% interval").wait_for()
        page.context.close()  # it would report the end of the server


@pytest.mark.parametrize("width", [1280, 390])
def test_a_person_approves_one_change_and_rejects_the_other(open_page: Any, tmp_path: Path, width: int):
    run = write_waiting(tmp_path / "run")
    with viewing(run.root) as address:
        page = open_page(f"{address}#/run", viewport={"width": width, "height": 900})
        page.get_by_text("+5.0 (+1.0 to +9.0) points, 32 pairs").first.wait_for()
        assert page.locator(".difference .added").first.inner_text().split("\n")[-1] == "Write <b>units</b> down."
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert serious(page) == []
        for verdict, left in (("Approve", 1), ("Reject", 0)):
            page.get_by_role("button", name=verdict).first.click()
            page.locator(".change").nth(left).wait_for(state="detached")
        page.get_by_text("3 lessons in the prompts").first.wait_for()
        page.context.close()  # it would report the end of the server
    other = write_waiting(tmp_path / "other")
    write_runs([other.root], other.report_path)
    page = open_page(f"file://{other.report_path}", viewport={"width": width, "height": 900})
    assert page.locator(".change .difference").count() == 2
    assert page.get_by_role("button", name="Approve").count() == 0
    assert [version.by for version in History(run.lessons_dir).all()] == ["start", "learning", "approval"]


def test_an_expression_filters_when_it_is_entered(address: str, open_page: Any):
    page = open_page(f"{address}#/first/step-000010")
    entries = page.request.get(f"{address}api/run/first/part/step-000010").json()["entries"]
    count = sum(entry["turns"] > 1 for entry in entries)
    page.get_by_role("searchbox", name="Expression").fill("turns > 1")
    page.keyboard.press("Enter")
    page.get_by_text(re.compile(rf"^{count} rollouts? fits?")).wait_for()
    assert "where=turns" in page.url


@pytest.mark.slow
def test_an_error_is_shown_in_the_words_of_the_server(address: str, tmp_path: Path, runs: Path, browser: Any):
    page = browser.new_page()
    page.goto(f"{address}#/nobody")
    page.get_by_role("heading", name="Not found").wait_for()
    body = page.request.get(f"{address}api/run/nobody").json()
    assert body["what"] in page.get_by_role("alert").inner_text()
    other = tmp_path / "other"
    write(other, {"t0": [1.0]}, sampling="T=9")
    with viewing(runs / "first", other) as both:
        page.goto(f"{both}#/compare/first/other")
        page.get_by_role("heading", name="could not be loaded").wait_for()
        body = page.request.get(f"{both}api/compare/first/other").json()
        text = page.get_by_role("alert").inner_text()
        assert all(body[name] and body[name] in text for name in ("what", "cause", "fix"))
    page.close()


def test_a_token_has_an_address_and_keys_move_along(address: str, open_page: Any):
    page = open_page(f"{address}#/first")
    page.goto(group_of(address, page) + "/0/1/2")
    page.get_by_text(re.compile("tokens, trained")).wait_for()
    before = page.url
    page.keyboard.press("l")
    page.wait_for_url(before[:-1] + "3")
    page.keyboard.press("h")
    page.wait_for_url(before)


def test_the_keyboard_alone_reaches_a_trajectory_and_votes(address: str, runs: Path, open_page: Any):
    page = open_page(f"{address}#/second/step-000010")
    page.get_by_role("link", name="How").or_(page.get_by_role("link", name="What")).first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("group", name="Your judgment").wait_for()
    page.keyboard.press("v")
    page.get_by_role("button", name="Good", pressed=True).wait_for()
    path = runs / "second" / "feedback.jsonl"
    page.wait_for_function("() => document.querySelector('[aria-pressed=true]')")
    for _ in range(100):
        if path.exists() and path.read_text():
            break
        page.wait_for_timeout(50)
    (record,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert record["vote"] == "up"
    page.reload()
    page.get_by_role("button", name="Good", pressed=True).wait_for()
    other = {"part": record["part"], "id": record["id"], "vote": "down"}
    page.request.post(f"{address}api/run/second/feedback", data=other, headers={"X-Midstream": "view"})
    page.get_by_role("button", name="Bad", pressed=True).wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.wait_for_url(re.compile(r"step-000010(/[^/]+)?$"))


def test_hostile_text_is_text(address: str, open_page: Any):
    page = open_page(f"{address}#/hostile/step-000001")
    group = group_of(address, page, "hostile", "step-000001")
    for behind in ("", "/0"):
        page.goto(group + behind)
        page.get_by_role("heading", level=1).wait_for()
        page.get_by_text("<script>document.title").first.wait_for()
        text = page.inner_text("body")
        assert "\u202e" not in text
        assert "\x1b" not in text
        assert page.title() != "owned"
        hrefs = page.evaluate("[...document.querySelectorAll('[href]')].map((link) => link.getAttribute('href'))")
        assert [href for href in hrefs if "javascript:" in href and not href.startswith("#/")] == []
        assert page.evaluate("document.querySelectorAll('#app script, #app img').length") == 0
        assert page.evaluate("document.body.innerHTML.length") < 1_000_000  # two megabytes are folded
    assert r"\u202e" in text


@pytest.mark.slow
def test_a_new_step_is_shown_within_two_seconds_also_by_a_server_that_restarted(
    finished_run: Path, tmp_path: Path, open_page: Any
):
    whole, growing = RunDirectory(finished_run), RunDirectory(tmp_path / "growing")
    shutil.copytree(finished_run, growing.root)
    growing.rewind(4)
    took = []

    def shows(page: Any, step: int) -> None:
        began = time.monotonic()
        page.get_by_role("link", name=f"step {step}").wait_for()
        took.append(time.monotonic() - began)

    with viewing(growing.root, "--port", "0") as address:
        page = open_page(f"{address}#/growing")
        assert page.get_by_role("link", name="step 5").count() == 0
        add_step(whole, growing, 5)
        shows(page, 5)
        port = address.split(":")[2].split("/")[0]
        page.context.close()  # it would report the end of the server
    with viewing(growing.root, "--port", port) as again:
        add_step(whole, growing, 6)
        page = open_page(f"{again}#/growing")
        page.get_by_role("link", name="step 6").wait_for()
        add_step(whole, growing, 7)
        shows(page, 7)
        steps = page.get_by_role("link", name=re.compile(r"^step \d+")).all_inner_texts()
        assert sorted(steps) == sorted(set(steps))
        assert len(steps) == 7
        page.context.close()
    assert min(took) < 2  # a busy machine may be late once


def add_step(source: RunDirectory, target: RunDirectory, step: int) -> None:
    """Append a step of another run, as a training run does."""
    target.trajectories.write(step, source.trajectories.read(step))
    for name in ("metrics", "timings"):
        for record in getattr(source, name).read():
            if record.step == step:
                getattr(target, name).append(record)
