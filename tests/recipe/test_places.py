"""Places of texts in recipes: what [lessons] may learn, what `agent.lessons` shows, what is exported."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from midstream.cli.main import main
from midstream.core.agent import lessons_digest
from midstream.core.errors import RecipeError
from midstream.core.texts import Text
from midstream.lessons.commit import History, read_updates
from midstream.lessons.editing import to_json
from midstream.lessons.lesson_set import Lesson, LessonSet, identity, proven, render_modules
from midstream.process import build_for
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.lesson_sessions import bases_of, lessons_parts_of
from midstream.recipe.lessons import unproven
from midstream.recipe.prompts import prompts_of
from midstream.recipe.schema import load_recipe
from midstream.runs import RunDirectory
from midstream.runs.budget import Budget, BudgetConfig
from support.errors import coded
from support.lesson_sessions import TINY, learn

PLAIN = ["lessons.tasks=6", "lessons.gate.tasks=4"]
TEXTS = {
    "planner": "Look first.",
    "planner.prompt": "Plan it.\n\n{{lessons}}{{tools}}",
    "planner.examples": "Query: a\nTool Name: press",
    "verifier.prompt": "Judge it.\n\n{{lessons}}{{tools}}",
}


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    monkeypatch.setattr(Text, "marked", {})


def parts(*changes, recipe="lessons-simulated"):
    made = load_recipe(recipe, [*PLAIN, *changes])
    with Build(made, budget=Budget(made.budget or BudgetConfig())) as build:
        return lessons_parts_of(build)


def lesson_set(texts):
    return LessonSet(lessons=tuple(Lesson(id=f"L{i}", module=m, text=t) for i, (m, t) in enumerate(texts.items(), 1)))


def lesson_file(tmp_path, texts):
    (tmp_path / "set.json").write_text(to_json(lesson_set(texts)), encoding="utf-8")
    return tmp_path / "set.json"


# --- what may be learned ---


def test_a_run_begins_with_the_texts_that_the_recipe_has():
    with Build(load_recipe("lessons-simulated")) as build:
        tool = build.tools[0]
    start = parts(f'lessons.modules=["planner", "planner.prompt", "planner.examples", "tools.{tool.name}"]').start
    assert [(lesson.id, lesson.module, lesson.origin.source) for lesson in start.lessons] == [
        ("L1", "planner.prompt", "recipe"),
        ("L2", f"tools.{tool.name}", "recipe"),
    ]
    assert "{{lessons}}" in start.lessons[0].text
    assert start.lessons[1].text == tool.description.strip()
    assert render_modules(start) == {}


def test_a_text_that_a_run_learned_is_where_another_begins(tmp_path):
    texts = {place: text for place, text in TEXTS.items() if place.startswith("planner")}
    with Build(load_recipe("lessons-simulated")) as build:
        tool = build.tools[0].name
    path = lesson_file(tmp_path, texts)
    start = parts(f'lessons.modules=["planner.prompt", "tools.{tool}"]', f"lessons.start={path}").start
    assert [(lesson.module, lesson.origin.source) for lesson in start.lessons] == [
        *((place, "learned") for place in texts),
        (f"tools.{tool}", "recipe"),
    ]


@pytest.mark.parametrize(
    ("place", "code", "what"),
    [
        ("tools.saerch", "unknown-name", "'tools.saerch', which this agent does not have"),
        ("texts.system", "unknown-name", "'texts.system', which this agent does not have"),
        ("cook.prompt", "unknown-module", "'cook.prompt'"),
        ("cook.examples", "unknown-module", "'cook.examples'"),
        ("planner.example", "unknown-module", "'planner.example'"),
        ("planner.prompt.examples", "unknown-module", "'planner.prompt.examples'"),
    ],
)
def test_a_place_that_the_agent_does_not_have_is_refused(place, code, what):
    with pytest.raises(RecipeError, check=coded(code, what)):
        parts(f'lessons.modules=["{place}"]')


def test_the_error_names_the_places_that_there_are():
    with pytest.raises(RecipeError) as caught:
        parts('lessons.modules=["tools.nothing"]')
    assert "planner.prompt" in caught.value.fix
    assert "tools." in caught.value.fix
    assert "texts." not in caught.value.fix


def test_a_program_has_no_instructions_and_no_lessons():
    for place in ("executor.prompt", "generator.prompt", "executor.examples"):
        with pytest.raises(RecipeError, check=coded("lessons-not-shown", place)):
            parts(f'lessons.modules=["{place}"]', recipe="lessons-tiny")


OWN = """
import midstream as ms

