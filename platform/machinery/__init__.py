"""What all controllers run on: queues, limiters, shards, expectations, worker loop, clock."""
