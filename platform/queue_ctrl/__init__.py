"""The queue controller: the states of queues, their tree and their counts."""
