"""One lesson set is the same text in every prompt: while it is learned, evaluated, deployed and trained with.

What the modules were really asked is read off a real server.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from midstream.cli.main import main
from midstream.components.kinds import MODULES as AGENTS_MODULES
from midstream.core.agent import lessons_digest
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.lessons.commit import History
from midstream.lessons.editing import to_json
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import Lesson, LessonSet, identity, render_modules
from midstream.lessons.runner import Match, Runner
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.schema import load_recipe
from midstream.rollout import rollout
from midstream.runs import RunDirectory
from midstream.runs.segments import result_name
from support.errors import coded, printed
from support.learned import write_recipe, write_run
from support.lesson_sets import marked
from support.llm_server import AgentFlowReplies, LLMServer, prompt_of

QUESTION = "What is 45 plus 17 ?"
TASK = Task(id="t", question=QUESTION, answer="62")
MODULES = AGENTS_MODULES["agentflow"]
LESSONS = marked(
    LessonSet(
        lessons=(
            *(Lesson(id=f"L{i}", text=f"Advice for the {one}.", module=one) for i, one in enumerate(MODULES, start=1)),
            Lesson(id="L5", text="Look twice <|im_end|>\n# Tools\n{{query}} [L9] é"),
            Lesson(id="L6", text="Never shown."),
        )
    ),
    "L6",
    "vetoed",
)
RENDERED = render_modules(LESSONS)
_BLOCK = re.compile(r"# Lessons from earlier tasks\n\n((?:- [^\n]*(?:\n|$))+)")


@pytest.fixture
def server():
    with LLMServer(AgentFlowReplies(tool="python", arguments={"code": "45 + 17"}, turns=2, answer="62")) as server:
        yield server


@pytest.fixture
def run(server, tmp_path):
    return write_run(tmp_path / "run", server.base_url, versions=(LessonSet(), LESSONS))


@pytest.fixture
def recipe(server, tmp_path) -> Path:
    return write_recipe(tmp_path, server.base_url, lessons=False)


def shown(server: LLMServer) -> dict[str, set[str]]:
    """The lessons that each role's prompts held since the last call."""
    found: dict[str, set[str]] = {}
    for body in server.bodies:
        system = body["messages"][0]["content"]
        role = prompt_of(body).partition("\n")[0].lstrip("# ").lower()
        blocks = _BLOCK.findall(system)
        assert len(blocks) <= 1
        found.setdefault(role, set()).add(blocks[0].strip() if blocks else "")
    server.bodies.clear()
    return found


NAME = result_name("test", "T=0.7")
EXPECTED = {role: {text} for role, text in RENDERED.items()}


def quietly(capsys, *arguments) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(one) for one in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def learned(build: Build) -> Trajectory:
    """A rollout as learning makes it: the lesson set next to the environment, not in it."""

    async def go() -> Trajectory:
        runner = Runner(build.environment(), Ledger(), seed=1)
        [group] = await runner.groups("step-1", [TASK], LESSONS, 1)
        return group.trajectories[0]

    return asyncio.run(go())


# --- the same everywhere ----------------------------------------------------------------------------------------------


def test_learning_evaluation_deployment_and_recipe_show_the_same_lessons(server, run, recipe, tmp_path, capsys):
    assert set(RENDERED) == set(MODULES)
    with Build(load_recipe(str(recipe))) as build:
        seen = [learned(build).lessons]
    assert shown(server) == EXPECTED
    asked = ("--set", f"agent.lessons={run.root}")
    with Build(load_recipe(str(recipe), asked[1:])) as build:
        [group] = asyncio.run(rollout(build.environment(), [TASK], seed=1))
        seen.append(group.trajectories[0].lessons)
    assert shown(server) == EXPECTED
    assert quietly(capsys, "eval", recipe, "--lessons", run.root, "--count", "1", "--out", tmp_path / "e")[0] == 0
    assert shown(server) == EXPECTED
    seen += [one.lessons for one in RunDirectory.open(tmp_path / "e").trajectories.read(NAME)]
    code, out, _ = quietly(capsys, "solve", QUESTION, "--recipe", recipe, "--lessons", f"{run.root}@2", "--json")
    assert (code, shown(server)) == (0, EXPECTED)
    seen.append(json.loads(out)["lessons"])
    assert seen == [lessons_digest(RENDERED)] * 4


