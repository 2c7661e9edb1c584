"""The main job: a real data set through the fleet and Spark, exactly once, with the Spark driver killed twice."""
