"""Should speculation be switched on? The same requests with and without it, and a verdict that follows from numbers.

`plan` says what is asked, `cell` measures one combination with the pieces of `specdec_course.benchmark`, `run` goes
through all of them and can be stopped and started again. `verdict` decides, `plots`, `page` and `csv_file` show.
"""
