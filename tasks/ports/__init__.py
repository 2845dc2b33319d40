"""Protocols and messages through which a running trial reaches the outside. Adapters are in
`infra/`, the coordinator in `flows/`.
"""
