"""Words of the gazetteer: parts of names, attributes, and the wordings of questions."""

from __future__ import annotations

FIRST = """Amber Ash Birch Black Blue Bright Cedar Clay Cold Copper Coral Crown Dark Deep Dry Dusk East Elder Ember
Fair Far Fern Frost Gold Granite Gray Green High Hollow Iron Ivory Jade Kings Lone Long Lower Maple Marble Mist Moon
Moss North Oak Old Olive Pearl Pine Quartz Red River Rose Royal Ruby Salt Sand Shade Silver Sky Snow South Star Stone
Storm Sun Swan Thorn Upper West White Wild Willow Winter Wolf""".split()
SECOND = """Bank Barrow Bay Bluff Bridge Brook Castle Cliff Coast Cove Creek Crest Cross Dale Delta Den Down Falls Fell
Field Ford Forge Fort Garden Gate Glade Glen Grove Harbor Haven Heath Hill Hold Hollow Island Keep Lake Land Marsh
Meadow Mill Moor Mount Pass Peak Plain Point Port Quay Reach Ridge Rock Shore Spring Strand Summit Tower Town Vale
Valley View Ward Watch Water Well Wick Wood Yard""".split()

PLACE_ATTRIBUTES = ("population", "area", "height")
ATTRIBUTES = (*PLACE_ATTRIBUTES, "length", "capital", "river")

ASK = {
    "population": ("How many people live in {}", "What is the population of {}"),
    "area": ("How large is {}", "What is the area of {}"),
    "height": ("How high is {}", "What is the height of {}"),
    "length": ("How long is {}", "What is the length of {}"),
}
SUM = {
    "population": ("How many people live in {} and {} together", "What is the total population of {} and {}"),
    "area": ("How large are {} and {} together", "What is the total area of {} and {}"),
    "height": ("What is the total height of {} and {}",),
}
DIFF = {
    "population": ("How many more people live in {} than in {}",),
    "area": ("How much larger is {} than {}",),
    "height": ("How much higher is {} than {}",),
}
COMPARE = {
    "population": ("Do more people live in {} than in {}",),
    "area": ("Is {} larger than {}",),
    "height": ("Is {} higher than {}",),
}
OPERATORS = {"plus": "+", "minus": "-", "times": "*"}


def question_words() -> set[str]:
    """Every word of questions and facts, except names and numbers."""
    templates = [text for group in (ASK, SUM, DIFF, COMPARE) for texts in group.values() for text in texts]
    text = " ".join([*templates, *OPERATORS, "? total the capital river of is and"])
    return {*text.replace("{}", "").split(), *ATTRIBUTES}
