"""`rg.torch`: PyTorch on a trial's workers. Needs the extra `torch`; nothing else of regrow imports PyTorch.

What is here knows torchrun's variables alone (RANK, WORLD_SIZE, LOCAL_RANK, ...), so a script that uses it runs as well under
`torchrun`, and by itself as one worker.
"""

from importlib.util import find_spec

from regrow.tasks.errors import UserError

if find_spec("torch") is None:
    raise UserError("rg.torch needs PyTorch, which is not installed; pip install 'regrow[torch]'")

from regrow.torch.data import Parts, Sharded, shard
from regrow.torch.group import device, leave
from regrow.torch.models import prepare
from regrow.torch.state import State
from regrow.torch.turns import Accumulation, accumulate, accumulation

__all__ = [
    "Accumulation",
    "Parts",
    "Sharded",
    "State",
    "accumulate",
    "accumulation",
    "device",
    "leave",
    "prepare",
    "shard",
]
