"""What refinement does, on the terminal: a table of rounds, the probabilities, the advice."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from midstream.evaluation.estimates import Interval
from midstream.evaluation.refinement import RefinementStudy
from midstream.report.evaluation_tables import plain_table
from midstream.report.numbers import counted, gains, percent


def refinement_screen(study: RefinementStudy) -> Iterator[RenderableType]:
    """The parts of the screen of one set."""
    title = f"{study.set_name} {study.sampling}, {study.strategy}: {counted(study.tasks, 'task')}"
    table = plain_table(Text(title), right=["round", "chains", "Avg@K", "95%", "closed form", "Cons@K", "95%"])
    for each in study.rounds:
        table.add_row(
            str(each.number),
            f"{each.chains:,}",
            percent(each.average),
            _range(each.interval),
            percent(each.expected),
            percent(each.consensus),
            _range(each.consensus_interval),
        )
    yield table
    facts = plain_table(left=["", "", "95%", ""])
    facts.show_header = False
    for name, estimate, of in (
        ("a_0, first answer right", study.start, "chains"),
        ("p, wrong to right", study.improvement, "rounds"),
        ("q, right to wrong", study.degradation, "rounds"),
    ):
        known = f"{estimate.trials:,} {of}, effect {estimate.design_effect:.2f}"
        facts.add_row(name, percent(estimate.value), _range(estimate.interval), known)
    facts.add_row("p - q", "", gains(study.gain), "points")
    facts.add_row("limit, p / (p + q)", percent(study.limit), _range(study.limit_interval), "")
    facts.add_row("limit - a_0", "", gains(study.lift), "points")
    facts.add_row("speed, |1 - p - q|", f"{study.speed:.2f}", "", "of the gap is left")
    facts.add_row("agent runs of a task", f"{study.agent_runs:.1f}", "", "at most K(1 + 2T)")
    yield facts
    plan, votes = (
        f"{percent(plan.expected)} expected with dser:K={plan.K},T={plan.T}: {counted(plan.agent_runs, 'agent run')}"
        for plan in (study.plan, study.votes_only)
    )
    notes = [
        f"scored   by {study.metric}; an answer is right if its score is 1",
        f"advice   {study.advice}: {study.reason}",
        f"budget   {counted(study.budget, 'agent run')} of a task; wrong answers are expected to agree",
        f"best     {plan}",
        f"no round {votes}",
        "effect   the factor by which differences between tasks raise the variance",
    ]
    if study.cut_short:
        ended = f"{study.cut_short:,} of {study.chains:,} chains ended before their last round"
        notes.append(f"warning  {ended}, and the others may differ from them;")
        notes.append("         early_stop=no in the strategy and a later rollout.deadline_s let all end")
    if study.left_out:
        notes.append(f"left out {counted(study.left_out, 'attempt')} without a result")
    yield Text("\n".join(notes))


def _range(interval: Interval) -> str:
    return "–".join(f"{end * 100:.1f}" for end in interval)
