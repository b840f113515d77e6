"""`python -m reticent`."""

from reticent.cli.main import main

main()
