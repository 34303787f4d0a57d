"""The fixture `midstream`, run by pytest."""

import pytest


@pytest.fixture
def in_project(project, pytester, monkeypatch):
    """A directory of tests whose agent is the project's."""
    monkeypatch.setenv("PROJECT", str(project))

    def run(body: str):
        pytester.makepyfile(f"import os\nRECIPE = os.environ['PROJECT'] + '/offline.toml'\n\n{body}")
        return pytester.runpytest_inprocess("-p", "no:cacheprovider")

    return run


@pytest.mark.parametrize(("least", "outcome"), [(0.2, "passed"), (0.95, "failed"), (0.5, "failed")])
def test_a_test_passes_where_the_requirement_holds(in_project, least, outcome):
    result = in_project(f"def test_bot(midstream):\n    midstream.assert_success(RECIPE, at_least={least})\n")
    result.assert_outcomes(**{outcome: 1})
    if outcome == "failed":
        word = "fails" if least > 0.9 else "undecided"
        result.stdout.fnmatch_lines([f"*{word}: success >= {least}*"])


def test_two_evaluations_are_compared(in_project):
    body = """
        def test_bot(midstream):
            before = midstream.evaluate(RECIPE)
            after = midstream.require(RECIPE, None, "errors <= 0", "turns <= 3")
            midstream.assert_comparison(before, after)
            midstream.assert_comparison(before, after, "better")
    """
    in_project("\n".join(line[8:] for line in body.splitlines())).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("require(RECIPE, None)", "*UsageError: nothing is required*"),
        ("assert_success(RECIPE, at_least='80%')", "*UsageError: at_least = '80%' is not a number from 0 to 1*"),
        ("assert_success(RECIPE, at_least=80)", "*UsageError: at_least = 80 is not a number from 0 to 1*"),
        ("assert_success(RECIPE, at_least=1)", "*UsageError: 'success >= 1' can never hold*"),
        ("assert_success(RECIPE, at_least=0.8)", "*: success >= 0.8 on *"),
    ],
)
def test_what_is_required_is_said(in_project, call, said):
    result = in_project(f"def test_bot(midstream):\n    midstream.{call}\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])


def test_what_cannot_be_decided_is_refused_before_anything_runs(in_project):
    result = in_project("def test_bot(midstream):\n    midstream.require(RECIPE, None, 'pass@9 >= 0.5')\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UsageError: 'pass@9 >= 0.5' cannot be decided*"])
    result.stdout.no_fnmatch_line("*decide(run.directory*")
