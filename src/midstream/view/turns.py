"""A recorded trajectory by its turns: where each begins and ends in its line, found as far as they are asked for.

A line may hold 100,000 turns and hundreds of MB. It is read in parts, whose brackets outside of strings are counted;
memory holds two offsets and a number of calls for each turn. What an agent, a tool or a server wrote stands in strings,
or as JSON at a greater depth, and cannot look like the border of a turn.

    {"id": ..., "turns":[{"index":1, ... "calls":[{...}]},{"index":2, ...}],"closing_calls": ... }
    depth 1              3                  5
    frame ---------------                                                  -----------------------
"""

from __future__ import annotations

import re
import threading
import time
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator

from pydantic import ValidationError
from pydantic_core import from_json

from midstream.core.data import problems_of
from midstream.core.trajectory import Call, ErrorInfo, Trajectory, Turn
from midstream.view.lines import Reader, Text

_FLAT = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)  # what holds no bracket
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_NEXT = b'},{"index":'
_BEFORE = len(b'"turns":')  # bytes before a bracket that say what it opens
_WINDOW = 8 << 20  # bytes of turns that are read at once
_SCANNED_S = 0.3  # seconds after which a request is answered with what was found

TROUBLES = (EOFError, ValueError, zlib.error, OSError)  # of reading a damaged file


