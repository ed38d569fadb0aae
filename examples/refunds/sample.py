"""The orders that the services begin with: an invented shop's."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from examples.refunds.orders import Order

__all__ = ["SAMPLE"]

SAMPLE: Final = (
    Order(
        id=1001,
        customer="ada@customers.example",
        address="4 Mill Lane, Ashford",
        item="desk lamp",
        state="delivered",
        amount=Decimal("59.00"),
    ),
    Order(
        id=1004,
        customer="ben@customers.example",
        address="17 Quay Street, Porth",
        item="kettle",
        state="shipped",
        amount=Decimal("34.50"),
    ),
    Order(
        id=1007,
        customer="carla@customers.example",
        address="2 Orchard Road, Wells",
        item="set of six glasses",
        state="delivered",
        amount=Decimal("49.90"),
    ),
    Order(
        id=1012,
        customer="fay@customers.example",
        address="8 Harbour View, Troon",
        item="espresso machine",
        state="delivered",
        amount=Decimal("249.00"),
    ),
    Order(
        id=1008,
        customer="dov@moved.invalid",
        address="9 Station Road, Hale",
        item="wall clock",
        state="delivered",
        amount=Decimal("80.00"),
    ),
    Order(
        id=1009,
        customer="elin@customers.example",
        address="31 North Parade, Leven",
        item="bookshelf",
        state="delivered",
        amount=Decimal("129.00"),
        refunded=Decimal("129.00"),
    ),
)
