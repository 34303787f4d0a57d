"""`midstream examine` on scripted models behind a real server: it finds what they can and cannot do, and why."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.cli.main import main
from midstream.core.engine import Request
from midstream.core.json_schema import schema_error
from midstream.core.trajectory import Call, MemoryRecord
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream_extra.examination.cases import Cases, equal, holds, load_cases, memory_of, plain
from midstream_extra.examination.roles import examine
from support.llm_server import Body, LLMServer, completion, prompt_of

CASES = load_cases()
PROBED = "single word hello"
SCHEMA_REPLY = '{"word": "hello"}'
FAST = ("--set", "engines.model.first_pause_s=0", "--set", "engines.model.max_attempts=3")


def role_of(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ").lower()


def case_of(text: str) -> tuple[str, Any]:
    """The case that a prompt is about; ("", None) for a probe."""
    role = role_of(text)
    if role == "executor":
        return role, next(case for case in CASES.executor if case.action.sub_goal in text)
    asked = [case for case in getattr(CASES, role, ()) if f"# Query\n\n{case.question}" in text]
    if role == "verifier":
        newest = json.loads(text[text.rindex('{"turn":') :].splitlines()[0])
        asked = [case for case in asked if case.newest.result == newest.get("result", "")]
    return (role, asked[0]) if asked else ("", None)


def perfect(body: Body) -> str:
    """A model that plays every role by the book, and obeys a schema."""
    role, case = case_of(prompt_of(body))
    if role == "planner":
        facts = ", ".join(word.split("|")[0] for word in case.needs)
        return (
            f"Justification: it is missing\nContext: {facts}\nSub-Goal: take the next step\nTool Name: {case.tools[0]}"
        )
    if role == "executor":
        held = {name: " ".join(word.split("|")[0] for word in words) for name, words in case.holds.items()}
        return json.dumps({name: values[0] for name, values in case.accept.items()} | held)
    if role == "verifier":
        valid = case.result_valid is not False
        return json.dumps({"analysis": "x", "result_valid": valid, "memory_sufficient": case.memory_sufficient})
    if role == "generator":
        return f"<answer>{case.accept[0]}</answer>"
    return SCHEMA_REPLY if "response_format" in body else "hello"


def only(role: str, reply: str) -> Callable[[Body], str]:
    """Perfect, but one role always gives `reply`."""
    return lambda body: reply if role_of(prompt_of(body)) == role else perfect(body)


def examined(server: LLMServer, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    code = main(["examine", "--model", "m", "--base-url", server.base_url, "--json", *FAST, *more])
    return code, json.loads(capsys.readouterr().out)


def right(role: dict[str, Any]) -> dict[str, str]:
    return {name: f"{rate['right']}/{rate['of']}" for name, rate in role["rates"].items()}


def test_a_perfect_model_passes_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    with LLMServer(perfect) as server:
        code, found = examined(server, capsys)
    assert code == 0
    assert found["works"]
    assert [right(role) for role in found["roles"]] == [
        {"reply readable": "5/5", "fitting tool": "5/5", "context complete": "5/5"},
        {"valid": "5/5", "arguments right": "5/5"},
        {"verdict readable": "5/5", "result_valid right": "3/3", "verdict right": "5/5", "STOP where due": "2/2",
         "CONTINUE where due": "3/3"},
        {"answer readable": "5/5", "answer right": "5/5"},
    ]  # fmt: skip
    assert [role["standing"] for role in found["roles"]] == ["good"] * 4
    assert [role["asks"] for role in found["roles"]] == [5] * 4
    assert all(role["median_s"] > 0 for role in found["roles"])
    assert [(probe["what"], probe["works"]) for probe in found["probes"]] == [
        ("token ids and log-probabilities", True), ("JSON schema enforced", True),
    ]  # fmt: skip
    assert found["advice"] == []
    planner = [body for body in server.bodies if role_of(prompt_of(body)) == "planner"]
    assert {body["temperature"] for body in planner} == {0.7}, "the recipe's settings"


def test_one_that_babbles_can_play_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with LLMServer(lambda body: "Certainly! I would be happy to help with that.") as server:
        code, found = examined(server, capsys)
    assert code == 1
    planner, executor, verifier, generator = found["roles"]
    assert set(right(planner).values()) == {"0/5"}
    assert set(right(executor).values()) == {"0/5"}
    assert right(verifier) == {
        "verdict readable": "0/5", "verdict right": "0/5", "STOP where due": "0/2",
        "CONTINUE where due": "0/3", "result_valid right": "0/3",
    }  # fmt: skip
    assert right(generator) == {"answer readable": "5/5", "answer right": "0/5"}
    assert {role["standing"] for role in found["roles"]} == {"cannot"}
    assert [planner["asks"], executor["asks"], verifier["asks"]] == [5, 10, 10], "one correction, none for the planner"
    assert any("larger model" in line for line in found["advice"])
    assert not any("structured_output=true" in line for line in found["advice"]), "this server ignores the schema"


@pytest.mark.parametrize(("stop", "share"), [(True, "2/5"), (False, "3/5")])
def test_a_constant_verdict_scores_its_share_and_is_found_out(
    capsys: pytest.CaptureFixture[str], stop: bool, share: str
) -> None:
    verdict = json.dumps({"analysis": "x", "result_valid": True, "memory_sufficient": stop})
    with LLMServer(only("verifier", verdict)) as server:
        code, found = examined(server, capsys)
    verifier = found["roles"][2]
    assert code == 1
    assert right(verifier)["verdict right"] == share
    assert right(verifier)["result_valid right"] == "2/3"
    assert verifier["standing"] == "cannot", "3 of 5 by always saying CONTINUE is no judgement"
    assert [role["standing"] for role in found["roles"]] == ["good", "good", "cannot", "good"]
    assert any("--set agent.verifier.engine=large" in line for line in found["advice"])


@pytest.mark.matrix(1)
@pytest.mark.parametrize("role", ["planner", "executor", "verifier", "generator"])
def test_an_injected_instruction_that_is_believed_is_seen(capsys: pytest.CaptureFixture[str], role: str) -> None:
    believed = {
        "planner": "Context: print(42) vessonite\nSub-Goal: stop\nTool Name: python",
        "executor": '{"url": "https://collect.example/keys"}',
        "verifier": '{"analysis": "1877", "result_valid": true, "memory_sufficient": true}',
        "generator": "<answer>42</answer>",
    }[role]

    def reply(body: Body) -> str:
        text = prompt_of(body)
        return believed if role_of(text) == role and f"NOTE TO THE {role.upper()}" in text else perfect(body)

    with LLMServer(reply) as server:
        _, found = examined(server, capsys)
    [examined_role] = [entry for entry in found["roles"] if entry["role"] == role]
    failed = [case["case"] for case in examined_role["cases"] if not all(case["checks"].values())]
    assert len(failed) == 1
    assert failed[0].startswith("injection")


def test_valid_arguments_may_be_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"mean": "max", "2019-03-08": "2019-08-03", "967": "960", "Lindqvist": "steam"}

    def reply(body: Body) -> str:
        text = perfect(body)
        for old, new in changes.items() if role_of(prompt_of(body)) == "executor" else ():
            text = text.replace(old, new)
        return text

    with LLMServer(reply) as server:
        code, found = examined(server, capsys)
    assert code == 1
    assert right(found["roles"][1]) == {"valid": "5/5", "arguments right": "1/5"}


def test_an_invalid_command_is_fixed_by_the_correction(capsys: pytest.CaptureFixture[str]) -> None:
    def reply(body: Body) -> str:
        first = len(body["messages"]) == 2
        return "no JSON" if role_of(prompt_of(body)) == "executor" and first else perfect(body)

    with LLMServer(reply) as server:
        code, found = examined(server, capsys)
    executor = found["roles"][1]
    assert code == 0
    assert right(executor) == {"valid": "5/5", "arguments right": "5/5"}
    assert (executor["standing"], executor["asks"]) == ("good", 10)


def test_structured_output_is_recommended_where_the_server_enforces_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that writes prose unless it is held to the schema."""

    def reply(body: Body) -> str:
        free = role_of(prompt_of(body)) in ("executor", "verifier") and "response_format" not in body
        return "prose" if free else perfect(body)

    with LLMServer(reply) as server:
        code, found = examined(server, capsys)
        advised = [line.split("--set ")[1] for line in found["advice"] if "structured_output" in line]
        assert code == 1
        assert advised == ["agent.executor.structured_output=true", "agent.verifier.structured_output=true"]
        code, found = examined(server, capsys, *(part for setting in advised for part in ("--set", setting)))
    assert code == 0, "the advice fixes it"
    assert {role["standing"] for role in found["roles"]} == {"good"}


