"""The web page of a state root: the status of all its experiments. It reads, and never writes.

Only this package imports FastAPI; other packages import only `links` from here.
"""
