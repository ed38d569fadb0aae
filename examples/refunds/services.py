"""What the refunds agent works with, on this machine, with one command.

    python -m examples.refunds.services

makes and fills the order database if it is empty, and runs a mail server and the carrier's service
where `settings` looks for them by default. What they get is kept in `.turnkeeper/refunds`: remove
the folder to begin anew.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from contextlib import ExitStack

import sqlalchemy as sa

from examples.refunds import orders
from examples.refunds.carrier_service import CarrierService
from examples.refunds.mail_sink import MailSink
from examples.refunds.sample import SAMPLE
from examples.refunds.settings import carrier, database_url, home, smtp
from turnkeeper import ToolFailed

__all__ = ["fill"]


def fill(url: str) -> bool:
    """Make the tables of an order database, and add the sample; False if it has orders already."""
    engine = sa.create_engine(url)
    try:
        orders.create_tables(engine)
        with engine.begin() as connection:
            if connection.execute(sa.select(orders.ORDERS.c.id).limit(1)).first() is not None:
                return False
            orders.add(connection, *SAMPLE)
            return True
    finally:
        engine.dispose()


def main() -> int:
    """Serve until Ctrl-C or SIGTERM; exit 1 if something cannot be started."""
    argparse.ArgumentParser(
        prog="python -m examples.refunds.services",
        description="Order database, mail server and carrier of the refunds example.",
    ).parse_args()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    folder = home()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        try:
            filled = fill(database_url())
            sink = running.enter_context(MailSink(folder / "mails", port=smtp()[1]))
            booking = running.enter_context(
                CarrierService(folder / "carrier.db", port=carrier()[1])
            )
        except (OSError, ToolFailed, sa.exc.SQLAlchemyError) as error:
            sys.stderr.write(f"services: {error}\n")
            return 1
        where = sa.make_url(database_url()).render_as_string(hide_password=True)
        state = f"{len(SAMPLE)} orders added" if filled else "as it was"
        sys.stdout.write(
            f"orders   {where} ({state})\n"
            f"mail     127.0.0.1:{sink.port}, kept in {folder / 'mails'}\n"
            f"carrier  {booking.url}\n"
            "Ctrl-C ends them.\n"
        )
        sys.stdout.flush()
        stopping.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
