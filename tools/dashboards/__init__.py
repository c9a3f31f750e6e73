"""The four dashboards: what each panel shows and asks for. tools/grafana.py makes files of them.

`python -m tools.gen_docs` writes deploy/grafana/dashboards; a test runs every query against a live
Prometheus that scrapes a running job.
"""

from __future__ import annotations

from tools.dashboards import checkpoints, fleet, job, sparse

ALL = (fleet.DASHBOARD, job.DASHBOARD, sparse.DASHBOARD, checkpoints.DASHBOARD)
