"""How a process of a server begins: it connects to its supervisor and imports the user's class."""

from __future__ import annotations

import socket
import sys

from regrow.apps.serving.messages import ORDERS, Setup, Wrong
from regrow.apps.serving.served import Served
from regrow.apps.serving.users_class import example_of, found
from regrow.tasks.errors import UserCodeError, UserError
from regrow.tasks.process.json_lines import JsonLines


def begin() -> tuple[JsonLines, Setup, type[Served]] | None:
    """Return the connection to the supervisor, whose descriptor is this process's argument, with
    the setup and the user's class.

    None if the supervisor is gone, or if the class cannot be used: then the reason was sent.
    """
    line = JsonLines(socket.socket(fileno=int(sys.argv[1])))
    setup = next(line.messages(ORDERS), None)
    if not isinstance(setup, Setup):
        return None
    try:
        kind = found(setup.model, setup.code)
        example_of(kind, None)
    except UserCodeError as error:
        line.send(Wrong(why=str(error), trace=error.trace))
    except UserError as error:
        line.send(Wrong(why=str(error)))
    else:
        return line, setup, kind
    return None
