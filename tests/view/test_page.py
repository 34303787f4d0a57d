"""The page code in a browser, on made-up documents in one file: hostile text, axe, phones, keys, filters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import made_up_view

RUN = "flow-grpo-tiny-a"
STEP = f"#/{RUN}/step-000012"
GROUP = f"{STEP}/arith%2F0"
ADDRESSES = (
    "#/",
    f"#/{RUN}",
    STEP,
    f"{STEP}?view=failures",
    GROUP,
    f"{GROUP}/1",
    f"{GROUP}/1/2/215",
    f"#/?compare={RUN},live-run",
    "#/live-run",
)


Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """`open_page(address)` opens a file of the made-up documents; at the end no error and no request may have been."""
    found: list[str] = []

    def open_page(
        address: str = "#/", *, documents: dict[str, Any] | None = None, width: int = 1280, scheme: str = "light"
    ) -> Any:
        file = tmp_path / "page.html"
        file.write_text(made_up_view.page(documents or made_up_view.documents()), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page = context.new_page()
        page.on("console", lambda message: found.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: found.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: found.append(request.url) if not request.url.startswith(("file:", "data:")) else None,
        )
        page.goto(file.as_uri() + address)
        page.wait_for_selector("main h1")
        return page

    yield open_page
    assert found == []


def press(page: Any, keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(key)
        page.wait_for_timeout(120)


def until(page: Any, expression: str) -> None:
    """Wait until a JavaScript expression holds. Playwright's own way needs `eval`, which the page's policy forbids."""
    deadline = time.monotonic() + 10
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"never: {expression}"
        page.wait_for_timeout(30)


def at(page: Any) -> str:
    return page.evaluate("location.hash")


@pytest.mark.matrix(1)
@pytest.mark.parametrize("address", ADDRESSES)
def test_hostile_text_is_shown_as_text(open_page, address):
    page = open_page(address)
    page.evaluate("document.querySelectorAll('details').forEach((fold) => fold.open = true)")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img, main iframe").count() == 0
    links = page.evaluate("[...document.querySelectorAll('a')].map((link) => link.getAttribute('href'))")
    assert all(link.startswith("#/") for link in links)
    text = page.evaluate("document.body.innerText")
    assert not {"\u202e", "\x1b", "\x07"} & set(text)
    if address not in ("#/", f"{GROUP}/1/2/215", "#/live-run"):
        assert "<script>window.hacked = 1</script>" in text


def test_what_is_hidden_is_written_out(open_page):
    text = open_page(f"{GROUP}/1").evaluate("document.querySelector('main').innerText")
    assert r"\u202etxt.exe\u202c \x1b[31mred\x07 pay\u200bpal" in text


@pytest.mark.matrix(1)
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page, address, scheme):
    from axe_playwright_python.sync_playwright import Axe

    for width in (1280, 375):
        page = open_page(address, width=width, scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach((fold) => fold.open = true)")
        found = Axe().run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []


@pytest.mark.matrix(1)
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_phone_shows_each_page_without_scrolling_sideways(open_page, address):
    page = open_page(address, width=375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_keys_alone_lead_from_the_runs_to_a_token_and_back(open_page):
    page = open_page("#/")
    press(page, "j Enter")
    assert at(page) == f"#/{RUN}"
    press(page, "j j Enter")  # the evaluation, then the newest step
    assert at(page) == STEP
    page.wait_for_selector(".entry a")
    press(page, "j j Enter")
    page.wait_for_selector(".turn")
    assert at(page) == f"{GROUP}/1"
    press(page, "l j j")
    assert at(page) == f"{GROUP}/2/2"
    press(page, "t")
    page.wait_for_selector(".token")
    assert at(page) == f"{GROUP}/2/2/0?call=3"
    press(page, "s l l")
    assert at(page) == f"{GROUP}/2/2/213?call=3"
    assert page.evaluate("document.activeElement.dataset.token") == "213"
    press(page, "u u u")
    assert at(page) == GROUP
    for _ in range(3):
        page.go_back()
    page.wait_for_selector(".token")
    assert at(page) == f"{GROUP}/2/2/213?call=3"


@pytest.mark.slow
def test_question_mark_lists_the_keys_of_the_page(open_page):
    page = open_page(GROUP)
    press(page, "?")
    text = page.locator("dialog").inner_text()
    assert "first turn that differs" in text
    assert "dark or light" in text
    press(page, "Escape")
    assert page.locator("dialog").count() == 0


def test_filters_stand_in_the_address_and_are_taken_from_it(open_page):
    page = open_page(f"{STEP}?reward=0&status=ok")
    page.wait_for_selector(".entry a")
    assert "98 rollouts fit" in page.locator(".count").inner_text()
    page.get_by_label("Any reward").or_(page.get_by_label("reward")).select_option("1")
    until(page, "document.querySelector('.count').innerText.startsWith('196')")
    assert at(page) == f"{STEP}?reward=1&status=ok"
    press(page, "/")
    page.keyboard.type("no such text")
    until(page, "location.hash.includes('text=no+such+text')")
    page.wait_for_selector(".empty")


@pytest.mark.slow
def test_two_runs_are_chosen_and_compared(open_page):
    page = open_page("#/")
    press(page, "j x j x c")
    page.wait_for_selector(".section")
    assert at(page) == f"#/?compare={RUN},live-run"
    page.go_back()
    page.wait_for_selector("[data-item]")
    assert page.locator("input[type=checkbox]:checked").count() == 2


@pytest.mark.slow
def test_the_former_address_of_a_comparison_is_read_and_a_run_may_be_called_compare(open_page):
    documents = made_up_view.documents()
    documents |= {path.replace(RUN, "compare"): document for path, document in documents.items() if "/part/" in path}
    page = open_page("#/compare/step-000012/arith%2F0", documents=documents)
    assert page.locator("table.group").count() == 1
    page = open_page(f"#/compare/{RUN}/live-run")
    assert "and live-run" in page.locator("h1").inner_text()


@pytest.mark.matrix(1)
@pytest.mark.parametrize(
    ("query", "words"),
    [("error=*", "6 rollouts fit"), ("reward=none", "6 rollouts fit"), ("tool=search", "8 rollouts fit")],
)
def test_a_file_filters_as_the_server_does(open_page, query, words):
    open_page(f"{STEP}?{query}").get_by_text(words).wait_for()


def test_failures_open_their_list_and_what_is_chosen_is_saved_as_tasks(open_page, tmp_path):
    page = open_page(f"{STEP}?view=failures")
    save = page.get_by_role("button", name="Save as tasks")
    assert save.is_disabled()
    page.get_by_label("Choose all: no answer").check()
    page.get_by_label("Choose all: no answer").uncheck()
    page.get_by_label("Choose rollout 0", exact=True).check()
    page.get_by_label("Choose rollout 3", exact=True).check()  # of the same task
    press(page, "j x")
    assert "rollouts of" in page.locator(".choose").inner_text()
    with page.expect_download() as download:
        save.click()
    download.value.save_as(tmp_path / "tasks.jsonl")
    document = made_up_view.documents()[f"run/{RUN}/part/step-000012/failures"]
    tasks = dict.fromkeys(row["task"] for row in document["causes"][0]["rollouts"])
    written = (tmp_path / "tasks.jsonl").read_text(encoding="utf-8")
    assert written == "".join(f"{document['tasks'][task]}\n" for task in tasks)
    assert "midstream eval RECIPE --tasks" in page.locator(".notice").inner_text()
    page.get_by_text("A run keeps no reward of a task's own").wait_for()
    page.get_by_role("link", name="no answer", exact=True).click()
    page.get_by_text(f"{len(document['causes'][1]['rollouts'])} rollouts fit").wait_for()
    page.get_by_label("Any cause").click()
    until(page, "location.hash.indexOf('cause') < 0")


def test_tasks_of_one_id_are_saved_apart_and_another_answer_is_named(open_page, tmp_path):
    documents = made_up_view.documents()
    failures = documents[f"run/{RUN}/part/step-000012/failures"]
    first, second, *_ = failures["causes"][0]["rollouts"]
    name = first["task"]
    assert second["task"] == name
    failures["tasks"][f"{name}-2"] = json.dumps({"id": f"{name}-2", "question": "Another?", "answer": ""})
    second |= {"line": f"{name}-2", "gold": "five"}
    page = open_page(f"{STEP}?view=failures", documents=documents)
    for rollout in (first, second):
        page.get_by_label(f"Choose rollout {rollout['place']}", exact=True).check()
    page.get_by_text("1 rollout has another correct answer").wait_for()
    page.get_by_text("1 task has no correct answer in the run").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as tasks").click()
    download.value.save_as(tmp_path / "tasks.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in rows] == [name, f"{name}-2"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ["Every rollout here is right."]),
        ({"unread": 2}, ["2 rollouts cannot be read.", "No rollout that failed can be read."]),
        (
            {"count": 100, "warnings": ["a.gz is damaged"]},
            ["200 rollouts cannot be read.", "a.gz is damaged", "Every rollout that can be read is right."],
        ),
        ({"count": 0, "warnings": ["a.gz is damaged"]}, ["300 rollouts cannot be read.", "No rollout that failed"]),
    ],
)
def test_only_a_part_that_was_read_is_called_right(open_page, changed, words):
    documents = made_up_view.documents()
    documents[f"run/{RUN}/part/step-000012/failures"] |= {"causes": [], "tasks": {}, **changed}
    page = open_page(f"{STEP}?view=failures", documents=documents)
    for each in words:
        page.get_by_text(each).wait_for()
    assert page.get_by_text("is right.").count() == sum("is right." in each for each in words)


def test_a_family_opens_what_failed_of_it(open_page):
    page = open_page(f"#/{RUN}")
    page.get_by_role("link", name="arith", exact=True).click()
    wrong = [p for p in range(300) if p % 4 and (p % 50 == 7 or p % 3 == 0)]
    page.get_by_text(f"{len(wrong)} rollouts fit").wait_for()
    assert at(page) == f"{STEP}?reward=wrong&family=arith"


@pytest.mark.slow
def test_what_is_no_filter_is_said(open_page):
    for query, words in (
        ("reward=abc", "is no filter"),
        ("status=fine", "is no filter"),
        ("where=1", "no expressions"),
    ):
        page = open_page(f"{STEP}?{query}")
        page.get_by_text(words).wait_for()
        assert page.locator(".filters").count() == 1
        assert page.locator(".entries").count() == 0


def test_a_part_that_is_not_there_is_no_list(open_page):
    page = open_page(f"#/{RUN}/nowhere")
    assert page.locator("main .notice").count() == 1
    assert page.locator(".filters, .entries").count() == 0


@pytest.mark.matrix(2)
@pytest.mark.parametrize("share", [0.8125, 0.8375, 0.9745, 0.0625, 1.0])
def test_a_share_is_rounded_as_python_does(open_page, share):
    documents = made_up_view.documents()
    documents[f"run/{RUN}"]["parts"][-1]["mean"] = share
    text = open_page(f"#/{RUN}", documents=documents).locator(".parts").first.inner_text()
    assert f"{share:.1%}" in text


def test_equal_rewards_are_not_called_left_out(open_page):
    documents = made_up_view.documents()
    group = documents[f"run/{RUN}/part/step-000012/group/arith%2F0"]
    group["left_out"] = "all rewards are equal: every advantage is 0"
    text = open_page(GROUP, documents=documents).locator(".page-head").inner_text()
    assert "All rewards are equal: every advantage is 0, and only a KL term trains." in text


def test_a_list_of_ten_thousand_has_few_rows_in_the_page(open_page):
    page = open_page(STEP, documents=made_up_view.documents(entries=10_000))
    page.wait_for_selector(".entry a")
    press(page, "End")
    until(page, "document.activeElement.dataset.index === '9999'")
    assert page.locator(".entry").count() < 80
    assert at(page) == f"{STEP}?at=9999"


@pytest.mark.slow
def test_of_many_turns_fifty_are_in_the_page(open_page):
    page = open_page(f"{GROUP}/1/19990", documents=made_up_view.documents(turns=20_000, hostile=""))
    page.wait_for_selector("[data-turn='19990']")
    assert page.locator(".turn").count() == 50
    assert page.locator(".turn.active h3").inner_text().startswith("Turn 19990")
    press(page, "k")
    assert at(page) == f"{GROUP}/1/19989"


@pytest.mark.slow
def test_the_prompt_shows_what_changed(open_page):
    page = open_page(f"{GROUP}/1/2")
    press(page, "o")
    page.locator(".turn.active button", has_text="Prompt").first.click()
    page.wait_for_selector(".prompt ins")
    assert page.locator(".prompt pre del").inner_text().strip() == "[Memory] nothing yet"
    assert "characters unchanged" in page.locator(".prompt .gap").inner_text()


def test_what_a_file_left_out_names_the_command_that_shows_it(open_page):
    page = open_page("#/live-run")
    assert "midstream view live-run" in page.locator(".notice pre").inner_text()


@pytest.mark.slow
def test_huge_text_is_cut_until_it_is_asked_for(open_page):
    documents = made_up_view.documents()
    path = f"run/{RUN}/part/step-000012/trajectory/1"
    documents[path]["turns"][0]["rows"][0]["text"] = "x" * 1_000_000
    page = open_page(f"{GROUP}/1", documents=documents)
    assert page.evaluate("document.getElementById('app').textContent.length") < 100_000
    page.locator(".turn button", has_text="more of").first.click()
    assert page.evaluate("document.querySelector('.turn .long').textContent.length") == 200_000


@pytest.mark.slow
def test_dark_and_light_are_chosen_and_kept(open_page):
    page = open_page("#/", scheme="light")
    color = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(color)
    press(page, "d")
    assert page.evaluate(color) != light
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate(color) != light


def test_a_page_that_does_not_unpack_says_so(browser, tmp_path):
    file = tmp_path / "broken.html"
    good = made_up_view.page({"runs": {"title": "", "runs": []}})
    start = good.index('id="data">') + len('id="data">')
    file.write_text(good[:start] + "AAAA" + good[start + 40 :], encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    assert "could not be loaded" in page.locator("main h1").inner_text()
