"""The metadata service of an EC2 machine, on the address that it has there: session tokens, and the
credentials of a role.
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_TOKEN = b"session"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_CREDENTIALS = (
    b'{"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "role", "SecretAccessKey": "role",'
    b' "Token": "role", "LastUpdated": "2026-01-01T00:00:00Z", "Expiration": "2099-01-01T00:00:00Z"}'
)


class Handler(BaseHTTPRequestHandler):
    """Answers as EC2 does with HttpTokens: required."""

    def do_PUT(self) -> None:
        self._answer(200, _TOKEN)

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token", "").encode() != _TOKEN:
            self._answer(401, b"")
        elif self.path.startswith(_ROLES):
            self._answer(200, _CREDENTIALS if self.path.removeprefix(_ROLES) else b"role")
        else:
            self._answer(404, b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("169.254.169.254", 80), Handler).serve_forever()