SYSTEM = ms.text("system", "Be careful.")


async def solve(question, model):
    return await model(f"{SYSTEM} {question}")
"""


def own_recipe(tmp_path, *lines):
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "own.toml").write_text(
        'name = "own"\n[tasks]\ntype = "none"\n[agent]\n'
        f'type = "{tmp_path / "mine.py"}:solve"\nengine = "model"\n' + "\n".join(lines) + "\n[reward]\n"
        'type = "exact_match"\n[engines.model]\ntype = "openai_compatible"\nmodel = "m"\nbase_url = "http://localhost:9/v1"\n',
        encoding="utf-8",
    )
    return load_recipe(str(tmp_path / "own.toml"))


def test_a_marked_text_of_an_own_agent_can_be_learned(tmp_path):
    with Build(own_recipe(tmp_path)) as build:
        build.environment()
        assert bases_of(build, ["texts.system"]) == {"texts.system": "Be careful."}
        with pytest.raises(RecipeError, check=coded("unknown-name", "'policy.prompt'")):
            bases_of(build, ["policy.prompt"])


# --- what is shown ---


def test_learned_texts_are_in_the_environment_of_an_evaluation(tmp_path):
    changes = [f"agent.lessons={lesson_file(tmp_path, TEXTS)}", "engines.model.model=m"]
    with Build(load_recipe("agentflow-prompted", changes)) as build:
        assert build.environment().lessons == render_modules(lesson_set(TEXTS))


def test_instructions_of_a_module_whose_prompt_file_has_no_place_for_lessons_are_shown(tmp_path):
    prompt = tmp_path / "planner.md"
    prompt.write_text("Plan.\n{{tools}}\n<!-- user -->\n{{query}}\n{{analysis}}{{memory}}\n", encoding="utf-8")
    path = lesson_file(tmp_path, {"planner.prompt": "Plan well.\n{{tools}}"})
    changes = ["engines.model.model=m", f"agent.planner.prompt_file={prompt}"]
    with Build(load_recipe("agentflow-prompted", [*changes, f"agent.lessons={path}"])) as build:
        assert build.environment().lessons == {"planner.prompt": "Plan well.\n{{tools}}"}
    with pytest.raises(RecipeError, check=coded("lessons-not-shown", "planner")):
        resolve(
            load_recipe("agentflow-prompted", [*changes, f"agent.lessons={lesson_file(tmp_path, {'planner': 'x'})}"])
        )


def test_an_unproven_set_of_texts_is_warned_of_and_a_set_of_the_recipes_own_is_not(tmp_path):
    resolved = resolve(load_recipe("agentflow-prompted", ["engines.model.model=m"]))
    path = lesson_file(tmp_path, TEXTS)
    assert "is unproven for this agent" in unproven(path, resolved)
    learned = LessonSet(lessons=(Lesson(id="L1", module="planner.prompt", text=TEXTS["planner.prompt"]),))
    path.write_text(to_json(proven(learned, identity(resolved))))
    assert unproven(path, resolved) == ""
    path.write_text(path.read_text().replace("Plan it.", "Plan this."))
    assert "unproven" in unproven(path, resolved)


def test_prompts_for_export_hold_every_learned_text(tmp_path):
    with Build(load_recipe("agentflow-prompted", ["engines.model.model=m"])) as build:
        tool = build.tools[0]
    texts = {**TEXTS, f"tools.{tool.name}": "Learned description."}
    changes = [f"agent.lessons={lesson_file(tmp_path, texts)}", "engines.model.model=m"]
    with build_for(load_recipe("agentflow-prompted", changes), {}) as build:
        found = {name: prompt.messages() for name, prompt in prompts_of(build).items()}
    system = found["planner"][0]["content"]
    examples = "# Examples of good runs\n\nQuery: a\nTool Name: press\n\n"
    assert system.startswith(f"Plan it.\n\n# Lessons from earlier tasks\n\n- Look first.\n\n{examples}")
    assert "Learned description." in system
    assert found["verifier"][0]["content"].startswith("Judge it.")
    assert "Learned description." in found["executor"][0]["content"]


def test_a_stream_and_marked_texts_are_exported(tmp_path, capsys):
    texts = {"policy": "Add.", "policy.prompt": "Do it.\n{{lessons}}", "policy.examples": "Q\nA"}
    recipe, path = tmp_path / "stream.toml", lesson_file(tmp_path, texts)
    recipe.write_text(f'name = "mine"\nextends = "direct"\ntasks = {{ type = "none" }}\n[agent]\nlessons = "{path}"\n')
    assert main(["lessons", "export", str(recipe), "--json"]) == 0
    [system, *_] = json.loads(capsys.readouterr().out)["policy"]["messages"]
    assert system["content"] == "Do it.\n# Lessons from earlier tasks\n\n- Add.\n\nQ\nA"
    lesson_file(tmp_path, {"texts.system": "Be\nquick."})
    own_recipe(tmp_path, f'lessons = "{path}"')
    assert main(["lessons", "export", str(tmp_path / "own.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "texts.system": {"messages": [{"role": "system", "content": "Be\nquick."}]}
    }


# --- a run that learns texts ---

WRITER = """
from midstream.lessons.operations import Operation


