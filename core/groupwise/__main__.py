"""`python -m groupwise`: the command line."""

from groupwise.cli import main

if __name__ == "__main__":
    main()
