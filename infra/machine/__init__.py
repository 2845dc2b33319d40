"""The machine that we run on: its processes, what it has, its sqlite files. Nothing of regrow's state, and no service."""
