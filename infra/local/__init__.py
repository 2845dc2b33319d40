"""The S3 server of `regrow up`, beside experiments on this machine. No other room imports it."""
