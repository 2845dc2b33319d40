"""The coordinator, which is the only process that appends to an experiment's log, and its protocol
with attempts. Uses no store except the log, and no tracking.
"""
