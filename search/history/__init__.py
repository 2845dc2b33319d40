"""The history of an experiment: the fold of its events. What follows from it is decided in `planner.py`, nothing here.

`records.py` has what is known of a trial and of an attempt, `fold.py` how events change it, and `clones.py`, `plateau.py` and
`clock.py` the parts of it that are about several trials, or about time. `story.py` tells a trial's last events.
"""

from regrow.search.history.fold import History
from regrow.search.history.records import Attempt, Change, Clone, TrialRecord, specification

__all__ = ["Attempt", "Change", "Clone", "History", "TrialRecord", "specification"]
