"""Why the data cannot be used. `str(error)` is one line, fit for a terminal; on HTTP it becomes an ApiError in app.py."""


class StorageError(Exception):
    """The data cannot be used as it is."""


class StorageFull(StorageError):
    """The disk is full: what was to be written is not, what was written before stands."""


class DatabaseNewer(StorageError):
    """A later version of Hamdam has changed the tables; this one would not understand them."""


class FolderInUse(StorageError):
    """Another server runs on this data folder."""
