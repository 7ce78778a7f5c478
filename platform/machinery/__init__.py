"""Building blocks of controllers: work queues, workers, leader election, expectations, clock."""
