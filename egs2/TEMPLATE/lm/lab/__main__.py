"""Command line of the laboratory, for `python -m lab`."""

from lab.command_line import main

if __name__ == "__main__":
    main()
