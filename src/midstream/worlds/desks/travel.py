"""The travel desk: trains, seats, rooms and a budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Any, Literal

from midstream.core.seeds import derive_seed
from midstream.worlds.desks.desk import Desk, Result, function, refused
from midstream.worlds.desks.goals import Goal, Step, Values
from midstream.worlds.desks.names import DAYS, TOWNS

RATES = {"florins": 4, "pennies": 100, "thalers": 2}  # to a crown
INSURANCE = 12  # crowns
TRAINS = {
    (start, end, day): f"T{TOWNS.index(start) + 11}{TOWNS.index(end) + 11}{day[:2].upper()}"
    for start, end in permutations(TOWNS, 2)
    for day in DAYS
}
HOTELS = {town: f"The {town[:4]} Inn" for town in TOWNS}


@dataclass
class Travel(Desk):
    """One traveller's bookings, paid from a budget in crowns."""

    budget: int = 0
    bookings: dict[str, dict[str, Any]] = field(default_factory=dict)
    booked: int = 0
    rooms: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def stocked(cls, draws: Random) -> Travel:
        """A budget, and nothing booked."""
        return cls(budget=10 * draws.randint(200, 500))

    @function(start="where from", end="where to", day="day of the week")
    def find_train(self, start: str, end: str, day: str) -> Result:
        """Finds the train between two towns on a day."""
        number = TRAINS.get((start, end, day))
        if number is None:
            return refused(f"no train goes from {start} to {end} on {day}")
        draw = derive_seed("desk train", number)
        return {"train": number, "leaves": f"{6 + draw % 14:02}:{draw // 14 % 60:02}", "price": _price(number)}

    @function(train="the train's number", seats="how many", travel_class="first costs twice as much")
    def book_seats(self, train: str, seats: int, travel_class: Literal["first", "second"] = "second") -> Result:
        """Books seats on a train and pays them."""
        cost = seats * _price(train) * (2 if travel_class == "first" else 1)
        if train not in TRAINS.values() or not 1 <= seats <= 9 or cost > self.budget:
            return refused(f"{seats} seats on {train} for {cost} crowns cannot be booked")
        number = 701 + self.booked
        self.booked += 1
        self.budget -= cost
        self.bookings[str(number)] = {
            "train": train,
            "seats": seats,
            "class": travel_class,
            "paid": cost,
            "luggage": 0,
            "insured": False,
        }
        return {"booking": number, "paid": cost}

    @function(booking="its number")
    def cancel_booking(self, booking: int) -> Result:
        """Cancels a booking; what was paid comes back."""
        found = self.bookings.pop(str(booking), None)
        if found is None:
            return refused(f"there is no booking {booking}")
        self.budget += int(found["paid"])
        return {"booking": booking, "paid_back": found["paid"]}

    @function(booking="its number")
    def booking_details(self, booking: int) -> Result:
        """Tells all of a booking."""
        found = self.bookings.get(str(booking))
        return {"booking": booking, **found} if found else refused(f"there is no booking {booking}")

    @function(booking="its number", pieces="how many pieces, up to 9")
    def add_luggage(self, booking: int, pieces: int) -> Result:
        """Adds luggage to a booking."""
        found = self.bookings.get(str(booking))
        if found is None or not 1 <= pieces <= 9 - found["luggage"]:
            return refused(f"{pieces} pieces cannot be added to booking {booking}")
        found["luggage"] += pieces
        return {"booking": booking, "luggage": found["luggage"]}

    @function(booking="its number")
    def insure_booking(self, booking: int) -> Result:
        """Insures a booking for 12 crowns."""
        found = self.bookings.get(str(booking))
        if found is None or found["insured"] or self.budget < INSURANCE:
            return refused(f"booking {booking} cannot be insured")
        found["insured"] = True
        self.budget -= INSURANCE
        return {"booking": booking, "insured": True}

    @function(town="its name")
    def find_hotel(self, town: str) -> Result:
        """Finds the hotel of a town and what a night costs."""
        if town not in HOTELS:
            return refused(f"{town} has no hotel")
        return {"hotel": HOTELS[town], "night": _price(HOTELS[town])}

    @function(hotel="the hotel's name", nights="how many")
    def book_room(self, hotel: str, nights: int) -> Result:
        """Books a room in a hotel and pays it."""
        cost = nights * _price(hotel)
        if hotel not in HOTELS.values() or not 1 <= nights <= 14 or cost > self.budget:
            return refused(f"{nights} nights at {hotel} for {cost} crowns cannot be booked")
        self.budget -= cost
        self.rooms.append({"hotel": hotel, "nights": nights, "paid": cost})
        return {"hotel": hotel, "nights": nights, "paid": cost}

    @function(crowns="the new budget")
    def set_budget(self, crowns: int) -> Result:
        """Sets what may still be spent."""
        if crowns < 0:
            return refused("a budget is not below 0")
        self.budget = crowns
        return {"budget": crowns}

    @function()
    def budget_left(self) -> Result:
        """Tells what may still be spent, in crowns."""
        return {"budget": self.budget}

    @function(crowns="how many", currency="of which money")
    def convert_money(self, crowns: int, currency: Literal["florins", "pennies", "thalers"]) -> Result:
        """Tells what crowns are worth elsewhere."""
        return {"currency": currency, "amount": crowns * RATES[currency]}


