"""Protocols of training: rows and the learner that they change, the engine whose weights learn, a world to learn in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from midstream.core.task import Task
from midstream.core.texts import Lessons
from midstream.rollout import Environment
from midstream.training.losses import PolicyLoss

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from midstream.engines.local.codec import TokenizerCodec


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One training sequence: a prompt, and the sampled tokens after it, which may alternate with appended text."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]  # the tokens after the prompt, sampled or appended by the environment
    # For each completion token, whether the policy sampled it; empty if it sampled all of them. Appended tokens (tool
    # output, a user's words) have no loss.
    sampled: tuple[bool, ...] = ()
    old_logprobs: tuple[float, ...]  # of each completion token when it was sampled; 0 for appended tokens
    advantage: float  # of every sampled token, unless `advantages` are given
    advantages: tuple[float, ...] = ()  # of each completion token, where the calls of a row differ
    weight: float  # factor of each sampled token's policy loss: the normalizers (1/|a|, 1/T, 1/trajectories, ...)
    kl_weight: float  # factor of each sampled token's KL term
    temperature: float = 1.0  # of both log-probabilities, old and new
    trajectory_id: str = ""  # the trajectory that the row is made from
    role: str = ""  # of its calls

    @property
    def length(self) -> int:
        """Number of tokens, prompt included."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class LossStats:
    """Sums over the tokens of one `forward_backward`, for the log."""

    loss: float = 0.0
    kl_sum: float = 0.0  # of the KL estimates
    gap_sum: float = 0.0  # of |log-probability - recorded log-probability|
    entropy_sum: float = 0.0  # of the entropies of a bonus, in nats
    clipped: int = 0  # tokens whose ratio was clipped
    tokens: int = 0  # tokens with a loss
    total_tokens: int = 0  # tokens of all rows, prompts included; 0 if the learner does not count them
    unique_tokens: int = 0  # tokens of the rows' prefix trie, which holds shared prefixes once; 0 likewise

    @classmethod
    def total(cls, parts: Sequence[LossStats]) -> LossStats:
        """The sums over several parts of the rows."""
        every = [asdict(part) for part in parts]
        return cls(**{name: sum(part[name] for part in every) for name in every[0]}) if every else cls()


class Student(Protocol):
    """The engine of the weights that are trained: what makes rows of text as its model would read it."""

    name: str

    @property
    def codec(self) -> TokenizerCodec:
        """The codec of its model, which also names the tokens that end a completion (`end_ids`)."""
        ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of its model."""
        ...

    @property
    def positions(self) -> int | None:
        """The most tokens of prompt and completion together, if that is known."""
        ...


class Learner(Protocol):
    """Updates weights. Gradients of successive `forward_backward` calls accumulate until `optimizer_step`."""

    @property
    def why_unshared(self) -> str:
        """Why shared prefixes are computed for each row; "" if they are not, or if the recipe asks for rows."""
        ...

    def before_step(self, seed: int) -> None:
        """Prepare for the rollouts of a step; a model that changes its weights between steps does so here."""
        ...

    def forward_backward(self, rows: Sequence[Row], loss: PolicyLoss) -> LossStats:
        """Add the gradient of `loss` over `rows`."""
        ...

    def optimizer_step(self, learning_rate: float) -> float:
        """Clip the gradient, step, clear the gradient; returns its norm before clipping."""
        ...

    def logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> list[tuple[float, ...]]:
        """Log-probabilities of each row's completion tokens under the policy or the reference policy."""
        ...

    def supervised_step(
        self, rows: Sequence[Row], learning_rate: float, prompt_weight: float = 0.0, *, shared: bool = False
    ) -> float:
        """One step of cross-entropy; returns the loss. With `shared`, common prefixes may be computed once."""
        ...

    def rebase(self) -> None:
        """Make the present weights the reference policy and start with a fresh optimizer."""
        ...

    def publish(self) -> None:
        """Have the engine of the weights sample from the newest, if it does not already."""
        ...

    def export_weights(self, directory: Path) -> None:
        """Write the trainable weights in the form that an engine loads."""
        ...

    def save(self, directory: Path) -> None:
        """Write everything that `load` needs: to continue bit for bit, or as exactly as the server that holds it."""
        ...

    def load(self, directory: Path) -> None:
        """Restore the state that `save` wrote."""
        ...


@runtime_checkable
class TrainableWorld(Protocol):
    """A task source in which an untrained model can learn; its settings name a `teacher`."""

    def attach(self, model: Any) -> None:
        """Add the hooks that training in this world needs to a model; adding them again does nothing.

        A learner calls `model.before_step(seed)` before each step if the model has this method.
        """
        ...

    def readable(self, question: str) -> str:
        """Return a user's question as a model of this world reads it; `UsageError` for words that it does not know."""
        ...

    def lessons(self, task_ids: Sequence[str], share: float, seed: int) -> Mapping[str, Lessons]:
        """Lessons for the prompts of a `share` of the warm-start transcripts, by task id; the teacher follows them."""
        ...

    def check_validation(self, tasks: Sequence[Task], least: float) -> None:
        """Raise `RecipeError`, before any work, if `check_warm_start` cannot use these validation tasks."""
        ...

    async def check_warm_start(self, environment: Environment, tasks: Sequence[Task], least: float, seed: int) -> str:
        """Check a warm-started model, on validation tasks, before reinforcement; returns a line for the log.

        `environment` is around the model, `least` the lowest result that passes, in [0, 1]
        (`warm_start.min_copy_rate`). Raises `TrainingError` if the model learned too little to continue.
        """
        ...
