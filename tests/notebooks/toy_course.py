"""A stage of a few cells that needs no model and no checks of the course: all that it runs is in it."""

from __future__ import annotations

from pathlib import Path

from specdec_course.building.products import Product, products

POINTS = {"7.1": 2, "7.2": 3}

LESSON = """\
# %% [markdown]
# # A toy

# %%
print("one plus one is", 1 + 1)
"""

# The toy's own `check` keeps the contract of the course's: it prints its message and returns the earned points.
EXERCISE = '''\
# %% [markdown]
# # A toy to practise on

# %%
def check(exercise, function):
    """Say how it went and return the points."""
    points, argument, expected = {"7.1": (2, 3, 6), "7.2": (3, 3, 9)}[exercise]
    try:
        passed = function(argument) == expected
    except NotImplementedError:
        print(exercise, "not attempted")
        return 0
    print(exercise, "passed" if passed else "not yet")
    return points if passed else 0


# %% [markdown]
# ## 7.1 Double it


# %%
def double(number):
    """Return twice `number`."""
    ### BEGIN SOLUTION
    result = number + number
    return result
    ### END SOLUTION


# %%
check("7.1", double)

# %% [markdown]
# ## 7.2 Square it, with a helper of your own


# %%
def helper(number):
    """Return whatever helps."""
    ### BEGIN SOLUTION
    return number
    ### END SOLUTION


# %%
def square(number):
    """Return `number` times itself."""
    if number == 0:
        return 0
    ### BEGIN SOLUTION
    return helper(number) * number
    ### END SOLUTION


# %%
# Two lines are fine as long as the call is the last.
check("7.2", square)
'''

MANUAL = """
# %% [markdown] manual_points=4
# Why is it exact?
#
# <!-- BEGIN SOLUTION -->
# Because the two sums are equal.
# <!-- END SOLUTION -->
"""


def toy(root: Path, exercise: str = EXERCISE, lesson: str = LESSON) -> dict[str, Product]:
    """Write the toy course to `root` and return its products by kind."""
    folder = root / "source" / "07_toy"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("lesson.py", lesson), ("exercise.py", exercise)):
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return {product.kind: product for product in products(root)}
