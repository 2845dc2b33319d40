"""What counts as an outage of a server that speaks HTTP, whoever asked it."""

_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500


def is_outage(status: int) -> bool:
    """Whether a status says that the server is overloaded or has trouble of its own, so that asking again may help."""
    return status >= _SERVER_ERROR or status == _TOO_MANY_REQUESTS
