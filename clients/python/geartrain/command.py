"""The console script `geartrain`: becomes the program that the wheel carries."""

import os
import platform
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("bin") / "geartrain"


def main() -> None:
    try:
        os.execv(PROGRAM, ["geartrain", *sys.argv[1:]])
    except OSError as error:
        system = f"{platform.system()} on {platform.machine()}"
        why = "has no program" if isinstance(error, FileNotFoundError) else f"has a program that cannot run ({error})"
        print(f"geartrain: this Python package {why} for {system}; its client works without one. "
              "Install a wheel that was built for this platform, or build the program: "
              "cargo install --path crates/geartrain-cli, in a checkout of geartrain", file=sys.stderr)
        sys.exit(2)
