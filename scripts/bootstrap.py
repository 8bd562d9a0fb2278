"""From a bare machine to the platform's environment, then on to a program in it. Standard library only.

    python3 scripts/bootstrap.py [--dev] [--announce] run -- PROGRAM [ARGUMENT ...]
    python3 scripts/bootstrap.py stop

`run` finds a fitting Python, finds or installs uv (into `.tools`), brings `.venv` in line with uv.lock and becomes
PROGRAM, looked for in `.venv/bin`. `stop` ends every `run` (but those with `--dev`) and the installers that a killed
one left behind. Called by the Makefile.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TOOLS = REPOSITORY / ".tools"
OLDEST, NEWEST = (3, 11), (3, 13)
OLDEST_UV = (0, 5)
TERM_SECONDS, KILL_SECONDS = 10, 5
AGAIN = "UPDRAFT_BOOTSTRAP_PYTHON"
UV_PINNED = REPOSITORY / "images" / "common" / "uv.txt"
PINNED_ONLY = ("--only-binary", ":all:", "--require-hashes", "-r", str(UV_PINNED))
FOOTPRINT = REPOSITORY / "operators" / "updraft" / "stack" / "footprint.py"


def main(arguments):  # no annotations here: older Pythons must get as far as the message about themselves
    use_fitting_python()
    if arguments == ["stop"]:
        return stop()
    if "run" not in arguments or "--" not in arguments:
        print(__doc__)
        return 2
    options = arguments[: arguments.index("run")]
    command = arguments[arguments.index("--") + 1 :]
    check_tools()
    if "--dev" not in options:
        be_stoppable()
    footprint = load_footprint()
    keys = [f.key for f in footprint.DEMO] if "--announce" in options else [footprint.AIRFLOW.key]
    if "--announce" in options:
        print(footprint.announcement(keys, home(), REPOSITORY, os.environ), flush=True)
    problem = footprint.missing_space(keys, home(), REPOSITORY, os.environ)
    if problem:
        raise SystemExit("error: " + problem)
    uv = find_uv() or install_uv()
    synchronise(uv, dev="--dev" in options)
    binary = REPOSITORY / ".venv" / "bin"
    os.execve(str(binary / command[0]), command, program_environment(binary, uv))


def program_environment(binary, uv):
    """Return the environment of the program that `run` becomes."""
    environment = dict(os.environ, UPDRAFT_UV=uv, UV_PYTHON_DOWNLOADS="never")
    environment["PATH"] = os.pathsep.join([str(binary), environment.get("PATH", os.defpath)])
    environment.pop("VIRTUAL_ENV", None)
    # What people have to type, whose PATH may not be this one.
    own = binary / "updraft"
    found = shutil.which("updraft")
    same = found is not None and own.exists() and os.path.samefile(found, own)
    environment["UPDRAFT_PROGRAM"] = "updraft" if same else os.path.relpath(own)
    # As container images set it. Without bytecode every process compiles Airflow's thousands of modules anew, for 5 s.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def use_fitting_python(version=sys.version_info[:2]):
    """Go on with a Python of the supported versions, if this one is not."""
    if OLDEST <= version <= NEWEST:
        return
    if not os.environ.get(AGAIN):
        for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
            candidate = shutil.which(f"python3.{minor}")
            if candidate and runs(candidate, minor):
                os.environ[AGAIN] = candidate
                os.execv(candidate, [candidate, *sys.argv])
    raise SystemExit(
        f"error: Updraft needs Python 3.11, 3.12 or 3.13. This is {version[0]}.{version[1]} "
        f"({sys.executable}) and no other was found on the PATH.\n"
        "Install one of them, or name it: make PYTHON=/path/to/python3.12 ..."
    )


def runs(candidate, minor):
    """Return whether the program really exists: version managers put placeholders on the PATH."""
    try:
        said = subprocess.run(
            [candidate, "-c", "import sys; print(sys.version_info[1])"], capture_output=True, text=True
        )
    except OSError:
        return False
    return said.returncode == 0 and said.stdout.strip() == str(minor)


def check_tools():
    if shutil.which("git") is None:
        raise SystemExit("error: git was not found on the PATH; install git.")


def load_footprint():
    """Load the module by its path: the package cannot be imported before its environment exists."""
    spec = importlib.util.spec_from_file_location("updraft_footprint", FOOTPRINT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def home():
    named = os.environ.get("UPDRAFT_HOME")
    return Path(named).expanduser().absolute() if named else REPOSITORY / ".updraft"


def find_uv(tools=TOOLS):
    """Return a uv that is new enough, from the PATH or installed here before."""
    for candidate in (shutil.which("uv"), str(tools / "bin" / "uv")):
        if candidate and Path(candidate).exists():
            try:
                said = subprocess.run([candidate, "--version"], capture_output=True, text=True)
            except OSError:
                continue
            version = re.match(r"uv (\d+)\.(\d+)", said.stdout)
            if version and tuple(map(int, version.groups())) >= OLDEST_UV:
                return candidate
    return None


def install_uv():
    """Install uv from the package registry into `.tools`: the version of UV_PINNED, with one of the digests there."""
    print(f"Installing uv into {TOOLS} ...", flush=True)
    venv = subprocess.run([sys.executable, "-m", "venv", "--clear", str(TOOLS)], capture_output=True, text=True)
    if venv.returncode == 0:
        pip = [str(TOOLS / "bin" / "python"), "-m", "pip"]
    else:  # some systems ship Python without ensurepip; its own pip can install for another
        bare = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(TOOLS)]
        own = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True)
        if own.returncode != 0 or subprocess.run(bare, capture_output=True).returncode != 0:
            raise SystemExit(
                f"error: {sys.executable} cannot make a virtual environment with pip, which is needed to install uv.\n"
                "Install that part of Python (on Debian and Ubuntu: apt install python3-venv), or install uv:\n"
                "https://docs.astral.sh/uv/getting-started/installation/"
            )
        pip = [sys.executable, "-m", "pip", "--python", str(TOOLS / "bin" / "python")]
    status = guarded([*pip, "install", "--quiet", "--disable-pip-version-check", *PINNED_ONLY], os.environ)
    uv = TOOLS / "bin" / "uv"
    if status != 0 or not uv.exists():
        raise SystemExit(f"error: uv could not be installed (pip ended with {status}); see the lines above.")
    return str(uv)


def synchronise(uv, dev):
    """Bring `.venv` in line with uv.lock; nothing is removed that only developers need. If the stack shall send lineage
    (OPENLINEAGE_URL), Airflow's provider for that is installed too."""
    fresh = not (REPOSITORY / ".venv" / "bin" / "airflow").exists()
    if fresh:
        print("Installing Airflow and the platform into .venv ...", flush=True)
    command = [uv, "sync", "--frozen", "--extra", "platform", "--python", sys.executable]
    command += [] if dev else ["--no-dev", "--inexact"]
    command += ["--extra", "openlineage"] if os.environ.get("OPENLINEAGE_URL") else []
    if not fresh:
        command.append("--quiet")
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")}
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    status = guarded(command, environment, quiet=True)
    if status != 0:
        raise SystemExit(f"error: the environment could not be installed; uv ended with {status}, see above.")


