"""The web page of a state root: how all its experiments stand. It reads, and never writes.

FastAPI is imported here alone, and nobody outside imports more of this room than `links`.
"""
