"""/jobs/{id}/files: list and stream results, the exported model and checkpoints."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from updraft.api.depends import ReaderDep
from updraft.schemas import FileEntry, FileList

# Two pages of S3's; a store on a folder needs up to a second for them on a busy machine, and a request has 5 s.
FILES = 2_000

router = APIRouter(tags=["files"])

Kind = Annotated[str, Query(description="results, model or checkpoint:NAME")]

# In the query, because a file's name may have what no URL's path may: a newline, dots alone, a slash at its end.
FilePath = Annotated[str, Query(description="the path as the list of files has it")]


@router.get("/jobs/{job_id}/files", summary="Files of a kind, in pages, in order of their paths")
def list_files(
    reader: ReaderDep,
    job_id: str,
    kind: Kind = "results",
    after: Annotated[str, Query(description="The last path that is known")] = "",
    limit: Annotated[int, Query(ge=1, le=FILES, description="How many")] = FILES,
) -> FileList:
    job, store = reader.job(job_id), reader.parts.store
    found, more = reader.parts.deadline.call("storage", lambda: store.files(job.tenant, job.id, kind, after, limit))
    return FileList(
        kind=kind,
        files=tuple(FileEntry(path=item.path, size_bytes=item.size_bytes) for item in found),
        after=found[-1].path if more else None,
    )


@router.get("/jobs/{job_id}/file", summary="Content of one file", response_class=StreamingResponse)
def read_file(reader: ReaderDep, job_id: str, path: FilePath, kind: Kind = "results") -> StreamingResponse:
    job, store = reader.job(job_id), reader.parts.store
    deadline = reader.parts.deadline
    file = deadline.call("storage", lambda: store.file(job.tenant, job.id, kind, path))
    content = deadline.call("storage", lambda: store.read(file))
    # The browser must not show a file: a result may be HTML of any program, and it would run on Airflow's own origin.
    headers = {
        "Content-Length": str(file.size_bytes),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.path.rpartition('/')[2], safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(content, media_type="application/octet-stream", headers=headers)
