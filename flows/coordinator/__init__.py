"""The coordinator, the only writer of an experiment's log, and its protocol with attempts."""
