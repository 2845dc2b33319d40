"""How a process of a server begins: it connects to its supervisor and imports the user's class."""

from __future__ import annotations

import os
import secrets
import socket
import sys

from regrow.apps.serving.messages import COMMANDS, TOKEN, Setup, Wrong
from regrow.apps.serving.served import Served
from regrow.apps.serving.status import log_to_terminal
from regrow.apps.serving.users_class import example_of, found
from regrow.infra.machine.guard import digest
from regrow.tasks.errors import UserCodeError, UserError
from regrow.tasks.process.json_lines import JsonLines


def begin() -> tuple[JsonLines, Setup, type[Served], bytes] | None:
    """Return the connection to the supervisor, whose descriptor is this process's argument, with
    the setup, the user's class, and the digest of the token. Without a token every request is
    refused.

    None if the supervisor is gone, or if the class cannot be used: then the reason was sent.
    """
    log_to_terminal()
    token = os.environ.pop(TOKEN, "")
    line = JsonLines(socket.socket(fileno=int(sys.argv[1])))
    setup = next(line.messages(COMMANDS), None)
    if not isinstance(setup, Setup):
        return None
    try:
        kind = found(setup.model, setup.code)
        example_of(kind, None)
    except (UserError, UserCodeError) as error:
        trace = error.trace if isinstance(error, UserCodeError) else ""
        line.send(Wrong(why=str(error), trace=trace))
        return None
    return line, setup, kind, digest(token or secrets.token_hex())
