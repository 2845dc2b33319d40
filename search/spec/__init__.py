"""The specification of an experiment: its keys, their allowed values, and the errors for others.
Files are not read here.
"""

from regrow.search.spec.checks import COMMAND
from regrow.search.spec.rllib import RLlib
from regrow.search.spec.spec import MOST_STEPS, NAME, PER_SESSION, Spec
from regrow.search.spec.when import When

__all__ = ["COMMAND", "MOST_STEPS", "NAME", "PER_SESSION", "RLlib", "Spec", "When"]
