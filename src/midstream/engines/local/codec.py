"""A Hugging Face tokenizer and its chat template as `core.protocols.Codec`.

What is put into a stream is tokenised once, by itself, and what was sampled never: the ids before and after a piece of
tool output do not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from midstream.core.errors import RecipeError
from midstream.core.protocols import Request
from midstream.core.trajectory import Message
from midstream.engines.local.pretrained import one_line

_ASKED, _REPLY = "midstreamasked", "midstreamreply"  # words that stand in no chat template
_LINE = "\n"


class TokenizerCodec:
    """`core.protocols.Codec` of one model; `name` is what errors call it.

    `end_ids` are the tokens that end a completion: the tokenizer's own where none are given.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "local",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        end_ids: Sequence[int] = (),
    ) -> None:
        self.tokenizer: Any = tokenizer  # its stubs allow for batches everywhere
        self.name = name
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.end_ids = tuple(end_ids) or ((self.tokenizer.eos_token_id,) if self.tokenizer.eos_token else ())
        self._known_roles: set[str] = set()
        # Those of SentencePiece begin every text with a space of their own, which has no place inside a stream.
        self._adds_space = self.tokenizer.decode(self._plain("a") * 2) == "a a"

    def encode(self, request: Request) -> list[int]:
        """The prompt's token ids: those given, or of its text, or of its messages through the chat template.

        Raises:
            RecipeError: there is no chat template, or it refuses the messages or leaves out the tools.
        """
        if request.prompt_ids:
            return list(request.prompt_ids)
        if not request.messages:
            return self._plain(request.prompt)
        if request.tools:
            return self._with_tools(request)
        return self._apply(request.messages)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of text that is put into a stream; what looks like a special token in it is plain text."""
        return tuple(self._within(text, split_special_tokens=True))

    def encode_reply(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        """Ids that the chat template puts between an assistant's message and its next: `messages` and what is around.

        That is what it writes after a reply, whatever it writes before. `ended`: the assistant's end token was sampled
        and is in the stream already.

        Raises:
            RecipeError: there is no chat template, or it refuses the messages or leaves some out.
        """
        for role in dict.fromkeys(message.role for message in messages):
            self._require(role)
        ids = self._within(self._after_reply(messages))
        return tuple(ids[1:] if ended and ids and ids[0] in self.end_ids else ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; an end token at their end is none of it."""
        kept = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        return self.tokenizer.decode(list(kept), clean_up_tokenization_spaces=False)

    def _plain(self, text: str, **settings: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False, **settings)

    def _within(self, text: str, **settings: bool) -> list[int]:
        """Ids of text that does not stand at the beginning."""
        if not self._adds_space:
            return self._plain(text, **settings)
        return self._plain(_LINE + text, **settings)[len(self._plain(_LINE)) :]

    def _with_tools(self, request: Request) -> list[int]:
        tools = [dict(tool) for tool in request.tools]
        ids = self._apply(request.messages, tools=tools)
        if ids == self._apply(request.messages):
            raise RecipeError(
                f"the chat template of {self.name} leaves out the {len(tools)} tools that it was given",
                cause="the model was not made to call tools in a form of its own",
                fix="use an agent template that describes its tools in the prompt, or name another model",
            )
        return ids

    def _after_reply(self, messages: Sequence[Message]) -> str:
        """What the chat template writes after an assistant's words when `messages` follow."""
        said = (Message(role="user", content=_ASKED), Message(role="assistant", content=_REPLY))
        return self._apply((*said, *messages), tokenize=False).partition(_REPLY)[2]

    def _require(self, role: str) -> None:
        """Refuse messages of a role that the chat template passes over."""
        if role in self._known_roles:
            return
        if _ASKED not in self._after_reply([Message.model_validate({"role": role, "content": _ASKED})]):
            raise RecipeError(
                f"the chat template of {self.name} leaves out messages of the role {role!r} after a reply",
                cause="the model was made for chats without them",
                fix='set output_role = "user" in the agent\'s template, or name another model',
            )
        self._known_roles.add(role)

    def _apply(self, messages: Sequence[Message], **settings: Any) -> Any:
        """What the chat template makes of messages before a reply: ids, or a text with `tokenize=False`."""
        if self.tokenizer.chat_template is None:
            raise RecipeError(
                f"{self.name} was sent chat messages but has no chat template",
                cause="it is a base model or a small planner that reads plain text",
                fix='set the planner\'s type to "compact", or name an instruction-tuned model',
            )
        try:
            return self.tokenizer.apply_chat_template(
                [message.model_dump() for message in messages],
                add_generation_prompt=True,
                **({"return_dict": False} if settings.get("tokenize", True) else {}),
                **settings,
                **self.chat_template_kwargs,
            )
        except (TemplateError, TypeError) as failure:
            raise RecipeError(
                f"the chat template of {self.name} refuses {'+'.join(one.role for one in messages)} messages "
                f"with chat_template_kwargs = {self.chat_template_kwargs}: {one_line(failure)}",
                cause="it knows no such role (Gemma's first versions take no system message) or setting",
                fix="name another model, or correct chat_template_kwargs",
            ) from failure
