"""What runs beside experiments on this machine: the S3 server of `regrow up`, the guard that tells of a driver's death.

Nothing that another room imports.
"""
