"""Training frameworks as trials: a module for each, which imports that framework alone and knows nothing of regrow but a Trial.

A framework that has callbacks gets a `Report(trial)`, which reports what was measured and saves in its own format, and
`restored(trial)`, what to go on from. One whose loop is the user's gets a `State`, as `rg.torch` has.
"""
