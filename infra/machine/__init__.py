"""The machine that this process runs on: its processes, its capacity, its sqlite files. Nothing of
regrow's state, and no service.
"""
