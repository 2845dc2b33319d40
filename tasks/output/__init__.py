"""Output of a trial's code (prints, log lines, exceptions): captured, stored in the state,
shown.
"""
