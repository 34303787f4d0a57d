"""How much a practice run would do at most: rollouts by purpose, requests by the reflector's roles."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.practice.settings import PracticeConfig, RoleConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """At most so many requests of a role to an engine, each for at most `max_tokens` new tokens."""

    role: str
    engine: str
    count: int
    max_tokens: int


def updates(config: PracticeConfig) -> int:
    """How many updates the schedule and the budget allow."""
    limit = config.budget.updates
    return config.updates if limit is None else min(config.updates, limit)


def tasks(config: PracticeConfig) -> int:
    """The tasks of all updates, each as often as it comes."""
    per_epoch = config.updates // config.epochs
    epochs, rest = divmod(updates(config), per_epoch)
    return epochs * config.tasks + min(rest * config.batch_size, config.tasks)


def rollouts(config: PracticeConfig) -> dict[str, int]:
    """Rollouts by what they are for; the gate's where every test and every bisection goes to its end."""
    learning = tasks(config) * config.group_size if config.lessons_from == "rollouts" else 0
    said = f"learning, {tasks(config):,} tasks x {config.group_size}" if learning else "learning, without rollouts"
    found = {said: learning}
    if config.gate.enabled:
        pairs = 2 * config.gate.test_pairs + config.gate.bisect_pairs
        found[f"gate, {updates(config)} updates x {pairs:,} pairs x 2"] = 2 * pairs * updates(config)
    return found


def requests(config: PracticeConfig) -> list[Requests]:
    """What the roles are asked where every reply has to be asked for again, as often as is allowed."""
    counts = {"critic": tasks(config), "merger": updates(config)}
    if config.lessons_from == "rollouts":
        counts = {"summariser": tasks(config) * config.group_size, **counts}
    return [_of(role, getattr(config, role) or config.reflector, count) for role, count in counts.items()]


def _of(role: str, config: RoleConfig, count: int) -> Requests:
    return Requests(role=role, engine=config.engine, count=count * config.asks, max_tokens=config.sampling.max_tokens)
