"""Fixtures of the whole suite."""

from tests.servers import ceph, fake_gcs, gcs_bucket, localstack, rclone, s3_bucket, seaweedfs

__all__ = ["ceph", "fake_gcs", "gcs_bucket", "localstack", "rclone", "s3_bucket", "seaweedfs"]
