"""Record in Airflow that an earlier version is the champion again, so that DAGs that begin with a new champion run.

A promotion is recorded by the job's own task. A roll-back has no task; it is recorded here, in Airflow's api-server.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from updraft.controller.promotion import champion_asset

if TYPE_CHECKING:
    from updraft.ledger import SeriesEvent

log = logging.getLogger(__name__)


def record_roll_back(tenant: str, event: SeriesEvent) -> None:
    """Add an event to the model's asset, if a DAG begins with it. The roll-back itself stands: that Airflow's database
    cannot be written is logged."""
    from airflow.assets.manager import asset_manager
    from airflow.models.asset import AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    uri = champion_asset(tenant, str(event.model))
    facts = {"version": event.version, "job": event.job_id, "instead_of": event.evidence.get("over")}
    try:
        with create_session(scoped=False) as session:
            asset = session.scalar(select(AssetModel).where(AssetModel.name == uri, AssetModel.uri == uri))
            if asset is not None and asset.active is not None:
                asset_manager.register_asset_change(asset=asset, extra=facts, session=session)
    except SQLAlchemyError:
        log.exception("Version %s is the champion again, but no DAG was told: no event of %s", event.version, uri)
