"""Integrations of other libraries and tools, one folder or module each: training frameworks,
PyTorch, RLlib, Optuna, Ray Tune, W&B.

Nothing outside of this folder imports from it, except the public aliases (`regrow.optuna`,
`regrow.tune`, `regrow.torch`). The core finds integrations through the entry points in
`pyproject.toml`.

A training framework with callbacks gets a `Report(trial)`, which reports what was measured and
saves in the framework's format, and `restored(trial)`, the file to continue from. A framework whose
loop the user writes gets a `State`, as `rg.torch` has.
"""
