"""The specification of an experiment: its keys, their allowed values, and the errors for others.
Files are not read here.
"""

from regrow.search.spec.keys import COMMAND, MOST_STEPS, NAME, PER_SESSION
from regrow.search.spec.rllib import RLlib
from regrow.search.spec.spec import Spec
from regrow.search.spec.when import When

__all__ = ["COMMAND", "MOST_STEPS", "NAME", "PER_SESSION", "RLlib", "Spec", "When"]
