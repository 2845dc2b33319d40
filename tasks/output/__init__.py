"""Output of a trial's code (prints, log lines, exceptions): captured, stored, shown."""
