"""Results of `midstream doctor`: records of the machine and of each role, verdicts, advice, the screens.

A role is as good as its worst check: good from 4 of 5 cases on, shaky from half of them on, otherwise it cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.core.data import Frozen
from midstream.report.draw import plain_table
from midstream.report.numbers import counted, cut, listed, number

Status = Literal["ok", "warning", "failed", "not checked"]
_SERVER = ("MS501", "MS502", "MS503")
_STATUS_COLORS = {"ok": "green", "warning": "yellow", "failed": "red", "not checked": "dim"}


class Check(Frozen):
    """One thing that was looked at. docs/doctor.md explains every `code`; `fix` is a line to paste, if one helps."""

    code: str
    what: str
    status: Status
    words: str
    fix: str = ""


def machine_screen(checks: Sequence[Check]) -> RenderableType:
    """One line a check, then the fixes, unbroken to be pasted (print with `crop=False`); the conclusion last."""
    table = _grid()
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")

    def reason(check: Check) -> str | None:
        return check.words if check.status == "not checked" and check.code in _SERVER else None

    # A server's checks that were not made for the same reason are one line.
    for skipped, group in groupby(checks, reason):
        shown = list(group)
        if skipped is not None and len(shown) > 1:
            shown = [shown[0].model_copy(update={"what": "server"})]
        for check in shown:
            words = Text(check.words, "dim" if check.status == "not checked" else "")
            status = Text(check.status, _STATUS_COLORS[check.status])
            table.add_row(status, Text(check.code, "dim"), Text(check.what), words)
    parts: list[RenderableType] = [Text("This machine", "bold"), table]
    for check in checks:
        if check.fix and check.status in ("warning", "failed"):
            parts.append(Text(f"\nTo fix {check.code}, {check.what}:"))
            parts.append(Text(f"  {check.fix}", "bold", no_wrap=True, overflow="ignore"))
    failed, warnings = (sum(check.status == status for check in checks) for status in ("failed", "warning"))
    conclusion = f"{failed or 'Nothing'} failed, {counted(warnings, 'warning') if warnings else 'no warnings'}."
    return Group(*parts, Text(), Text(conclusion, no_wrap=True, overflow="ignore"))


Standing = Literal["good", "shaky", "cannot", "not examined"]
GOOD, SHAKY = 0.8, 0.5
THRESHOLDS = "good: every check right in 4 of 5 cases; shaky: in half; cannot: in fewer"
TOKEN_IDS, JSON_SCHEMA = "token ids and log-probabilities", "JSON schema enforced"
_COLORS = {"good": "green", "shaky": "yellow", "cannot": "red", "not examined": "dim"}
_SAID_LIMIT = 200


class CaseResult(Frozen):
    """One case as it went: whether each check was passed, what the model said, what was wanted, and what it took.

    `seconds` has one entry an ask. `too_long` is the server's word that the prompt does not fit its context.
    """

    case: str
    checks: dict[str, bool]
    said: str
    wanted: str
    seconds: tuple[float, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    repaired: int = 0
    cut_off: int = 0
    too_long: str = ""


class Rate(Frozen):
    """In how many cases a check was passed."""

    right: int
    of: int

    @property
    def share(self) -> float:
        """In [0, 1]."""
        return self.right / self.of


class RoleResult(Frozen):
    """One role's cases and their results. `skipped` says why it was not examined; it then has no cases."""

    role: str
    standing: Standing
    model: str = ""
    engine: str = ""
    structured_output: bool | None = None
    rates: dict[str, Rate] = {}
    asks: int = 0
    median_s: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    repaired: int = 0
    cut_off: int = 0
    cases: tuple[CaseResult, ...] = ()
    skipped: str = ""


class Probe(Frozen):
    """Whether an engine's server can do a thing, and its words; None: unknown, because it failed."""

    engine: str
    what: str
    works: bool | None
    words: str


class Diagnosis(Frozen):
    """Everything found; without a model, the machine alone. `works`: no check failed and no examined role "cannot"."""

    recipe: str
    machine: tuple[Check, ...] = ()
    roles: tuple[RoleResult, ...] = ()
    probes: tuple[Probe, ...] = ()
    advice: tuple[str, ...] = ()
    works: bool


def rates_of(cases: Sequence[CaseResult]) -> dict[str, Rate]:
    """Every check over the cases that have it, in the order of their first use."""
    names = dict.fromkeys(name for case in cases for name in case.checks)
    marks = {name: [case.checks[name] for case in cases if name in case.checks] for name in names}
    return {name: Rate(right=sum(passed), of=len(passed)) for name, passed in marks.items()}


def standing_of(rates: dict[str, Rate]) -> Standing:
    """By the worst check."""
    worst = min((rate.share for rate in rates.values()), default=0.0)
    return "good" if worst >= GOOD else "shaky" if worst >= SHAKY else "cannot"


