"""Results of `midstream examine`: records of each role, verdicts, advice, and all of it in blocks.

A role is as good as its worst check: good from 4 of 5 cases on, shaky from half of them on, otherwise it cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from midstream.core.data import Frozen
from midstream.report.blocks import Block, Cell, cell, facts, heading, table, text
from midstream.report.numbers import counts_text, cut, number

Standing = Literal["good", "shaky", "cannot", "not examined"]
GOOD, SHAKY = 0.8, 0.5
THRESHOLDS = "good: every check right in 4 of 5 cases; shaky: in half; cannot: in fewer"
TOKEN_IDS, JSON_SCHEMA = "token ids and log-probabilities", "JSON schema enforced"
_TONES = {"good": "up", "shaky": "warn", "cannot": "bad", "not examined": "soft"}
_SAID_LIMIT = 200


class CaseResult(Frozen):
    """One case as it went: whether each check was passed, what the model said, what was wanted, what went wrong.

    `seconds` has one entry an ask. `too_long` is the server's word that the prompt does not fit its context.
    """

    case: str
    checks: dict[str, bool]
    said: str
    wanted: str
    seconds: tuple[float, ...] = ()
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
    cases: tuple[CaseResult, ...] = ()
    skipped: str = ""

    def total(self, name: str) -> int:
        """The sum of a field of the cases."""
        return sum(getattr(case, name) for case in self.cases)


class Probe(Frozen):
    """Whether an engine's server can do a thing, and its words; None: unknown, because it failed."""

    engine: str
    what: str
    works: bool | None
    words: str


class Diagnosis(Frozen):
    """Everything found. `works`: no examined role "cannot"."""

    recipe: str
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
        if cut_off := role.total("cut_off"):
            advice.append(
                f"{role.role}: {cut_off} of {role.asks} replies were cut off: raise agent.{role.role}.sampling."
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
            f"give {', '.join(weak)} a larger model, and keep this one for {', '.join(strong)}:"
            + "".join(f"\n  --set {setting}" for setting in settings)
        )
    if any(role.total("retries") for role in roles):
        advice.append("some requests had to be sent again: see the server's log, or lower engines.NAME.max_concurrency")
    trained = {role.engine: role.role for role in roles if role.role in ("planner", "policy")}
    for probe in probes:
        if probe.what == TOKEN_IDS and probe.works is False and probe.engine in trained:
            role = trained[probe.engine]
            advice.append(f"solve and eval work with this server; to train its {role}, serve the model with vLLM")
    return tuple(advice)


# --- blocks -----------------------------------------------------------------------------------------------------------


def role_blocks(diagnosis: Diagnosis) -> list[Block | None]:
    """What each role could do, what it missed, what its server can do, and the conclusion."""
    roles = diagnosis.roles
    incidents = {
        "requests sent again": sum(role.total("retries") for role in roles),
        "replies repaired": sum(role.total("repaired") for role in roles),
        "cut off": sum(role.total("cut_off") for role in roles),
        "prompts too long": sum(bool(case.too_long) for role in roles for case in role.cases),
    }
    missed: list[Block | None] = []
    conclusions: list[tuple[str, Cell]] = []
    for role in roles:
        wrong = {case.case: [name for name, passed in case.checks.items() if not passed] for case in role.cases}
        for case in role.cases:
            if wrong[case.case]:
                # "verdict right" covers "STOP where due".
                failed = ", ".join(name for name in wrong[case.case] if "where due" not in name)
                said = cut(" ".join(case.said.split()), _SAID_LIMIT)
                missed.append(text(f"{role.role}, {case.case}: not {failed}", "warn"))
                missed.append(facts({"  wanted": case.wanted, "  said": said}))
        # The checks that pull a role down; of a good one the case that it missed, which may be an injection.
        weak = [f"{name} {rate.right}/{rate.of}" for name, rate in role.rates.items() if rate.share < GOOD]
        cases = ", ".join(name for name, failed in wrong.items() if failed)
        because = role.skipped or ", ".join(weak) or (f"missed: {cases}" if cases else "")
        words = ": ".join(filter(None, (role.standing, because)))
        conclusions.append((role.role, cell(words, _TONES[role.standing])))
    several = len({probe.engine for probe in diagnosis.probes}) > 1
    probes: list[tuple[str, Cell]] = []
    for probe in diagnosis.probes:
        answer, tone = {True: ("yes", "up"), False: ("no", "bad"), None: ("unknown", "warn")}[probe.works]
        what = f"{probe.engine}: {probe.what}" if several else probe.what
        probes.append((what, cell(f"{answer}: {cut(' '.join(probe.words.split()), _SAID_LIMIT)}", tone)))
    sections = {
        "Missed": missed,
        "Server": [facts(probes)],
        "Conclusion": [facts(conclusions), text(THRESHOLDS, "soft")],
        "What to do": [text(line) for line in diagnosis.advice],
    }
    found = [_rates(roles), text(counts_text(incidents), "soft")]
    for title, blocks in sections.items():
        found += [heading(title), *blocks] if any(blocks) else []
    return found


def _rates(roles: Sequence[RoleResult]) -> Block | None:
    """Every check of every role: in how many cases it passed, and what the role took."""
    models = list(dict.fromkeys(role.model for role in roles if role.model))
    wanted = "write a policy's stream" if roles[0].role == "policy" else "play AgentFlow's roles"
    rows: list[list[Cell]] = []
    for role in (role for role in roles if role.cases):
        costs = [str(role.asks), number(role.median_s)]
        for place, (check, rate) in enumerate(role.rates.items()):
            right = cell(f"{rate.right}/{rate.of}", _TONES[standing_of({check: rate})])
            rows.append(["" if place else role.role, check, right, *(["", ""] if place else costs)])
    heads = ("role", "check", "right", "asks", "median s")
    return table(f"Can {', '.join(models)} {wanted}?", heads, rows, left=2)
