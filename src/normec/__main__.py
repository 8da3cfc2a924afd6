"""`python -m normec` is the command `normec`."""

from normec.cli import main

main()
