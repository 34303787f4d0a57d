"""Numbers of a study by their paths in an evaluation, and its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from studies.numbers import Metric, curves, main

from midstream.core.errors import RecipeError
from midstream.core.text_file import read_toml
from midstream.recipe.schema import load_recipe
from midstream_extra.study import shipped_studies
from support.fake_run import evaluation
from support.question_server import QuestionServer

SHIPPED = Path(__file__).parents[2] / "studies" / "numbers.toml"
ANSWERS = {f"How much is {i} plus {i} ?": str(2 * i) for i in range(2)}
OWN = """
extends = "direct"
name = "own"
engines.model = {{ base_url = "{url}", model = "scripted", max_attempts = 1 }}
tasks = {{ type = "file", path = "questions.jsonl" }}
evaluation.sets = [{{ name = "sums" }}]
"""


def test_a_metric_reads_the_last_step_or_the_first() -> None:
    results = [evaluation(0.0, 0), evaluation(0.5, 5), evaluation(1.0, 10), evaluation(1.0, 10, "T=1")]
    first, last = results[0], results[2]
    compared = [(last.set_name, "T=1"), (last.set_name, "greedy")]
    assert Metric(value="success").of(results, compared) == results[3].success
    assert Metric(value="success", sampling="greedy").of(results, compared) == last.success
    assert Metric(value="success", sampling="greedy", at="before").of(results, compared) == first.success
    errors = Metric(value=("success", "tool_use.error_rate"), sampling="greedy").of(results, compared)
    assert errors == pytest.approx((last.success + last.tool_use.error_rate) / 2)
    assert Metric(value="tool_use.share.guess", sampling="greedy", missing=0).of(results, compared) == 0
    turns = Metric(value="turns_mean", sampling="greedy", per_run=True)
    assert turns.of(results, compared) == last.turns_mean / last.tasks


@pytest.mark.parametrize("metric", [{"value": "tool_use.nonsense"}, {"value": "success", "set": "other"}])
def test_a_number_that_is_not_there_is_refused(metric: dict[str, str]) -> None:
    result = evaluation(1.0, 5)
    with pytest.raises(RecipeError) as caught:
        Metric.model_validate(metric).of([result], [(result.set_name, result.sampling)])
    assert caught.value.code == "missing-key"


def test_curves_count_trajectories_where_every_arm_has_them() -> None:
    results = [evaluation(share, step) for share, step in ((0.0, 0), (0.5, 5), (1.0, 10))]
    recipes = {"a": load_recipe("flow-grpo-tiny", ["training.tasks_per_step=2", "training.group_size=4"])}
    found, label = curves({"a": [results]}, recipes)
    assert [row.name for row in found if row.metric == "a: success"] == ["0", "40", "80"]
    assert label == "training trajectories"
    assert curves({"a": [results[:2]]}, recipes)[0] == [], "before and after are no curve"
    recipes["b"] = load_recipe("control-supervised")
    assert curves({"a": [results], "b": [results]}, recipes)[1] == "step"


def test_every_published_study_has_its_numbers() -> None:
    tables = read_toml(SHIPPED)
    assert tables.keys() == shipped_studies().keys()
    for metrics in tables.values():
        for metric in metrics.values():
            Metric.model_validate(metric)


def test_a_study_of_your_own_has_numbers_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    questions = [json.dumps({"question": question, "answer": answer}) for question, answer in ANSWERS.items()]
    (tmp_path / "questions.jsonl").write_text("\n".join(questions))
    (tmp_path / "mine.toml").write_text('name = "mine"\narms = [{ name = "plain", recipe = "own.toml" }]\n')
    (tmp_path / "metrics.toml").write_text('[mine]\nright = { value = "success" }\n')
    arguments = [str(tmp_path / "mine.toml"), "--seeds", "1", "--out", str(tmp_path / "out"), "--quiet", "--json"]
    with QuestionServer(ANSWERS) as server:
        (tmp_path / "own.toml").write_text(OWN.format(url=server.base_url))
        assert main([*arguments, "--metrics", str(tmp_path / "metrics.toml")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == [{"name": "plain", "metric": "right", "values": [1.0]}]
    assert (tmp_path / "out" / "study.svg").exists()
    assert main(arguments) == 1
    assert "names no numbers of the study" in capsys.readouterr().err
