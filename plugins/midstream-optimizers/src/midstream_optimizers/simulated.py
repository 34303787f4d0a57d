"""A model of the simulated workshop that writes texts: instructions with rules in them, without any language model.

The workshop's agent follows the lines under the heading of lessons, wherever its prompt has them. This model adds such
a line to the text that it is asked to rewrite, on a mark of a question that the request shows: the true one with the
probability `share_true` of the tasks. It shows that proposers and gate work together, and nothing about language
models.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, ClassVar

from midstream.components.component import Context, EngineConfig
from midstream.core.engine import Engine, Request
from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Call

if TYPE_CHECKING:
    from midstream_worlds.workshop.tasks import Workshop

_HEADING = "# Lessons from earlier tasks\n\n"
_TEXT = re.compile(r"^=== text ===\n(.*?)\n=== end ===$", re.MULTILINE | re.DOTALL)
_ORDER = re.compile(r"\w+ order \d+: [^.\n]*\. Which code")


class WorkshopWriter(Engine):
    """Answers the prompts of this package as a function of prompt and seed."""

    token_exact = False

    def __init__(self, world: Workshop, name: str) -> None:
        self.world, self.name = world, name

    async def sample(self, request: Request) -> Call:
        """The reply. Raises `RecipeError` for a prompt of another package."""
        return request.answered(self.name, self._reply(request), finish_reason="stop")

    def _reply(self, request: Request) -> str:
        prompt = request.messages[0].content
        task, texts = prompt.partition("\n")[0], _TEXT.findall(prompt)
        if task not in ("# Rewrite a text", "# Join two texts", "# Criticize a text", "# Shorten a text"):
            raise RecipeError(
                f"the workshop's writer was given a prompt that begins with {task[:80]!r}",
                code="prompt-invalid",
                fix="name a proposer of midstream-optimizers in lessons.proposers, and no other",
            )
        draw = random.Random(derive_seed(request.seed, "workshop writer", prompt))
        if task == "# Criticize a text":
            return "It has no rule for a mark on these orders."
        rules, rest = _split(texts[0])
        if task == "# Join two texts":
            rules = [*rules, *(rule for rule in _split(texts[1])[0] if rule not in rules)]
        elif task == "# Rewrite a text":
            rules += self._rule(prompt, rules, draw)
        else:
            rest = "\n".join(line for line in rest.splitlines() if not line.startswith("- "))
        listed = "".join(f"- {rule}\n" for rule in rules)
        return f"=== text ===\n{_HEADING}{listed}\n{rest}\n=== end ==="

    def _rule(self, prompt: str, rules: list[str], draw: random.Random) -> list[str]:
        """A new rule on a mark of a question in the prompt; none if all have theirs."""
        held = self.world.held(rules)
        orders = [self.world.order(found) for found in _ORDER.findall(prompt)]
        open_rules = sorted({rule for order in orders for rule in order.rules}, key=lambda rule: rule.number)
        left = [rule for rule in open_rules if rule.number not in held.true]
        if not left:
            return []
        rule = draw.choice(left)
        return [rule.true if draw.random() < self.world.config.share_true else draw.choice(rule.false)]


def _split(text: str) -> tuple[list[str], str]:
    """The rules of a text, and what follows them."""
    if not text.startswith(_HEADING):
        return [], text
    listed, _, rest = text.removeprefix(_HEADING).partition("\n\n")
    return [line.removeprefix("- ") for line in listed.splitlines()], rest


class WorkshopWriterConfig(EngineConfig):
    """A program that plays the model behind this package's proposers on tasks of type `workshop` (midstream-worlds)."""

    limits: ClassVar[str] = (
        "The model that writes texts is simulated. What this shows is that proposers and gate work together; it says "
        "nothing about how much a real model gains."
    )

    def check_recipe(self, where: str, recipe: object) -> None:
        """Check that the tasks are the workshop's. Raises `RecipeError`."""
        kind = recipe.tasks.type  # type: ignore[attr-defined]
        if kind != "workshop":
            raise RecipeError(
                f'{where}.type = "workshop_writer" with tasks.type = {kind!r}',
                code="setting-conflict",
                fix='set tasks.type = "workshop", or use the engine of a language model',
            )

    def build(self, context: Context) -> WorkshopWriter:
        """Build it."""
        return WorkshopWriter(context.source, context.name)  # type: ignore[arg-type]
