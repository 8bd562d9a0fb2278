"""Registers Updraft with Airflow: the routes below /updraft and the page of jobs. See `updraft.api.plugin`."""

from __future__ import annotations

from updraft.api.plugin import UpdraftPlugin

__all__ = ["UpdraftPlugin"]
