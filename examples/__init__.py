"""Example agents, one folder each: copy a folder to begin an agent of your own."""
