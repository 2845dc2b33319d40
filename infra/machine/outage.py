"""What counts as an outage of an HTTP server, for all clients."""

_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500


def is_outage(status: int) -> bool:
    """Return whether a server is overloaded or failing, so that a retry may help."""
    return status >= _SERVER_ERROR or status == _TOO_MANY_REQUESTS
