from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prepare_pod import prepare

from updraft.exceptions import DataError, LimitError, NotFoundError, RefusedError, UnavailableError
from updraft.settings import Settings
from updraft.storage import ContentStore, Staged
from updraft.storage.errors import source_errors
from updraft_learner.prepare.buckets import SourceBucket, access, list_source
from updraft_learner.prepare.errors import bucket_errors

Datasets = Callable[..., str]


@pytest.fixture
def stage(content: ContentStore, settings: Settings) -> Callable[..., Staged]:
    def stage(source: str, **options: Any) -> Staged:
        return prepare(source, content, settings=settings, **{"limit_bytes": 1_000_000, **options})

    return stage


def paths(content: ContentStore, staged: Staged) -> dict[str, bytes]:
    tree = content.get_tree(staged.tree_sha256)
    return {file.path: content.open_blob(file.sha256).read() for file in tree.files}


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    return buffer.getvalue()


# --- s3:// ---


def test_a_prefix_becomes_a_tree_of_what_is_below_it(stage: Any, content: ContentStore, datasets: Datasets) -> None:
    objects = {"digits/a.csv": b"1", "digits/sub/b.csv": b"22", "digits-old/c.csv": b"333", "x": b"4"}
    bucket = datasets(objects)
    staged = stage(f"s3://{bucket}/digits")
    assert paths(content, staged) == {"a.csv": b"1", "sub/b.csv": b"22"}
    assert (staged.files, staged.bytes) == (2, 3)
    assert paths(content, stage(f"s3://{bucket}/digits/")) == {"a.csv": b"1", "sub/b.csv": b"22"}
    assert paths(content, stage(f"s3://{bucket}/digits/a.csv")) == {"a.csv": b"1"}
    assert paths(content, stage(f"s3://{bucket}")) == objects


def test_only_what_changed_is_fetched_again(stage: Any, content: ContentStore, datasets: Datasets, s3: Any) -> None:
    bucket = datasets({"d/a": b"1", "d/b": b"2"})
    first = stage(f"s3://{bucket}/d/")
    assert (first.provenance["fetched"], first.provenance["unchanged"]) == (2, 0)
    again = stage(f"s3://{bucket}/d/")
    assert (again.provenance["fetched"], again.provenance["unchanged"]) == (0, 2)
    assert again.tree_sha256 == first.tree_sha256
    s3.store(bucket).put_bytes("d/b", b"3")  # the same size
    s3.store(bucket).put_bytes("d/c", b"4")
    third = stage(f"s3://{bucket}/d/")
    assert (third.provenance["fetched"], third.provenance["unchanged"]) == (2, 1)
    assert paths(content, third) == {"a": b"1", "b": b"3", "c": b"4"}


def test_a_copy_that_broke_off_continues_and_shows_how_far_it_is(
    stage: Any, datasets: Datasets, monkeypatch: pytest.MonkeyPatch
) -> None:
    from updraft_learner.prepare import blobs, copying

    bucket = datasets({f"d/{number}": bytes([number]) * 50_000 for number in range(6)})
    for name in ("KEEP_SECONDS", "PROGRESS_SECONDS"):
        monkeypatch.setattr(copying, name, 0.0)
    monkeypatch.setattr(blobs, "THREADS", 1)
    opened: list[str] = []
    said: list[str] = []
    monkeypatch.setattr(copying, "print", lambda line, **_: said.append(line), raising=False)

    class Lost(Exception):
        """The pod is gone."""

    def open_some(self: Any, key: str) -> Any:
        opened.append(key)
        if len(opened) == 5:
            raise Lost
        return original(self, key)

    original = SourceBucket.open
    monkeypatch.setattr(SourceBucket, "open", open_some)
    with pytest.raises(Lost):
        stage(f"s3://{bucket}/d/")
    assert [line for line in said if line.endswith("4/6 objects, 0.2 MB of 0.3 MB")]
    staged = stage(f"s3://{bucket}/d/")
    assert staged.provenance["fetched"] + staged.provenance["unchanged"] == 6
    assert staged.provenance["unchanged"] >= 4


