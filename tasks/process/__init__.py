"""The operating-system process that runs an attempt: limits, signals, forks, temporary folders,
ports.

Nothing here knows what a trial is.
"""
