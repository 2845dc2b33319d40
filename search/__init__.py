"""Decisions: what to try, what to stop, what to do next.

Everything here is a pure function of (spec, history, seed, now). No I/O, no clock, no environment,
no logging, and no import of prefect, ray, mlflow or fsspec: a decision can be taken, replayed and
checked without a cluster.
"""
