"""What the desks' users speak of: made-up towns, companies, people and things. No name holds a full stop."""

from __future__ import annotations

TOWNS = tuple(
    """Amberbank Birchfell Cedarquay Dunmarsh Elderford Fernhollow Goldwick Hazelmoor Irongate Jadecove Kingsglade
    Larchmere Mosswater Northspring Oakridge Pearlbrook Quartzhill Rosedale Saltstrand Thornbury""".split()
)
COMPANIES = {  # name: symbol
    "Amber Mills": "AMBM",
    "Blue Kiln": "BLKN",
    "Copper Lane": "COPL",
    "Dusk Optics": "DUSK",
    "Elm Freight": "ELMF",
    "Frost Dairy": "FRDA",
    "Glass Harbour": "GLHB",
    "Hill Weavers": "HILW",
    "Ivory Paper": "IVRP",
    "Jade Pumps": "JDPM",
    "Kite Robotics": "KITE",
    "Lime Bakers": "LIMB",
}
PEOPLE = tuple("Alba Bruno Carla Dario Edda Falk Greta Hanno Ilka Jonas Kira Levin Mona Nils Orla Pavel".split())
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FOLDERS = ("archive", "drafts", "garden", "letters", "music", "plans", "recipes", "travels")
FILES = tuple(
    """apples boat chairs dates errands fences guests hats ideas jars keys lamps maps nuts oars paints
    quilts roofs seeds tools""".split()
)
THINGS = ("blue paint", "new rope", "old wood", "ripe pears", "round stones", "soft wool", "thin wire", "warm bread")
DEEDS = ("ask the neighbour", "call the mill", "order more", "start early", "take the cart", "wait for rain")
FAULTS = ("bell", "clock", "door", "fan", "heater", "lamp", "lift", "phone", "printer", "screen", "stove", "window")
STATES = ("broken", "loose", "loud", "stuck", "too cold", "too slow", "wet")
CURES = ("cleaned", "mended", "oiled", "replaced", "reset", "tightened")
