"""Contents of a state root beside the log: places and locks, specifications, provenance, notes.
Nothing here runs anything.
"""
