"""The functions of the two desks: what they do, what they refuse, and that a refusal changes nothing."""

from __future__ import annotations

import inspect
import json
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.core.data import whole
from midstream.core.json_schema import schema_error
from midstream_worlds.desks.desk import Desk, Result, function, refusal
from midstream_worlds.desks.dialogue import DAYS, DESKS
from midstream_worlds.desks.files import DEEDS, FILES, FOLDERS, THINGS
from midstream_worlds.desks.vehicle import TOWNS

FUNCTIONS = [(desk, name) for desk, kind in DESKS.items() for name in kind.functions()]


def stocked(name, seed=0):
    return DESKS[name].stocked(random.Random(seed))


@dataclass
class Lamp(Desk):
    """The example of the module."""

    bright: int = 0

    @function(to="0 (dark) to 9", by="who does it")
    def dim(self, to: int, by: str = "me") -> Result:
        """Turns the lamp up or down."""
        if not 0 <= to <= 9:
            return refusal(f"a lamp has 0 to 9, not {to}")
        self.bright = to
        return {"bright": to}


def test_a_functions_schema_comes_from_its_hints_and_words():
    [face] = Lamp.functions().values()
    assert (face.name, face.description) == ("dim", "Turns the lamp up or down.")
    assert face.parameters == {
        "type": "object",
        "properties": {
            "to": {"type": "integer", "description": "0 (dark) to 9"},
            "by": {"type": "string", "description": "who does it", "default": "me"},
        },
        "required": ["to"],
        "additionalProperties": False,
    }
    assert face.complete({"to": 3.0}) == face.complete({"by": "me", "to": 3}) == {"to": 3, "by": "me"}


def test_numbers_that_are_the_same_are_written_the_same():
    assert json.dumps(whole({"a": [2.0, {"b": 2.5}], "c": True})) == '{"a": [2, {"b": 2.5}], "c": true}'


def test_every_desk_has_enough_functions_and_no_name_is_used_twice():
    assert len({name for _, name in FUNCTIONS}) == len(FUNCTIONS)
    assert {desk: len(kind.functions()) for desk, kind in DESKS.items()} == {
        "vehicle": 12,
        "files": 11,
    }


@pytest.mark.parametrize(("desk", "name"), FUNCTIONS)
def test_every_function_and_every_argument_is_described(desk, name):
    face = DESKS[desk].functions()[name]
    assert face.description.endswith(".")
    assert all(one["description"] for one in face.parameters["properties"].values())
    assert list(face.parameters["properties"]) == list(inspect.signature(getattr(DESKS[desk], name)).parameters)[1:]


def arguments_of(face, draws):
    """Arguments that satisfy the schema, some of them sensible."""
    words = [*TOWNS[:4], *FILES[:6], *FOLDERS, *THINGS[:3], *DEEDS[:2], DAYS[0], "x"]
    given = {}
    for name, one in face.parameters["properties"].items():
        if name not in face.parameters["required"] and draws.random() < 0.5:
            continue
        kinds = {
            "integer": draws.choice((-1, 0, 1, 3, 301, 701, 5001)),
            "number": draws.choice((-1, 2.5, 10, 1000)),
            "boolean": draws.random() < 0.5,
            "string": draws.choice(words),
        }
        given[name] = draws.choice(one["enum"]) if "enum" in one else kinds[one["type"]]
    return given


@settings(deadline=None)
@given(desk=st.sampled_from(list(DESKS)), seed=st.integers(0, 10_000))
def test_any_calls_give_results_that_repeat_and_refusals_change_nothing(desk, seed):
    draws = random.Random(seed)
    one = stocked(desk, seed)
    twin = type(one).load(json.loads(json.dumps(one.state())))
    for _ in range(25):
        name = draws.choice(list(one.functions()))
        arguments = arguments_of(one.functions()[name], draws)
        assert schema_error(arguments, one.functions()[name].parameters) is None
        before = json.dumps(one.state())
        result = one.call(name, arguments)
        assert json.loads(json.dumps(result)) == result
        assert twin.call(name, arguments) == result
        if "error" in result:
            assert json.dumps(one.state()) == before
    assert twin.state() == one.state()


