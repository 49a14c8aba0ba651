"""Serving: ``Batcher`` makes batches of the requests of concurrent tasks and runs each batch as one operation.

``import oxide`` does not import this package. See the chapter "A service" of the book.
"""

from oxide.errors import BatcherClosedError, Overloaded
from oxide.serving.batcher import Batcher, BatchReport
from oxide.serving.buckets import Bucket, Buckets
from oxide.serving.metrics import BatcherStatistics

__all__ = ["BatchReport", "Batcher", "BatcherClosedError", "BatcherStatistics", "Bucket", "Buckets", "Overloaded"]
