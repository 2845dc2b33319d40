"""`rg.torch`: PyTorch on a trial's workers. Needs the extra `torch`; nothing else of regrow imports
PyTorch.

This package depends only on torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, ...), so a script
that uses it also runs under `torchrun`, and without it as one worker.
"""

from importlib.util import find_spec

from regrow.tasks.errors import UserError

if find_spec("torch") is None:
    raise UserError("rg.torch needs PyTorch, which is not installed; pip install 'regrow[torch]'")

from regrow.integrations.torch.data import Parts, Sharded, shard
from regrow.integrations.torch.group import device, leave
from regrow.integrations.torch.models import prepare
from regrow.integrations.torch.state import State, export
from regrow.integrations.torch.turns import Accumulation, accumulate, accumulation

__all__ = [
    "Accumulation",
    "Parts",
    "Sharded",
    "State",
    "accumulate",
    "accumulation",
    "device",
    "export",
    "leave",
    "prepare",
    "shard",
]
