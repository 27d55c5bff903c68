"""Build the wheel, and check it in an environment that has nothing else of this repository.

Nothing but the wheel is installed there: what it needs are the packages of this Python. With
--quickstart `bayeslm quickstart` runs there, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "espnet_bayeslm"
IMPORTS = """
import sys
import espnet_bayeslm
assert espnet_bayeslm.__file__.startswith(sys.prefix), espnet_bayeslm.__file__
espnet_bayeslm.register()
for name in ("rescore", "build_ctcdecoder"):
    assert callable(getattr(espnet_bayeslm, name))
"""


def build(folder: Path) -> Path:
    """Build the wheel of this repository; its path."""
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # files that are no more
    pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_files(wheel: Path) -> None:
    """Exit with a message where the wheel has other files than the package."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith(f"{PACKAGE}/")}
    files = {path for path in (ROOT / PACKAGE).rglob("*") if path.is_file()}
    expected = {str(path.relative_to(ROOT)) for path in files if path.suffix != ".pyc"}
    if packed != expected:
        sys.exit(f"{wheel.name} lacks {expected - packed} and has {packed - expected} too much")


def without_paths() -> dict[str, str]:
    """The environment's variables, but those by which Python would find this repository."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def environment(folder: Path, wheel: Path) -> Path:
    """Make an environment with the wheel alone, which sees this Python's packages; its bin."""
    venv.create(folder, with_pip=True)
    bin = folder / "bin"
    pip = [str(bin / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True, env=without_paths())
    (site,) = folder.glob("lib/python*/site-packages")
    others = sysconfig.get_path("purelib")  # these come last
    (site / "others.pth").write_text(f"import site; site.addsitedir({others!r})\n")
    return bin


def main() -> None:
    """Build, check and try the wheel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quickstart", action="store_true", help="Run the quick start, minutes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder / "wheel")
        check_files(wheel)
        bin = environment(folder / "venv", wheel)

        def run(*command: str, quiet: bool = True) -> None:
            words, output = [str(bin / command[0]), *command[1:]], subprocess.DEVNULL
            stdout = output if quiet else None
            subprocess.run(words, cwd=name, env=without_paths(), check=True, stdout=stdout)

        run("python", "-c", IMPORTS)
        for words in (["--help"], ["quickstart", "--help"], ["configs"]):
            run("bayeslm", *words)
        if args.quickstart:
            run("bayeslm", "quickstart", "--output", "exp", quiet=False)
        python = ".".join(map(str, sys.version_info[:3]))
        print(f"wheel: {wheel.name} works with Python {python} in an environment of its own")


if __name__ == "__main__":
    main()
