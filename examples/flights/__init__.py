"""The main job: a real data set through the fleet and Spark, exactly once, with killed drivers and a killed broker."""
