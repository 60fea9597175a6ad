"""The one command of the course: makes everything ready, then does one thing.

    python3 course.py learn       open the first lesson in JupyterLab
    python3 course.py demo        watch a language model decode speculatively
    python3 course.py test        run the tests
    python3 course.py setup       only make everything ready

This file is readable to every Python since 2.7, so that the wrong one gets a sentence instead of a syntax error. The
work is done in specdec_course/bootstrap, with the standard library alone.
"""

import os
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is younger than Python 2.7
OLDEST, NEWEST = (3, 11), (3, 14)

if not OLDEST <= sys.version_info[:2] <= NEWEST:
    sys.stderr.write(
        "course.py: this is Python {}.{}, and the course needs Python {}.{} to {}.{}, for which PyTorch is built: "
        "install one from https://www.python.org/downloads/ and run course.py with it.\n".format(
            *(sys.version_info[:2] + OLDEST + NEWEST)
        )
    )
    sys.exit(1)

if __name__ == "__main__":
    sys.path.insert(0, ROOT)
    from specdec_course.bootstrap.main import main

    sys.exit(main(ROOT, sys.argv[1:]))
