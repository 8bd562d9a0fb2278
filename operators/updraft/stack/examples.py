"""Upload the data of the examples in jobs/ to the bucket that their manifests name. Called by `control.up`."""

from __future__ import annotations

from pathlib import Path

from updraft.stack.config import load_config, load_secrets
from updraft.stack.layout import Home, StackError

DATA = Path("jobs/data/digits/digits.csv")
BUCKET, KEY = "datasets", "digits/digits.csv"


def seed(home: Home) -> bool:
    """Upload the UCI handwritten digits unless an object of that name is there; returns whether they were uploaded.

    Raises StackError.
    """
    source = home.repository / DATA
    if not source.is_file():
        raise StackError(f"{source} does not exist; restore it with `git checkout {DATA}`.")
    import boto3
    from botocore.config import Config as BotoConfig
    from botocore.exceptions import BotoCoreError, ClientError

    secrets = load_secrets(home)
    client = boto3.client(
        "s3",
        endpoint_url=load_config(home).url("s3"),
        aws_access_key_id=secrets.s3_access_key.get_secret_value(),
        aws_secret_access_key=secrets.s3_secret_key.get_secret_value(),
        region_name="us-east-1",
        config=BotoConfig(proxies={}, retries={"max_attempts": 5}),
    )
    try:
        if client.list_objects_v2(Bucket=BUCKET, Prefix=KEY, MaxKeys=1).get("KeyCount"):
            return False
        client.put_object(Bucket=BUCKET, Key=KEY, Body=source.read_bytes())
    except (BotoCoreError, ClientError) as exc:
        raise StackError(f"The data could not be put into s3://{BUCKET}/{KEY} ({type(exc).__name__}).") from exc
    return True
