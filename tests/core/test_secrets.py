"""What is taken for a secret, what is not, and that no message repeats it."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path

import pytest

from midstream.core.errors import RecipeError
from midstream.core.secrets import refuse_secrets, without_secrets
from midstream.recipe.files import read_table, shipped_recipes, with_overrides
from midstream.recipe.overrides import set_server
from midstream.recipe.schema import load_recipe
from support.errors import coded

HEX = "5b1d9e0c77aa41f3"
KEYS = [
    f"sk-proj-{HEX}",
    f"sk-ant-api03-{HEX}_{HEX}",
    f"sk-or-v1-{HEX}",
    "hf_" + "aBcDeFgHiJ" * 3,
    "ghp_" + "aB3dEfGhIj" * 3,
    "github_pat_" + "aB3dEfGhIj" * 3,
    "AKIAIOSFODNN7EXAMPLE",
    "AIza" + "SyA_b-c" * 5,
    f"xoxb-123456789012-{HEX}",
    f"tvly-dev-{HEX}{HEX}",
    f"xai-{HEX}{HEX}",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{HEX}",
    f"Authorization: Bearer {HEX}",
    "Authorization: Basic abcdef",
    "authorization: basic dXNlcjpwYXNz",
    '{"Authorization": "Basic bWU6c2VjcmV0cw=="}',
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "https://me:s3cret@host/v1",
    f"https://host/v1?api_key={HEX}",
    f"GITHUB_TOKEN={HEX}",
    f"--db-password={HEX}",
]
INNOCENT = [
    "Qwen/Qwen2.5-7B-Instruct",
    "gpt-4o-mini-2024-07-18",
    "xai-grok-2-latest-20240812",
    "sk-learn-classifier-for-digits",
    "runs/hf_lora_20240101T120000/policy",
    "d41d8cd98f00b204e9800998ecf8427e0d41d8cd98f00b204e9800998ecf8427",
    "2f3c9a7e-8f00-4b20-9e98-0998ecf8427e",
    "http://localhost:11434/v1",
    "http://[::1]:8000/v1",
    "git@github.com:org/repo.git",
    "my_tools.py:word_count",
    "<|endoftext|>",
    "The bearer of this letter may enter after 12:30.",
    "Authorization: Basic authentication, or none",
    "The basic recipes are tested.",
    "The authorization: basic knowledge of Python is required.",
    "What is the password of the vault on floor 3?",
    "Count the tokens: 12 of 4096",
    "OPENAI_API_KEY",
    "data/tokens-2024/train.jsonl",
    "a7b9" * 20,
]


@pytest.mark.parametrize("value", KEYS)
def test_a_known_form_is_refused_anywhere_and_not_repeated(value):
    tables = [
        {"description": value},
        {"engines": {"model": {"extra_body": {"deep": [{"x": f"see {value} here"}]}}}},
        {"tools": {"t": {"command": ["server", value]}}},
        {"tools": {"t": {value: 1}}},
    ]
    for table in tables:
        with pytest.raises(RecipeError, check=coded("secret-in-recipe")) as caught:
            refuse_secrets(table)
        assert value not in str(caught.value)
    assert without_secrets(["midstream", value, "--seed", "1"]) == ("midstream", "***", "--seed", "1")


@pytest.mark.parametrize(
    "name",
    ["api_key", "apiKey", "x-api-key", "token", "hf_token", "client_secret", "PASSWORD", "Authorization", "cookie"],
)
@pytest.mark.parametrize("value", [HEX, "hunter2hunter", f"Basic {HEX}", "Basic dXNlcjpwYXNz", "p@ssword", 1234567890])
def test_a_random_value_under_such_a_name_is_refused(name, value):
    with pytest.raises(RecipeError, check=coded("secret-in-recipe", name)) as caught:
        refuse_secrets({"engines": {"model": {"extra_body": {name: value}}}})
    assert str(value) not in str(caught.value)
    assert without_secrets([f"--{name}", str(value)])[1] == "***"


@pytest.mark.parametrize("value", INNOCENT)
def test_innocent_values_pass(value):
    names = ("description", "model", "revision", "base_url", "function", "path", "question", "keys", "token_ids")
    refuse_secrets({name: value for name in names} | {"command": ["server", value]})
    assert without_secrets([value]) == (value,)


@pytest.mark.parametrize(
    "table",
    [
        {"output_tokens": 12345678, "token_ids": True, "tokenizer": "org/tok-123456", "api_key_env": "MY_KEY_2"},
        {"headers_env": {"Authorization": "my_tracker_key_2", "X-Api-Key": "key2_of_it"}},
        {"token": "<|im_end_2|>", "secret": "~/keys/one.2", "password": "$PASSWORD_2", "api_key": "not-needed"},
        {"api_key": "EMPTY", "token": "characters", "authorization": "none", "cookie": False, "secret": 1234},
    ],
)
def test_innocent_settings_with_such_names_pass(table):
    refuse_secrets(table)


@pytest.mark.parametrize(
    "table",
    [{"api_key_env": f"abc{HEX}"}, {"headers_env": {"Authorization": f"abc{HEX}"}}, {"env_pass": [f"abc{HEX}"]}],
)
def test_a_key_in_place_of_the_name_of_its_variable_is_refused(table):
    with pytest.raises(RecipeError, check=coded("secret-in-recipe")) as caught:
        refuse_secrets(table)
    assert HEX not in str(caught.value)


def test_every_recipe_passes():
    for path in shipped_recipes().values():
        refuse_secrets(tomllib.loads(path.read_text(encoding="utf-8")))
        refuse_secrets(load_recipe(path.stem).table())


def test_files_and_overrides_are_refused_before_any_error_quotes_them(tmp_path: Path):
    key = f"sk-proj-{HEX}"
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'extends = "agentflow-prompted"\n[engines.model]\napi_key = "{key}"\n')
    overrides = (f"engines.model.extra_body.api_key={key}", f"unknown.key={key}", f"{key}=1", key, f"x={{a=['{key}']}}")
    for read in (
        lambda: read_table(str(recipe)),
        lambda: set_server({"agent": {}}, {"model": key}),
        *(lambda text=text: with_overrides({}, [text]) for text in overrides),
    ):
        with pytest.raises(RecipeError, check=coded("secret-in-recipe")) as caught:
            read()
        assert HEX not in str(caught.value)


@pytest.mark.parametrize("text", ["://" + "a:" * 100_000, "://" * 100_000, "token" * 60_000, "eyJ" * 100_000], ids=len)
def test_long_texts_take_no_time(text: str):
    started = time.monotonic()
    refuse_secrets({"prompt": text})
    assert time.monotonic() - started < 5