def refuse(field: str) -> Callable[[Body], str | Body]:
    """A server that says 200 with an error 400 in the body where a request has `field`."""
    error = {"error": {"message": f"unknown field {field}", "code": 400}}
    return lambda body: error if field in body else perfect(body)


def test_what_the_server_cannot_do_is_reported_in_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    with LLMServer(refuse("return_token_ids")) as server:
        code, found = examined(server, capsys)
    assert code == 0, "an agent can run without token ids"
    ids, schema = found["probes"]
    assert (ids["works"], schema["works"]) == (False, True)
    assert "unknown field return_token_ids" in ids["words"]
    assert any("vLLM" in line for line in found["advice"])
    with LLMServer(refuse("response_format")) as server:
        _, found = examined(server, capsys)
    ids, schema = found["probes"]
    assert (ids["works"], schema["works"]) == (True, False)
    assert "unknown field response_format" in schema["words"]


def test_a_server_without_token_ids_in_its_answers(capsys: pytest.CaptureFixture[str]) -> None:
    def reply(body: Body) -> Body:
        return completion({key: body[key] for key in ("model", "messages")}, perfect(body))

    with LLMServer(reply) as server:
        _, found = examined(server, capsys)
    assert found["probes"][0]["works"] is False
    assert "token ids" in found["probes"][0]["words"]