def guarded(command, environment, quiet=False):
    """Run an installer so that `stop` finds it, also when this process has been killed.

    The installer leads a process group of its own and inherits a locked file that holds its number: while the lock is
    held, the group is alive and the number is its own. `quiet` leaves out uv's list of what it has installed.
    """
    folder = home() / "run"
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(str(home()), 0o700)
    with (folder / "bootstrap.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for another installation in this checkout ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)

        def note_number():  # by the installer's process itself, before it becomes the installer
            os.write(lock.fileno(), str(os.getpid()).encode())

        process = subprocess.Popen(
            command,
            cwd=str(REPOSITORY),
            env=environment,
            pass_fds=[lock.fileno()],
            start_new_session=True,
            preexec_fn=note_number,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            errors="replace",
        )
        try:
            for line in process.stderr or ():
                if not line.startswith((" + ", " - ", " ~ ")):
                    print(line, end="", file=sys.stderr, flush=True)
            return process.wait()
        except BaseException:
            end_group(process.pid, lambda: process.poll() is None)
            raise


def be_stoppable():
    """Hold a lock under this process's number, also as the program that it becomes, until it ends."""
    folder = home() / "run"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(str(folder / f"command-{os.getpid()}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.set_inheritable(descriptor, True)


def stop(term_seconds=TERM_SECONDS):
    """End what was started and still goes on: first those that would start more, then installers."""
    folder = home() / "run"
    for path in sorted(folder.glob("command-*.lock")):
        if held(path):
            print("Ending what `make` was doing ...", flush=True)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(path.stem.split("-")[1]), signal.SIGKILL)
            for _ in range(100):
                if not held(path):
                    break
                time.sleep(0.05)
        path.unlink()
    installer = folder / "bootstrap.lock"
    if installer.exists() and held(installer):
        number = installer.read_text().strip()
        if number.isdigit():
            # Another installation, which waited for this one, writes its own number.
            end_group(int(number), lambda: held(installer) and installer.read_text().strip() == number, term_seconds)
        print("Ended an installation that was going on.")
    return 0


def held(path):
    """Return whether a living process holds this lock; then the number that goes with it is that process's."""
    with path.open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def end_group(leader, alive, term_seconds=TERM_SECONDS):
    """Ask the group to end, wait, and kill it if it does not."""
    for number, patience in ((signal.SIGTERM, term_seconds), (signal.SIGKILL, KILL_SECONDS)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)
        deadline = time.monotonic() + patience
        while alive():
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nInterrupted. Running the same command again goes on from here.", file=sys.stderr)
        sys.exit(130)
