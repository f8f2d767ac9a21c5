"""`python -m dogwild`: the program."""

from .program import main

main()