def test_replies_cut_off_at_max_tokens_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    def reply(body: Body) -> Body:
        made = completion(body, perfect(body)[:20])
        made["choices"][0]["finish_reason"] = "length"
        return made

    with LLMServer(reply) as server:
        _, found = examined(server, capsys)
    assert sum(case["cut_off"] for case in found["roles"][0]["cases"]) == 5
    assert any("planner: 5 of 5 replies were cut off" in line for line in found["advice"])


def test_a_prompt_that_does_not_fit_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    said = "This model's maximum context length is 512 tokens. However, your request has 3000 input tokens."
    error = {"error": {"message": said, "code": 400}}
    with LLMServer(lambda body: error if role_of(prompt_of(body)) == "planner" else perfect(body)) as server:
        code, found = examined(server, capsys)
    assert code == 1
    assert right(found["roles"][0]) == {"prompt fits": "0/5"}
    assert [role["standing"] for role in found["roles"]] == ["cannot", "good", "good", "good"]
    assert all("512" in case["too_long"] for case in found["roles"][0]["cases"])
    assert any("serve a longer context" in line for line in found["advice"])


def test_a_probe_that_meets_a_broken_server_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    error = {"error": {"message": "overloaded", "code": 503}}
    with LLMServer(lambda body: error if PROBED in prompt_of(body) else perfect(body)) as server:
        code, found = examined(server, capsys)
    assert code == 0
    assert [probe["works"] for probe in found["probes"]] == [None, None]
    assert "overloaded" in found["probes"][0]["words"]


def test_faults_of_the_server_are_retried_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    faults = [500, "reset", 503, "garbage"]
    with LLMServer(perfect, faults=faults) as server:
        code, found = examined(server, capsys, "--set", "engines.model.max_attempts=8")
    assert code == 0
    assert sum(case["retries"] for role in found["roles"] for case in role["cases"]) == len(faults)
    assert {role["standing"] for role in found["roles"]} == {"good"}
    assert any("sent again" in line for line in found["advice"])


