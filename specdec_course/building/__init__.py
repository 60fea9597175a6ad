"""Makes the course's notebooks from their one text in `source/`.

| from | to | what it is |
|---|---|---|
| `source/NN_name/lesson.py` | `notebooks/NN_name.ipynb` | the lesson, executed |
| `source/NN_name/exercise.py` | `solutions/NN_name.ipynb` | the exercise with its answers, executed |
| `source/NN_name/exercise.py` | `exercises/NN_name.ipynb` | the exercise without answers, as nbgrader releases it |

Read in this order: `products` (which files), `notebooks` (from text to cells), `graded` (which cells are answered and
graded), `execution` (running the cells), `stored` (what a stored notebook must not hold), `up_to_date` (comparing).
"""
