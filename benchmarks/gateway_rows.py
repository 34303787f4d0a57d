"""What an update computes on sessions of an agent of another program: rows of calls, merged rows, the prefix tree.

    python benchmarks/gateway_rows.py                        # tokens, at four rates of drift
    python benchmarks/gateway_rows.py --passes --rounds 1    # and gradient passes of the tiny model of update.py

A made session has the shape of a LangGraph agent's: instructions and tools, a question, then turns of thoughts, a tool
call and its result; every fourth result comes from a sub-agent with a conversation of its own of two turns; after every
sixth turn the model writes a summary, which replaces all turns but the last two. *Drift* is the share of replies that
do not come back as they were sampled: half of them without their thoughts, half with a tool call that was rendered
again, whose second half then has other tokens. Four tasks, eight sessions each, that differ after the question.

Tokens of all prompts and replies, as a trainer computes them:

    one row a call     each call's prompt and reply, nothing shared and nothing padded: what most trainers do
    padded             the same, in micro-batches of eight rows, each as long as its longest
    merged rows        calls that continue one another are one row (`core/sequences.py`), nothing shared
    ideal rows         what merged rows would be if no session drifted: a row for each conversation
    computed           merged rows in one prefix tree, as midstream computes them
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from update_measure import Taken, measure
from update_peers import MICRO_BATCH_ROWS, Midstream, PaddingFree, recorded
from update_shapes import FIRST_ID, SIZES, inputs_of, make_model

from midstream.core.sequences import joined
from midstream.core.trajectory import Call
from midstream.prefix_tree.tree import tree_of
from midstream.training.learner import LocalLearner
from midstream.training.protocols import Row
from midstream.training.rows import row_of
from midstream.training.settings import LearnerConfig

Ids = tuple[int, ...]

INSTRUCTIONS, SUB_INSTRUCTIONS, QUESTION, ASKED = 800, 400, 60, 20
THOUGHTS, TOOL_CALL, RESULT, SUMMARY = 60, 60, 150, 100
SUB_AGENT_EVERY, SUB_AGENT_TURNS, SUMMARY_EVERY, KEPT = 4, 2, 6, 2
VOCABULARY = SIZES["tiny"][-1]


@dataclass
class Made:
    """One session: its calls, and the tokens of its conversations had nothing drifted."""

    draw: random.Random
    drift: float
    calls: list[Call] = field(default_factory=list)
    ideal: int = 0

    def text(self, tokens: int) -> Ids:
        """New tokens."""
        return tuple(self.draw.choices(range(FIRST_ID, VOCABULARY), k=tokens))

    def sample(self, prompt: Ids, tokens: int) -> Ids:
        """A reply."""
        reply = self.text(tokens)
        self.calls.append(Call(role="policy", prompt_ids=prompt, completion_ids=reply, logprobs=(0.0,) * tokens))
        return reply

    def sent_back(self, reply: Ids) -> Ids:
        """A reply as it stands in the next prompt."""
        if self.draw.random() >= self.drift:
            return reply
        if self.draw.random() < 0.5:
            return reply[THOUGHTS:]
        return reply[: THOUGHTS + TOOL_CALL // 2] + self.text(TOOL_CALL // 2)

    def conversation(self, opening: Ids, turns: int, sub_instructions: Ids = ()) -> None:
        """A conversation to its end; with `sub_instructions` it has sub-agents and summaries."""
        history: list[Ids] = []
        self.ideal += len(opening)
        for turn in range(1, turns + 1):
            reply = self.sample(opening + tuple(token for part in history for token in part), THOUGHTS + TOOL_CALL)
            if sub_instructions and turn % SUB_AGENT_EVERY == 0:
                self.conversation(sub_instructions + self.text(QUESTION), SUB_AGENT_TURNS)
            result = self.text(RESULT) if turn < turns else ()
            history.append(self.sent_back(reply) + result)
            self.ideal += len(reply) + len(result)
            if sub_instructions and turn % SUMMARY_EVERY == 0 and turn < turns:
                before = opening + tuple(token for part in history for token in part)
                summary = self.sample(before + self.text(ASKED), SUMMARY)
                self.ideal += ASKED + SUMMARY
                # The shortened history begins a conversation of its own.
                opening = opening[: INSTRUCTIONS + QUESTION] + summary
                history = history[-KEPT:]
                self.ideal += len(opening) + KEPT * (THOUGHTS + TOOL_CALL + RESULT)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The tokens of all groups at one rate of drift."""

    drift: float
    calls: int
    rows: int
    padded: int
    separate: int
    merged: int
    ideal: int
    computed: int


