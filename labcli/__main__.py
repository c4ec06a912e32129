"""The entry of `labcli` and of `python -m labcli`: it runs `labcli.main`, and is so small that Ctrl-C while
the rest is being imported ends in a line too."""

import os
import sys


def main() -> None:
    """Import and run labcli."""
    try:
        from labcli.main import main as run

        run()
    except KeyboardInterrupt:
        print("labcli: interrupted", file=sys.stderr, flush=True)
        os._exit(130)  # at once: see labcli.main.main


if __name__ == "__main__":
    main()
