"""Answers questions on a company's annual reports by searching them and calculating.

agent.py         the agent: model, instructions, tools, limits
tools.py         `search` and `calculator`, as the model sees them
library.py       the full-text search behind `search`
arithmetic.py    the safe evaluator behind `calculator`
documents/       the annual reports of an invented company, 2021 to 2025
script.py        what the scripted provider plays where there is no real model
call_log.py      a witness of tool calls, for demonstrations of crashes
settings.py      delays, for the same purpose
test_finance.py  all of it without a model, a server or a network
"""
