from midstream.report import evaluation_tables as compare
from support.fake_run import evaluation, evaluations


def test_before_is_the_first_evaluated_step_and_after_the_last():
    [found] = compare.comparisons(evaluations(300))
    assert {result.step for result in found.before} == {0}
    assert {result.step for result in found.after} == {300}
    assert [result.sampling for result in found.after] == ["greedy", "T=1"]


def test_one_evaluation_has_no_after():
    [found] = compare.comparisons([evaluation(0.0, 0)])
    assert found.after == ()


def test_results_without_a_step_are_other_policies():
    random = evaluation(0.0, None, policy="random")
    assert compare.comparisons([random]) == []
    assert compare.others([random, evaluation(0.0, 0)]) == [random]


def test_a_set_of_two_sizes_is_compared_at_one_size():
    quick = [evaluation(0.1, step).model_copy(update={"tasks": 50}) for step in (0, 10, 20)]
    [found] = compare.comparisons([evaluation(0.0, 0), *quick, evaluation(1.0, 20)])
    assert {result.tasks for result in [*found.before, *found.after]} == {50}
    [found] = compare.comparisons([evaluation(0.0, 0), *quick[::2], evaluation(1.0, 20)])
    assert {result.tasks for result in [*found.before, *found.after]} == {400}


def test_success_is_averaged_over_seeds():
    seeds = [evaluation(0.0, 0).model_copy(update={"success": value}) for value in (0.2, 0.4)]
    assert abs((compare.success(seeds) or 0) - 0.3) < 1e-12
    assert compare.success([]) is None
    assert compare.success(seeds, "no such family") is None
