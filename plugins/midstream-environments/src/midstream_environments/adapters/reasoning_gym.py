"""reasoning-gym: items that its generators make from a seed, at the levels of its curricula, and its scorers.

A family is a generator's name, with "@" and a level where its curriculum sets the configuration. A case is a family, a
seed, the item's number and a hash of its question: an item is made again to be scored.

Nine scorers evaluate an answer as Python, some through SymPy. Here they read only data and formulas: to them, any other
answer is one that cannot be read.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import reasoning_gym
import sympy
from reasoning_gym.algorithmic import binary_matrix, spiral_matrix, string_insertion
from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum
from reasoning_gym.games import countdown, n_queens, puzzle24

DISTRIBUTION = "reasoning-gym"
# A data set ends after `size` items, by default 500; the next one has another seed.
_NEXT_SEED = 1_000_003
_SEEDS = 2**31
# What is made again where it was dropped.
_DATASETS, _ITEMS = 32, 4096


_parse = sympy.parse_expr


def formula(text: str, *arguments: Any, **named: Any) -> Any:
    """`sympy.parse_expr`, which runs the text as Python, of a formula. Raises `ValueError` for other code."""
    for node in ast.walk(ast.parse(text.strip().replace("!", ""), mode="eval")):
        runs = isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and _is_function(node.func.id))
        # SymPy's functions run a text that is given to them.
        holds_text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        if runs or holds_text or isinstance(node, ast.Attribute):
            raise ValueError(f"{text!r} is no formula")
    return _parse(text, *arguments, **named)


def _is_function(name: str) -> bool:
    return name == "sqrt" or isinstance(getattr(sympy, name, None), sympy.FunctionClass)


def read_only_data() -> None:
    """Have no scorer run what a model wrote."""
    for module in (binary_matrix, n_queens, spiral_matrix, string_insertion):
        module.eval = ast.literal_eval
    countdown.parse_expr = puzzle24.parse_expr = sympy.parse_expr = formula


class Adapter:
    """Makes items, and scores answers to them."""

    def __init__(self, settings: dict[str, dict[str, Any]]) -> None:
        read_only_data()
        self._settings = settings
        self._datasets: OrderedDict[Any, Any] = OrderedDict()
        self._items: OrderedDict[Any, dict[str, Any]] = OrderedDict()

    def families(self) -> dict[str, dict[str, Any]]:
        """What can be set of each family: the number of its levels, 0 without a curriculum, and its settings."""
        described = {}
        for name, (_, config) in DATASETS.items():
            attributes = create_curriculum(name).attributes.values() if name in CURRICULA else ()
            described[name] = {
                "levels": max((len(attribute.levels) for attribute in attributes), default=0),
                "settings": [field.name for field in dataclasses.fields(config) if field.init],
            }
        return described

    def refusal(self, family: str) -> str:
        """Why the library refuses the configuration of a family; "" if it accepts it."""
        try:
            self._dataset(family, 0)
        except Exception as error:  # noqa: BLE001 - whatever a configuration raises: most are assertions
            return f"{type(error).__name__}: {error}"
        return ""

    def items(self, family: str, seed: int, start: int, count: int) -> list[dict[str, str]]:
        """Items by number: `case`, `question` and `answer` of each, or the `problem` of one that cannot be made."""
        return [self._row(family, seed, number) for number in range(start, start + count)]

    def score(self, case: str, answer: str) -> dict[str, Any]:
        """The library's score of an answer."""
        family, seed, number, digest = case.split(" ")
        item = self._item(family, int(seed), int(number))
        if digest != _digest(item["question"]):
            raise RuntimeError(f"{family} made another item {number} of seed {seed} than before")
        dataset = self._dataset(family, int(seed))
        try:
            return {"reward": float(dataset.score_answer(answer, item))}
        except Exception as error:  # noqa: BLE001 - a scorer raises anything on an answer of a form that it cannot read
            # Where it takes the item's own answer, the other answer is wrong; elsewhere the scorer is.
            dataset.score_answer(item["answer"], item)
            return {"reward": 0.0, "feedback": f"not in the form of an answer: {type(error).__name__}: {error}"}

    def _row(self, family: str, seed: int, number: int) -> dict[str, str]:
        try:
            item = self._item(family, seed, number)
        except Exception as error:  # noqa: BLE001 - a generator that finds no puzzle raises anything
            return {"problem": f"{type(error).__name__}: {error}"}
        case = f"{family} {seed} {number} {_digest(item['question'])}"
        # Some families have no answer of their own, only a scorer.
        answer = "" if item["answer"] is None else str(item["answer"])
        return {"case": case, "question": str(item["question"]), "answer": answer}

    def _item(self, family: str, seed: int, number: int) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            blocks, place = divmod(number, self._dataset(family, seed).size)
            return self._dataset(family, (seed + blocks * _NEXT_SEED) % _SEEDS)[place]

        return _kept(self._items, _ITEMS, (family, seed, number), make)

    def _dataset(self, family: str, seed: int) -> Any:
        return _kept(self._datasets, _DATASETS, (family, seed), lambda: self._made(family, seed))

    def _made(self, family: str, seed: int) -> Any:
        name, _, level = family.partition("@")
        settings = self._settings.get(name, {})
        if level:
            curriculum = create_curriculum(name)
            curriculum.set_global_level(int(level))
            config = curriculum.generate_configuration()
            settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.init} | settings
        return reasoning_gym.create_dataset(name, **(settings | {"seed": seed}))


def _kept(kept: OrderedDict[Any, Any], size: int, key: Any, make: Callable[[], Any]) -> Any:
    """A value by its key, made where it is not among the latest."""
    if key not in kept:
        kept[key] = make()
        if len(kept) > size:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return kept[key]


def _digest(question: Any) -> str:
    return hashlib.blake2b(str(question).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
