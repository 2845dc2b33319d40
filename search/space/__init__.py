"""The search space: parameters, their domains and conditions, how they are written. Nothing is proposed here."""

from regrow.search.space.space import (
    Choice,
    Condition,
    Constant,
    Domain,
    Float,
    Grid,
    Int,
    Json,
    Normal,
    Parameter,
    Space,
    choice,
    constant,
    grid,
    integer,
    logint,
    loguniform,
    normal,
    quniform,
    randint,
    uniform,
)

__all__ = [
    "Choice", "Condition", "Constant", "Domain", "Float", "Grid", "Int", "Json", "Normal", "Parameter", "Space", "choice",
    "constant", "grid", "integer", "logint", "loguniform", "normal", "quniform", "randint", "uniform",
]
