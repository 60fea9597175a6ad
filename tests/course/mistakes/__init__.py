"""Answers that learners might give, wrong and right, for each exercise; `specdec mistakes` runs them all.

A module `stage_NN` has two dicts by exercise. `MUTANTS[id]` holds wrong answers under the name of the mistake that the
message must give. `CORRECT[id]` holds right answers that are written differently.
"""
