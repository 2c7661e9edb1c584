"""The main job: a real data set through fleet and Spark, exactly once, while drivers, a worker, a broker are killed."""
