"""`python -m regrow`."""

from regrow.cli import main

main()
