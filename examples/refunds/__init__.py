"""A support agent that refunds orders: one tool for each promise that a tool can make.

README.md says how to start it, and which order waits for a person.

agent.py            the agent: model, instructions, tools, limits
tools.py            `find_order`, `issue_refund`, `send_email` and `book_pickup`, as the model sees
                    them
orders.py           the order database behind the first two, on SQLite or PostgreSQL
mail.py             one e-mail over SMTP, and what each failure of it means
carrier.py          the client of the carrier's service
carrier_service.py  that service: a process of its own
mail_sink.py        a mail server that keeps what it gets
services.py         all three with one command
sample.py           the orders that they begin with
settings.py         where everything is
script.py           what the scripted provider plays where there is no real model
test_refunds.py     the tools against real services; runs through Temporal are in `tests/examples/`
"""
