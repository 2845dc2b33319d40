"""An estimate of an experiment that has not run: what it is made of, and how it is shown."""
