"""Define the section `results`: where the program's results are written to besides the platform's own store."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from updraft.manifest import values
from updraft.manifest.part import Part, Text
from updraft.manifest.sources import Source, parse_source


class Results(Part):
    """A bucket of the user's that the results of the training are written to."""

    to: Annotated[Text, AfterValidator(values.check_s3)] = Field(
        description="s3://bucket/prefix; the files of RESULT_DIR are written below it, in a folder named by the job's "
        "id, when the training ends",
        examples=["s3://vision-models/digits/"],
    )
    secret: Annotated[Text, AfterValidator(values.check_secret_name)] = Field(
        description="Stored secret with access_key and secret_key (and endpoint, region) of the bucket",
        examples=["vision-bucket"],
    )

    def parsed(self) -> Source:
        """Return the address, split into its parts."""
        return parse_source(self.to, git=False)
