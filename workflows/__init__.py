"""The durable loop: deterministic code that Temporal replays."""
