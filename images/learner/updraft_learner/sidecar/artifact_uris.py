"""Convert artifact locations to what the program sees: below the endpoint, whatever the server's own layout is."""

from __future__ import annotations

from dataclasses import dataclass

from updraft_learner.record.spool import CHILD, RUN
from updraft_learner.sidecar.refusals import EndpointError
from updraft_learner.trees import TreeError, safe_path


@dataclass(frozen=True)
class ArtifactUris:
    """The artifact locations of the job. Without a host, clients send their requests to the address they talk to."""

    run_id: str
    experiment_id: str

    @property
    def experiment_uri(self) -> str:
        return f"mlflow-artifacts:/{self.experiment_id}"

    @property
    def run_uri(self) -> str:
        return f"{self.experiment_uri}/{self.run_id}/artifacts"

    def child_uri(self, run_id: str) -> str:
        return f"{self.experiment_uri}/{run_id}/artifacts"

    def model_uri(self, model_id: str) -> str:
        return f"{self.experiment_uri}/models/{model_id}/artifacts"

    def parse(self, path: str) -> tuple[str, str]:
        """Return (owner, path below the owner's artifacts) of a path below the artifact API; the path may be empty.

        Raises:
            EndpointError: the path is not below a run or a logged model of this experiment. Whether the run is a nested
                one of the job, and the model its own, is not known here.
        """
        try:
            parts = safe_path(path.strip("/")).split("/")
        except TreeError as exc:
            raise EndpointError.invalid(str(exc)) from exc
        if any(ord(character) < 32 or ord(character) == 127 for character in path):
            raise EndpointError.invalid(f"artifact path {path!r} is refused: it holds control characters")
        if parts[:3] == [self.experiment_id, self.run_id, "artifacts"]:
            return RUN, "/".join(parts[3:])
        if parts[:2] == [self.experiment_id, "models"] and len(parts) >= 4 and parts[3] == "artifacts":
            return parts[2], "/".join(parts[4:])
        if parts[0] == self.experiment_id and len(parts) >= 3 and parts[2] == "artifacts":
            return CHILD + parts[1], "/".join(parts[3:])
        raise EndpointError.permission(
            f"artifact path {path!r} is not below the job's run; artifacts go to {self.run_uri} or to a model that "
            "this job logged"
        )
