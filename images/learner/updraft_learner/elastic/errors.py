"""What an elastic program may have to catch."""


class LearnerFenced(RuntimeError):
    """The others went on without this learner, which was silent for too long. Its state is of no use."""