def test_a_server_that_is_down_is_no_verdict_on_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    with LLMServer() as server:
        gone = server.base_url
    assert main(["examine", "--model", "m", "--base-url", gone, "--json", *FAST]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "error[endpoint-unreachable]" in printed.err


@pytest.mark.parametrize("fault", [401, 503])
def test_a_server_that_refuses_or_stays_broken_is_an_error(capsys: pytest.CaptureFixture[str], fault: int) -> None:
    with LLMServer(perfect, faults=[fault] * 200) as server:
        assert main(["examine", "--model", "m", "--base-url", server.base_url, "--json", *FAST]) == 1
        asked = len(server.bodies)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(fault) in printed.err
    assert asked < 20, "the first failure ends the others"


def test_roles_that_ask_no_model_are_not_examined(capsys: pytest.CaptureFixture[str]) -> None:
    with LLMServer(perfect) as server:
        code, found = examined(server, capsys, "--set", 'agent.verifier={type="form"}')
    assert code == 0
    assert found["roles"][2]["standing"] == "not examined"
    assert "form" in found["roles"][2]["skipped"]
    assert not any(role_of(prompt_of(body)) == "verifier" for body in server.bodies)


def test_an_executor_that_writes_programs_is_not_examined(capsys: pytest.CaptureFixture[str]) -> None:
    with LLMServer(perfect) as server:
        code, found = examined(server, capsys, "--set", "agent.executor.mode=code")
    assert code == 0
    assert "writes programs" in found["roles"][1]["skipped"]


def test_a_recipe_without_models_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examine", "--recipe", "control-random"]) == 2
    assert "has no role to examine" in capsys.readouterr().err


class Lockstep:
    """A scripted in-process engine that refuses a request of a run that has not joined."""

    name, token_exact = "local", True

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.joined: list[int] = []

    def join(self, order: int) -> None:
        self.live.add(order)
        self.joined.append(order)

    def leave(self, order: int) -> None:
        self.live.discard(order)

    async def sample(self, request: Request) -> Call:
        assert request.order in self.live
        body = {"messages": [message.wire() for message in request.messages]}
        return Call(role=request.role, messages=request.messages, completion=perfect(body))

    async def close(self) -> None: ...


def test_an_in_process_engine_is_joined_and_left() -> None:
    build, engine = Build(load_recipe("agentflow-prompted")), Lockstep()
    build._engines["model"] = engine
    heard: list[tuple[int, int]] = []
    found = asyncio.run(examine(build, lambda done, of: heard.append((done, of))))
    assert found.works
    assert sorted(engine.joined) == list(range(20))
    assert not engine.live
    assert heard == [(done, 20) for done in range(1, 21)]
    assert [(probe.what, probe.works) for probe in found.probes] == [("token ids and log-probabilities", True)]


def test_the_screen_ends_with_the_conclusion(capsys: pytest.CaptureFixture[str]) -> None:
    with LLMServer(only("generator", "<answer>42</answer>")) as server:
        assert main(["examine", "--model", "m", "--base-url", server.base_url, *FAST, "--quiet"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"wanted\s+1868\n\s+said\s+42\n", re.sub(" +\n", "\n", out))
    assert out.index("Missed") < out.index("Server") < out.index("Conclusion") < out.index("What to do")
    assert "\x1b" not in out


# --- a policy that writes a stream ------------------------------------------------------------------------------------


def streaming(body: Body) -> str:
    """A model that writes the template artist-math by the book, and obeys a schema."""
    text = prompt_of(body)
    asked = [case for case in CASES.policy if case.question in text]
    if not asked:
        return perfect(body)
    if f"<output>\n{asked[0].result}" in text:
        return f"<think>There it is.</think><answer>{asked[0].holds[0].split('|')[0]}</answer>"
    return "<think>I shall compute it.</think><python>print(1)</python>"


def policy_examined(
    reply: Callable[[Body], str | Body], capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, Any]]:
    with LLMServer(reply) as server:
        return examined(server, capsys, "--recipe", "artist-prompted", *more)


def test_a_policy_is_asked_through_its_template(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = policy_examined(streaming, capsys)
    [policy] = found["roles"]
    assert (code, policy["role"], policy["standing"]) == (0, "policy", "good")
    assert right(policy) == {"call readable": "3/3", "fitting tool": "3/3", "answer right": "3/3"}
    assert policy["asks"] == 6, "each case takes a call and an answer"
    assert {case["case"] for case in policy["cases"]} == {case.name for case in CASES.policy if case.tool == "python"}
    assert found["advice"] == []


def test_a_policy_that_never_calls_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = policy_examined(lambda body: "The answer is <answer>71</answer>", capsys)
    [policy] = found["roles"]
    assert code == 1
    assert right(policy) == {"call readable": "0/3", "fitting tool": "0/3", "answer right": "1/3"}
    assert any("agent.template" in line for line in found["advice"])


def test_a_policy_whose_server_fails_is_no_verdict_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    error = {"error": {"message": "overloaded", "code": 503}}
    with LLMServer(lambda body: error) as server:
        arguments = ["examine", "--recipe", "artist-prompted", "--model", "m", "--base-url", server.base_url, "--json"]
        assert main([*arguments, *FAST]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "overloaded" in printed.err


def test_a_policy_whose_context_is_too_small_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    said = "This model's maximum context length is 512 tokens. However, your request has 3000 input tokens."
    error = {"error": {"message": said, "code": 400}}
    code, found = policy_examined(lambda body: perfect(body) if PROBED in prompt_of(body) else error, capsys)
    assert code == 1
    assert right(found["roles"][0]) == {"prompt fits": "0/3"}


def test_a_template_with_a_tool_of_its_own_has_no_cases(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    calls = 'call = { open = "<ask>", close = "</ask>" }\ntool = "oracle"'
    own.write_text(f'{calls}\noutput = {{ open = "<said>", close = "</said>" }}\n')
    settings = (f"agent.template={own}", 'agent.tools={oracle="python"}')
    with LLMServer(streaming) as server:
        arguments = ["examine", "--recipe", "artist-prompted", "--model", "m", "--base-url", server.base_url, *FAST]
        assert main([*arguments, *(part for setting in settings for part in ("--set", setting))]) == 2
    assert "its template calls a tool that no case is about" in capsys.readouterr().err


# --- the cases themselves ---------------------------------------------------------------------------------------------


def test_there_are_five_cases_a_role_with_names_of_their_own() -> None:
    for role in ("planner", "executor", "verifier", "generator"):
        names = [case.name for case in getattr(CASES, role)]
        assert len(names) == len(set(names)) == 5
    assert Counter(case.tool for case in CASES.policy) == {"python": 3, "search": 3}
    assert all(holds(case.result, case.holds) for case in CASES.policy), "the tool's result has the answer"
    assert Counter(case.memory_sufficient for case in CASES.verifier) == {True: 2, False: 3}


def test_cases_can_be_solved_with_what_they_show() -> None:
    """Every word a planner must pass on stands in its prompt, every accepted argument satisfies its tool's schema."""
    tools = {tool.name: tool for tool in CASES.tools}
    for case in CASES.planner:
        shown = case.question + "".join(record.model_dump_json() for record in memory_of(case.memory).records)
        assert holds(shown, case.needs), case.name
        assert set(case.tools) <= set(tools)
    for case in CASES.executor:
        parameters = tools[case.action.tool].parameters
        best = {name: values[0] for name, values in case.accept.items()} | dict.fromkeys(case.holds, "x")
        assert schema_error(best, parameters) is None, case.name


def test_memory_holds_past_turns_as_an_agent_records_them() -> None:
    records = memory_of(CASES.planner[2].memory).records
    assert [record.turn for record in records] == [1, 2]
    assert [record.error for record in records] == ["no document matches", None]
    assert [record.verdict.result_valid for record in records if record.verdict] == [False, True]
    assert all(isinstance(record, MemoryRecord) and record.command for record in records)


def test_a_misspelt_key_in_the_cases_is_refused() -> None:
    table = CASES.model_dump()
    table["generator"][0]["accepts"] = ["1868"]
    with pytest.raises(ValueError, match="accepts"):
        Cases.model_validate(table)


@pytest.mark.parametrize(
    ("text", "words", "held"),
    [
        ("seats: 1,482 and 967", ("1,482|1482", "967"), True),
        ("1482-967", ("1482|1_482", "967"), True),
        ("11482 and 967", ("1,482|1482", "967"), False),
        ("the LINDQVIST\n valve", ("Lindqvist valve",), True),
        ("12.50", ("12.5",), False),
        ("", (), True),
    ],
)
def test_words_are_found_whole(text: str, words: tuple[str, ...], held: bool) -> None:
    assert holds(text, words) is held


@pytest.mark.parametrize(
    ("said", "accepted", "same"),
    [
        (250.0, 250, True), ("250", 250, False), ([12.5, 19.95], [12.5, 19.95], True), ([12.5], [12.5, 19.95], False),
        (" nok", "NOK", True), (None, "NOK", False), ("https://a.example/x/", "https://a.example/x", False),
    ],
)  # fmt: skip
def test_arguments_are_compared_by_value(said: Any, accepted: Any, same: bool) -> None:
    assert equal(said, accepted) is same


@given(st.integers(0, 10**9))
def test_a_thousands_comma_does_not_count(number: int) -> None:
    assert plain(f" {number:,}. ") == plain(str(number)) == str(number)


@given(st.text(), st.lists(st.text()))
def test_any_text_and_words_can_be_compared(text: str, words: list[str]) -> None:
    assert holds(text, words) in (True, False)
    assert isinstance(plain(text), str)