@settings(deadline=None)
@given(desk=st.sampled_from(list(DESKS)), seed=st.integers(0, 10_000))
def test_a_result_is_not_the_state_itself(desk, seed):
    draws = random.Random(seed)
    one = stocked(desk, seed)
    for _ in range(25):
        name = draws.choice(list(one.functions()))
        result = one.call(name, arguments_of(one.functions()[name], draws))
        before = json.dumps(one.state())
        for value in result.values():
            if isinstance(value, list | dict):
                value.clear()
        assert json.dumps(one.state()) == before


@pytest.mark.parametrize("number", [10**4299, -(10**4299), 1e300])
def test_numbers_that_nobody_can_write_down_are_refused(number):
    desk = stocked("vehicle")
    before = json.dumps(desk.state())
    for name, arguments in (
        ("fill_tank", {"liters": number}),
        ("pump_tire", {"wheel": "rear left", "bar": number}),
    ):
        assert desk.call(name, arguments) == {"error": "no desk counts beyond 1000000000000"}
    assert json.dumps(desk.state()) == before


def test_a_whole_number_may_be_written_with_a_point():
    desk = DESKS["vehicle"].load(stocked("vehicle").state() | {"fuel_l": 20})
    assert json.dumps(desk.call("fill_tank", {"liters": 5.0})) == '{"fuel_l": 25}'
    assert json.dumps(desk.call("set_cabin", {"celsius": 20.0})["cabin_c"]) == "20"


def test_a_loaded_desk_shares_nothing_with_its_state():
    state = stocked("files").state()
    kept = json.dumps(state)
    desk = DESKS["files"].load(state)
    for file in list(desk.here):
        desk.delete_file(file)
    assert json.dumps(state) == kept


def test_the_motor_starts_with_locked_doors_and_a_set_brake_alone():
    car = stocked("vehicle")
    assert "error" in car.start_motor()
    car.lock_doors(True)
    assert "error" in car.start_motor()
    car.set_brake(True)
    assert car.start_motor() == {"motor_on": True}
    assert car.stop_motor() == {"motor_on": False}
    assert "error" in car.stop_motor()


def test_the_way_says_what_fuel_it_takes():
    car = stocked("vehicle")
    for town in TOWNS:
        way = car.plan_route(town)
        assert way["liters"] == pytest.approx(way["distance_km"] * 0.05)
        assert 1 <= way["liters"] <= 25
    assert "error" in car.fill_tank(1000)


def test_files_live_in_the_open_folder():
    desk = DESKS["files"].load(
        {"folders": {"letters": {"boat": "Of blue paint: wait"}, "plans": {}}, "current": "letters"}
    )
    assert desk.find_text("blue paint") == {"file": "boat"}
    assert desk.move_file("boat", "plans") == {"file": "boat", "folder": "plans"}
    assert "error" in desk.read_file("boat")
    desk.open_folder("plans")
    assert desk.add_line("boat", "start early") == {"file": "boat", "lines": 2}
    assert desk.count_words("boat")["words"] == 6
    assert desk.copy_file("boat", "maps") == {"file": "boat", "copied_as": "maps"}
    assert desk.list_folder() == {"folder": "plans", "files": ["boat", "maps"], "folders": ["letters", "plans"]}


def test_which_file_is_found_does_not_depend_on_the_order_in_which_they_came():
    """Two states that are equal give equal results, or a right way through a task would be refused."""
    texts = {"boat": "Of blue paint: wait", "apples": "Of blue paint: wait"}
    desks = [
        DESKS["files"].load({"folders": {"letters": dict(items)}, "current": "letters"})
        for items in (texts.items(), reversed(texts.items()))
    ]
    assert desks[0].state() == desks[1].state()
    assert [desk.find_text("blue paint") for desk in desks] == [{"file": "apples"}] * 2
