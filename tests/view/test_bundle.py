"""Runs in files: what they hold, within how many bytes, and that a browser opens them from disk without any request."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from midstream.cli.main import main
from midstream.core.errors import RunError, StorageError, UsageError
from midstream.core.trajectory import Score, Trajectory
from midstream.report.comparison import compare
from midstream.runs import RunDirectory
from midstream.view.bundle import page_html, write_runs, write_trajectory
from midstream.view.documents import Documents
from support.errors import coded
from support.evaluations import write
from support.pages import documents_of

KINDS = ("training", "deeper/lessons", "evaluation")
HOSTILE = (
    "<script>window.hacked=1</script>", "</script><script>window.hacked=2</script>", "<!--<script>",
    "<img src=x onerror=window.hacked=3>", "javascript:window.hacked=4", "\u202eevil\u2066", "a\0b", "\ud800",
)  # fmt: skip


class Parsed(HTMLParser):
    """The scripts, styles and policy of a page."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=False)
        self.inside, self.policy, self.tags = "", "", list[str]()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        if tag == "script":
            self.scripts.append((found, ""))
        if tag == "style":
            self.styles.append("")
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        if self.inside == "style":
            self.styles[-1] += data


def trajectories(documents: dict[str, Any]) -> list[str]:
    return [path for path in documents if re.fullmatch(r"run/.*/trajectory/\d+", path)]