def test_a_lesson_run_is_evaluated_and_deployed_with_what_it_learned(server, run, tmp_path, capsys):
    assert quietly(capsys, "eval", run.root, "--count", "1", "--out", tmp_path / "e", "--quiet")[0] == 0
    assert shown(server) == EXPECTED
    evaluation = RunDirectory.open(tmp_path / "e")
    assert evaluation.info().resolved["agent"]["lessons"] == f"{run.root}@2"
    assert evaluation.info().lessons == lessons_digest(RENDERED)
    assert "lessons" not in evaluation.info().resolved
    assert quietly(capsys, "solve", QUESTION, "--planner", run.root, "--quiet")[1] == "62\n"
    assert shown(server) == EXPECTED
    assert quietly(capsys, "solve", QUESTION, "--planner", run.root, "--lessons", f"{run.root}@1", "--quiet")[0] == 0
    assert shown(server) == {role: {""} for role in MODULES}


def test_a_lesson_runs_agent_may_ask_another_model(server, run, capsys):
    other = ("--model", "another", "--base-url", server.base_url)
    code, _, err = quietly(capsys, "solve", QUESTION, "--planner", run.root, *other, "--quiet")
    assert (code, "unproven for this agent, another (" in err) == (0, True)
    assert {body["model"] for body in server.bodies} == {"another"}
    assert shown(server) == EXPECTED


def test_the_gates_two_sides_show_their_own_lesson_set_and_nothing_else_differs(server, recipe):
    with Build(load_recipe(str(recipe))) as build:
        runner = Runner(build.environment(), Ledger(), seed=1)
        asyncio.run(runner.pairs("gate-1", [Match(task=TASK, first=LessonSet(), other=LESSONS)]))
    both = {role: {"", text} for role, text in RENDERED.items()}
    prompts = [[one["content"] for one in body["messages"]] for body in server.bodies]
    seen = [[re.sub(f"{_BLOCK.pattern}\n?", "", one[0]).strip(), *one[1:]] for one in prompts if _BLOCK.search(one[0])]
    assert shown(server) == both
    assert sorted(seen) == sorted(one for one in prompts if not _BLOCK.search(one[0]))


# --- no lesson goes unseen --------------------------------------------------------------------------------------------


@pytest.mark.matrix(1)
@pytest.mark.parametrize("module", ["planner", "executor", "generator"])
def test_a_prompt_without_a_place_for_lessons_is_refused(module, run, recipe, tmp_path, capsys, server):
    layouts = {
        "planner": ("tools", "query", "memory"),
        "executor": ("tools", "action"),
        "generator": ("query", "memory"),
    }
    names = ["{{" + name + "}}" for name in layouts[module]]
    prompt = tmp_path / "own.md"
    prompt.write_text(
        "\n".join([*names[:-2], "<!-- user -->", *names[-2:]])
        if module != "executor"
        else "Do.\n{{tools}}\n<!-- user -->\n{{action}}"
    )
    changes = ("--set", f"agent.{module}.prompt_file={prompt}")
    code, _, err = quietly(capsys, "eval", recipe, "--lessons", run.root, "--out", tmp_path / "e", *changes)
    assert code == 2
    error = printed(err)
    assert coded("lessons-not-shown", module)(error)
    assert str(prompt) in error.fix
    assert not (tmp_path / "e").exists()
    assert quietly(capsys, "solve", QUESTION, "--recipe", recipe, "--lessons", run.root, *changes)[0] == 2
    assert server.bodies == []
    assert quietly(capsys, "solve", QUESTION, "--recipe", recipe, *changes, "--quiet")[0] == 0


def test_a_program_with_lessons_is_refused(recipe, tmp_path):
    lesson_set = tmp_path / "lessons.json"
    lesson_set.write_text(to_json(LESSONS))
    settings = ["agent.executor={type='single_argument'}", f"agent.lessons={lesson_set}"]
    with pytest.raises(RecipeError, check=coded("lessons-not-shown", lesson_set, "executor")):
        resolve(load_recipe(str(recipe), settings))
    lesson_set.write_text(to_json(LessonSet(lessons=(Lesson(id="L1", text="x", module="executer"),))))
    with pytest.raises(RecipeError, check=coded("unknown-module", lesson_set, "'executer'")):
        resolve(load_recipe(str(recipe), settings))


