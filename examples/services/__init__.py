"""One service in four languages and clients, and the agent that it calls: see README.md.

agent.py     the agent, and the one tool that it has
script.py    what the scripted provider plays where there is no real model
client.py    the service, with `AgentClient`
bare.py      the same with Temporal's Python SDK alone
cli.sh       the same with the Temporal CLI
typescript/  the same with Temporal's TypeScript SDK
"""