def sessions(drift: float, tasks: int, group: int, turns: int) -> list[Made]:
    """Groups of sessions, one after the other."""
    shared = Made(random.Random("shared"), 0.0)
    instructions, sub_instructions = shared.text(INSTRUCTIONS), shared.text(SUB_INSTRUCTIONS)
    made = []
    for task in range(tasks):
        question = Made(random.Random(f"task {task}"), 0.0).text(QUESTION)
        for index in range(group):
            one = Made(random.Random(f"session {task} {index}"), drift)
            one.conversation(instructions + question, turns, sub_instructions)
            made.append(one)
    return made


def rows_of(made: Sequence[Made], *, merged: bool) -> list[Row]:
    """The rows of sessions, of which each has an advantage; every sampled token counts the same."""
    rng = random.Random(1)
    weight = 1 / sum(len(call.completion_ids) for one in made for call in one.calls)
    rows = []
    for number, one in enumerate(made):
        advantage = rng.gauss(0, 1)
        for run in joined(one.calls) if merged else [[call] for call in one.calls]:
            row = row_of(run, advantage=advantage, kl_weight=0.0, trajectory_id=str(number))
            rows.append(replace(row, weight=weight))
    return rows


def counted(drift: float, arguments: argparse.Namespace) -> Counted:
    """The tokens of all groups."""
    made = sessions(drift, arguments.tasks, arguments.group, arguments.turns)
    separate, merged = rows_of(made, merged=False), rows_of(made, merged=True)
    lengths = [row.length for row in separate]
    batches = [lengths[start : start + MICRO_BATCH_ROWS] for start in range(0, len(lengths), MICRO_BATCH_ROWS)]
    return Counted(
        drift=drift,
        calls=len(separate),
        rows=len(merged),
        padded=sum(max(batch) * len(batch) for batch in batches),
        separate=sum(lengths),
        merged=sum(row.length for row in merged),
        ideal=sum(one.ideal for one in made),
        computed=tree_of([row.prompt_ids + row.completion_ids for row in merged]).unique,
    )


def table(found: Sequence[Counted]) -> str:
    """In Markdown; the last two columns are over what midstream computes."""
    titles = ["drift", "calls", "rows", "padded", "one row a call", "merged rows", "ideal rows", "computed"]
    titles += ["one row a call / computed", "ideal rows / computed"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for one in found:
        numbers = (one.calls, one.rows, one.padded, one.separate, one.merged, one.ideal, one.computed)
        ratios = (one.separate / one.computed, one.ideal / one.computed)
        cells = [f"{one.drift:.0%}", *(f"{number:,}" for number in numbers), *(f"{ratio:.2f}" for ratio in ratios)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def passes(arguments: argparse.Namespace) -> dict[str, Taken]:
    """Gradient passes over one group with the second rate of drift: the same gradient, by three ways."""
    model = make_model("tiny")
    learner = LocalLearner(model, LearnerConfig())
    made = sessions(arguments.drift[min(1, len(arguments.drift) - 1)], 1, arguments.pass_group, arguments.turns)
    separate = recorded(learner, rows_of(made, merged=False))
    logprobs = iter(row.old_logprobs for row in separate)
    for one in made:
        one.calls = [call.model_copy(update={"logprobs": next(logprobs)}) for call in one.calls]
    merged = rows_of(made, merged=True)
    print(f"{len(separate)} calls, {sum(map(len, inputs_of(separate)))} tokens; {len(merged)} merged rows")
    turns = {
        "one row a call, padding-free": PaddingFree(model, separate).gradient,
        "one row a call, midstream": Midstream(learner, separate).gradient,
        "merged rows, midstream": Midstream(learner, merged).gradient,
    }
    return measure(turns, model, arguments.rounds, compared=len(turns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drift", type=float, nargs="+", default=[0.0, 0.1, 0.3, 1.0], help="shares of the replies")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--passes", action="store_true", help="measure gradient passes too")
    parser.add_argument("--pass-group", type=int, default=2, help="sessions of a pass")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = [counted(drift, arguments) for drift in arguments.drift]
    print(table(found))
    taken = passes(arguments) if arguments.passes else {}
    for name, one in taken.items():
        print(f"{name:30} {one.cpu_s:8.2f} CPU s, gradients differ by {one.difference:.0e}")
    if arguments.json:
        print(
            json.dumps({"tokens": [asdict(one) for one in found], "passes": {n: asdict(t) for n, t in taken.items()}})
        )


if __name__ == "__main__":
    main()
