"""The machine here: processes, capacity, sqlite files; nothing of regrow's state, no service."""
