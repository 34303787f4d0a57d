"""The functions of the five desks: what they do, what they refuse, and that a refusal changes nothing."""

from __future__ import annotations

import inspect
import json
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.agents.formats import schema_error
from midstream.worlds.desks.desk import Desk, Result, function, refused, whole
from midstream.worlds.desks.names import COMPANIES, FILES, FOLDERS, PEOPLE, TOWNS
from midstream.worlds.desks.session import DESKS

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
            return refused(f"a lamp has 0 to 9, not {to}")
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
        "trading": 10,
        "travel": 11,
        "files": 11,
        "tickets": 10,
    }


@pytest.mark.parametrize(("desk", "name"), FUNCTIONS)
def test_every_function_and_every_argument_is_described(desk, name):
    face = DESKS[desk].functions()[name]
    assert face.description.endswith(".")
    assert all(one["description"] for one in face.parameters["properties"].values())
    assert list(face.parameters["properties"]) == list(inspect.signature(getattr(DESKS[desk], name)).parameters)[1:]


def arguments_of(face, draws):
    """Arguments that satisfy the schema, some of them sensible."""
    words = [*TOWNS[:4], *COMPANIES.values(), *list(COMPANIES)[:4], *FILES[:6], *FOLDERS, *PEOPLE[:3], "Monday", "x"]
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


@settings(max_examples=100, deadline=None)
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


@settings(max_examples=30, deadline=None)
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
    desk = stocked("travel")
    before = json.dumps(desk.state())
    for name, arguments in (
        ("convert_money", {"crowns": number, "currency": "pennies"}),
        ("book_room", {"hotel": "The Ambe Inn", "nights": number}),
    ):
        assert desk.call(name, arguments) == {"error": "no desk counts beyond 1000000000000"}
    assert json.dumps(desk.state()) == before


def test_a_whole_number_may_be_written_with_a_point():
    desk = stocked("travel")
    booking = desk.book_seats(desk.find_train("Amberbank", "Oakridge", "Friday")["train"], 2)["booking"]
    assert json.dumps(desk.call("set_budget", {"crowns": 900.0})) == '{"budget": 900}'
    assert desk.call("cancel_booking", {"booking": float(booking)})["booking"] == booking


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
        assert way["litres"] == pytest.approx(way["distance_km"] * 0.05)
        assert 1 <= way["litres"] <= 25
    assert "error" in car.fill_tank(1000)


def test_an_order_takes_its_cash_aside_and_gives_it_back():
    desk = stocked("trading")
    cash, price = desk.cash, desk.prices["KITE"]
    assert desk.place_order("buy", "KITE", 2) == {"order": 301, "status": "open"}
    assert desk.cash == cash - 2 * price
    assert desk.order_details(301)["shares"] == 2
    assert desk.cancel_order(301) == {"order": 301, "status": "cancelled"}
    assert "error" in desk.cancel_order(301)
    assert desk.cash == cash
    symbol, held = next(iter(desk.shares.items()))
    assert "error" in desk.place_order("sell", symbol, held + 1)
    assert desk.place_order("sell", symbol, held)["order"] == 302
    assert desk.shares[symbol] == 0
    desk.cancel_order(302)
    assert desk.shares[symbol] == held


def test_bookings_are_paid_and_numbers_are_never_used_twice():
    desk = stocked("travel")
    budget = desk.budget
    train = desk.find_train("Amberbank", "Oakridge", "Friday")
    first = desk.book_seats(train["train"], 2)
    assert desk.budget == budget - 2 * train["price"] == budget - first["paid"]
    second = desk.book_seats(train["train"], 1, "first")
    assert second["paid"] == 2 * train["price"]
    assert desk.cancel_booking(first["booking"])["paid_back"] == first["paid"]
    third = desk.book_seats(train["train"], 1)
    assert len({one["booking"] for one in (first, second, third)}) == 3
    assert "error" in desk.book_seats("T9999MO", 1)
    assert "error" in desk.find_train("Amberbank", "Amberbank", "Friday")


def test_a_ticket_is_changed_by_whoever_is_signed_in():
    desk = DESKS["tickets"].load({"user": "", "tickets": stocked("tickets").state()["tickets"]})
    assert "error" in desk.set_priority(5001, "high")
    desk.sign_in("Mona")
    assert desk.set_priority(5001, "high")["priority"] == "high"
    assert desk.close_ticket(5001, "mended")["status"] == "closed"
    assert "error" in desk.add_note(5001, "too late")
    number = desk.open_ticket("lamp loud")["ticket"]
    desk.assign_ticket(number, "Mona")
    assert desk.tickets_of("Mona")["tickets"] == [number]
    assert desk.find_ticket("lamp loud")["ticket"] == number


def test_files_live_in_the_open_folder():
    desk = DESKS["files"].load(
        {"folders": {"letters": {"boat": "Of blue paint: wait"}, "plans": {}}, "current": "letters"}
    )
    assert desk.find_text("blue paint") == {"file": "boat"}
    assert desk.move_file("boat", "plans") == {"file": "boat", "folder": "plans"}
    assert "error" in desk.read_file("boat")
    desk.open_folder("plans")
    assert desk.add_line("boat", "go on") == {"file": "boat", "lines": 2}
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
