"""Contents of a state root beside the log: places and locks, specifications, notes."""
