"""A Hugging Face tokenizer and its chat template as `core.engine.Codec`.

Text that is put into a stream is tokenized once, by itself, and sampled text never: the ids before and after a piece
of tool output do not depend on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from pydantic import JsonValue
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from midstream.core.engine import Request
from midstream.core.errors import RecipeError
from midstream.core.text import unicode_escape
from midstream.core.tool_calls import parsed
from midstream.core.trajectory import Call, Message, Usage

# Words that stand in no chat template.
_ASKED, _REPLY = "midstreamasked", "midstreamreply"
_LINE = "\n"
_GENERIC_TOKENIZER = PreTrainedTokenizerFast.__name__  # "TokenizersBackend" since transformers 5


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a directory or a model on the hub; it needs no torch.

    A directory whose tokenizer was saved under the generic class gets that: AutoTokenizer goes by the model's type, so
    that a Qwen2 with another tokenizer would get Qwen's pieces. Raises `OSError` or `ValueError`.
    """
    try:
        saved = json.loads((Path(name) / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # It is on the hub, or AutoTokenizer raises the error that names what is wrong.
        saved = {}
    kind: Any = PreTrainedTokenizerFast if saved.get("tokenizer_class") == _GENERIC_TOKENIZER else AutoTokenizer
    return kind.from_pretrained(name)


class TokenizerCodec:
    """`core.engine.Codec` of model `name`; `end_ids` (by default the tokenizer's end token) end a completion."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "local",
        chat_template_kwargs: Mapping[str, JsonValue] | None = None,
        *,
        end_ids: Sequence[int] = (),
    ) -> None:
        self.tokenizer: Any = tokenizer  # its stubs allow for batches everywhere
        self.name = name
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.end_ids = tuple(end_ids) or ((self.tokenizer.eos_token_id,) if self.tokenizer.eos_token else ())
        self._known_roles: set[str] = set()
        special = [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        first = [
            f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in special if len(text) > 2 and not text.isalnum()
        ]
        self._special = re.compile("|".join(first) or "(?!)")
        # Those of SentencePiece begin every text with a space of their own, which has no place inside a stream.
        self._adds_space = self.tokenizer.decode(self._plain("a") * 2) == "a a"

    def encode(self, request: Request) -> list[int]:
        """The prompt's token ids: those given, or of its text, or of its messages through the chat template.

        With `continues` the last message is the beginning of the reply.

        Raises `RecipeError` if there is no chat template, or it refuses the messages or leaves out the tools.
        """
        if request.prompt_ids:
            return list(request.prompt_ids)
        if not request.messages:
            return self._plain(request.prompt)
        if request.continues:
            *asked, begun = request.messages
            return [*self._apply(asked), *self.encode_text(begun.content)]
        if not request.tools:
            return self._apply(request.messages)
        ids = self._apply(request.messages, tools=[dict(tool) for tool in request.tools])
        if ids == self._apply(request.messages):
            fix = "use an agent template that describes its tools in the prompt, or name another model"
            raise self._unfit_template(f"leaves out the {len(request.tools)} tools that it was given", fix)
        return ids

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of text that is put into a stream; what looks like a special token in it is plain text."""
        return tuple(self._within(text, split_special_tokens=True))

    def encode_reply(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        """Ids that the chat template puts between an assistant's message and its next: `messages` and their marks.

        `ended`: the assistant's end token was sampled and is in the stream already. Raises `RecipeError` if there is no
        chat template, or it refuses the messages or leaves some out.
        """
        for role in {message.role: None for message in messages if message.role not in self._known_roles}:
            if _ASKED not in self._after_reply([Message.model_validate({"role": role, "content": _ASKED})]):
                fix = 'set output_role = "user" in the agent\'s template, or name another model'
                raise self._unfit_template(f"leaves out messages of the role {role!r} after a reply", fix)
            self._known_roles.add(role)
        ids = self._within(self._after_reply(messages))
        return tuple(ids[1:] if ended and ids and ids[0] in self.end_ids else ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without an end token at their end."""
        kept = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        return self.tokenizer.decode(list(kept), clean_up_tokenization_spaces=False)

    def call_of(
        self,
        request: Request,
        prompt_ids: tuple[int, ...],
        sampled: tuple[tuple[int, ...], tuple[float, ...]],
        **fields: Any,
    ) -> Call:
        """The record of what was sampled: ids and their log-probabilities. Its text ends before its first stop string.

        `fields` are others of a `Call`.
        """
        (ids, logprobs), whole = sampled, self.decode(sampled[0])
        places = [place for stop in request.sampling.stop if (place := whole.find(stop)) >= 0]
        text = whole[: min(places, default=len(whole))]
        stopped = bool(ids) and (ids[-1] in self.end_ids or text != whole)
        usage = Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(ids))
        return request.answered(
            self.name,
            whole if request.keep_stop else text,
            prompt_ids=prompt_ids,
            completion_ids=ids,
            logprobs=logprobs,
            finish_reason="stop" if stopped else "length",
            **{"usage": usage, **fields},
        )

    def _plain(self, text: str, **settings: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False, **settings)

    def _within(self, text: str, **settings: bool) -> list[int]:
        """Ids of text that does not stand at the beginning."""
        if not self._adds_space:
            return self._plain(text, **settings)
        return self._plain(_LINE + text, **settings)[len(self._plain(_LINE)) :]

    def _after_reply(self, messages: Sequence[Message]) -> str:
        """Text that the chat template writes after an assistant's words when `messages` follow."""
        said = (Message(role="user", content=_ASKED), Message(role="assistant", content=_REPLY))
        return self._apply((*said, *messages), tokenize=False).partition(_REPLY)[2]

    def _template_message(self, message: Message) -> dict[str, Any]:
        """The message as chat templates take it. No text of a user or tool becomes a special token of the model.

        Agents escape the tokens of chat templates known to them (`core.text.neutral`); this is for all others.
        """
        table: dict[str, Any] = message.wire() | {"role": message.role, "content": message.content}
        if message.role in ("user", "tool"):
            table["content"] = self._special.sub(unicode_escape, message.content)
        if calls := table.get("tool_calls"):
            table["tool_calls"] = []
            for call in calls:
                # Templates write the arguments themselves, so they get an object where a text holds one.
                given = call["function"].get("arguments") or "{}"
                value = parsed(given) if isinstance(given, str) else given
                function = {**call["function"], "arguments": value if isinstance(value, dict) else given}
                table["tool_calls"].append({**call, "function": function})
        return table

    def _apply(self, messages: Sequence[Message], **settings: Any) -> Any:
        """Apply the chat template to messages before a reply: ids, or a text with `tokenize=False`."""
        if self.tokenizer.chat_template is None:
            what = f"{self.name} was sent chat messages but has no chat template"
            fix = "name an instruction-tuned model"
            raise RecipeError(what, code="chat-template", fix=fix)
        try:
            return self.tokenizer.apply_chat_template(
                [self._template_message(message) for message in messages],
                add_generation_prompt=True,
                **({"return_dict": False} if settings.get("tokenize", True) else {}),
                **settings,
                **self.chat_template_kwargs,
            )
        except (TemplateError, TypeError) as failure:
            what = f"refuses {'+'.join(message.role for message in messages)} messages with chat_template_kwargs = "
            fix = "name another model, or correct chat_template_kwargs"
            raise self._unfit_template(f"{what}{self.chat_template_kwargs}: {one_line(failure)}", fix) from failure

    def _unfit_template(self, what: str, fix: str) -> RecipeError:
        return RecipeError(f"the chat template of {self.name} {what}", code="chat-template", fix=fix)


def one_line(failure: Exception) -> str:
    """A library's error message, short and without line breaks."""
    return " ".join(str(failure).split())[:300]
