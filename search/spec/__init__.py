"""The specification of an experiment: its keys, their values, and errors. Reads no files."""

from regrow.search.spec.keys import COMMAND, MOST_STEPS, PER_SESSION
from regrow.search.spec.parts import NAME, as_name
from regrow.search.spec.rllib import RLlib
from regrow.search.spec.spec import Spec
from regrow.search.spec.station import When

__all__ = ["COMMAND", "MOST_STEPS", "NAME", "PER_SESSION", "RLlib", "Spec", "When", "as_name"]
