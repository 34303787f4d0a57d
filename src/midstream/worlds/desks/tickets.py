"""The ticket desk: what is broken, who mends it, and how that stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from midstream.worlds.desks.desk import Desk, Result, function, refused
from midstream.worlds.desks.goals import Goal, Step, Values
from midstream.worlds.desks.names import CURES, DEEDS, FAULTS, PEOPLE, STATES

PRIORITIES = ("low", "high", "urgent")
NOBODY = "nobody is signed in"


@dataclass
class Tickets(Desk):
    """Tickets by their numbers. Whoever wants to change one signs in first."""

    user: str = ""
    tickets: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def stocked(cls, draws: Random) -> Tickets:
        """Four open tickets on different things; half of the time somebody is signed in."""
        desk = cls(user=draws.choice(("", draws.choice(PEOPLE))))
        for fault in draws.sample(FAULTS, 4):
            desk._add(f"{fault} {draws.choice(STATES)}", "normal")
        return desk

    def _add(self, subject: str, priority: str) -> int:
        number = 5001 + len(self.tickets)
        self.tickets[str(number)] = {
            "subject": subject,
            "priority": priority,
            "status": "open",
            "person": "",
            "notes": [],
        }
        return number

    def _change(self, ticket: int, change: Callable[[dict[str, Any]], Any]) -> Result:
        """Change an open ticket, if somebody is signed in."""
        found = self.tickets.get(str(ticket))
        if not self.user:
            return refused(NOBODY)
        if found is None or found["status"] != "open":
            return refused(f"no ticket {ticket} is open")
        change(found)
        return {"ticket": ticket, "status": found["status"], "priority": found["priority"], "person": found["person"]}

    @function(person="first name")
    def sign_in(self, person: str) -> Result:
        """Signs a person in."""
        if self.user or person not in PEOPLE:
            return refused(f"{self.user or person!r} is signed in, or is nobody that works here")
        self.user = person
        return {"signed_in": person}

    @function()
    def sign_out(self) -> Result:
        """Signs the person out."""
        if not self.user:
            return refused(NOBODY)
        gone, self.user = self.user, ""
        return {"signed_out": gone}

    @function(subject="what is wrong, in few words", priority="how soon it matters")
    def open_ticket(self, subject: str, priority: Literal["low", "normal", "high", "urgent"] = "normal") -> Result:
        """Opens a ticket."""
        if not self.user:
            return refused(NOBODY)
        return {"ticket": self._add(subject, priority), "status": "open"}

    @function(subject="the ticket's whole subject")
    def find_ticket(self, subject: str) -> Result:
        """Finds the number of a ticket."""
        found = [number for number, one in self.tickets.items() if one["subject"] == subject]
        return {"subject": subject, "ticket": int(found[0])} if found else refused(f"no ticket says {subject}")

    @function(ticket="its number")
    def ticket_details(self, ticket: int) -> Result:
        """Tells all of a ticket."""
        found = self.tickets.get(str(ticket))
        return {"ticket": ticket, **found, "notes": [*found["notes"]]} if found else refused(f"no ticket {ticket}")

    @function(ticket="its number", priority="how soon it matters")
    def set_priority(self, ticket: int, priority: Literal["low", "normal", "high", "urgent"]) -> Result:
        """Gives an open ticket another priority."""
        return self._change(ticket, lambda one: one.update(priority=priority))

    @function(ticket="its number", person="first name of who shall mend it")
    def assign_ticket(self, ticket: int, person: str) -> Result:
        """Gives an open ticket to a person."""
        if person not in PEOPLE:
            return refused(f"{person} does not work here")
        return self._change(ticket, lambda one: one.update(person=person))

    @function(ticket="its number", note="what to note")
    def add_note(self, ticket: int, note: str) -> Result:
        """Adds a note to an open ticket."""
        return self._change(ticket, lambda one: one["notes"].append(note))

    @function(ticket="its number", cure="what was done")
    def close_ticket(self, ticket: int, cure: str) -> Result:
        """Closes a ticket."""
        return self._change(ticket, lambda one: one.update(status="closed", cure=cure))

    @function(person="first name")
    def tickets_of(self, person: str) -> Result:
        """Lists the numbers of the tickets that a person has."""
        return {"person": person, "tickets": [int(one) for one, of in self.tickets.items() if of["person"] == person]}


def _open(desk: Tickets) -> list[str]:
    return sorted(one["subject"] for one in desk.tickets.values() if one["status"] == "open")


def _subject(desk: Tickets, draws: Random) -> Values | None:
    return {"subject": draws.choice(_open(desk))} if desk.user and _open(desk) else None


def _with(**choices: tuple[str, ...]) -> Callable[[Tickets, Random], Values | None]:
    """Draws an open ticket's subject and one of each of the choices."""

    def draw(desk: Tickets, draws: Random) -> Values | None:
        found = _subject(desk, draws)
        return found and {**found, **{name: draws.choice(those) for name, those in choices.items()}}

    return draw


