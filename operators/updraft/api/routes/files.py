"""/jobs/{id}/files: list and stream results, the exported model and checkpoints."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from updraft.api.depends import ReaderDep
from updraft.schemas import FileEntry, FileList

router = APIRouter(tags=["files"])

Kind = Annotated[str, Query(description="results, model or checkpoint:NAME")]

# In the query, because a file's name may have what no URL's path may: a newline, dots alone, a slash at its end.
FilePath = Annotated[str, Query(description="the path as the list of files has it")]


@router.get("/jobs/{job_id}/files", summary="Files of a kind")
def list_files(reader: ReaderDep, job_id: str, kind: Kind = "results") -> FileList:
    job, store = reader.job(job_id), reader.parts.store
    found = reader.parts.deadline.call("storage", lambda: store.files(job.tenant, job.id, kind))
    return FileList(kind=kind, files=tuple(FileEntry(path=item.path, size_bytes=item.size_bytes) for item in found))


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
