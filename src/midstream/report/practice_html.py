"""The report of a practice run: one HTML file that needs nothing else, as a training run's."""

from __future__ import annotations

from pathlib import Path

from midstream.evaluation.pairs import Paired
from midstream.practice.commit import fates
from midstream.report import practice_lessons, practice_sections, practice_updates
from midstream.report.numbers import change, counted, dollars, percent
from midstream.report.page import Card, Part, arrow, how, limits, next_steps, page, save_page
from midstream.report.practice_data import PracticeData, fates_text, left_out_text, short, total_fates
from midstream.report.sections import text
from midstream.report.turns import sample_runs


def write_practice_report(path: Path, data: PracticeData) -> None:
    """Write the report of `data` to `path` as one HTML file. Raises `StorageError`."""
    save_page(path, render_practice(data))


def render_practice(data: PracticeData) -> str:
    """The report as HTML text."""
    parts: list[Part] = [
        ("results", "Results", practice_sections.results(data)),
        ("lessons", "The lessons", practice_lessons.lessons(data)),
        ("curves", "Update by update", practice_sections.curves(data.updates)),
        ("tried", "Tried and not accepted", practice_lessons.not_accepted(data)),
        ("updates", "What each update did", practice_updates.updates(data)),
        ("cost", "Cost", practice_sections.costs(data)),
        ("counts", "What was counted and left out", [practice_sections.counts(data)]),
        ("runs", "One question, turn by turn", [sample_runs(data.samples, data.template)] if data.samples else []),
        ("how", "How it was run", how(data.run_info, data.recipe_toml)),
        ("limits", "Limits", [limits(data.limits)]),
        ("next", "What to try next", [next_steps(data.next_steps)]),
    ]
    return page(data.title, summary(data), _cards(data), parts)


def summary(data: PracticeData) -> str:
    """What happened, in plain words with the run's numbers: what lessons did, what was accepted, what was lost."""
    found = total_fates([fates(record) for record in data.updates])
    library = data.library
    sentences = ["No update of the library has finished yet."]
    if data.updates:
        count = len(data.updates)
        of = "" if count == data.updates_planned else f"{count} of "
        made = f"The run made {of}{counted(data.updates_planned, 'update')} of its library and never changed the model"
        sentences = [f"{made}. Of the changes that were proposed: {fates_text(found)}."]
    if data.updates and not data.gated:
        sentences.append("There was no gate: every sound change was accepted without a test.")
    sentences += [_verdict(one) for one in data.compared[:1]]
    if not data.compared:
        sentences.append("No held-out set was evaluated with and without lessons, so whether they help is not known.")
    if library.rendered and not library.proven_for:
        sentences.append("The library as it is was accepted by no test: it is unproven.")
    lost = left_out_text(data.updates)
    return " ".join(sentences + ([f"Left out: {lost}."] if lost else []))


def _verdict(one: Paired) -> str:
    low, high = (change(0.0, end) for end in one.interval)
    sides = f"{percent(one.other_success)} of {counted(one.tasks, 'held-out task')} ({one.set_name}, {one.sampling})"
    said = f"With the lessons the agent solves {sides}, without them {percent(one.first_success)}"
    if one.verdict == "the same":
        return f"{said}: every turn was the same."
    sure = "" if one.verdict in ("better", "worse") else ", which is no evidence of a difference"
    return f"{said}: {change(0.0, one.difference)} points, 95% interval {low} to {high}{sure}."


def _cards(data: PracticeData) -> list[Card]:
    cards: list[Card] = []
    for one in data.compared[:2]:
        low, high = (change(0.0, end) for end in one.interval)
        named = f"{one.set_name}, {one.sampling}"
        value = arrow(percent(one.first_success), percent(one.other_success))
        cards.append((f"Success, {named}", value, f"{one.tasks:,} held-out tasks"))
        cards.append(
            ("Difference", text(change(0.0, one.difference).replace("-", "−")), f"points, 95%: {low} to {high}")
        )
    library = data.library
    pinned, vetoed = (sum(one.state == state for one in library.lessons) for state in ("pinned", "vetoed"))
    notes = [f"{count} {name}" for count, name in ((pinned, "pinned"), (vetoed, "vetoed")) if count]
    state = "proven by a test" if library.proven_for else "unproven"
    cards.append(("Lessons", f"{len(library.rendered):,}", ", ".join([state, *notes] if library.rendered else notes)))
    spent = data.spent
    cost = dollars(spent.cost_usd) if spent.cost_usd else f"{short(spent.tokens)}"
    note = counted(spent.rollouts, "rollout") + (f", {short(spent.tokens)} tokens" if spent.cost_usd else "")
    cards.append(("Cost" if spent.cost_usd else "Tokens", text(cost), note))
    return cards
