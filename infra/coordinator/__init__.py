"""The one process that appends to an experiment's log, and what attempts say to it. No store but the log, no tracking."""