async def writes(work):
    found = next(each for each in work.lesson_set.lessons if each.module == "planner.prompt")
    return [
        Operation(kind="modify", id=found.id, text="Press well.\\n\\n" + found.text),
        Operation(kind="add", module="planner.examples", text="Query: a\\nPress: b"),
    ]
"""


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run that learned instructions and an example, and its lesson set."""
    root = tmp_path_factory.mktemp("texts")
    (root / "mine.py").write_text(WRITER, encoding="utf-8")
    small = {
        **TINY,
        "lessons.tasks": 2,
        "lessons.modules": "['planner.prompt','planner.examples']",
        "lessons.proposers": f"['{root / 'mine.py'}:writes']",
        "lessons.search_rollouts": 0,
        "lessons.gate.enabled": False,
    }
    learn(root / "run", small=small)
    return root / "run", History(root / "run" / "lessons").current().lesson_set


def test_what_a_run_learned_is_in_its_evaluation_and_in_another_one(learned, tmp_path):
    root, lesson_set = learned
    [update] = read_updates(RunDirectory(root))
    assert [change.fate for change in update.changes] == ["accepted", "accepted"]
    texts = render_modules(lesson_set)
    assert set(texts) == {"planner.prompt", "planner.examples"}
    words = ["eval", "lessons-simulated", "--lessons", str(root), "--out", str(tmp_path / "eval"), "--quiet"]
    sets = [
        word for key, value in TINY.items() if not key.startswith("lessons.") for word in ("--set", f"{key}={value}")
    ]
    assert main([*words, "--count", "1", *sets, "--set", "evaluation.temperatures=[0.0]"]) == 0
    run = RunDirectory.open(tmp_path / "eval")
    [[trajectory]] = [list(part) for part in run.trajectories.parts().values()]
    assert trajectory.lessons == run.info().lessons == lessons_digest(texts)
    first = trajectory.turns[0].calls[0].messages[0].content
    assert first.startswith("Press well.")
    assert "# Examples of good runs\n\nQuery: a\nPress: b" in first


def test_a_person_edits_a_run_s_texts(learned, tmp_path, monkeypatch, capsys):
    root = tmp_path / "run"
    shutil.copytree(learned[0], root)
    script = tmp_path / "editor.py"
    script.write_text(
        "import pathlib, sys\npath = pathlib.Path(sys.argv[1])\ntext = path.read_text()\n"
        "assert 'Press well.' in text\n"
        "path.write_text(text.replace('Press well.', r'Press\\\\n hard.'))\n"
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    monkeypatch.delenv("VISUAL", raising=False)
    code = main(["lessons", "edit", str(root)])
    assert code == 0, capsys.readouterr().err
    texts = render_modules(History(root / "lessons").current().lesson_set)
    assert texts["planner.prompt"].startswith("Press\\n hard.\n\n")
    assert main(["lessons", "rollback", str(root), "2"]) == 0
    assert render_modules(History(root / "lessons").current().lesson_set) == render_modules(learned[1])


@pytest.mark.parametrize(
    ("place", "code"), [("planner.examples", 0), ("executor.examples", 0), ("planner.prompt", 2), ("cook.examples", 2)]
)
def test_a_person_adds_the_first_example_of_a_module_and_no_second_text(place, code, tmp_path, monkeypatch, capsys):
    path, script = lesson_file(tmp_path, {"planner": "Look first."}), tmp_path / "editor.py"
    table = f'[[lessons]]\nmodule = "{place}"\ntext = """\nOne\nTwo"""\n'
    script.write_text(f"import sys\nopen(sys.argv[1], 'a').write({table!r})\n")
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    monkeypatch.delenv("VISUAL", raising=False)
    assert main(["lessons", "edit", str(path)]) == code, capsys.readouterr().err
    assert ("One\\nTwo" in path.read_text()) == (code == 0)
