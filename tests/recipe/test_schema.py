"""Recipes: extended, overridden, validated, and written back."""

from __future__ import annotations

import tomllib
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.errors import RecipeError
from midstream.core.seeds import SEED_MEANING
from midstream.evaluation.settings import EvaluationConfig
from midstream.recipe.check import resolve
from midstream.recipe.files import find_recipe, merge, read_table, shipped_recipes, to_toml, with_overrides
from midstream.recipe.schema import load_recipe, parse_recipe
from support.errors import coded, raises


def test_a_recipe_is_found_by_name_or_path(ten_steps):
    assert find_recipe("flow-grpo-tiny") == shipped_recipes()["flow-grpo-tiny"]
    assert find_recipe(str(ten_steps)) == ten_steps


@pytest.mark.parametrize("name", ["flow-grpo-tinny", "/nowhere/at/all.toml"])
def test_an_unknown_recipe_is_named_with_the_known_ones(name):
    with pytest.raises(RecipeError, check=coded("unknown-recipe", name, fix="flow-grpo-tiny")):
        find_recipe(name)


@pytest.mark.parametrize("path", shipped_recipes().values(), ids=lambda path: path.stem)
def test_every_recipe_that_comes_with_midstream_is_valid(path: Path):
    recipe = load_recipe(path.stem)
    assert recipe.name == path.stem
    assert recipe.description
    resolve(recipe)


def test_extending_changes_only_what_is_said(ten_steps):
    base, mine = load_recipe("flow-grpo-tiny"), load_recipe(str(ten_steps))
    assert mine.training is not None
    assert base.training is not None
    assert mine.training.steps == 10
    assert mine.training.loss == base.training.loss
    assert mine.agent == base.agent
    assert mine.tools == base.tools
    assert mine.name == "ten-steps"


def test_a_base_next_to_the_recipe_wins(tmp_path):
    (tmp_path / "flow-grpo-tiny.toml").write_text('name = "mine"\nseed = 5\n')
    (tmp_path / "child.toml").write_text('extends = "flow-grpo-tiny"\nseed = 6\n')
    assert read_table(str(tmp_path / "child.toml")) == {"name": "mine", "seed": 6}


@pytest.mark.parametrize("base", ["base", "base.toml", "../shared/base.toml"])
def test_a_base_is_looked_up_next_to_the_recipe(tmp_path, monkeypatch, base):
    for directory, value in [("mine", 1), ("shared", 1), ("elsewhere", 2)]:
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "base.toml").write_text(f"seed = {value}\n")
    child = tmp_path / "mine" / "child.toml"
    child.write_text(f'extends = "{base}"\n')
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_table(str(child)) == {"seed": 1}
    assert read_table("../mine/child.toml") == {"seed": 1}
    child.write_text('extends = "gone.toml"\n')
    with raises("unknown-recipe", "gone.toml", child, f"{child.parent} has no"):
        read_table(str(child))


def test_a_broken_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("name = 'a'\nseed = = 3\n")
    with pytest.raises(RecipeError, check=coded("file-invalid", "broken.toml", "line 2")):
        read_table(str(path))


# -- --set ------------------------------------------------------------------------------------------------------------


def test_overrides_reach_into_tables_and_are_toml():
    table = {"a": {"b": 1, "c": 2}, "d": 3}
    given = ["a.b=5", "a.x.y=true", 'd="text"', "e=bare word", "f=[1, 2]", "g={ h = 1.5 }", "i="]
    assert with_overrides(table, given) == {
        "a": {"b": 5, "c": 2, "x": {"y": True}},
        "d": "text",
        "e": "bare word",
        "f": [1, 2],
        "g": {"h": 1.5},
        "i": "",
    }
    assert table == {"a": {"b": 1, "c": 2}, "d": 3}


def test_later_overrides_win(ten_steps):
    recipe = load_recipe(str(ten_steps), ["seed=1", "seed=2", "training.steps=7"])
    assert recipe.seed == 2
    assert recipe.training is not None
    assert recipe.training.steps == 7


