"""Start the program of jobs with `task: text-classification`: `python -m updraft_learner.tasks.text_classification`.

Learners are processes of their own, which import the program by its module's name: it is not the main module.
"""

from __future__ import annotations

import sys

from updraft_learner.tasks.text_classifier import main

if __name__ == "__main__":
    sys.exit(main())
