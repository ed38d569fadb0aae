"""An agent that runs every morning, started by a Temporal Schedule: see README.md.

agent.py     the agent, and the one tool that it has
tickets.csv  what the tool reads
schedule.py  makes, changes, tries and removes the schedule
script.py    what the scripted provider plays where there is no real model
"""
