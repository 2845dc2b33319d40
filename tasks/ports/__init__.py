"""Protocols and messages through which a running trial reaches the outside."""