def test_a_type_does_not_drop_what_was_set_before_it():
    base = {"agent": {"type": "agentflow", "turns": 3}, "tools": {"a": {"type": "old", "k": 1}}}
    overrides = [
        "agent.policy.engine=m",
        "agent.policy.type=prompted",
        "tools.b.k=2",
        "agent.type=direct",
        "tools.b.type=c",
    ]
    wanted = {"type": "direct", "policy": {"type": "prompted", "engine": "m"}}
    for order in permutations(overrides):
        changed = with_overrides(base, order)
        assert changed == {"agent": wanted, "tools": {**base["tools"], "b": {"type": "c", "k": 2}}}
    inline = ["agent={policy={engine='m'}, type='direct'}", "tools={b={k=2}}", "tools.b.type=c"]
    for order in permutations([*inline, "agent.policy.type=prompted"]):
        assert with_overrides(base, order) == changed
    # What belongs to a table that a later override replaces or removes goes with it.
    assert with_overrides(base, ["tools.a.type=b", "tools.a.k=2", "tools.a.type=c"])["tools"] == {"a": {"type": "c"}}
    assert with_overrides(base, ["tools.a.k=2", "tools.a=false"])["tools"] == {}
    assert with_overrides(base, ["tools.a=false", "tools.a.type=old"])["tools"] == {"a": {"type": "old"}}
    assert list(with_overrides(base, ["tools.c.k=1", "tools.b.k=1", "tools.c.type=x"])["tools"]) == ["a", "c", "b"]


@pytest.mark.parametrize("override", ["seed", "=3", "a..b=3", ".a=1", ""])
def test_a_malformed_override_is_refused(override):
    with pytest.raises(RecipeError, check=coded("recipe-invalid", repr(override))):
        with_overrides({}, [override])


@pytest.mark.parametrize(
    "override",
    [
        "seed=99999999999999999999",
        "seed=" + "9" * 5_000,
        "name=" + "[" * 10_000,
        ".".join("a" * 20_000) + "=1",
        "seed=1\nname = 'other'",
        "description=two\nlines",
        "description=null\0",
        "description='null\\u0000'",
        'description="null\\u0000"',
        "se\ned=1",
    ],
    ids=range(10),
)
def test_an_override_that_no_setting_could_have_is_refused_at_once(override):
    if override == "description='null\\u0000'":  # a literal string of TOML: a backslash and a u
        assert with_overrides({}, [override]) == {"description": "null\\u0000"}
        return
    with pytest.raises(RecipeError, check=coded("recipe-invalid", repr(override)[:60])) as caught:
        with_overrides({}, [override])
    assert len(str(caught.value)) < 500


def test_a_text_of_several_lines_is_quoted():
    assert with_overrides({}, ['a="one\\ntwo"', "b=[1,\n2]"]) == {"a": "one\ntwo", "b": [1, 2]}


def test_a_component_of_another_type_replaces_the_whole_table():
    base = {"engine": {"type": "tiny", "layers": 2}}
    assert merge(base, {"engine": {"type": "other", "model": "m"}}) == {"engine": {"type": "other", "model": "m"}}
    assert merge(base, {"engine": {"type": "tiny", "heads": 4}}) == {
        "engine": {"type": "tiny", "layers": 2, "heads": 4}
    }
    assert merge(base, {"engine": {"heads": 4}}) == {"engine": {"type": "tiny", "layers": 2, "heads": 4}}
    assert merge(base, {"engine": 3}) == {"engine": 3}


def test_false_takes_a_table_of_the_base_out():
    assert merge({"tools": {"python": {"timeout_s": 2}, "guess": {}}}, {"tools": {"guess": False}}) == {
        "tools": {"python": {"timeout_s": 2}}
    }
    assert "local_search" not in load_recipe("gazetteer-prompted", ["tools.local_search=false"]).tools
    with pytest.raises(RecipeError, check=coded("recipe-invalid", "tools.locl_search = False")):
        load_recipe("gazetteer-prompted", ["tools.locl_search=false"])


