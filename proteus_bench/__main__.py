"""`python -m proteus_bench`: the command line, for launchers that start a module."""

from proteus_bench.cli import main

main()
