"""Everything that touches the world: model calls, tool calls, storage."""
