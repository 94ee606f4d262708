"""The continuous runner: tasks that run all the time, in the workers of a Spark barrier stage.

driver      the runner, and one Spark job for each attempt
control     the driver's end of the lines to workers
link        a worker's end
wire        what is said on them
worker      the tasks of one worker, and its loop
channel     rows and barriers from worker to worker
"""
