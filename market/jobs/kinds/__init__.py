"""The kinds of jobs: the effects of completion, failure, loss and cancellation of each."""
