from ref_fixtures import study_ref, tuned_version_ref, version_ref  # noqa: F401, the fixtures of these tests
