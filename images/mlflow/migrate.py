"""Brings the tables of MLflow's backend store up to date, before its server starts. Run by docker-compose.yaml.

An empty database is left to the server, which makes its tables at its first start; `mlflow db upgrade` cannot. The
tables of its log-ins are brought up to date by the server itself.
"""

from __future__ import annotations

import os
import sys

from sqlalchemy import create_engine, inspect

TABLE = "experiments"


def main() -> int:
    url = os.environ["MLFLOW_BACKEND_STORE_URI"]
    engine = create_engine(url)
    there = TABLE in inspect(engine).get_table_names()
    engine.dispose()
    if not there:
        print("The database is empty; MLflow's server will make its tables.")
        return 0
    os.execvp("mlflow", ["mlflow", "db", "upgrade", url])


if __name__ == "__main__":
    sys.exit(main())