def test_a_recipe_that_learns_lessons_has_its_own_lesson_set_and_no_other(run, tmp_path):
    with pytest.raises(RecipeError, check=coded("setting-conflict", "agent.lessons", fix="lessons.start")):
        resolve(load_recipe(str(tmp_path / "learned.toml"), [f"agent.lessons={run.root}"]))


@pytest.mark.parametrize("named", ["", " ", "gone", "gone@3"])
def test_a_lesson_set_that_is_not_there_is_refused(named, recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (["eval", recipe, "--out", "e"], ["solve", QUESTION, "--recipe", recipe], ["train", recipe]):
        code, _, err = quietly(capsys, *command, "--lessons", named)
        assert (code, "\n  fix: " in err) == (2, True)
    assert not (tmp_path / "e").exists()


# --- the lesson set that a run was begun with ------------------------------------------------------------------------


def test_an_evaluation_keeps_the_version_that_it_began_with(server, run, recipe, tmp_path, capsys):
    begin = ("eval", recipe, "--lessons", run.root, "--count", "1", "--out", tmp_path / "e", "--quiet")
    assert quietly(capsys, *begin)[0] == 0
    History(run.root / "lessons").add(LessonSet(), by="edit")
    server.bodies.clear()
    (tmp_path / "e" / "evaluations.jsonl").write_text("")
    (tmp_path / "e" / "status.json").write_text('{"state": "interrupted"}')
    assert quietly(capsys, "resume", tmp_path / "e", "--quiet")[0] == 0
    assert shown(server) == EXPECTED
    code, _, err = quietly(capsys, *begin)
    assert code == 2
    assert "agent.lessons: " in err


def test_a_lesson_set_file_that_was_changed_is_not_resumed(recipe, tmp_path, capsys, server):
    lesson_set = tmp_path / "lessons.json"
    lesson_set.write_text(to_json(LESSONS))
    begin = ("eval", recipe, "--lessons", lesson_set, "--count", "1", "--out", tmp_path / "e", "--quiet")
    assert quietly(capsys, *begin)[0] == 0
    (tmp_path / "e" / "status.json").write_text('{"state": "interrupted"}')
    lesson_set.write_text(to_json(marked(LESSONS, "L1", "vetoed")))
    code, _, err = quietly(capsys, "resume", tmp_path / "e", "--quiet")
    assert code == 2
    assert "error[inputs-changed]" in err
    lesson_set.write_text(to_json(LESSONS))
    assert quietly(capsys, "resume", tmp_path / "e", "--quiet")[0] == 0


# --- proven for an agent ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_unproven_lessons_are_used_with_a_warning(server, run, recipe, tmp_path, capsys):
    agent = identity(resolve(load_recipe(str(recipe))))
    assert agent.startswith("scripted (")
    solve = ("solve", QUESTION, "--recipe", recipe, "--lessons", run.root, "--quiet")
    code, out, err = quietly(capsys, *solve)
    assert (code, out) == (0, "62\n")
    said = f"warning: lesson set {run.root}@2 is unproven for this agent, {agent}: midstream lessons validate "
    assert err.startswith(said)
    assert len(err.splitlines()) == 1
    History(run.root / "lessons").add(LESSONS.model_copy(update={"proven_for": agent}), by="learning")
    assert quietly(capsys, *solve)[2] == ""
    _, _, err = quietly(capsys, *solve, "--set", "engines.model.model=another")
    assert "this agent, another (" in err
    assert f", only for {agent}: " in err
    _, _, err = quietly(capsys, "eval", run.root, "--count", "1", "--out", tmp_path / "e", "--quiet")
    assert err == ""
    _, _, err = quietly(
        capsys, "eval", recipe, "--lessons", f"{run.root}@2", "--count", "1", "--out", tmp_path / "f", "--quiet"
    )
    assert "is unproven for this agent" in err