def test_content_that_vanished_from_the_store_is_fetched_again(
    stage: Any, content: ContentStore, datasets: Datasets
) -> None:
    bucket = datasets({"d/a": b"1"})
    staged = stage(f"s3://{bucket}/d/")
    content.store.delete(content.keys.blob(content.get_tree(staged.tree_sha256).files[0].sha256))
    assert stage(f"s3://{bucket}/d/").provenance["fetched"] == 1
    assert paths(content, staged) == {"a": b"1"}


def test_a_damaged_memory_is_only_a_cache(stage: Any, content: ContentStore, datasets: Datasets) -> None:
    bucket = datasets({"d/a": b"1"})
    stage(f"s3://{bucket}/d/")
    for item in content.store.list(f"{content.keys.prefix}/sources/"):
        content.store.put_bytes(item.key, b'{"objects": [1]}')
    assert stage(f"s3://{bucket}/d/").provenance["fetched"] == 1


def test_a_bucket_that_does_not_exist_is_named_with_its_endpoint(stage: Any, settings: Settings, s3: Any) -> None:
    missing = settings.source_buckets[0]
    with pytest.raises(DataError) as caught:
        stage(f"s3://{missing}/digits/")
    assert f"'{missing}'" in str(caught.value)
    assert s3.endpoint in str(caught.value)
    assert "does not exist" in str(caught.value)


def test_no_data_and_empty_data_are_named(stage: Any, datasets: Datasets) -> None:
    bucket = datasets({"d/a": b"", "d/b": b""})
    with pytest.raises(DataError, match="has no objects there; upload the data or correct the prefix"):
        stage(f"s3://{bucket}/typo/")
    with pytest.raises(DataError, match="all of its 2 objects are empty"):
        stage(f"s3://{bucket}/d/")


def test_a_wrong_secret_is_named_but_not_shown(stage: Any, datasets: Datasets, s3: Any) -> None:
    bucket = datasets({"d/a": b"1"})
    wrong = {"access_key": s3.access_key, "secret_key": "not-the-secret-key"}
    with pytest.raises(DataError, match=r"access is denied.*secret 'vision-bucket' was used") as caught:
        stage(f"s3://{bucket}/d/", credentials=wrong, secret_name="vision-bucket")
    assert "not-the-secret-key" not in str(caught.value)
    with pytest.raises(DataError, match="secret 'x' has no secret_key"):
        stage(f"s3://{bucket}/d/", credentials={"access_key": "a"}, secret_name="x")
    with pytest.raises(DataError, match="secret 'x' has an unknown field 'acces_key'"):
        stage(
            f"s3://{bucket}/d/", credentials={"access_key": "a", "secret_key": "b", "acces_key": "c"}, secret_name="x"
        )


def test_a_secret_may_name_its_own_endpoint(stage: Any, datasets: Datasets, s3: Any) -> None:
    bucket = datasets({"d/a": b"1"})
    keys = {"access_key": s3.access_key, "secret_key": s3.secret_key}
    assert stage(f"s3://{bucket}/d/", credentials={**keys, "endpoint": s3.endpoint}, secret_name="x").files == 1


def test_an_endpoint_that_is_away_is_waited_for(s3: Any) -> None:
    secret = {"access_key": "a", "secret_key": "b", "endpoint": "http://127.0.0.1:1"}
    bucket = SourceBucket("b", access(secret, "x", s3.credentials), attempts=1)
    with (
        pytest.raises(UnavailableError, match="cannot be reached"),
        source_errors(),
        bucket_errors("s3://b/d/", "x"),
    ):
        list_source(bucket, "d/", "s3://b/d/", 1_000, 10)


def test_more_than_the_limit_is_refused_with_both_sizes(stage: Any, datasets: Datasets) -> None:
    bucket = datasets({"d/a": b"x" * 600, "d/b": b"x" * 600})
    with pytest.raises(LimitError, match="has 1200 bytes or more, more than the limit of 1000 bytes"):
        stage(f"s3://{bucket}/d/", limit_bytes=1000)


def test_the_platforms_own_bucket_is_no_way_around_tenants(
    stage: Any, content: ContentStore, settings: Settings
) -> None:
    content.store.put_bytes("rivals/jobs/j/results/model", b"theirs")
    content.store.put_bytes("default/jobs/j/results/model", b"mine")
    with pytest.raises(RefusedError, match="is the platform's own"):
        stage(f"s3://{settings.bucket}/rivals/")
    with pytest.raises(RefusedError):
        stage(f"s3://{settings.bucket}")
    assert paths(content, stage(f"s3://{settings.bucket}/default/jobs/j/results/")) == {"model": b"mine"}


