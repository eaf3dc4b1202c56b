"""Why the data cannot be used. `str(error)` is one line, fit for a terminal; server/errors.py says it on HTTP."""


class StorageError(Exception):
    """The data cannot be used as it is."""


class StorageFull(StorageError):
    """The disk is full: what was to be written is not, what was written before stands."""


class DatabaseNewer(StorageError):
    """A later version of Hamdam has changed the tables; this one would not understand them."""


class DatabaseOlder(StorageError):
    """There are no tables yet, or those of an earlier version: `Database.open` brings them up to date."""


class FolderInUse(StorageError):
    """Another server runs on this data folder."""
