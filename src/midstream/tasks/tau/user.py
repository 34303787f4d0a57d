"""Who plays the user of a tau-bench dialogue: a model that was told what to want, or whatever a test puts there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from midstream.core.protocols import Engine, Request
from midstream.core.replies import spoken
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Call, Message, Sampling

STOP = "###STOP###"  # tau-bench's word for: the user has what they wanted, or gives up
_GREETING = "Hello, what can I do for you?"
_ROLE = """You play a customer who writes to a company's support agent. This is who you are and what you want:

{instruction}

How to play:
- Write one short message at a time, as this person would, in your own words; never quote the lines above.
- Tell only what is needed now; let the agent ask for the rest.
- Know nothing but what stands above. Asked for anything else, say that you don't know or don't have it.
- Stay with what you want, and with the manner described.
- As soon as all that you want is done, or you were handed over to a person, write {stop} and nothing else."""


class User(Protocol):
    """The user of one dialogue."""

    async def say(self, heard: str | None) -> tuple[str, tuple[Call, ...]]:
        """What the user says to what the agent said (None at the start), and the requests behind it.

        A text with `STOP` in it ends the dialogue. Raises `EngineError` if a model fails.
        """
        ...


Users = Callable[[str, int], User]  # from an instruction and a seed to the user of one dialogue


class ModelUser:
    """A user played by a model."""

    def __init__(self, engine: Engine, sampling: Sampling, instruction: str, seed: int) -> None:
        self._engine, self._sampling, self._seed = engine, sampling, seed
        role = Message(role="system", content=_ROLE.format(instruction=instruction, stop=STOP))
        self._messages = [role]

    async def say(self, heard: str | None) -> tuple[str, tuple[Call, ...]]:
        """Ask the model for the customer's next message; for it the agent is the one who writes to it."""
        self._messages.append(Message(role="user", content=_GREETING if heard is None else heard))
        request = Request(
            role="user",
            messages=tuple(self._messages),
            sampling=self._sampling,
            seed=derive_seed(self._seed, "user", len(self._messages)),
        )
        call = await self._engine.sample(request)
        text = spoken(call.completion).strip()
        self._messages.append(Message(role="assistant", content=text))
        return text, (call,)
