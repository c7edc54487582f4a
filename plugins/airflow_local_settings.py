"""
Imported by every Airflow process at start. Two of them load here what each process that they fork would load again.
"""

import sys

if {"scheduler", "dag-processor", "standalone"} & set(sys.argv):
    # A task runs in a fork of the scheduler's, a DAG file is read in a fork of the DAG processor's.
    import mlops_provider.factory
    import mlops_provider.sensors.dataset
    import mlops_provider.sensors.model
    from mlops_provider.assets import dataset_asset
    from mlops_provider.deployment import Deployment

    # The first asset has Airflow load what its providers do with asset URIs, Amazon's boto3 among it.
    dataset_asset("preload")
    if Deployment.load().launcher == "pod":
        import mlops_provider.launchers.pod  # noqa: F401