@pytest.fixture(scope="module")
def pages(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of each run."""
    root = tmp_path_factory.mktemp("pages")
    for kind in KINDS:
        write_runs([runs / kind], root / f"{Path(kind).name}.html")
    return {kind: root / f"{Path(kind).name}.html" for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_holds_what_the_viewer_would_answer(runs: Path, pages: dict[str, Path], kind: str) -> None:
    held, name = documents_of(pages[kind]), Path(kind).name
    documents = Documents([runs / kind])
    overview = held[f"run/{name}"]
    assert overview["parts"] == documents.run(name)["parts"]
    *sections, last = overview["page"]["sections"]
    assert sections == documents.run(name)["page"]["sections"]
    assert last["key"] == "file"
    assert f"midstream view {runs / kind}" in last["blocks"][1]["text"]
    lists = [path for path in held if re.fullmatch(r"run/[^/]*/part/[^/]*", path)]
    assert {path.rpartition("/")[2] for path in lists} >= {
        part["name"] for part in overview["parts"] if part["kind"] == "evaluation"
    }
    for path in trajectories(held):
        part, place = path.split("/")[3], int(path.rpartition("/")[2])
        assert held[path] == json.loads(json.dumps(documents.trajectory(name, part, place)))
    count = sum(part["count"] for part in overview["parts"])
    assert len(trajectories(held)) >= min(count, 150), "they are small"


def test_calls_and_their_tokens_are_there(pages: dict[str, Path]) -> None:
    held = documents_of(pages["training"])
    path = next(path for path in trajectories(held) if "/step-" in path)
    calls = [call for turn in held[path]["turns"] for call in turn["calls"]]
    assert calls
    for call in calls:
        assert held[f"{path}/call/{call['n']}"]["messages"]
        assert bool(call["tokens"]) == (f"{path}/call/{call['n']}/tokens" in held)


def test_the_policy_allows_these_scripts_and_no_other(pages: dict[str, Path]) -> None:
    page = Parsed(pages["training"].read_text())
    assert "unsafe" not in page.policy
    assert page.policy.startswith("default-src 'none'; ")
    allowed = re.findall(r"'sha256-([^']*)'", page.policy)
    run = [text for attributes, text in page.scripts if "type" not in attributes]
    assert [base64.b64encode(sha256(text.encode()).digest()).decode() for text in [*run, *page.styles]] == allowed
    assert not {"img", "iframe", "object", "base", "form"} & set(page.tags)


def test_equal_runs_give_equal_pages(runs: Path, pages: dict[str, Path], tmp_path: Path) -> None:
    write_runs([runs / "evaluation"], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == pages["evaluation"].read_bytes()


def test_bytes_decide_how_much_is_there(runs: Path, tmp_path: Path) -> None:
    run, code = RunDirectory.open(runs / "training"), len(page_html({}, title="", start=""))
    sizes = {}
    for room in (0.02, 0.03, 0.06):
        path = tmp_path / f"{room}.html"
        write_runs([run.root], path, max_mb=code / 1e6 + room)
        sizes[room] = (path.stat().st_size - code, len(trajectories(documents_of(path))))
        assert sizes[room][0] <= room * 1e6 * 1.1 or not sizes[room][1], "overviews are written whatever they take"
    counts = [count for _, count in sizes.values()]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    path = tmp_path / "0.02.html"
    (words, _) = documents_of(path)["run/training"]["page"]["sections"][-1]["blocks"]
    assert words["text"].startswith(f"This file holds {counts[0]} of the ")
    with pytest.raises(UsageError, check=coded("setting-range", "--max-mb 0")):
        write_runs([run.root], path, max_mb=0)


def test_wrong_and_right_trajectories_of_evaluations_come_first(tmp_path: Path) -> None:
    run = RunDirectory(write(tmp_path / "run", {f"t{place}": [float(place % 2)] for place in range(60)}))
    name, code = "run", len(page_html({}, title="", start=""))
    held: dict[str, Any] = {}
    for room in range(8, 40):
        write_runs([run.root], tmp_path / "page.html", max_mb=code / 1e6 + room / 1000)
        held = documents_of(tmp_path / "page.html")
        if len(trajectories(held)) > 3:
            break
    assert f"run/{name}" in held
    assert [held[path]["reward"] for path in trajectories(held)][:4] == [0.0, 1.0] * 2


@pytest.mark.slow
def test_a_page_may_hold_all_runs_below_a_directory(runs: Path, tmp_path: Path) -> None:
    write_runs([runs], tmp_path / "page.html")
    held = documents_of(tmp_path / "page.html")
    assert {run["run"] for run in held["runs"]["runs"]} == {"training", "lessons", "evaluation"}
    assert {f"run/{Path(kind).name}" for kind in KINDS} <= set(held)
    assert {path.split("/")[1] for path in trajectories(held)} == {"training", "lessons", "evaluation"}
    assert (tmp_path / "page.html").stat().st_size < 3e6


def test_a_page_of_two_runs_compares_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write(tmp_path / "runs" / name, {f"t{i}": [float(i < 2 + (name == "b"))] for i in range(4)})
    assert main(["view", "runs", "--file"]) == 0
    assert capsys.readouterr().out == "runs.html\n"
    held = documents_of(tmp_path / "runs.html")
    assert {"compare/a/b", "compare/b/a"} <= held.keys()
    assert len(trajectories(held)) == 8


def test_the_command_writes_a_trajectorys_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = write(tmp_path / "run", {"t0": [1.0], "t1": [0.0]})
    assert main(["view", str(root), "t1#0", "--file"]) == 0
    assert capsys.readouterr().out == "trajectory.html\n"
    held = documents_of(tmp_path / "trajectory.html")
    assert [held[path]["id"] for path in trajectories(held)] == ["t1#0"]


def test_a_trajectory_has_a_page(runs: Path, tmp_path: Path) -> None:
    run = RunDirectory.open(runs / "training")
    part, listed = next(iter(run.trajectories.parts().items()))
    first = next(iter(listed))
    write_trajectory(run, f"{part}/{first.id}", tmp_path / "page.html")
    held = documents_of(tmp_path / "page.html")
    (path,) = trajectories(held)
    assert held[path]["id"] == first.id
    assert f"run/training/part/{part}" in held
    assert all(f"{path}/call/{call['n']}" in held for turn in held[path]["turns"] for call in turn["calls"])
    with pytest.raises(RunError, check=coded("trajectory-not-found", "no trajectory")):
        write_trajectory(run, "nothing", tmp_path / "page.html")


def test_a_page_that_cannot_be_written_says_why(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, check=coded("write-failed", "page.html")):
        write_runs([runs / "evaluation"], tmp_path / "file" / "page.html")


@pytest.mark.slow
def test_a_damaged_run_has_a_page_that_says_what_is_missing(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(runs / "training", root)
    for path in root.glob("trajectories/eval-test*"):
        path.write_bytes(path.read_bytes()[:200])
    with (root / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "policy_ver')
    (root / "trajectories" / "step-000003.jsonl.gz").unlink()
    write_runs([root], tmp_path / "page.html")
    overview = documents_of(tmp_path / "page.html")["run/run"]
    assert "the trajectories of step 3 are missing" in overview["warnings"]
    assert overview["page"]["lead"].startswith("10 training steps")


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_each_kind_of_page(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = str(runs / "training")
    first = next(iter(RunDirectory.open(Path(run)).trajectories.parts()["step-000001"]))
    assert main(["view", str(runs / "evaluation"), "--file", "evaluation.html"]) == 0
    assert capsys.readouterr().out == "evaluation.html\n"
    assert main(["view", run, f"step-000001/{first.id}", "--file"]) == 0
    assert main(["view", f"{run}@0", run, "--file"]) == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "comparison.html",
        "evaluation.html",
        "trajectory.html",
    ]
    page = documents_of(tmp_path / "comparison.html")["compare/training/training"]
    tables = [block for block in page["sections"][1]["blocks"] if block["kind"] == "table"]
    found = compare(f"{run}@0", run).found
    assert [row["cells"][0] for table in tables for row in table["rows"]] == ["A", "B"] * len(found)
    assert tables[0]["rows"][1]["cells"][4]["interval"]["mid"] == pytest.approx(found[0].difference)
    assert main(["view", run, "nothing", "--file"]) == 2
    (tmp_path / "mine.html").write_text("mine")
    assert main(["view", run, "--file", "mine.html"]) == 2
    assert (tmp_path / "mine.html").read_text() == "mine"


# --- in a browser -----------------------------------------------------------------------------------------------------

Open = Callable[[Path, str], Any]


@pytest.fixture
def open_file(browser: Any) -> Iterator[Open]:
    """`open_file(path, address)` opens a file without a network; no message, error or request may have been."""
    found: list[str] = []
    context = browser.new_context(offline=True)

    def open_file(path: Path, address: str = "") -> Any:
        page = context.new_page()
        page.on("console", lambda message: found.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: found.append(f"error: {error}"))
        page.on(
            "request", lambda request: None if request.url.startswith(("file:", "data:")) else found.append(request.url)
        )
        page.goto(path.as_uri() + address)
        page.wait_for_selector("main h1")
        return page

    yield open_file
    context.close()
    assert [said for said in found if not said.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_opens_at_its_run(pages: dict[str, Path], open_file: Open, kind: str) -> None:
    page = open_file(pages[kind])
    assert page.evaluate("location.hash") == f"#/{Path(kind).name}"
    overview = documents_of(pages[kind])[f"run/{Path(kind).name}"]
    assert page.locator("main h1").inner_text() == overview["page"]["title"]
    assert [title.inner_text() for title in page.locator("main section > h2").all()] == [
        section["title"] for section in overview["page"]["sections"]
    ]


@pytest.mark.slow
def test_every_address_of_a_page_of_several_runs_opens(runs: Path, tmp_path: Path, open_file: Open) -> None:
    index = tmp_path / "page.html"
    write_runs([runs], index)
    held = documents_of(index)
    path = next(path for path in trajectories(held) if "/step-" in path)
    _, run, _, part, _, place = path.split("/")
    task = held[path]["task"]
    for address in ("#/", f"#/{run}", f"#/{run}/{part}", f"#/{run}/{part}/{task}", f"#/{run}/{part}/{task}/@{place}"):
        page = open_file(index, address)
        assert page.locator(".notice").count() == 0, address
    missing = open_file(index, "#/training/step-000099")
    assert "Not in this file" in missing.locator("main").inner_text()


@pytest.mark.slow
def test_hostile_text_stays_text(tmp_path: Path, open_file: Open) -> None:
    run = RunDirectory(write(tmp_path / "run", {"t0": [1.0]}))
    long = "<b>" * 1_700_000  # 5 MB
    hostile = [
        Trajectory(id=f"r{place}", task_id=text, question=text, answer=text, gold=text, reward=Score(value=0.0))
        for place, text in enumerate([*HOSTILE, long])
    ]
    (name,) = run.trajectories.parts()
    run.trajectories.write(name.removeprefix("eval-"), hostile)
    write_runs([run.root], tmp_path / "page.html")
    held = documents_of(tmp_path / "page.html")
    assert len(trajectories(held)) == len(hostile)
    assert len(held[trajectories(held)[-1]]["question"]) == len(long)
    for place in range(len(hostile)):
        page = open_file(tmp_path / "page.html", f"#/run/{name}/x/@{place}")
        assert page.evaluate("window.hacked") is None
        assert page.locator("main script, main img, main b b").count() == 0
        page.close()
