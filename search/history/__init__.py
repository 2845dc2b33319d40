"""The history of an experiment: the fold of its events. Decisions that follow from it are taken in
`planner.py`, not here.

- `records.py`: the state of one trial and of one attempt.
- `fold.py`: how events change it.
- `clones.py`, `plateau.py`: parts that concern several trials.
"""

from regrow.search.history.fold import History
from regrow.search.history.records import Attempt, Change, Clone, TrialRecord, specification

__all__ = ["Attempt", "Change", "Clone", "History", "TrialRecord", "specification"]
