"""The declaration of the source: what the scheduler reads, without the libraries of the training runtime."""

from __future__ import annotations

from mlops import SourceSection, SourceSpec


class GitLog(SourceSection):
    """The commits of a git repository up to the interval's end, one row each."""

    repository: str
    """Folder of the repository, relative to the project folder or absolute."""
    branch: str = "HEAD"
    event_time: str | None = "committed_at"
    """By default the commit's instant, which the row has beside ``commit``, ``author`` and ``subject``."""


GIT_LOG = SourceSpec(section=GitLog, reader="mlops_git_log_reader:GitReader")