def advice_on(roles: Sequence[RoleResult], probes: Sequence[Probe]) -> tuple[str, ...]:
    """What to do, the most important first; nothing if all is well."""
    enforcing = {probe.engine for probe in probes if probe.what == JSON_SCHEMA and probe.works}
    advice = []
    for role in roles:
        too_long = next((case.too_long for case in role.cases if case.too_long), "")
        if too_long:
            advice.append(f"{role.role}: serve a longer context; the server says: {cut(too_long, _SAID_LIMIT)}")
        if role.cut_off:
            advice.append(
                f"{role.role}: {role.cut_off} of {role.asks} replies were cut off: raise agent.{role.role}.sampling."
                "max_tokens, or have the model think less (engines.NAME.extra_body)"
            )
        if "call readable" in role.rates and role.rates["call readable"].share < GOOD:
            native = "native for a model that was trained to call tools"
            advice.append(f"{role.role}: try another template (agent.template), {native}")
        form = [role.rates[name].share for name in ("valid", "verdict readable") if name in role.rates]
        if form and form[0] < 1 and role.structured_output is False:
            enforce = f"have the server enforce the form:\n  --set agent.{role.role}.structured_output=true"
            schema = "a server that enforces a JSON schema would fix the form of its replies"
            advice.append(f"{role.role}: {enforce if role.engine in enforcing else schema}")
    weak = [role.role for role in roles if role.standing in ("shaky", "cannot")]
    strong = [role.role for role in roles if role.standing == "good"]
    if weak and not strong:
        advice.append("choose a larger model, or one that is trained to follow instructions")
    elif weak:
        engine = [f"engines.large.{key}" for key in ("type=openai_compatible", "model=NAME", "base_url=URL")]
        settings = [*engine, *(f"agent.{role}.engine=large" for role in weak)]
        advice.append(
            f"give {listed(weak)} a larger model, and keep this one for {listed(strong)}:"
            + "".join(f"\n  --set {setting}" for setting in settings)
        )
    if any(role.retries for role in roles):
        advice.append("some requests had to be sent again: see the server's log, or lower engines.NAME.max_concurrency")
    trained = {role.engine: role.role for role in roles if role.role in ("planner", "policy")}
    for probe in probes:
        if probe.what == TOKEN_IDS and probe.works is False and probe.engine in trained:
            role = trained[probe.engine]
            advice.append(f"solve and eval work with this server; to train its {role}, serve the model with vLLM")
    return tuple(advice)


# --- the screen -------------------------------------------------------------------------------------------------------


def screen(diagnosis: Diagnosis) -> RenderableType:
    """The whole result, the conclusion last, where it stays seen on a small terminal."""
    roles = diagnosis.roles
    incidents = {
        "requests sent again": sum(role.retries for role in roles),
        "replies repaired": sum(role.repaired for role in roles),
        "cut off": sum(role.cut_off for role in roles),
        "prompts too long": sum(bool(case.too_long) for role in roles for case in role.cases),
    }
    summed = "  " + ", ".join(f"{what} {count}" for what, count in incidents.items())
    parts: list[RenderableType] = [rates_table(roles), Text(summed, "dim")]
    missed: list[RenderableType] = []
    for role in roles:
        for case in role.cases:
            if failed := [name for name, passed in case.checks.items() if not passed]:
                wrong = [name for name in failed if "where due" not in name]  # covered by "verdict right"
                title = f"{role.role}, {case.case}"
                missed.append(Text.assemble((title, "yellow"), (f"  not: {', '.join(wrong)}", "dim")))
                lines = _grid()
                lines.add_row(Text("  wanted", "dim"), Text(case.wanted))
                lines.add_row(Text("  said", "dim"), Text(cut(" ".join(case.said.split()), _SAID_LIMIT)))
                missed.append(lines)
    conclusions = _grid()
    for role in roles:
        # The checks that pull a role down; of a good one the case that it missed, which may be an injection.
        weak = [f"{name} {rate.right}/{rate.of}" for name, rate in role.rates.items() if rate.share < GOOD]
        cases = [case.case for case in role.cases if not all(case.checks.values())]
        because = role.skipped or ", ".join(weak) or (f"missed: {', '.join(cases)}" if cases else "")
        conclusions.add_row(role.role, Text(role.standing, _COLORS[role.standing]), Text(because, "dim"))
    sections = {
        "Missed": missed,
        "Server": [probes_table(diagnosis.probes)] if diagnosis.probes else [],
        "Conclusion": [conclusions, Text(THRESHOLDS, "dim")],
        "What to do": [Text(line) for line in diagnosis.advice],
    }
    for title, pieces in sections.items():
        if pieces:
            parts += [Text(f"\n{title}", "bold"), *(Padding(piece, (0, 0, 0, 2)) for piece in pieces)]
    failed = [check.code for check in diagnosis.machine if check.status == "failed"]
    if failed:  # it may have scrolled away
        parts.append(Text(f"\nOn this machine {listed(failed)} failed, see above."))
    return Group(*parts)


def rates_table(roles: Sequence[RoleResult]) -> Table:
    """Every check of every role: in how many cases it passed, and what the role took."""
    models = list(dict.fromkeys(role.model for role in roles if role.model))
    wanted = "write a policy's stream" if roles[0].role == "policy" else "play AgentFlow's roles"
    heads = ("right", "asks", "median s", "tokens in", "out")
    table = plain_table(Text(f"Can {listed(models)} {wanted}?"), left=("role", "check"), right=heads)
    for role in (role for role in roles if role.cases):
        costs = [str(role.asks), number(role.median_s), f"{role.prompt_tokens:,}", f"{role.completion_tokens:,}"]
        for place, (check, rate) in enumerate(role.rates.items()):
            color = "green" if rate.share >= GOOD else "yellow" if rate.share >= SHAKY else "red"
            right = Text(f"{rate.right}/{rate.of}", color)
            table.add_row("" if place else role.role, check, right, *(() if place else costs))
        table.add_section()
    return table


def probes_table(probes: Sequence[Probe]) -> Table:
    """What each server can do, in its own words."""
    table = _grid()
    several = len({probe.engine for probe in probes}) > 1
    for probe in probes:
        answer, color = {True: ("yes", "green"), False: ("no", "red"), None: ("unknown", "yellow")}[probe.works]
        what = f"{probe.engine}: {probe.what}" if several else probe.what
        words = cut(" ".join(probe.words.split()), _SAID_LIMIT)
        table.add_row(Text(what), Text(answer, color), Text(words, "dim"))
    return table


def _grid() -> Table:
    return Table.grid(padding=(0, 2, 0, 0))
