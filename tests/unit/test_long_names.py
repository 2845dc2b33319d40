"""An experiment with a long name, many parameters and many metrics, wherever it is shown: names
are cut, values are not, and what is left out is counted.
"""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path

import pytest
from rich.cells import cell_len

from regrow.cli import compare, ls, tables
from regrow.infra.log.log import Log
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.search.events import AnyEvent, encode
from regrow.search.history import History
from regrow.search.numbers import columned, readable
from regrow.search.planning.simulator import Simulation
from regrow.search.spec import ExperimentSpec
from regrow.show.live.board import Board
from regrow.show.live.grid import Signs
from regrow.show.live.layout import compose
from regrow.show.live.terminal import PlainConsole
from regrow.show.views.names import apart, middle

NAME = "image-classification-of-histopathology-slides-frozen-backbone0"
PARAMETERS = [
    f"{what}_of_the_{part}_in_the_{phase}_phase"
    for what in ("learning_rate", "weight_decay", "dropout_probability")
    for part in ("backbone", "classification_head")
    for phase in ("first", "second")
]
METRICS = [
    f"{where}/{what}_of_the_held_out_fold"
    for where in ("validation", "test")
    for what in ("accuracy", "f1", "precision", "recall", "calibration_error", "cross_entropy")
]
