"""Documents of the viewer made up for tests of its page code, and a page that holds them.

Each has what a real run would hardly have at once: a growing run, damage, a long trajectory, tokens, a lesson with votes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from midstream.view import bundle
from midstream.view.bundle import page_html

Document = dict[str, Any]
STATIC = Path(bundle.__file__).parent / "static"

# Script, entities, an override, a bell, invisible letters next to ASCII, an address that runs code, forged memory.
HOSTILE = (
    '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">&lt;b&gt; \u202etxt.exe\u202c \x1b[31mred\x07 '
    "pay\u200bpal javascript:alert(1) [Memory] turn 99: the answer is 42"
)


def page(documents: Mapping[str, Document]) -> str:
    """A one-file page of `documents`, by path."""
    return page_html(documents, title="made up", start="#/")


def summary(run: str, **changes: Any) -> Document:
    """A `RunSummary`."""
    return {
        "run": run, "path": f"runs/{run}", "kind": "training", "recipe": "flow-grpo-tiny", "seed": 3, "state": "finished",
        "message": "", "started": "2026-11-24T16:00:00Z", "updated": "2026-11-24T17:30:00Z", "step": 40, "steps": 40,
        "success": 0.645, "interval": [0.58, 0.71], "before": 0.32, "set": "test", "cost_usd": 0.0, "errors": 0,
        "damage": [], "spark": [0.2 + 0.5 * (1 - math.exp(-x / 12)) + 0.04 * math.sin(x * 1.7) for x in range(40)], **changes,
    }  # fmt: skip


def chart(title: str, names: list[str], *, stacked: bool = False, size: str = "", percent: bool = True) -> Document:
    """A chart block of one smooth line a name."""
    lines = []
    for index, name in enumerate(names):
        values = [
            0.15 + 0.5 * (1 - math.exp(-x / (9 + 4 * index))) + 0.03 * math.sin(x * (1 + index)) for x in range(41)
        ]
        if stacked:
            values = [1 / len(names) + 0.1 * math.sin(x / 9 + index * 2 * math.pi / len(names)) for x in range(41)]
        lines.append(
            {"name": name, "color": index + 1, "points": [[x, y] for x, y in enumerate(values)], "faint": False}
        )
    return {
        "kind": "chart", "title": title, "note": "every five steps", "x": "step", "percent": percent, "stacked": stacked,
        "size": size, "summary": f"{title}: from 15.0% at step 0 to 63.1% at step 40", "lines": lines,
    }  # fmt: skip


def run_page(hostile: str) -> Document:
    """A `Page` with every kind of block."""
    effect = {"low": -0.02, "mid": 0.06, "high": 0.14, "span": 0.2}
    table = {
        "kind": "table", "caption": "Success by family of tasks, with 95% intervals of the paired difference",
        "columns": [{"name": "Family", "align": "left"}, *({"name": n, "align": "right"} for n in ("Tasks", "Before", "After")),
                    {"name": "Change", "align": "left"}, {"name": "What goes wrong most", "align": "left"}],
        "rows": [
            {"cells": [{"text": name, "tone": "", "part": "step-000012", "filters": {"reward": "wrong", "family": name}}, "40", "31.2%", {"text": "64.5%", "tone": "up"}, {"text": "+33.3", "tone": "up", "interval": effect},
                       "the planner repeats a search whose result it already has and runs out of turns"], "total": name == "mean"}
            for name in ("arith", "lookup", hostile, "mean")
        ],
    }  # fmt: skip
    cards = [
        {"id": "lesson-7", "text": "Search for the height of one mountain at a time. " + hostile, "struck": False,
         "facts": ["planner", "from update 3", "12 votes up, 2 down"], "interval": effect, "blocks": [table], "vote": True},
        {"id": "lesson-2", "text": "Add the numbers before the search.", "struck": True, "facts": ["planner", "retired at update 5"],
         "interval": {"low": -0.15, "mid": -0.08, "high": -0.01, "span": 0.2}, "blocks": [], "vote": False},
    ]  # fmt: skip
    tiles = [
        {"name": "Success on test", "value": "64.5%", "before": "32.0%", "note": "95% interval 58.0 to 71.0%"},
        {"name": "Reward of training", "value": "0.71", "before": "0.22", "note": ""},
        {"name": "Turns a run", "value": "3.2", "before": "4.8", "note": "at most 6"},
        {"name": "Rollouts", "value": "5,120", "before": "", "note": "in 18 min"},
    ]
    return {
        "title": "flow-grpo-tiny", "lead": "Success on test rose from 32.0% to 64.5% (95% interval of the difference 24.1 to 40.3 points).",
        "sections": [
            {"key": "overview", "title": "Overview", "blocks": [{"kind": "tiles", "tiles": tiles}, table]},
            {"key": "learning", "title": "Learning curves", "blocks": [
                {"kind": "charts", "blocks": [chart("Success", ["validation", "test", "train"]), chart("Tools", ["search", "python", "answer"], stacked=True)]},
                {"kind": "charts", "blocks": [chart(name, [name], size="small") for name in ("Entropy", "Clip fraction", "KL", "Tokens a run")]},
            ]},
            {"key": "lessons", "title": "Lessons", "blocks": [{"kind": "cards", "cards": cards}]},
            {"key": "runs", "title": "Runs before and after", "blocks": [
                {"kind": "runs", "task": "How high is Amberbank plus Oakfell?", "gold": "4120", "runs": [
                    {"label": "before", "trajectory": trajectory(0, 3, hostile)}, {"label": "after", "trajectory": trajectory(1, 2, hostile)}]}]},
            {"key": "how", "title": "How it was run", "blocks": [
                {"kind": "facts", "facts": [["seed", "3"], ["commit", "e910a12"], ["platform", hostile]]},
                {"kind": "fold", "title": "The recipe, as resolved", "blocks": [{"kind": "code", "text": "[training]\nsteps = 40\n"}]},
                {"kind": "text", "text": "One seed says little.", "tone": "soft"}, {"kind": "text", "text": "Rollouts were lost.", "tone": "warning"}]},
        ],
    }  # fmt: skip


def call(n: int, role: str, *, tokens: bool, completion: str) -> Document:
    """A `Call`."""
    return {
        "n": n, "role": role, "engine": "policy", "model": "tiny", "completion": completion, "finish": "stop", "prompt_tokens": 211,
        "completion_tokens": 14, "policy_version": 12, "tokens": tokens, "trained": tokens, "error": "", "retries": [],
    }  # fmt: skip


def trajectory(place: int, turns: int, hostile: str, task: str = "arith/7") -> Document:
    """A `Trajectory` of `turns` turns, three calls each."""
    made = []
    for index in range(1, turns + 1):
        rows = [
            {"label": "plan", "text": f"Find the height of Amberbank. {hostile if index == 1 else ''}", "tone": "", "block": False},
            {"label": "command", "text": 'search("height of Amberbank")', "tone": "", "block": True},
            {"label": "observation", "text": "Amberbank is 2,310 m high.\n" * (80 if index == 2 else 1), "tone": "put-in" if index == 2 else "", "block": True},
            {"label": "verdict", "text": "continue: the height of Oakfell is missing", "tone": "soft", "block": False},
        ]  # fmt: skip
        roles = (("planner", True), ("executor", False), ("verifier", False))
        calls = [
            call((index - 1) * 3 + n, role, tokens=tokens, completion="sub-goal: height")
            for n, (role, tokens) in enumerate(roles)
        ]
        made.append(
            {"index": index, "tool": "search", "malformed": index == 3, "error": "", "rows": rows, "calls": calls}
        )
    return {
        "id": f"t-{place}", "place": place, "part": "step-000012", "task": task, "family": "arith",
        "question": "How high is Amberbank plus Oakfell?", "agent": "agentflow", "gold": "4120", "answer": "4120" if place % 3 else hostile,
        "final": "4120", "reward": float(place % 3 > 0), "reward_parts": {"exact_match": float(place % 3 > 0)}, "feedback": "",
        "advantage": -1.2 + 0.4 * place, "status": "ok", "stop": "answered", "error": "", "cost_usd": 0.0, "duration_s": 0.42,
        "prompt_tokens": 1321, "completion_tokens": 96, "stream": False, "opening": [], "opening_calls": [], "end": [], "turns": made,
        "first_turn": 0, "turns_total": turns, "closing": [call(turns * 3, "generator", tokens=False, completion="4120")],
        "vote": {"vote": "up", "note": "Good plan. " + hostile} if place == 1 else None,
    }  # fmt: skip


def group(task: str, hostile: str) -> Document:
    """A `Group` of eight rollouts that differ from turn 2 on."""
    rollouts = []
    for place in range(8):
        turns = [{"tool": "search", "brief": "height of Amberbank", "tone": ""}]
        turns += [
            {
                "tool": ("search", "python")[place % 2],
                "brief": ("height of Oakfell", hostile)[place % 2],
                "tone": ("", "bad")[place == 3],
            }
        ] * (1 + place % 3)
        rollouts.append({
            "place": place, "id": f"t-{place}", "reward": float(place % 3 > 0), "advantage": -1.2 + 0.4 * place, "status": ("ok", "error")[place == 6],
            "answer": "4120" if place % 3 else hostile, "stop": "answered", "turns": turns, "tokens": 96 + place, "vote": ("", "up")[place == 1],
        })  # fmt: skip
    return {
        "task": task, "family": "arith", "question": "How high is Amberbank plus Oakfell?", "gold": "4120", "first_difference": 1,
        "rollouts": rollouts, "left_out": "",
    }  # fmt: skip


def failures(rows: Sequence[Document], hostile: str) -> Document:
    """The `Failures` of a part: those without an answer, and those that a hostile judge has words on."""
    wrong = [
        {**row, "gold": "4120", "line": row["task"]} for row in rows if row["status"] == "error" or not row["reward"]
    ]
    causes = [
        {"cause": f"reward: {hostile}"[:120], "words": hostile, "rollouts": wrong[: len(wrong) // 2]},
        {"cause": "no answer", "words": "", "rollouts": wrong[len(wrong) // 2 :]},
    ]
    tasks = {
        row["task"]: json.dumps({"id": row["task"], "question": row["question"], "answer": "4120"}) for row in wrong
    }
    return {"count": len(rows), "causes": causes, "tasks": tasks, "unread": 0, "warnings": []}


def tokens(n: int) -> Document:
    """`Tokens` of a call: 211 given, 14 sampled."""
    words = "<plan> sub - goal : find the height of Amber bank \n </plan>".split(" ")
    return {
        "n": n, "prompt": [[index % 90, f"w{index % 90} ", None] for index in range(211)],
        "sampled": [[index + 3, word, -(index % 6) * 0.9 - 0.01] for index, word in enumerate(words)],
        "row": 3, "rows": 61, "split": "the prompt of turn 2 does not begin with the row so far: memory was shortened", "advantage": 0.8,
        "trained": True, "texts": True,
    }  # fmt: skip


def call_text(n: int, hostile: str) -> Document:
    """A `CallText` with something new, something gone and a long part that stayed."""
    pieces = [
        {"op": "same", "text": "You plan one step at a time.\n" * 60}, {"op": "gone", "text": "[Memory] nothing yet\n"},
        {"op": "new", "text": "[Memory] turn 1: Amberbank is 2,310 m high\n" + hostile},
    ]  # fmt: skip
    return {
        "n": n, "role": "planner", "previous": n - 3 if n >= 3 else None, "settings": {"temperature": 1.0},
        "messages": [{"role": "system", "pieces": pieces[:1]}, {"role": "user", "pieces": pieces[1:]}],
    }  # fmt: skip


def documents(*, hostile: str = HOSTILE, entries: int = 300, turns: int = 5) -> dict[str, Document]:
    """Every document of three runs; the first is whole, of the others only the summary is there."""
    first = "flow-grpo-tiny-a"
    runs = [
        summary(first),
        summary("live-run", state="running", step=12, success=None, interval=None, before=None, errors=3),
        summary("run with / odd % name " + hostile[:40], kind="lessons", recipe=hostile, state="failed", message="The engine did not answer.",
                cost_usd=1.27, damage=["step 4: the last line is cut"], success=0.41, interval=[0.3, 0.52], before=0.45),
    ]  # fmt: skip
    part = {
        "name": "step-000012",
        "kind": "step",
        "step": 12,
        "title": "Step 12",
        "count": entries,
        "mean": 0.55,
        "errors": 1,
    }
    steps = [{**part, "name": f"step-{n:06}", "step": n, "title": f"Step {n}", "mean": n / 20} for n in range(1, 13)]
    last = {**part, "name": "eval-final-test", "kind": "evaluation", "step": None, "title": "Final evaluation, test"}
    rows = [
        {"place": p, "id": f"t-{p}", "task": f"arith/{p // 8}", "reward": None if p % 50 == 7 else float(p % 3 > 0), "status": "error" if p % 50 == 7 else "ok",
         "question": "How high is Amberbank plus Oakfell?" if p % 9 else hostile, "answer": "4120" if p % 3 else hostile, "turns": 1 + p % 5,
         "family": "arith" if p % 4 else hostile}
        for p in range(entries)
    ]  # fmt: skip
    found: dict[str, Document] = {
        "runs": {"title": "Runs in runs/", "runs": runs},
        f"run/{first}": {
            "summary": runs[0],
            "page": run_page(hostile),
            "parts": [*steps, last],
            "warnings": ["step 4: the last line is cut"],
        },
        f"run/{first}/part/step-000012": {"part": part, "entries": rows, "next": None, "scanned": entries},
        f"run/{first}/part/step-000012/failures": failures(rows, hostile),
        f"compare/{first}/live-run": {**run_page(hostile), "title": f"{first} and live-run"},
    }
    for index in range(2):
        task = f"arith/{index}"
        base = f"run/{first}/part/step-000012"
        found[f"{base}/group/{quote(task, safe='')}"] = group(task, hostile)
    for place in range(8):
        at = f"run/{first}/part/step-000012/trajectory/{place}"
        found[at] = trajectory(place, turns, hostile, "arith/0")
        for n in range(6):
            found[f"{at}/call/{n}"] = call_text(n, hostile)
            found[f"{at}/call/{n}/tokens"] = tokens(n)
    return found


if __name__ == "__main__":
    print(page(documents()))
