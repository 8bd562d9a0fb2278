"""The section `export.gate`: rules for the predictions of the new version and of the champion."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from updraft.manifest import limits
from updraft.manifest.part import Part
from updraft.manifest.units import Bytes
from updraft_data.gate import TEXT_CHARACTERS, GateRules, Metric

MOST_COLUMNS = 10
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
ShortText = Annotated[str, Field(strict=True, min_length=1, max_length=TEXT_CHARACTERS)]


class GateSlice(Part):
    """Rules for the rows that have one value in a column of predictions.parquet."""

    column: ShortText = Field(description="Column of predictions.parquet", examples=["site"])
    values: Annotated[tuple[ShortText, ...], Field(strict=False, max_length=50)] = Field(
        (),
        description="Values that are judged, as text; each must have enough rows. Without it, every value with enough "
        "rows",
        examples=[["berlin", "paris"]],
    )
    threshold: Finite | None = Field(None, description="What the metric of each slice must reach", examples=[0.8])
    margin: Finite | None = Field(
        None,
        description="By how much each slice must be better than the champion's, at least; negative: how much worse it "
        "may be",
        examples=[-0.05],
    )
    least_rows: Annotated[int, Field(strict=True, ge=2, le=1_000_000)] = Field(
        30, description="Fewest rows of a slice that is judged", examples=[30]
    )


class Gate(Part):
    """Rules for the predictions that `evaluate` writes to RESULT_DIR/predictions.parquet. If a rule compares with the
    champion, the platform runs the same command for the champion's results, on the same data."""

    metric: Metric = Field(
        description="Metric of the predictions. Of log_loss, brier, mae and rmse, less is better", examples=["accuracy"]
    )
    threshold: Finite | None = Field(
        None,
        description="What the metric of all rows must reach: at least, or at most if less is better",
        examples=[0.9],
    )
    margin: Finite | None = Field(
        None,
        description="By how much the version must be better than the champion, at least: the confidence interval of "
        "the difference (paired bootstrap) must lie above it. 0: surely better; negative: not much worse",
        examples=[0.0],
    )
    confidence: Annotated[float, Field(strict=True, ge=0.5, le=0.999)] = Field(
        0.95, description="Confidence of that interval", examples=[0.95]
    )
    slices: Annotated[tuple[GateSlice, ...], Field(strict=False, max_length=MOST_COLUMNS)] = Field(
        (),
        description="Rules for parts of the held-out data",
        examples=[[{"column": "site", "margin": -0.05}]],
    )
    latency_ms: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Longest time of a call of the exported model with one row, in milliseconds (95th percentile, "
        "measured in the pod that exports it)",
        examples=[20],
    )
    size_bytes: Bytes | None = Field(
        None, alias="size", description="Largest size of the exported model", examples=["100MB"]
    )
    require: Annotated[
        tuple[Literal["validated_data", "verified_model"], ...], Field(strict=False, max_length=limits.LISTED)
    ] = Field(
        (),
        description="validated_data: every data set met its expectations; verified_model: the export was checked "
        "against the program's own output",
        examples=[["validated_data", "verified_model"]],
    )
    new_signature: Literal["reject", "accept"] = Field(
        "reject", description="Whether a model with other inputs or outputs than the champion's may replace it"
    )

    @property
    def compares(self) -> bool:
        """Return whether a rule compares with the champion's predictions."""
        return self.rules.compares

    @property
    def rules(self) -> GateRules:
        """Return the rules in the form in which the pod gets them."""
        return GateRules.model_validate(self, from_attributes=True)
