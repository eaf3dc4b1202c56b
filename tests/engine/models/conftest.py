"""These tests compute on one thread."""
from one_thread import one_thread as one_thread