class Recorded:
    """One trajectory in a `text`, whose line begins at `start`; threads may share it."""

    def __init__(self, text: Text, start: int = 0) -> None:
        self._text, self._start = text, start
        self._begins, self._ends = array("Q"), array("Q")  # of turns, as bytes of the line
        self._calls = array("Q", [0])  # of the turns before each turn
        self._head = self._tail = self._end = 0  # where the turns' list opens and closes, and the trajectory ends
        self.done, self.damage = False, ""
        self._scan = self._scanning()
        self._lock = threading.Lock()

    def scan(self, turns: int | None = None, seconds: float = _SCANNED_S) -> None:
        """Find the borders of at least `turns` turns, None: of all; not longer than that, and not beyond damage."""
        until = time.monotonic() + seconds
        while not self.done and (turns is None or len(self._ends) < turns) and time.monotonic() < until:
            with self._lock:  # for a part of the text: others wait for a few turns, not for all
                try:
                    next(self._scan)
                except StopIteration:
                    self.done = True
                    self.damage = self.damage or ("" if self._end else "the line ends early")
                except TROUBLES as error:
                    self.done, self.damage = True, str(error)

    @property
    def found(self) -> int:
        """The number of turns found so far; all, once it is `done`."""
        return len(self._ends)

    @property
    def size(self) -> int:
        """The bytes of the turns found so far."""
        return self._ends[-1] - self._begins[0] if self._ends else 0

    @property
    def calls(self) -> int:
        """The number of calls in the turns found so far."""
        return self._calls[len(self._ends)]

    def calls_before(self, turn: int) -> int:
        """The number of calls in the turns before this one, which counts from 0."""
        return self._calls[min(turn, len(self._ends))]

    def turn_of_call(self, number: int) -> int:
        """The turn, from 0, of a call that counts from 0 among those of turns; as many as were found if none has it."""
        return bisect_right(self._calls, number, hi=len(self._ends)) - 1 if number < self.calls else self.found

    def frame(self) -> Trajectory:
        """The trajectory without its turns; before all is scanned without what stands behind them, too.

        Raises `ValueError` if it is damaged.
        """
        end, head, tail = self._end, self._head, self._tail  # the end is found last
        if end and not head:
            body = self._read(0, end)
        else:
            body = self._read(0, head) if head else b'{"id":"","task_id":"","turns":['
            body += self._read(tail, end) if end else b"]}"
        try:
            return Trajectory.model_validate_json(body)
        except ValidationError as error:
            raise ValueError(problems_of(error)[0]) from error

    def window(self, first: int, limit: int, most: int = _WINDOW) -> list[Turn]:
        """At most `limit` turns from `first` (from 0) on; those that do not fit `most` bytes say only that."""
        turns: list[Turn] = []
        reader = Reader(self._text, self._start + (self._begins[first] if first < self.found else 0))
        for place in range(first, min(first + limit, self.found)):
            begin, end = self._begins[place], self._ends[place]
            if end - begin > most:
                words = f"this turn has {(end - begin) / 1e6:,.1f} MB: `midstream show RUN ID --json` prints it"
                turns.append(Turn(index=place + 1, error=ErrorInfo(type="too large", message=words)))
                continue
            most -= end - begin
            turns.append(_turn(reader.read(self._start + begin, self._start + end), place))
        return turns

    def call(self, number: int) -> Call | None:
        """The call with this number, from 0, of those in turns."""
        place = self.turn_of_call(number)
        for turn in self.window(place, 1):
            inside = number - self.calls_before(place)
            return turn.calls[inside] if inside < len(turn.calls) else None
        return None

    def _read(self, begin: int, end: int) -> bytes:
        return Reader(self._text, self._start + begin).read(self._start + begin, self._start + end)

    def _scanning(self) -> Iterator[None]:
        """Read the line part by part, and note the borders; ends with the trajectory, or where the text ends."""
        depth, calls, in_turns, in_calls, in_string = 0, 0, False, False, False
        text, at, place = b"", 0, 0  # `place` is the first byte of the text that was not seen, `at` the text's own
        for part in self._text.parts(self._start):
            kept = max(0, place - _BEFORE)  # a key before a bracket is needed whole
            text, at, place = text[kept:] + part, at + kept, place - kept
            while place < len(text):
                if in_string:
                    place = _IN_STRING.match(text, place).end()  # type: ignore[union-attr]  # it matches anywhere
                    if text[place : place + 1] != b'"':
                        break  # at the end, or at a backslash whose character is in the next part
                    in_string, place = False, place + 1
                place = _FLAT.match(text, place).end()  # type: ignore[union-attr]
                bracket, place = text[place : place + 1], place + 1
                if bracket == b"{":
                    depth += 1
                    calls += in_calls and depth == 5
                    if in_turns and depth == 3:
                        begin, end = place - 1, text.find(_NEXT, place) + 1
                        self._begins.append(at + begin)
                        # Nearly always the next turn begins there. An object's beginning is no JSON, so if this is,
                        # it is the whole turn; else its brackets are counted.
                        if end and (more := _calls_in(text[begin:end])) is not None:
                            calls, depth, place = calls + more, depth - 1, end
                            self._calls.append(calls)
                            self._ends.append(at + end)
                elif bracket == b"}":
                    if in_turns and depth == 3:
                        self._calls.append(calls)
                        self._ends.append(at + place)
                    depth -= 1
                    if depth == 0:
                        self._end = at + place
                        return
                elif bracket == b"[":
                    if depth == 1 and not self._head and text.endswith(b'"turns":', 0, place - 1):
                        in_turns, self._head = True, at + place
                    in_calls |= in_turns and depth == 3 and text.endswith(b'"calls":', 0, place - 1)
                    depth += 1
                elif bracket == b"]":
                    depth -= 1
                    in_calls &= depth != 3
                    if in_turns and depth == 1:
                        in_turns, self._tail = False, at + place - 1
                elif bracket:
                    in_string = True
                else:
                    place -= 1
            yield


def _calls_in(text: bytes) -> int | None:
    """The number of calls in a turn; None if the text is no JSON."""
    try:
        calls = from_json(text, cache_strings="keys").get("calls", ())
    except ValueError:
        return None
    return len(calls) if isinstance(calls, list) else 0


def _turn(text: bytes, place: int) -> Turn:
    """A turn; of a damaged one what is wrong with it."""
    try:
        return Turn.model_validate_json(text)
    except ValidationError as error:
        return Turn(index=place + 1, error=ErrorInfo(type="damaged", message=problems_of(error)[0]))
