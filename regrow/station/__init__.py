"""What a station runs beside experiments: the parts of `regrow up` live here; the command line and the page are its users."""
