"""git+https:// as a source: which commit, within which limits, and what is told."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from prepare_pod import prepare

from updraft.exceptions import DataError, LimitError, UnavailableError
from updraft.settings import Settings
from updraft.storage import ContentStore, Staged
from updraft_data.git_process import KEPT_BYTES, Git, TooLarge
from updraft_learner.prepare.errors import SourceError

LIMIT_BYTES = 1_000_000


@pytest.fixture
def stage(content: ContentStore, settings: Settings) -> Callable[..., Staged]:
    lab = settings.model_copy(update={"git_protocols": ("https", "file")})

    def stage(source: str, **options: Any) -> Staged:
        return prepare(source, content, settings=lab, **{"limit_bytes": LIMIT_BYTES, **options})

    return stage


def paths(content: ContentStore, staged: Staged) -> dict[str, bytes]:
    tree = content.get_tree(staged.tree_sha256)
    return {file.path: content.open_blob(file.sha256).read() for file in tree.files}


@dataclass(frozen=True)
class Origin:
    """A repository on this disk."""

    folder: Path

    @property
    def url(self) -> str:
        return f"git+file://{self.folder}"

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=self.folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, files: dict[str, bytes]) -> str:
        for path, data in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(data)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "a commit")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    folder = tmp_path / "repository"
    folder.mkdir()
    made = Origin(folder)
    made.git("init", "--quiet")
    return made


@pytest.fixture
def repository(origin: Origin) -> tuple[str, str, str]:
    """URL, first commit, second commit; the first is tagged v1.0."""
    first = origin.commit({"jobs/train.py": b"one"})
    origin.git("tag", "v1.0")
    return origin.url, first, origin.commit({"jobs/train.py": b"two"})


def noise(size_bytes: int) -> bytes:
    return random.Random(7).randbytes(size_bytes)


def test_a_commit_or_tag_of_a_repository(stage: Any, content: ContentStore, repository: tuple[str, str, str]) -> None:
    url, first, second = repository
    for ref, commit, text in (("v1.0", first, b"one"), (first, first, b"one"), (second[:10], second, b"two")):
        staged = stage(f"{url}@{ref}")
        assert paths(content, staged) == {"jobs/train.py": text}
        assert staged.provenance["commit"] == commit
    staged = stage(f"{url}@{second}#subdirectory=jobs")
    assert paths(content, staged) == {"train.py": b"two"}


def test_what_a_repository_has_not_is_named(stage: Any, repository: tuple[str, str, str]) -> None:
    url, first, _ = repository
    with pytest.raises(DataError, match=r"has no tag 'v9\.9'"):
        stage(f"{url}@v9.9")
    with pytest.raises(DataError, match="has no commit 'deadbeef'"):
        stage(f"{url}@deadbeef")
    with pytest.raises(DataError, match="has no folder 'nope'"):
        stage(f"{url}@{first}#subdirectory=nope")
    with pytest.raises(DataError, match=r"cannot be fetched|does not exist"):
        stage(f"git+file:///nowhere/at/all@{first}")


def test_repositories_on_a_disk_are_closed_by_default(
    stage: Any, content: ContentStore, settings: Settings, repository: tuple[str, str, str]
) -> None:
    url, first, _ = repository
    with pytest.raises(DataError, match=r"git over 'file' is not allowed here; use git\+https://"):
        prepare(f"{url}@{first}", content, settings=settings, limit_bytes=LIMIT_BYTES)
    with pytest.raises(DataError, match="git over 'ssh' is not allowed here"):
        stage(f"git+ssh://git@host/repo@{first}")


def test_a_repository_that_cannot_be_reached_may_be_tried_again(stage: Any) -> None:
    with pytest.raises(UnavailableError, match="cannot be reached") as caught:
        stage(f"git+https://127.0.0.1:1/repo@{'a' * 40}", credentials={"token": "hidden-token"}, secret_name="git-read")
    assert "hidden-token" not in str(caught.value)


@pytest.mark.parametrize("filters", ["true", "false"])
def test_a_short_commit_is_found_whether_or_not_the_server_sends_history_alone(
    stage: Any, content: ContentStore, origin: Origin, filters: str
) -> None:
    origin.git("config", "uploadpack.allowFilter", filters)
    first = origin.commit({"a": b"1", "b/c": b"2"})
    origin.commit({"a": b"3"})
    staged = stage(f"{origin.url}@{first[:9]}")
    assert paths(content, staged) == {"a": b"1", "b/c": b"2"}
    assert staged.provenance["commit"] == first


def test_files_that_left_the_branch_do_not_count(stage: Any, origin: Origin) -> None:
    origin.git("config", "uploadpack.allowFilter", "true")
    origin.commit({"big": noise(3 * LIMIT_BYTES)})
    (origin.folder / "big").unlink()
    commit = origin.commit({"small": b"1"})
    assert stage(f"{origin.url}@{commit[:10]}").files == 1


def test_the_attributes_of_the_whole_repository_hold_for_its_folders(
    stage: Any, content: ContentStore, origin: Origin
) -> None:
    commit = origin.commit({".gitattributes": b"*.txt eol=crlf\n", "sub/a.txt": b"x\ny\n"})
    staged = stage(f"{origin.url}@{commit}#subdirectory=sub")
    assert paths(content, staged) == {"a.txt": b"x\r\ny\r\n"}


def test_a_commit_that_packs_well_is_refused_before_it_is_laid_out(
    stage: Any, content: ContentStore, origin: Origin
) -> None:
    commit = origin.commit({"zeros": bytes(3 * LIMIT_BYTES), "sub/train.py": b"1"})
    with pytest.raises(LimitError, match=r"has 3\.0 MB, more than the limit of 1\.0 MB"):
        stage(f"{origin.url}@{commit}")
    assert paths(content, stage(f"{origin.url}@{commit}#subdirectory=sub")) == {"train.py": b"1"}


def test_a_fetch_that_passes_the_limit_is_given_up(stage: Any, origin: Origin) -> None:
    commit = origin.commit({"noise": noise(3 * LIMIT_BYTES)})
    with pytest.raises(LimitError, match=rf"{commit} is larger than the limit of 1\.0 MB.*ask for a higher limit"):
        stage(f"{origin.url}@{commit}")


def test_a_history_that_passes_the_limit_asks_for_the_whole_commit(stage: Any, origin: Origin) -> None:
    origin.commit({"noise": noise(3 * LIMIT_BYTES)})
    (origin.folder / "noise").unlink()
    commit = origin.commit({"train.py": b"1"})
    with pytest.raises(LimitError, match="give all 40 digits of the commit"):
        stage(f"{origin.url}@{commit[:10]}")
    assert stage(f"{origin.url}@{commit}").files == 1


def bomb(origin: Origin, levels: int = 8) -> str:
    """A tree of 10 ** levels paths in a few KB: each tree names the next one ten times."""
    entry = f"100644 blob {origin.git('hash-object', '-w', '--stdin')}"
    for _ in range(levels):
        listing = "".join(f"{entry}\t{n}\n" for n in range(10))
        made = subprocess.run(
            ["git", "mktree"], cwd=origin.folder, input=listing, check=True, capture_output=True, text=True
        )
        entry = f"040000 tree {made.stdout.strip()}"
    return entry.split()[2]


# In a process of its own, whose limit ends a listing in memory. Its peak is read from /proc: what `getrusage` says of
# a process includes the one that it was forked from.
CHECKOUT = """
import json, resource, sys
from pathlib import Path
from updraft_data.git import checkout
from updraft_learner.prepare.errors import SourceError

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
url, commit, subfolder, work = sys.argv[1:]
try:
    found = checkout(url, commit, subfolder, Path(work), limit_bytes=10**9, limit_files=200_000, protocols=("file",))
    answer = {"files": sorted(path.name for path in found.folder.iterdir())}
