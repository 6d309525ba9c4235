"""Makes a directory with pinned packages for Python or Node, once."""

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
    requirements = [here / name for name in files]
    directory = install_once(description, here, [sys.version.encode()], requirements, install_python)
    print(directory / 'bin' / 'python')


def setup_node(description, here):
    """The same with npm, for the versions in package-lock.json: prints the directory that has node_modules."""
    print(install_once(description, here, [], [here / 'package.json', here / 'package-lock.json'], install_node))


def install_once(description, here, versions, files, install):
    if len(sys.argv) > 2 or sys.argv[1:2] in (['-h'], ['--help']):
        sys.exit(description)
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else default_directory(here)
    directory = directory.resolve()
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Beside the directory and not in it, because the directory is removed when versions change.
    with open(directory.parent / (directory.name + '.lock'), 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = hashlib.sha256(b''.join([*versions, *(file.read_bytes() for file in files)])).hexdigest()
        # Written last: a directory without it was left half-way, and is made anew.
        done = directory / 'installed'
        if not done.exists() or done.read_text() != wanted:
            shutil.rmtree(directory, ignore_errors=True)
            install(directory, files)
            done.write_text(wanted)
    return directory


def default_directory(here):
    target = os.environ.get('CARGO_TARGET_DIR') or here.parent.parent / 'target'
    return pathlib.Path(target) / here.name


def install_python(directory, all_requirements):
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


def install_node(directory, files):
    directory.mkdir()
    for file in files:
        shutil.copy(file, directory)
    # Runs no script of a package, and does not look for newer versions.
    command = ['npm', 'ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel', 'error']
    try:
        result = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except OSError as error:
        sys.exit(f'setup: npm cannot be started: {error}\nOn Debian and Ubuntu: apt-get install nodejs npm')
    if result.returncode != 0:
        sys.exit('setup: npm could not install what package-lock.json names (above is what it said). It needs the network '
                 'once, or a mirror named by npm_config_registry; afterwards everything runs without')
