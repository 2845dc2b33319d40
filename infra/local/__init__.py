"""What runs beside experiments on this machine: the S3 server of `regrow up`.

No other room imports it.
"""