def test_the_platforms_key_opens_the_named_buckets_only_and_a_secret_any(
    stage: Any, content: ContentStore, settings: Settings, s3: Any
) -> None:
    s3.new_bucket(settings.mlflow_bucket).put_bytes("artifacts/1/model", b"another team's")
    with pytest.raises(RefusedError) as caught:
        stage(f"s3://{settings.mlflow_bucket}/artifacts/")
    for part in (settings.mlflow_bucket, ", ".join(settings.source_buckets), "secret", "UPDRAFT_SOURCE_BUCKETS"):
        assert part in str(caught.value)
    with pytest.raises(RefusedError):
        stage(f"s3://{settings.source_buckets[0].upper()}/x")
    keys = {"access_key": s3.access_key, "secret_key": s3.secret_key}
    opened = stage(f"s3://{settings.mlflow_bucket}/artifacts/", credentials=keys, secret_name="mine")
    assert paths(content, opened) == {"1/model": b"another team's"}


def test_archives_in_a_bucket_are_unpacked_unless_told_otherwise(
    stage: Any, content: ContentStore, datasets: Datasets
) -> None:
    data = zipped({"train.py": b"print(1)", "sub/x": b"2"})
    bucket = datasets({"code.zip": data, "broken.zip": b"not a zip"})
    assert paths(content, stage(f"s3://{bucket}/code.zip")) == {"train.py": b"print(1)", "sub/x": b"2"}
    assert paths(content, stage(f"s3://{bucket}/code.zip", unpack_zip=False)) == {"code.zip": data}
    with pytest.raises(DataError, match=r"broken.zip.*is no zip archive"):
        stage(f"s3://{bucket}/broken.zip")


# --- local, zip, tree ---


def test_a_local_folder_and_a_local_file(stage: Any, content: ContentStore, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    assert paths(content, stage(str(tmp_path / "code"))) == {"train.py": b"print(1)"}
    assert paths(content, stage(f"{tmp_path}/code")) == {"train.py": b"print(1)"}
    assert paths(content, stage("code/train.py", base=tmp_path)) == {"train.py": b"print(1)"}
    with pytest.raises(DataError, match="no such file or folder on the worker"):
        stage("nothing/here", base=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no files"):
        stage("empty", base=tmp_path)
    with pytest.raises(LimitError, match="the limit is 3 bytes"):
        stage("code", base=tmp_path, limit_bytes=3)
    with pytest.raises(LimitError, match="more than the limit of 3 bytes"):
        stage("code/train.py", base=tmp_path, limit_bytes=3)


def test_archives_that_are_none_or_escape_are_refused(stage: Any, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK but not really")
    (tmp_path / "b.zip").write_bytes(zipped({"../../evil.py": b"x"}))
    (tmp_path / "c.zip").write_bytes(zipped({"big": b"0" * 5000}))
    with pytest.raises(DataError, match=r"a.zip is no zip archive"):
        stage("a.zip", base=tmp_path)
    with pytest.raises(DataError, match="escapes the archive's folder"):
        stage("b.zip", base=tmp_path)
    with pytest.raises(LimitError, match="unpacks to more than the limit of 1000 bytes"):
        stage("c.zip", base=tmp_path, limit_bytes=1000)


def test_a_tree_that_was_uploaded_is_used_as_it_is(stage: Any, content: ContentStore, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    uploaded = stage("x", base=tmp_path)
    assert stage(f"tree:{uploaded.tree_sha256}").tree_sha256 == uploaded.tree_sha256
    with pytest.raises(NotFoundError, match="submit again to upload it"):
        stage(f"tree:{'a' * 64}")
    with pytest.raises(LimitError):
        stage(f"tree:{uploaded.tree_sha256}", limit_bytes=4)
    content.store.delete(content.keys.blob(content.get_tree(uploaded.tree_sha256).files[0].sha256))
    with pytest.raises(DataError, match="1 of its contents are not in the store"):
        stage(f"tree:{uploaded.tree_sha256}")


def test_what_is_no_source_says_what_is(stage: Any) -> None:
    with pytest.raises(DataError, match="ftp"):
        stage("ftp://host/x")
