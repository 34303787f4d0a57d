"""Names of places: made up from syllables, at random letter by letter ("wild"), or real.

A made-up name is held out of training by a hash of itself, so that a name has one side whatever region draws it. No two
names share a word, except "New" and the like: a search for all words of one then never finds another.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from importlib import resources
from random import Random

from midstream.core.seeds import derive_seed

PREFIXES = ("New", "Old", "Saint", "Port")
# Repeated entries are drawn more often.
_ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh sk st t th tr v w y z v l m n r t k".split()
_NUCLEI = "a e i o u a e i o u ai ea ou ei ia oo".split()
_CODAS = ("", "", "", "", "n", "r", "l", "s", "m", "t", "nd", "rn", "x", "ck", "lm", "sk", "th", "ng")
_ENDINGS = ("", "", "", "", "", "burg", "ford", "mere", "holm", "stad", "grad", "wick", "dale", "ia", "ora", "ville")
_LETTERS = "bcdfghjklmnpqrstvwxyzaeiouaeiouaeiouäöåéłñ"
_ACCENTS = {"a": "á", "e": "é", "o": "ö", "u": "ü"}
_SHORTEST, LONGEST = 4, 22  # characters
_HELD_OUT = 5  # one name in five
# Syllables make any word in the end; these are not names of places.
_RUDE = re.compile(
    "fuc?k|s[hl]it|cunt|coc?k|dic?k|slut|rape|boob|poop|porn|se[xk]s?|wank|nig|negr|kike|coon|fag|jap|homo|nazi"
)

_WORD = re.compile(r"[^\W_]+")


def held_out(name: str) -> bool:
    """Whether a made-up name may never be trained on."""
    return derive_seed("atlas name", name) % _HELD_OUT == 0


def search_words(text: str) -> set[str]:
    """The words of a text as the search index compares them: without case and accents."""
    if not text.isascii():
        text = "".join(letter for letter in unicodedata.normalize("NFD", text) if not unicodedata.combining(letter))
    return set(_WORD.findall(text.lower()))


@cache
def real_places() -> tuple[str, ...]:
    """Names of real places all over the world."""
    return tuple(
        (resources.files("midstream_worlds.atlas") / "real_places.txt").read_text(encoding="utf-8").split("\n")[:-1]
    )


class NameMaker:
    """Makes names that share no word with each other or with `taken`."""

    def __init__(self, draws: Random, taken: set[str]) -> None:
        self._draws, self._taken = draws, set(taken)
        self._shared = search_words(" ".join(PREFIXES))

    def make(self, *, held: bool, wild: float) -> str:
        """Make a name on one side of `held_out`; `wild` is the share of names of random letters."""
        while True:
            name = self._name(wild)
            if any(_RUDE.search(word) for word in search_words(name)):
                continue
            if _SHORTEST <= len(name) <= LONGEST and held_out(name) == held and self.take(name):
                return name

    def take(self, name: str) -> bool:
        """Reserve the words of a name; False if one is in use, or it has none of its own."""
        words = search_words(name) - self._shared
        free = bool(words) and words.isdisjoint(self._taken)
        if free:
            self._taken |= words
        return free

    def in_use(self, name: str) -> set[str]:
        """The words of a name that documents, real places or earlier names have."""
        return (search_words(name) - self._shared) & self._taken

    def _name(self, wild: float) -> str:
        draws = self._draws
        name = self._word(wild)
        form = draws.random()
        if form < 0.12:
            return f"{draws.choice(PREFIXES)} {name}"
        return f"{name}-{self._word(wild)}" if form < 0.16 else name

    def _word(self, wild: float) -> str:
        draws = self._draws
        if draws.random() < wild:
            return "".join(draws.choices(_LETTERS, k=draws.randint(4, 10))).capitalize()
        syllables = draws.choice((1, 2, 2, 2, 3))
        word = "".join(
            draws.choice(_ONSETS) + draws.choice(_NUCLEI) + (draws.choice(_CODAS) if draws.random() < 0.6 else "")
            for _ in range(syllables)
        )
        word += draws.choice(_ENDINGS)
        if draws.random() < 0.04:
            plain = draws.choice(tuple(_ACCENTS))
            word = word.replace(plain, _ACCENTS[plain], 1)
        return word.capitalize()
