"""Makes a directory with an interpreter that knows pinned packages, once."""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import venv


def setup(description, here, files):
    """What a peer's setup does: installs what the files beside it name, one after the other, and prints the interpreter."""
    if len(sys.argv) > 2 or sys.argv[1:2] in (['-h'], ['--help']):
        sys.exit(description)
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else default_directory(here)
    directory = directory.resolve()
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Beside the directory and not in it, because the directory is removed when versions change.
    with open(directory.parent / (directory.name + '.lock'), 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install_unless_done(directory, [here / name for name in files])
    print(directory / 'bin' / 'python')


def default_directory(here):
    target = os.environ.get('CARGO_TARGET_DIR') or here.parent.parent / 'target'
    return pathlib.Path(target) / here.name


def install_unless_done(directory, all_requirements):
    wanted = hashlib.sha256(sys.version.encode())
    for requirements in all_requirements:
        wanted.update(requirements.read_bytes())
    # Written last: a directory without it was left half-way, and is made anew.
    done = directory / 'installed'
    if done.exists() and done.read_text() == wanted.hexdigest():
        return
    shutil.rmtree(directory, ignore_errors=True)
    try:
        venv.create(directory, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f'setup: {sys.executable} cannot make a virtual environment in {directory}: {error}\n'
                 'On Debian and Ubuntu: apt-get install python3-venv')
    for requirements in all_requirements:
        # An earlier file installed what builds the packages of a later one, so nothing else is fetched to build them.
        command = [directory / 'bin' / 'python', '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check',
                   '--no-build-isolation', '--requirement', requirements]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        if result.returncode != 0:
            sys.exit(f'setup: pip could not install {requirements} (above is what it said). It needs the network once, '
                     'or a mirror named by PIP_INDEX_URL; afterwards everything runs without')
    done.write_text(wanted.hexdigest())
