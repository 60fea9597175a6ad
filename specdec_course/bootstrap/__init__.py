"""What `course.py` does. Runs before anything is installed, so it uses the standard library alone."""