# -- validation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("trainng.steps=3", "trainng = {'steps': 3}"),
        ("training.step=3", "training.step = 3"),
        ("training.group_size=1", "training.group_size = 1:"),
        ("training.group_size=many", "training.group_size = 'many'"),
        ("training.learning_rate=-1", "training.learning_rate = -1"),
        ("training.learning_rate=nan", "training.learning_rate = nan"),
        ("training.minibatches=5", "minibatches 5 exceeds tasks_per_step 4"),
        ("training.loss.clip_low=1.5", "training.loss.clip_low = 1.5"),
        ("training.loss.aggregation=mean", "training.loss.aggregation = 'mean'"),
        ("training.algorithm=ppo", "training.algorithm = 'ppo'"),
        ("agent.max_turns=0", "agent.max_turns = 0"),
        ("rollout.deadline_s=0", "rollout.deadline_s = 0"),
        ("warm_start.min_copy_rate=2", "warm_start.min_copy_rate = 2"),
        ("learner.lora.rank=0", "learner.lora.rank = 0"),
        ("seed=-1", "seed = -1"),
        ("evaluation.sets=3", "evaluation.sets = 3"),
        ("evaluation.validation.per_family=100000000", "evaluation.validation.per_family = 100000000"),
        ("evaluation.temperatures=[-1]", "evaluation.temperatures.0 = -1"),
        ("evaluation.temperatures=[nan]", "evaluation.temperatures.0 = nan"),
        ("evaluation.temperatures=[]", "evaluation.temperatures = []"),
        ("learner.betas=[1, 2]", "learner.betas.0 = 1"),
        ("learner.threads=100000", "learner.threads = 100000"),
        ("learner.weight_decay=inf", "learner.weight_decay = inf"),
        ("warm_start.learning_rate=inf", "warm_start.learning_rate = inf"),
        ("seed=true", "seed = True"),
        ("learner.betas=[true, 0.9]", "learner.betas = [True, 0.9]"),
        ("evaluation.validation.seed=-1", "evaluation.validation.seed = -1"),
        ("tasks.seed=-1", "tasks.seed = -1"),
        ("agent.lessons=''", "agent.lessons = ''"),
        ("rollout.deadline_s=inf", "rollout.deadline_s = inf"),
        ("name='../x'", "name = '../x'"),
    ],
)
def test_a_bad_key_or_value_is_named_with_where_and_what(ten_steps, override, named):
    with pytest.raises(RecipeError, check=coded("recipe-invalid", named, fix="known keys")):
        load_recipe(str(ten_steps), [override])


@pytest.mark.parametrize(
    ("override", "known"),
    [
        ("trainng=3", "name, description, seed"),
        ("training.stps=3", "algorithm, variant, weights"),
        ("training.loss.clip=3", "surrogate, clip_low, clip_high"),
        ("learner.lora={ ranks = 3 }", "rank, alpha, target"),
        ('evaluation.sets=[{ name = "x", splt = "test" }]', "name, tasks, reward, split, families"),
    ],
)
def test_the_known_keys_are_those_of_the_table_that_is_wrong(ten_steps, override, known):
    with pytest.raises(RecipeError, check=coded("recipe-invalid", fix=f": {known}")):
        load_recipe(str(ten_steps), [override])


@pytest.mark.parametrize("value", ["3", '["a"]'])
def test_a_base_that_is_not_text_is_refused(tmp_path, value):
    (tmp_path / "child.toml").write_text(f"extends = {value}\n")
    with pytest.raises(RecipeError, check=coded("extends-invalid", "child.toml")):
        read_table(str(tmp_path / "child.toml"))


@pytest.mark.parametrize("base", ["/dev/null", "/", "../..", "/dev/zero.toml", "\\u0000", "x" * 5000, ""])
def test_a_base_that_is_no_recipe_is_refused(tmp_path, base):
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "{base}"\n')
    with pytest.raises(RecipeError) as caught:
        read_table(str(path))
    assert caught.value.code in ("unknown-recipe", "file-unreadable", "file-invalid")
    assert caught.value.fix


def test_a_long_chain_or_a_cycle_of_recipes_is_refused(tmp_path):
    for number in range(100):
        (tmp_path / f"{number}.toml").write_text(f'extends = "{number + 1}"\nx{number} = 1\n')
    with pytest.raises(RecipeError, check=coded("extends-invalid", "0.toml extends more than 32 recipes")):
        read_table(str(tmp_path / "0.toml"))
    (tmp_path / "30.toml").write_text("x30 = 1\nx0 = 2\n")
    table = read_table(str(tmp_path / "0.toml"))
    assert len(table) == 31
    assert table["x0"] == 1
    (tmp_path / "30.toml").write_text('extends = "28"')
    with pytest.raises(RecipeError, check=coded("extends-invalid", "28.toml extends itself")):
        read_table(str(tmp_path / "0.toml"))


def test_all_problems_are_named_at_once(ten_steps):
    with pytest.raises(RecipeError, check=coded("recipe-invalid", "training.group_size = 0", "training.steps = -1")):
        load_recipe(str(ten_steps), ["training.steps=-1", "training.group_size=0"])


