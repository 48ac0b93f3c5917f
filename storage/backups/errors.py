"""The failures of a backup, a restoration or a move."""

from storage.engines.errors import StoreError


class BackupError(StoreError):
    """It was not made, and nothing has changed; the message has the reason for the operator."""
