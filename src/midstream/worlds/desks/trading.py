"""The trading desk: an account with cash and shares, orders, and a list of what to watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from midstream.worlds.desks.desk import Desk, Result, function, refused
from midstream.worlds.desks.goals import Goal, Step, Values
from midstream.worlds.desks.names import COMPANIES


@dataclass
class Trading(Desk):
    """One account. An order takes its cash or shares aside at once; cancelling it gives them back."""

    cash: int = 0
    shares: dict[str, int] = field(default_factory=dict)
    prices: dict[str, int] = field(default_factory=dict)
    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    watched: list[str] = field(default_factory=list)

    @classmethod
    def stocked(cls, draws: Random) -> Trading:
        """Some cash, and shares of four companies."""
        return cls(
            cash=100 * draws.randint(30, 90),
            shares={symbol: draws.randint(5, 40) for symbol in draws.sample(sorted(COMPANIES.values()), 4)},
            prices={symbol: draws.randint(10, 99) for symbol in COMPANIES.values()},
        )

    @function(company="its name")
    def find_symbol(self, company: str) -> Result:
        """Finds the symbol of a company."""
        if company not in COMPANIES:
            return refused(f"no company is called {company}")
        return {"company": company, "symbol": COMPANIES[company]}

    @function(symbol="the company's symbol")
    def quote(self, symbol: str) -> Result:
        """Tells the price of one share."""
        if symbol not in self.prices:
            return refused(f"no symbol is called {symbol}")
        return {"symbol": symbol, "price": self.prices[symbol]}

    @function()
    def account(self) -> Result:
        """Tells the cash and the shares of the account."""
        return {"cash": self.cash, "shares": dict(self.shares)}

    @function(side="buy or sell", symbol="the company's symbol", shares="how many")
    def place_order(self, side: Literal["buy", "sell"], symbol: str, shares: int) -> Result:
        """Places an order, which stays open until it is cancelled."""
        if symbol not in self.prices or shares < 1:
            return refused(f"{shares} shares of {symbol} cannot be ordered")
        cost, held = shares * self.prices[symbol], self.shares.get(symbol, 0)
        if side == "buy" and cost > self.cash:
            return refused(f"that costs {cost}, and {self.cash} is there")
        if side == "sell" and shares > held:
            return refused(f"{held} shares of {symbol} are there")
        self._move(side, symbol, shares, cost)
        number = 301 + len(self.orders)
        self.orders[str(number)] = {"side": side, "symbol": symbol, "shares": shares, "status": "open"}
        return {"order": number, "status": "open"}

    def _move(self, side: str, symbol: str, shares: int, cost: int) -> None:
        """Take what an order needs from the account; a negative number gives it back."""
        if side == "buy":
            self.cash -= cost
        else:
            self.shares[symbol] -= shares

    @function(order="its number")
    def cancel_order(self, order: int) -> Result:
        """Cancels an open order."""
        found = self.orders.get(str(order))
        if found is None or found["status"] != "open":
            return refused(f"no order {order} is open")
        found["status"] = "cancelled"
        shares = int(found["shares"])
        self._move(found["side"], found["symbol"], -shares, -shares * self.prices[found["symbol"]])
        return {"order": order, "status": "cancelled"}

    @function(order="its number")
    def order_details(self, order: int) -> Result:
        """Tells what an order is about and how it stands."""
        found = self.orders.get(str(order))
        return {"order": order, **found} if found else refused(f"there is no order {order}")

    @function(amount="how much")
    def deposit_cash(self, amount: int) -> Result:
        """Puts cash into the account."""
        if amount < 1:
            return refused(f"{amount} cannot be put in")
        self.cash += amount
        return {"cash": self.cash}

    @function(amount="how much")
    def withdraw_cash(self, amount: int) -> Result:
        """Takes cash out of the account."""
        if not 1 <= amount <= self.cash:
            return refused(f"{amount} cannot be taken out of {self.cash}")
        self.cash -= amount
        return {"cash": self.cash}

    @function(symbol="the company's symbol")
    def watch_symbol(self, symbol: str) -> Result:
        """Adds a symbol to the list of those to watch."""
        if symbol not in self.prices or symbol in self.watched:
            return refused(f"{symbol} is watched already, or is no symbol")
        self.watched.append(symbol)
        return {"watched": list(self.watched)}

    @function(symbol="the company's symbol")
    def unwatch_symbol(self, symbol: str) -> Result:
        """Takes a symbol off the list of those to watch."""
        if symbol not in self.watched:
            return refused(f"{symbol} is not watched")
        self.watched.remove(symbol)
        return {"watched": list(self.watched)}


def _any(desk: Trading, draws: Random) -> Values | None:
    return {"company": draws.choice(list(COMPANIES))}


def _unwatched(desk: Trading, draws: Random) -> Values | None:
    return {"company": draws.choice([name for name, one in COMPANIES.items() if one not in desk.watched])}


def _bought(desk: Trading, draws: Random) -> Values | None:
    company, symbol = draws.choice(list(COMPANIES.items()))
    most = desk.cash // desk.prices[symbol] // 2
    return {"company": company, "shares": draws.randint(2, most)} if most >= 2 else None


def _sold(desk: Trading, draws: Random) -> Values | None:
    held = [name for name, symbol in COMPANIES.items() if desk.shares.get(symbol, 0) >= 2]
    if not held:
        return None
    company = draws.choice(held)
    return {"company": company, "shares": draws.randint(1, desk.shares[COMPANIES[company]])}


def _is_open(desk: Trading, draws: Random) -> Values | None:
    return {} if desk.orders and list(desk.orders.values())[-1]["status"] == "open" else None


_FIND = Step("find_symbol", {"company": "{company}"})


def _order(side: str) -> Step:
    return Step("place_order", {"side": side, "symbol": "$symbol", "shares": "{shares}"})


GOALS = (
    Goal(
        texts=("Buy {shares} shares of {company}.", "I want {shares} shares of {company}, please buy them."),
        steps=(_FIND, _order("buy")),
        draw=_bought,
        vague=(("I want shares of {company}, buy some for me.", "Make it {shares} shares."),),
        hold="place_order",
    ),
    Goal(
        texts=("Sell {shares} shares of {company}.", "Please sell {shares} of my shares of {company}."),
        steps=(_FIND, _order("sell")),
        draw=_sold,
        vague=(("I have too many shares of {company}, sell some.", "Sell {shares} of them."),),
        hold="place_order",
    ),
    Goal(
        texts=("What does a share of {company} cost?", "Tell me the price of {company}."),
        steps=(_FIND, Step("quote", {"symbol": "$symbol"})),
        draw=_any,
    ),
    Goal(
        texts=("Cancel the order that you placed last.", "I have changed my mind about the last order, cancel it."),
        steps=(Step("cancel_order", {"order": "$order"}),),
        draw=_is_open,
        after=("order",),
        hold="cancel_order",
    ),
    Goal(
        texts=("Read me the details of the last order.",),
        steps=(Step("order_details", {"order": "$order"}),),
        after=("order",),
    ),
    Goal(
        texts=("Put {amount} crowns into the account.", "I am paying in {amount} crowns."),
        steps=(Step("deposit_cash", {"amount": "{amount}"}),),
        draw=lambda desk, draws: {"amount": 10 * draws.randint(5, 300)},
        vague=(("I want to pay something in.", "It is {amount} crowns that I pay in."),),
        hold="deposit_cash",
    ),
    Goal(
        texts=("Take {amount} crowns out of the account.", "I need {amount} crowns in cash from the account."),
        steps=(Step("withdraw_cash", {"amount": "{amount}"}),),
        draw=lambda desk, draws: {"amount": 10 * draws.randint(5, desk.cash // 20)} if desk.cash >= 200 else None,
        vague=(("I need some cash from the account.", "I take out {amount} crowns."),),
        hold="withdraw_cash",
    ),
    Goal(
        texts=("Watch {company} for me.", "Please put {company} on the list to watch."),
        steps=(_FIND, Step("watch_symbol", {"symbol": "$symbol"})),
        draw=_unwatched,
        vague=(("There is a company that I want to watch.", "I mean that one: {company}."),),
        hold="watch_symbol",
    ),
    Goal(
        texts=("How much cash and which shares are in the account?",),
        steps=(Step("account"),),
    ),
)
