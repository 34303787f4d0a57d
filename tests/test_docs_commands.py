"""Every command of docs/ is run by a test: the pages of `PAGES` by their own, the others here, but for `NOT_RUN`.

Trainings, studies and commands with files of a reader's own are validated with `--dry-run`; a scripted server answers
where a page asks a provider.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

# Imported here, so that the first case of a worker does not pay for it.
from midstream.cli import doctor, solve, train  # noqa: F401
from midstream.cli.main import main
from support.evaluations import write
from support.learned import write_run
from support.llm_server import AgentFlowReplies, LLMServer

ROOT = Path(__file__).parents[1]
# Pages whose blocks run in their order, and the test that does it.
PAGES = {
    "README.md": "test_readme.py",
    "any-agent.md": "test_any_agent_page.py",
    "extending.md": "test_extending_page.py",
    "python.md": "interface/test_python_page.py",
    "tools.md": "test_tools_page.py",
}
# Where the part of such a page begins that this test runs.
REST = {"tools.md": "\n## Search, web pages, MCP servers\n"}
# What no test runs, and why; `test_docs.py` still parses each and loads its recipe.
NOT_RUN = {
    r"make |\.venv/bin/": "it is a target of make, which .ci/run calls, or part of the tests",
    r"pip install": "the network",
    r"python (benchmarks|-m studies)|midstream study|torchrun": "minutes to hours; each has a test with little work",
    r".*(RECIPE|\bRUN\b|CLONE|\"\.\.\.\")": "a placeholder",
    r".*--serve-with|.*agentflow-7b --set simulated": "a GPU or vLLM; tests/servers/ runs vLLM on CPU",
    r"midstream (train|resume|eval|demo|simulator).*"
    r"(runs/(real|simulator|start|both|tiny|mine|text|searches)|mine\.toml)": "a run, or recipe, of the page "
    "before it; the recipes are trained in tests/test_readme.py and tests/recipe",
    r"midstream demo --(text|real)": "plugins/midstream-worlds/tests/test_demo.py runs it; or a model is fetched",
    r"midstream (compare|lessons).*(tiny-|artist|--group|@1|edit|runs/alone|eval-a)": "runs that take minutes; "
    "tests/cli runs the commands with others",
    r"midstream (show|solve|call).*(runs/artist|mine\.toml|runs/mine)": "a run or a recipe of the page before it",
    r".*question_field|.*--reward judge": "rows or a judge of the reader's own; tests/cli/test_eval.py has both",
    r".*runs/eval-mine": "an evaluation of the page before it; tests/exports/test_export.py exports one",
    r"midstream list benchmarks medqa|midstream .*--benchmark|.*my-bfcl\.toml": "data from the Hugging Face Hub",
    r"midstream models fetch|.*local/(smollm2|qwen05b)": "a model from the network; tests/cli/test_models.py has a "
    "stand-in",
    r"midstream view( runs/demo)?$": "it serves until Ctrl-C; tests/view/ runs it",
    r"midstream lessons (validate|rollback)": "asks a model, or needs versions; tests/cli/test_lessons.py runs it",
}


def lines_of(path: Path, start: str = "") -> list[str]:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    text = text[text.index(start) :]
    blocks = [block for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]
    found = [line.strip() for block in blocks for line in block.splitlines()]
    found += re.findall(r"^    ((?:midstream|python|torchrun) .*)$", text, re.MULTILINE)
    word = r"(OPENAI_API_KEY=\S+ )?(midstream|make|python|\.venv/bin/\S+|torchrun|pip) "
    return [line for line in found if re.match(word, line) and not re.match(r"python\s{2,}", line)]


def reason(line: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, line.partition("  #")[0].strip())), None)


PAGES_HERE = [path for path in sorted(ROOT.glob("docs/*.md")) if path.name not in {*PAGES} - {*REST}]
DOCUMENTS = [*PAGES_HERE, *sorted(ROOT.glob("studies/*.md")), ROOT / "benchmarks" / "README.md"]
EVERY = [*sorted(ROOT.glob("docs/*.md")), *DOCUMENTS, *sorted(ROOT.glob("plugins/*/README.md"))]
LINES = [line for path in DOCUMENTS for line in lines_of(path, REST.get(path.name, ""))]
HERE = list(dict.fromkeys(line for line in LINES if reason(line) is None))


def test_a_page_with_blocks_has_its_test():
    for page, test in PAGES.items():
        assert (ROOT / "tests" / test).is_file()
        assert page in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_python_blocks_run():
    """Blocks of Python stand on the pages whose tests run them; the exceptions show a form."""
    python = {path.name for path in ROOT.glob("docs/*.md") if "\n```python\n" in path.read_text(encoding="utf-8")}
    # docs/extending.md has the tracker, test_lessons_page.py runs the agent of docs/lessons.md.
    assert python - {*PAGES} == {"tracking.md", "lessons.md"}


def test_each_exception_is_there():
    lines = [line.partition("  #")[0].strip() for path in EVERY for line in lines_of(path)]
    assert not [pattern for pattern in NOT_RUN if not any(re.match(pattern, line) for line in lines)]
    assert len(HERE) > 35


@pytest.fixture(scope="module")
def server():
    with LLMServer(AgentFlowReplies()) as server:
        yield server.base_url


@pytest.fixture(scope="module")
def directory(tmp_path_factory, finished_run):
    place = tmp_path_factory.mktemp("reader")
    (place / "runs").mkdir()
    shutil.copytree(finished_run, place / "runs" / "demo")
    write_run(place / "runs" / "lessons")
    for group in ("a", "b"):
        shutil.copytree(finished_run, place / "runs" / f"{group}-s1")
        write(place / "runs" / f"eval-{group}", {f"t{i}": [1.0, 0.0] for i in range(8)})
    shutil.copytree(ROOT / "examples", place / "examples")
    questions = [{"question": f"How much is {i} plus 1 ?", "answer": str(i + 1)} for i in range(100)]
    for name in ("mine.jsonl", "questions.jsonl"):
        (place / name).write_text("\n".join(map(json.dumps, questions)))
    (place / "documents.jsonl").write_text(json.dumps({"id": "1", "text": "Harbors are by the sea."}))
    (place / "friends.csv").write_text("source,target\nAnn,Ben\nBen,Cem\nCem,Eve\nAnn,Cem\n")
    return place


@pytest.mark.matrix(7)
# `doctor` imports PyTorch in a process of its own; tests/doctor runs it.
@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.slow) if "doctor" in line else line for line in HERE]
)
def test_a_command_runs(line, directory, server, monkeypatch, capsys):
    monkeypatch.chdir(directory)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    words = [word for word in shlex.split(line, comments=True) if not word.startswith("OPENAI_API_KEY=")][1:]
    if "--provider" in words:
        words[words.index("--provider") : words.index("--provider") + 2] = ["--base-url", server]
    elif "--base-url" in words:
        words[words.index("--base-url") + 1] = server
    elif "--model" in words:
        words += ["--base-url", server]
    if "--planner" in words:  # the run of this test has another, smaller world
        words[1] = "What is 45 plus 17 ?"
    words = ["L1" if word == "L3" else word for word in words]
    if words[0] == "train" and "--dry-run" not in words:
        words.append("--dry-run")
    if words[0] == "eval":
        words += ["--count", "2"]
    code = main(words)
    assert code == 0 or (words[0] == "doctor" and code == 1), capsys.readouterr().err