def _new(desk: Tickets, draws: Random) -> Values | None:
    subjects = {f"{fault} {state}" for fault in FAULTS for state in STATES}
    left = sorted(subjects - {one["subject"] for one in desk.tickets.values()})
    values: Values = {
        "subject": draws.choice(left),
        "priority": draws.choice(PRIORITIES),
        "person": draws.choice(PEOPLE),
    }
    return values if desk.user else None


def _user(desk: Tickets, draws: Random) -> Values | None:
    return {} if desk.user else None


def _noted(desk: Tickets, draws: Random) -> Values | None:
    return {"note": draws.choice(DEEDS)} if desk.user else None


_FIND = Step("find_ticket", {"subject": "{subject}"})
_LAST = {"ticket": "$ticket"}

GOALS = (
    Goal(
        texts=("Sign me in as {person}.", "I am at work now, sign {person} in."),
        steps=(Step("sign_in", {"person": "{person}"}),),
        draw=lambda desk, draws: None if desk.user else {"person": draws.choice(PEOPLE)},
        vague=(("Please sign me in.", "My name is {person}."),),
        hold="sign_in",
    ),
    Goal(
        texts=("Sign me out.", "That is enough for today, sign me out."),
        steps=(Step("sign_out"),),
        draw=_user,
        hold="sign_out",
    ),
    Goal(
        texts=("Open a ticket '{subject}' with {priority} priority.",),
        steps=(Step("open_ticket", {"subject": "{subject}", "priority": "{priority}"}),),
        draw=_new,
        hold="open_ticket",
    ),
    Goal(
        texts=("Open a normal ticket that says '{subject}'.",),
        steps=(Step("open_ticket", {"subject": "{subject}"}),),
        draw=_new,
        vague=(("Something is wrong here, open a normal ticket for it.", "It should say '{subject}'."),),
        hold="open_ticket",
    ),
    Goal(
        texts=("Open a ticket on '{subject}' and give it to {person}.",),
        steps=(
            Step("open_ticket", {"subject": "{subject}"}),
            Step("assign_ticket", {**_LAST, "person": "{person}"}),
        ),
        draw=_new,
    ),
    Goal(
        texts=("The ticket '{subject}' is done, close it as {cure}.",),
        steps=(_FIND, Step("close_ticket", {**_LAST, "cure": "{cure}"})),
        draw=_with(cure=CURES),
        vague=(("The ticket '{subject}' is done, so close it.", "It was {cure}."),),
        hold="close_ticket",
    ),
    Goal(
        texts=("Give the ticket '{subject}' {priority} priority.",),
        steps=(_FIND, Step("set_priority", {**_LAST, "priority": "{priority}"})),
        draw=_with(priority=PRIORITIES),
        vague=(("Change the priority of the ticket '{subject}'.", "The priority is {priority}."),),
        hold="set_priority",
    ),
    Goal(
        texts=("Let {person} take care of the ticket '{subject}'.",),
        steps=(_FIND, Step("assign_ticket", {**_LAST, "person": "{person}"})),
        draw=_with(person=PEOPLE),
        vague=(("Somebody has to take care of the ticket '{subject}'.", "Let {person} do that."),),
        hold="assign_ticket",
    ),
    Goal(
        texts=("Add a note to that ticket, namely '{note}'.",),
        steps=(Step("add_note", {**_LAST, "note": "{note}"}),),
        draw=_noted,
        after=("ticket",),
        vague=(("Add a note to that ticket.", "The note is '{note}'."),),
        hold="add_note",
    ),
    Goal(
        texts=("Tell me all about that ticket.",),
        steps=(Step("ticket_details", _LAST),),
        after=("ticket",),
    ),
    Goal(
        texts=("Look up the ticket '{subject}' and read it to me.",),
        steps=(_FIND, Step("ticket_details", _LAST)),
        draw=_subject,
    ),
    Goal(
        texts=("Which tickets does {person} have?",),
        steps=(Step("tickets_of", {"person": "{person}"}),),
        draw=lambda desk, draws: {"person": draws.choice(PEOPLE)},
    ),
)
