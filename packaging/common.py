"""What the scripts that make packages share: the program, its version and the glibc that it needs, and SHA256SUMS."""

import argparse
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
MACHINE = platform.machine()


def arguments(description):
    """The arguments of every script: which program goes into the package, and where the package goes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--program', type=pathlib.Path, metavar='FILE',
                        help='a geartrain program that was built [default: cargo build --profile dist]')
    parser.add_argument('--out', type=pathlib.Path, metavar='DIR', default=target() / 'packages',
                        help='where the package is written [default: target/packages]')
    given = parser.parse_args()
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    return given


def target():
    return pathlib.Path(os.environ.get('CARGO_TARGET_DIR') or ROOT / 'target')


def version():
    return tomllib.loads((ROOT / 'Cargo.toml').read_text())['workspace']['package']['version']


def modified():
    """The time of all files in a package, so that the same commit gives the same package."""
    given = os.environ.get('SOURCE_DATE_EPOCH')
    if given:
        return int(given)
    found = subprocess.run(['git', 'log', '-1', '--format=%ct'], cwd=ROOT, capture_output=True, text=True)
    return int(found.stdout) if found.returncode == 0 else int(time.time())


class Staging:
    """A temporary directory with the stripped program, its manual pages and its completions."""

    def __init__(self, given):
        self._directory = tempfile.TemporaryDirectory(prefix='geartrain-packaging-')
        self.path = pathlib.Path(self._directory.name)
        self.program = self.path / 'geartrain'
        run(['strip', '-o', self.program, given.program or build()], missing='apt-get install binutils')
        self.program.chmod(0o755)
        found = run([self.program, 'version'], capture_output=True, text=True).stdout.strip()
        if found != f'geartrain {version()}':
            sys.exit(f'{given.program} is not geartrain {version()}, but says {found!r}: build it again')
        self.pages = self.path / 'man'
        run([self.program, 'man', '--dir', self.pages])
        self.completions = {}
        for shell, name in [('bash', 'geartrain'), ('zsh', '_geartrain'), ('fish', 'geartrain.fish')]:
            script = self.path / shell / name
            script.parent.mkdir()
            with open(script, 'wb') as file:
                run([self.program, 'completions', shell], stdout=file)
            self.completions[shell] = script

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._directory.cleanup()

    def glibc(self):
        """The glibc that the program needs, like (2, 34): the highest version of its symbols."""
        symbols = run(['objdump', '-T', self.program], capture_output=True, text=True,
                      missing='apt-get install binutils').stdout
        return max(tuple(map(int, found)) for found in re.findall(r'GLIBC_(\d+)\.(\d+)', symbols))


def build():
    # `cargo test` sets these for its tests. The build script of ring depends on them, and all would be built again.
    of_tests = ('CARGO_BIN_', 'CARGO_CRATE_', 'CARGO_MANIFEST_', 'CARGO_PKG_')
    variables = {name: value for name, value in os.environ.items() if not name.startswith(of_tests)}
    run(['cargo', 'build', '--profile', 'dist', '--locked', '--package', 'geartrain-cli'], cwd=ROOT, env=variables)
    return target() / 'dist' / 'geartrain'


def run(command, missing=None, **options):
    """Runs a program that must succeed."""
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, **options)
    except OSError as error:
        sys.exit(f'{command[0]} cannot be started: {error}' + (f'\nOn Debian and Ubuntu: {missing}' if missing else ''))
    if result.returncode != 0:
        sys.exit(f'{" ".join(map(str, command))} failed' + (f': {result.stderr}' if result.stderr else ''))
    return result


def licences():
    return [ROOT / 'LICENSE-APACHE', ROOT / 'LICENSE-MIT']


def copy(source, destination):
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, destination)


def finish(package):
    """Records the package in SHA256SUMS beside it, and prints its path."""
    sums = package.with_name('SHA256SUMS')
    lines = sums.read_text().splitlines() if sums.exists() else []
    others = {line.split('  ', 1)[1]: line for line in lines}
    others[package.name] = f'{hashlib.sha256(package.read_bytes()).hexdigest()}  {package.name}'
    # Packages of an earlier build that were removed have no sum.
    kept = [line for name, line in sorted(others.items()) if package.with_name(name).exists()]
    sums.write_text('\n'.join(kept) + '\n')
    print(package)
