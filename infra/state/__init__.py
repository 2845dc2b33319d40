"""What lies in a state root beside the log: places and locks, specifications, provenance, notes. Nothing that runs."""