def _price(of: str) -> int:
    """Crowns for a seat on a train, or a night in a hotel."""
    return 11 + derive_seed("desk price", of) % 60


def _trip(desk: Travel, draws: Random) -> Values | None:
    start, end = draws.sample(TOWNS, 2)
    return {"start": start, "end": end, "day": draws.choice(DAYS)}


def _seats(desk: Travel, draws: Random) -> Values | None:
    trip = _trip(desk, draws)
    return {**trip, "seats": draws.randint(2, 5)} if trip and desk.budget >= 800 else None  # enough for first class


def _stay(desk: Travel, draws: Random) -> Values | None:
    return {"town": draws.choice(TOWNS), "nights": draws.randint(1, 6)} if desk.budget >= 500 else None


def _newest(desk: Travel) -> dict[str, Any] | None:
    return desk.bookings[max(desk.bookings)] if desk.bookings else None


def _booked(desk: Travel, draws: Random) -> Values | None:
    return {} if _newest(desk) else None


def _insurable(desk: Travel, draws: Random) -> Values | None:
    newest = _newest(desk)
    return {} if newest and not newest["insured"] and desk.budget >= INSURANCE else None


def _luggage(desk: Travel, draws: Random) -> Values | None:
    newest = _newest(desk)
    return {"pieces": draws.randint(1, 4)} if newest and newest["luggage"] <= 5 else None


_TRAIN = Step("find_train", {"start": "{start}", "end": "{end}", "day": "{day}"})
_BOOK = Step("book_seats", {"train": "$train", "seats": "{seats}"})
_LAST = {"booking": "$booking"}

GOALS = (
    Goal(
        texts=(
            "Book {seats} seats on the {day} train from {start} to {end}.",
            "On {day} {seats} of us go by train from {start} to {end}, book the seats.",
        ),
        steps=(_TRAIN, _BOOK),
        draw=_seats,
        vague=(("Book seats on the {day} train from {start} to {end}.", "We need {seats} seats."),),
        hold="book_seats",
    ),
    Goal(
        texts=("Book first class from {start} to {end} on {day}, {seats} seats.",),
        steps=(_TRAIN, Step("book_seats", {"train": "$train", "seats": "{seats}", "travel_class": "first"})),
        draw=_seats,
        hold="book_seats",
    ),
    Goal(
        texts=("When does the {day} train from {start} to {end} leave?",),
        steps=(_TRAIN,),
        draw=_trip,
    ),
    Goal(
        texts=("Cancel that booking again.", "We are not going after all, cancel the last booking."),
        steps=(Step("cancel_booking", _LAST),),
        draw=_booked,
        after=("booking",),
        hold="cancel_booking",
    ),
    Goal(
        texts=("Add {pieces} pieces of luggage to that booking.",),
        steps=(Step("add_luggage", {**_LAST, "pieces": "{pieces}"}),),
        draw=_luggage,
        after=("booking",),
        vague=(("We are taking luggage along, add it to that booking.", "There are {pieces} pieces."),),
        hold="add_luggage",
    ),
    Goal(
        texts=("Insure that booking.", "Please take out an insurance for the last booking."),
        steps=(Step("insure_booking", _LAST),),
        draw=_insurable,
        after=("booking",),
        hold="insure_booking",
    ),
    Goal(
        texts=("Tell me all about that booking.",),
        steps=(Step("booking_details", _LAST),),
        draw=_booked,
        after=("booking",),
    ),
    Goal(
        texts=(
            "Take a room in {town} for {nights} nights.",
            "I stay in {town} for {nights} nights, book a room there.",
        ),
        steps=(Step("find_hotel", {"town": "{town}"}), Step("book_room", {"hotel": "$hotel", "nights": "{nights}"})),
        draw=_stay,
        vague=(("I need a room in {town}.", "I stay {nights} nights."),),
        hold="book_room",
    ),
    Goal(
        texts=("Set the travel budget to {crowns} crowns.", "The budget is {crowns} crowns from now on."),
        steps=(Step("set_budget", {"crowns": "{crowns}"}),),
        draw=lambda desk, draws: {"crowns": 10 * draws.randint(300, 900)},
        vague=(("The travel budget has changed.", "It is {crowns} crowns now."),),
        hold="set_budget",
    ),
    Goal(
        texts=("How much of the travel budget is left?",),
        steps=(Step("budget_left"),),
    ),
    Goal(
        texts=("How many {currency} are {crowns} crowns?",),
        steps=(Step("convert_money", {"crowns": "{crowns}", "currency": "{currency}"}),),
        draw=lambda desk, draws: {"crowns": draws.randint(5, 500), "currency": draws.choice(list(RATES))},
    ),
)
