"""The kinds of jobs: what completion, failure, loss and cancellation of each comes to."""
