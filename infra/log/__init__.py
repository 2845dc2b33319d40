"""The log of an experiment in a store: appending, compacting, following, reading."""
