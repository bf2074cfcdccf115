"""`python -m halfwise`."""

from halfwise.cli import main

main()