def test_a_missing_table_is_named():
    with pytest.raises(RecipeError, check=coded("recipe-invalid", "agent: ")):
        parse_recipe({"name": "x", "tasks": {"type": "game24"}, "tools": {}, "reward": {"type": "f1"}})


# -- writing back -----------------------------------------------------------------------------------------------------


@pytest.mark.matrix(6)
@pytest.mark.parametrize("path", shipped_recipes().values(), ids=lambda path: path.stem)
def test_a_resolved_recipe_reads_back_as_itself(path: Path):
    """What a run directory holds is the whole recipe: resolving it again changes nothing."""
    resolved = resolve(load_recipe(path.stem))
    text = to_toml(resolved)
    again = resolve(parse_recipe(tomllib.loads(text)))
    assert again == resolved
    assert to_toml(again) == text


keys = st.one_of(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), st.text(max_size=5))
plain = st.one_of(st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False), st.text(max_size=20))
values = st.recursive(
    plain, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)), max_leaves=8
)


@given(table=st.dictionaries(keys, values, max_size=4))
def test_any_table_survives_writing(table):
    assert tomllib.loads(to_toml(table)) == table


def test_what_needs_the_offline_world_is_refused_with_other_tasks():
    recipe = load_recipe("gazetteer-prompted", ["tasks={ type = 'game24' }"])
    with pytest.raises(
        RecipeError, check=coded("world-missing", "tools.local_search", "'game24'", fix="local_search = false")
    ):
        resolve(recipe)
    resolve(load_recipe("gazetteer-prompted", ["tasks={ type = 'game24' }", "tools.local_search=false"]))


CONFLICTS = {
    "a mixture of dialogues": (
        "function-calling-simulated",
        ["tasks={type='mixture', parts={a={type='desks'}}}"],
        "dialogues-not-supported", "tasks.parts.a",
    ),
    "an answer that memory never holds": (
        "flow-grpo-tiny", ["agent.memory_update=on_continue"], "setting-conflict", "verified_result",
    ),
    "simulated search without documents": (
        "gazetteer-prompted",
        ["tasks={type='game24'}", "tools.local_search={index='i'}", "wrappers.local_search.simulated={}"],
        "world-missing", "wrappers.local_search.simulated",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFLICTS)
def test_settings_that_contradict_each_other_are_refused(case):
    name, overrides, code, value = CONFLICTS[case]
    recipe = load_recipe(name, overrides)
    with pytest.raises(RecipeError, check=coded(code, value)):
        resolve(recipe)


def test_a_validation_table_without_a_name_changes_the_default():
    def validation(**table):
        return EvaluationConfig.model_validate({"validation": table}).validation

    shown = ("name", "split", "seed", "per_family", "count")
    assert [getattr(validation(per_family=2), key) for key in shown] == ["validation", "validation", 7, 2, None]
    assert [getattr(validation(count=9), key) for key in shown] == ["validation", "validation", 7, None, 9]
    # With a name it is a whole set, as runs have written it: here the whole test split.
    assert [getattr(validation(name="all"), key) for key in shown] == ["all", "test", 99, None, None]


def test_lessons_are_for_the_trained_module_by_default():
    table = read_table("lessons-math-paper")
    del table["lessons"]["modules"]
    assert parse_recipe(table).lessons.modules == ("policy",)
    assert load_recipe("lessons-simulated").lessons.modules == ("planner",)


@pytest.mark.parametrize("seed", ["banana", "-1", "1.5"])
def test_a_wrong_seed_says_what_a_seed_is(ten_steps, seed):
    with pytest.raises(
        RecipeError, check=coded("recipe-invalid", f"seed = {seed}".replace("banana", "'banana'"), SEED_MEANING)
    ):
        load_recipe(str(ten_steps), [f"seed={seed}"])


def test_a_function_in_a_file_is_a_recipe_around_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def solve(question): return question\ndef ask(question, model): ...\n")
    table = read_table("mine.py:solve")
    # It can ask no model, so that none is needed.
    assert table["agent"] == {"type": f"{tmp_path / 'mine.py'}:solve"}
    assert read_table("mine.py:ask")["agent"] == {"type": f"{tmp_path / 'mine.py'}:ask", "engine": "model"}
    assert table["name"] == "solve"
    assert table["lessons"] == read_table("own-agent")["lessons"]
