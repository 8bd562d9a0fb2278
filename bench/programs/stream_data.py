"""Read objects in the ways that a job may: streamed through a learner's endpoint, copied to the disk, or local files.

`serve` prints the endpoint's address and serves until its standard input ends. The others print seconds. Run by
`benchmarks.figures.stream`, each in a process of its own, with credentials in the environment.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

from updraft_learner import contract, data
from updraft_learner.pod import S3Credentials
from updraft_learner.prepare.buckets import SourceBucket, list_source
from updraft_learner.sidecar.data_routes import DataRoutes
from updraft_learner.sidecar.endpoint import Endpoint
from updraft_learner.store import open_store
from updraft_learner.streams.blocks import BlockCache
from updraft_learner.streams.node_trees import lay_on_node
from updraft_learner.streams.reader import DataStreams, StreamFile
from updraft_learner.streams.remote import RangeReader, RemoteSource
from updraft_learner.streams.room import CacheFolder
from updraft_learner.trees import Tree, TreeFile, materialise

CHUNK_BYTES = 1 << 20
BUCKET = "bench"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("serve", "stream", "copy", "mount", "local"))
    parser.add_argument("--store", help="address of the S3 server")
    parser.add_argument("--folder", type=Path, help="of the cache, of the copy, or of the local files")
    parser.add_argument("--limit", type=int, default=1 << 40, help="of the cache, bytes")
    options = parser.parse_args()
    keys = os.environ["BENCH_S3_KEY"], os.environ["BENCH_S3_SECRET"]
    credentials = S3Credentials(options.store, "us-east-1", *keys)
    if options.way == "serve":
        serve(credentials, options.folder, options.limit)
        return
    began = time.monotonic()
    if options.way == "stream":
        for file in data.files():
            with data.open(file.path) as stream:
                read(stream)
    elif options.way == "copy":
        copy(credentials, options.folder)
    elif options.way == "mount":
        mount(credentials, options.folder)
    else:
        for path in sorted(options.folder.iterdir()):
            with path.open("rb") as stream:
                read(stream)
    print(time.monotonic() - began)


def read(stream: Any) -> None:
    while stream.read(CHUNK_BYTES):
        pass


def serve(credentials: S3Credentials, folder: Path, limit: int) -> None:
    objects = list_source(SourceBucket(BUCKET, credentials), "data", "s3://bench/data", 1 << 60, 1000)
    remote = RemoteSource(open_store(BUCKET, credentials, attempts=1), "s3://bench/data")
    files = {path: StreamFile(remote, item) for path, item in objects.items()}
    reader = RangeReader(lambda _, text: print(text, file=sys.stderr), threading.Event())
    streams = DataStreams(files, BlockCache(CacheFolder(folder, limit)), reader)
    nothing = cast("Any", None)  # the endpoint's other routes are not asked
    token = os.environ[contract.ENDPOINT_TOKEN_ENV]
    endpoint = Endpoint("127.0.0.1:0", token, nothing, nothing, DataRoutes(streams))
    endpoint.start()
    print(f"http://127.0.0.1:{endpoint.port}{contract.DATA_PATH}", flush=True)
    sys.stdin.read()
    print(streams.fetched_bytes, flush=True)


def copy(credentials: S3Credentials, folder: Path) -> None:
    """Copy as a learner's sidecar does before the program starts: four files at a time, each verified by its digest."""
    store = open_store(BUCKET, credentials)
    tree = tree_of_data()
    materialise(tree, folder, lambda file: store.open(f"data/{file.path}"))


def mount(credentials: S3Credentials, folder: Path) -> None:
    """Make sure that the node has the files, as a learner's sidecar does."""
    tree = tree_of_data()
    lay_on_node(CacheFolder(folder, 1 << 40), tree.sha256, tree, lambda place: copy(credentials, place), print)


def tree_of_data() -> Tree:
    names = [line.split() for line in Path(os.environ["BENCH_DIGESTS"]).read_text().splitlines()]
    return Tree(tuple(TreeFile(name, digest, int(size)) for name, digest, size in names))


if __name__ == "__main__":
    main()
