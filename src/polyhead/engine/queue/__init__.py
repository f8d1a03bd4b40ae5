"""One queue over a session: calls of many callers share batches of the encoder, each answered as if it were alone."""

from polyhead.engine.queue.queue import BatchFacts, Queue, QueueLimits
from polyhead.engine.queue.ticket import Ticket

__all__ = ["BatchFacts", "Queue", "QueueLimits", "Ticket"]