except SourceError as exc:
    answer = exc.to_json()
(own,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
answer["peak_kib"] = max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print(json.dumps(answer))
"""


def checkout_apart(origin: Origin, commit: str, subfolder: str, work: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", CHECKOUT, f"file://{origin.folder}", commit, subfolder, str(work)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


def test_a_tree_that_repeats_itself_is_refused_at_the_limit_in_little_memory(origin: Origin, tmp_path: Path) -> None:
    commit = origin.git("commit-tree", bomb(origin), "-m", "a bomb")
    origin.git("update-ref", "refs/heads/main", commit)
    answer = checkout_apart(origin, commit, "", tmp_path / "work")
    assert answer["kind"] == "limit", answer
    assert answer["message"].endswith("has more than 200000 files; pack them into fewer")
    assert answer["peak_kib"] < 100 * 1024


def test_a_tree_that_repeats_itself_beside_the_folder_costs_nothing(origin: Origin, tmp_path: Path) -> None:
    origin.commit({".gitattributes": b"*.txt eol=crlf\n", "a/b/c.txt": b"x\n", "d": b"1"})
    listed = origin.git("ls-tree", "HEAD")
    made = subprocess.run(
        ["git", "mktree"],
        cwd=origin.folder,
        input=f"{listed}\n040000 tree {bomb(origin)}\tbomb\n",
        check=True,
        capture_output=True,
        text=True,
    )
    commit = origin.git("commit-tree", made.stdout.strip(), "-m", "a bomb beside")
    origin.git("update-ref", "refs/heads/main", commit)
    answer = checkout_apart(origin, commit, "a/b", tmp_path / "work")
    assert answer.get("files") == ["c.txt"], answer
    assert next((tmp_path / "work").glob("*/a/b/c.txt")).read_bytes() == b"x\r\n"
    assert answer["peak_kib"] < 100 * 1024


def test_a_file_is_no_folder(stage: Any, origin: Origin) -> None:
    commit = origin.commit({"a.txt": b"1"})
    with pytest.raises(DataError, match=r"has no folder 'a\.txt'"):
        stage(f"{origin.url}@{commit}#subdirectory=a.txt")


def test_of_what_git_says_the_end_is_kept_and_an_endless_entry_is_refused(tmp_path: Path) -> None:
    git = Git("https://host/repo", tmp_path / "work", {"PATH": "/usr/bin:/bin"}, None, LIMIT_BYTES, lambda line: None)
    git("init", "--quiet", "--template=", ".")
    loud = "alias.loud=!yes noise | head -c 9000000 >&2; echo the reason >&2; exit 3"
    with pytest.raises(SourceError, match=r"cannot be fetched \(.*the reason\)") as caught:
        git("-c", loud, "loud")
    assert len(str(caught.value)) < 1000
    assert len(git._run(("-c", loud, "loud"), watched=False)[2]) <= KEPT_BYTES
    with pytest.raises(SourceError, match="path of more than 8192 bytes"):
        list(git.entries("-c", "alias.long=!yes | tr -d '\\n'", "long"))
    few = git.entries("-c", "alias.few=!printf 'a\\0b\\0'; exit 3", "few")
    assert [next(few), next(few)] == ["a", "b"]
    with pytest.raises(SourceError, match="cannot be fetched"):
        next(few)


def run_until_ended(tmp_path: Path, script: str, say: Callable[[str], None]) -> None:
    """Runs the script as git's child, in a repository with a limit of a megabyte; `say` is told at each look."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/"}
    git = Git("https://host/repo", tmp_path / "work", environment, None, LIMIT_BYTES, say, progress_seconds=0.0)
    git("init", "--quiet", "--template=", ".")
    git("-c", f"alias.slow=!{script}", "slow")


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_grows_past_the_limit_is_ended_at_once_with_its_helpers(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    growing = f"echo $$ >{mark}; mkdir -p .git/objects/pack; head -c 3000000 /dev/zero >.git/objects/pack/tmp_pack_1"
    began = time.monotonic()
    with pytest.raises(TooLarge):
        run_until_ended(tmp_path, f"{growing}; sleep 60", lambda line: None)
    assert time.monotonic() - began < 30
    tick = threading.Event()
    while alive(int(mark.read_text())):
        assert time.monotonic() - began < 30
        tick.wait(0.02)


def test_a_person_who_cancels_ends_the_fetch(tmp_path: Path) -> None:
    def cancelled(line: str) -> None:
        raise InterruptedError(line)

    with pytest.raises(InterruptedError, match="0 bytes fetched"):
        run_until_ended(tmp_path, "sleep 60", cancelled)
