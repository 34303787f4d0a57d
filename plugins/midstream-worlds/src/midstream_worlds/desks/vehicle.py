"""The vehicle: a car with a tank, doors, a brake, tires and a way to go."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from midstream.core.seeds import derive_seed
from midstream_worlds.desks.desk import Desk, Goal, Result, Step, Values, function, refusal

TANK_L, L_PER_100_KM = 60, 5
WHEELS = ("front left", "front right", "rear left", "rear right")
TOWNS = tuple(
    """Amberbank Birchfell Cedarquay Dunmarsh Elderford Fernhollow Goldwick Hazelmoor Irongate Jadecove Kingsglade
    Larchmere Mosswater Northspring Oakridge Pearlbrook Quartzhill Rosedale Saltstrand Thornbury""".split()
)


@dataclass
class Vehicle(Desk):
    """A parked car. Its motor starts only with locked doors and the brake set."""

    fuel_l: float = 20
    locked: bool = False
    brake_set: bool = False
    motor_on: bool = False
    cabin_c: int = 12
    fan: str = "gentle"
    lights: str = "off"
    tires_bar: dict[str, float] = field(default_factory=dict)
    destination: str = ""

    @classmethod
    def stocked(cls, draws: Random) -> Vehicle:
        """A car that stands with its motor off."""
        tires = {wheel: draws.randint(16, 20) / 10 for wheel in WHEELS}
        return cls(fuel_l=draws.randint(5, 25), cabin_c=draws.randint(8, 14), tires_bar=tires)

    @function()
    def vehicle_status(self) -> Result:
        """Reports the fuel in liters, and whether doors are locked, the brake is set and the motor runs."""
        return {"fuel_l": self.fuel_l, "locked": self.locked, "brake_set": self.brake_set, "motor_on": self.motor_on}

    @function(liters="how many liters")
    def fill_tank(self, liters: float) -> Result:
        """Puts fuel into the tank, which holds 60 liters."""
        if liters <= 0 or self.fuel_l + liters > TANK_L:
            return refusal(f"the tank holds 60 liters and has {self.fuel_l}; {liters} cannot be added")
        self.fuel_l = round(self.fuel_l + liters, 2)
        return {"fuel_l": self.fuel_l}

    @function(locked="true locks, false unlocks")
    def lock_doors(self, locked: bool) -> Result:
        """Locks or unlocks all doors."""
        self.locked = locked
        return {"locked": locked}

    @function(on="true sets it, false releases it")
    def set_brake(self, on: bool) -> Result:
        """Sets or releases the parking brake."""
        self.brake_set = on
        return {"brake_set": on}

    @function()
    def start_motor(self) -> Result:
        """Starts the motor; doors must be locked and the brake set before."""
        if not (self.locked and self.brake_set and self.fuel_l > 0):
            return refusal("the motor starts only with locked doors, the brake set and fuel")
        self.motor_on = True
        return {"motor_on": True}

    @function()
    def stop_motor(self) -> Result:
        """Stops the motor."""
        if not self.motor_on:
            return refusal("the motor does not run")
        self.motor_on = False
        return {"motor_on": False}

    @function(celsius="16 to 28 degrees", fan="how the fan blows")
    def set_cabin(self, celsius: int, fan: Literal["gentle", "strong"] = "gentle") -> Result:
        """Heats or cools the cabin."""
        if not 16 <= celsius <= 28:
            return refusal(f"the cabin can have 16 to 28 degrees, not {celsius}")
        self.cabin_c, self.fan = celsius, fan
        return {"cabin_c": celsius, "fan": fan}

    @function(beam="which beam")
    def set_lights(self, beam: Literal["off", "low", "high"]) -> Result:
        """Switches the lights."""
        self.lights = beam
        return {"lights": beam}

    @function()
    def read_tires(self) -> Result:
        """Reports the pressure of every tire in bar."""
        return {"tires_bar": dict(self.tires_bar)}

    @function(wheel="which one", bar="pressure to reach, up to 3.5")
    def pump_tire(self, wheel: Literal["front left", "front right", "rear left", "rear right"], bar: float) -> Result:
        """Pumps one tire up."""
        if not self.tires_bar[wheel] < bar <= 3.5:
            return refusal(f"the {wheel} tire has {self.tires_bar[wheel]} bar; {bar} cannot be pumped up to")
        self.tires_bar[wheel] = bar
        return {"wheel": wheel, "bar": bar}

    @function(town="its name")
    def plan_route(self, town: str) -> Result:
        """Reports how far a town is, in km, and the liters of fuel that the way takes."""
        if town not in TOWNS:
            return refusal(f"no way leads to {town}")
        distance_km = 20 * (1 + derive_seed("desk route", town) % 25)
        return {"town": town, "distance_km": distance_km, "liters": distance_km * L_PER_100_KM / 100}

    @function(town="its name")
    def set_destination(self, town: str) -> Result:
        """Makes a town the destination."""
        if town not in TOWNS:
            return refusal(f"no way leads to {town}")
        self.destination = town
        return {"destination": town}


def _fuel(car: Vehicle, draws: Random) -> Values | None:
    space_l = int(TANK_L - car.fuel_l)
    return {"liters": draws.randint(3, space_l)} if space_l >= 3 else None


def _town(car: Vehicle, draws: Random) -> Values | None:
    return {"town": draws.choice([town for town in TOWNS if town != car.destination])}


def _tire(car: Vehicle, draws: Random) -> Values | None:
    wheel = draws.choice(WHEELS)
    bar = draws.randint(21, 30) / 10
    return {"wheel": wheel, "bar": bar} if car.tires_bar[wheel] < bar else None


def _cabin(car: Vehicle, draws: Random) -> Values | None:
    return {"celsius": draws.choice([celsius for celsius in range(16, 29) if celsius != car.cabin_c])}


_CABIN = Step("set_cabin", {"celsius": "{celsius}"})
_PUMP = Step("pump_tire", {"wheel": "{wheel}", "bar": "{bar}"})

GOALS = (
    Goal(
        texts=("Fill up {liters} liters of fuel.", "Please put {liters} liters into the tank."),
        steps=(Step("fill_tank", {"liters": "{liters}"}),),
        draw=_fuel,
        vague=(("The tank needs fuel.", "Put in {liters} liters."),),
        hold="fill_tank",
    ),
    Goal(
        texts=(
            "Lock the doors, set the brake and start the motor.",
            "Get it running, with locked doors and the brake set.",
        ),
        steps=(Step("lock_doors", {"locked": True}), Step("set_brake", {"on": True}), Step("start_motor")),
        draw=lambda car, draws: None if car.locked or car.brake_set or car.motor_on else {},
    ),
    Goal(
        texts=("Release the brake.", "We are off, so let go of the brake."),
        steps=(Step("set_brake", {"on": False}),),
        draw=lambda car, draws: {} if car.brake_set else None,
        hold="set_brake",
    ),
    Goal(
        texts=("Stop the motor.", "We are there, turn the motor off."),
        steps=(Step("stop_motor"),),
        draw=lambda car, draws: {} if car.motor_on else None,
        hold="stop_motor",
    ),
    Goal(
        texts=("Set the cabin to {celsius} degrees.", "I would like {celsius} degrees in the car."),
        steps=(_CABIN,),
        draw=_cabin,
        vague=(("It is cold in the car, make it warmer.", "Make it {celsius} degrees."),),
        hold="set_cabin",
    ),
    Goal(
        texts=("Heat the cabin to {celsius} degrees and let the fan blow hard.",),
        steps=(Step("set_cabin", {"celsius": "{celsius}", "fan": "strong"}),),
        draw=_cabin,
        hold="set_cabin",
    ),
    Goal(
        texts=("Switch the lights to the {beam} beam.",),
        steps=(Step("set_lights", {"beam": "{beam}"}),),
        draw=lambda car, draws: {"beam": draws.choice([beam for beam in ("low", "high") if beam != car.lights])},
        vague=(("I need other lights.", "The {beam} beam, I mean."),),
        hold="set_lights",
    ),
    Goal(
        texts=("Pump the {wheel} tire up to {bar} bar.", "The {wheel} tire should have {bar} bar."),
        steps=(_PUMP,),
        draw=_tire,
        vague=(("The {wheel} tire looks soft, pump it up.", "It should get {bar} bar."),),
        hold="pump_tire",
    ),
    Goal(
        texts=("Read me the pressure of all tires, then bring the {wheel} one to {bar} bar.",),
        steps=(Step("read_tires"), _PUMP),
        draw=_tire,
        hold="pump_tire",
    ),
    Goal(
        texts=("Look up how much fuel the way to {town} takes and fill up just that much.",),
        steps=(Step("plan_route", {"town": "{town}"}), Step("fill_tank", {"liters": "$liters"})),
        draw=lambda car, draws: _town(car, draws) if car.fuel_l + 25 <= TANK_L else None,  # as no way takes more
        hold="fill_tank",
    ),
    Goal(
        texts=("Look up how far {town} is and make it the destination.",),
        steps=(Step("plan_route", {"town": "{town}"}), Step("set_destination", {"town": "{town}"})),
        draw=_town,
        hold="set_destination",
    ),
    Goal(
        texts=("Take {town} as the destination.", "We are going to {town}, set that as the destination."),
        steps=(Step("set_destination", {"town": "{town}"}),),
        draw=_town,
        vague=(("Set the destination for me.", "We are going to {town}, of course."),),
        hold="set_destination",
    ),
    Goal(texts=("How is the car doing, and how much fuel is left?",), steps=(Step("vehicle_status"),)),
)
